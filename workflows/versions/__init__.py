"""Model folders as versions in the registry: registration, card, lineage."""
