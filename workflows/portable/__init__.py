"""A model folder to a graph for other programs, compared with the model."""
