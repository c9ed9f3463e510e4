"""What users declare besides rings, loads and stores: matmuls, sums, scratch, tables, turns, stages of their own kinds."""
