"""Metrics, drift and traces."""
