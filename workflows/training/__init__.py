"""What pre-training and fine-tuning share: the driver's half, the worker's half, their news."""
