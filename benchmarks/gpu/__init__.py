"""All GPU measurements by one command: `python -m benchmarks.gpu`."""
