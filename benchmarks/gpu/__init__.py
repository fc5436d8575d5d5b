"""Every figure of a GPU by one command: `python -m benchmarks.gpu`."""
