"""What a pre-trained encoder can be asked without fine-tuning, through the heads it was taught."""
