"""A study to encoders trained otherwise, what they learn after that, and a report."""
