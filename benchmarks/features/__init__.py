"""Embeddings beside sentence-transformers and transformers: `python -m benchmarks.features`."""
