"""Model folders as versions in the registry: card, lineage, the way back to the text."""
