"""The commands of the line: prepare, pre-train, and their settings."""
