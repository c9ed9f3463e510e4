"""From declarations to numbers."""
