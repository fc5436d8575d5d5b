"""Commands that run ours and its peers in one process and print a table and JSON."""
