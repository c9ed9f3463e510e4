"""Tile schedulers: the orders in which persistent CTAs take output tiles, and the rasters that some of these orders follow."""

from tmapipe.tiles.dynamic import DynamicTiles, GpcTiles
from tmapipe.tiles.grouped import GroupedTiles, SplitKTiles, StreamKTiles
from tmapipe.tiles.persistent import Backwards, Columns, GridTiles, Grouped, Hilbert, PersistentTiles, Snake

__all__ = [
    "Backwards",
    "Columns",
    "DynamicTiles",
    "GpcTiles",
    "GridTiles",
    "Grouped",
    "GroupedTiles",
    "Hilbert",
    "PersistentTiles",
    "Snake",
    "SplitKTiles",
    "StreamKTiles",
]
