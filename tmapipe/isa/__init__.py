"""The instruction set: its operations, and the interface through which bodies use it."""
