"""Tile schedulers: the orders in which persistent CTAs take output tiles, and the rasters that some of these orders follow."""

from tmapipe.tiles.dynamic import DynamicTiles, GpcTiles, GridTiles
from tmapipe.tiles.grouped import GroupedTiles, SplitKTiles, StreamKTiles
from tmapipe.tiles.persistent import Backwards, Columns, Grouped, Hilbert, PersistentTiles, Snake, Triangle

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
    "Triangle",
]
