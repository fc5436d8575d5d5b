"""Serving of exported model folders."""
