"""prove: every trip count and shape, from the structure of the traced program."""
