"""Training: optimizer and schedule, the loop, checkpoints, evaluation. Knows no cluster."""
