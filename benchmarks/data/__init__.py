"""Text preparation and loading: `python -m benchmarks.data`."""
