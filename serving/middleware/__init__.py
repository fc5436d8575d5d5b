"""ASGI middleware, and the connections below it."""
