"""Models and data to figures, reports and pictures."""
