"""Pre-training beside transformers: `python -m benchmarks.pretraining`."""
