"""Tile schedulers: the orders in which persistent CTAs take output tiles."""
