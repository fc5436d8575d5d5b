"""Metrics to MLflow, sent by a process of its own."""
