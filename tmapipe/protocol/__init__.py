"""What bodies hold: ends of rings, open slots, stores, accumulators, turns."""
