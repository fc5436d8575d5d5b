"""An encoder in minutes on bert_core alone: `python -m benchmarks.encoder_run`."""
