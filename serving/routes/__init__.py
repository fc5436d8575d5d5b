"""What clients may ask over HTTP, a file for each family of routes."""
