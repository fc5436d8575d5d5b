"""Pre-training through XLA, for TPU: the unchanged model and loss as one compiled JAX program."""
