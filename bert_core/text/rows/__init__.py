"""Token shards become rows, masks and batches, as functions of seed and position."""
