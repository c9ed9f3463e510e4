"""Orders of output tiles."""
