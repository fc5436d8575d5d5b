"""A model folder to one in int8, and what it loses by that."""
