"""Settings with axes to trials, a report, and a winner."""
