"""Files, folders, addresses and documentation become documents and sentences."""
