"""The encoder and its heads: token ids and a layout go in, hidden states and logits come out."""
