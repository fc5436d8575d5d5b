"""What makes CPUs fast: `operations` is the entrance, chosen when a model is on a CPU."""
