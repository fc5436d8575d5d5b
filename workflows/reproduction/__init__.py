"""A run to the same run again: what is recorded of it, and what is compared."""
