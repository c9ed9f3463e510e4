"""What everything stands on: numbers and their types, the rules of the TMA engine, clusters, files on disk."""
