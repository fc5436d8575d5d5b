"""Pre-training compared with transformers: `python -m benchmarks.pretraining`."""
