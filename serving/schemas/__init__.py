"""What clients send and get: pydantic models, a file for each family of routes."""
