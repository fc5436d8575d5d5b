"""Versions behind names: aliases that move, canaries, shadows, and replicas that agree."""
