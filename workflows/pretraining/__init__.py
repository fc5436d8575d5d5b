"""Shards to an encoder: what pre-training adds to a training run."""
