"""Model folders of Hugging Face: the names, shapes and configurations of each family of models."""
