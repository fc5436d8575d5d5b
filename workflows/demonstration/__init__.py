"""What `make demo` trains, serves and asks."""
