"""README's figures from the committed results: `python -m benchmarks.readme`."""
