"""The encoder and its heads: from token ids and a layout to hidden states and logits."""
