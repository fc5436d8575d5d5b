"""What pre-training takes on many devices, reckoned: `python -m benchmarks.scaling`."""
