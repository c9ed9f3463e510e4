"""program: the front end, and the traced program."""
