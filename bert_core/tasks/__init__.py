"""What differs between tasks, a file each: the batch, the head it uses, the loss, the metrics."""
