"""A study goes in; variants are pre-trained and fine-tuned; a report comes out."""
