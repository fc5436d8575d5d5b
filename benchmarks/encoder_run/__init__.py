"""An encoder in minutes with bert_core alone: `python -m benchmarks.encoder_run`."""
