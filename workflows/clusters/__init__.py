"""Where work runs: cluster settings and capacity, training workers, Ray tasks."""
