"""What pre-training and fine-tuning share: the driver's half and the worker's half."""
