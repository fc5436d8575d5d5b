"""Files of texts to features or predictions, part by part on Ray Data."""
