"""Fine-tuning beside transformers: `python -m benchmarks.finetuning`."""
