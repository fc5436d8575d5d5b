"""Training data to their label errors: folds are trained, and what contradicts them is ranked."""
