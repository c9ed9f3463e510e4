"""From declarations to numbers: roles, registers, arrival counts, bytes, shared memory."""
