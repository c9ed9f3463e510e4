"""Random expressions of fragments: what the model and the device must agree on, and NumPy with both.

All numbers are small until the last step, so every order of additions and every fused multiplication gives the same bits.
Only the outermost function may be inexact.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np

import tmapipe as tp

__all__ = ["Whole", "make", "random_expression", "value_of"]

TILES = ((16, 64), (4, 128), (2, 512), (1, 1024), (64, 32), (8, 256))
BINARY = ("add", "sub", "mul", "maximum", "minimum", "larger", "between")
UNARY = (
    "neg",
    "abs",
    "cast",
    "floor",
    "row_sum",
    "row_max",
    "row_min",
    "column_sum",
    "column_max",
    "column_min",
    "few",
)
LEAVES = ("x", "y", "rows", "columns", "stripes", "wrapped", "two", "minus")
LAST = ("same", "exp2", "log2", "sqrt", "sigmoid", "tanh", "exp", "reciprocal")


def random_expression(rng: random.Random, depth: int = 4) -> tuple[Any, ...]:
    """A tree: (name, operands)."""

    def grow(left: int) -> tuple[Any, ...]:
        kind = rng.random()
        if left == 0 or kind < 0.15:
            return (rng.choice(LEAVES),)
        if kind < 0.45:
            return rng.choice(UNARY), grow(left - 1)
        return rng.choice(BINARY), grow(left - 1), grow(left - 1)

    return rng.choice(LAST), ("add", ("x",), grow(depth))


class Whole:
    """The functions on NumPy arrays of the whole tile."""

    minimum, maximum, where, floor = np.minimum, np.maximum, np.where, np.floor
    exp, exp2, log2, sqrt, tanh = np.exp, np.exp2, np.log2, np.sqrt, np.tanh
    abs = np.abs

    @staticmethod
    def sigmoid(x: Any) -> Any:
        return 1 / (1 + np.exp(-x))

    @staticmethod
    def cast(x: Any, dtype: str) -> Any:
        return np.asarray(x, np.float32).astype(tp.dtypes.bf16.numpy).astype(np.float32)

    @staticmethod
    def row_sum(x: Any, inside: Any = None) -> Any:
        return x[:, :inside].sum(1, keepdims=True)

    @staticmethod
    def row_max(x: Any, inside: Any = None) -> Any:
        return x[:, :inside].max(1, keepdims=True)

    @staticmethod
    def row_min(x: Any, inside: Any = None) -> Any:
        return x[:, :inside].min(1, keepdims=True)

    @staticmethod
    def column_sum(x: Any, inside: Any = None) -> Any:
        return x[:inside].sum(0, keepdims=True)

    @staticmethod
    def column_max(x: Any, inside: Any = None) -> Any:
        return x[:inside].max(0, keepdims=True)

    @staticmethod
    def column_min(x: Any, inside: Any = None) -> Any:
        return x[:inside].min(0, keepdims=True)


def value_of(tree: tuple[Any, ...], x: Any, y: Any, rows: Any, columns: Any, functions: Any) -> Any:
    """The expression, of fragments with `tmapipe.math` or of arrays with `Whole`."""
    f = functions

    def small(v: Any) -> Any:
        return f.minimum(f.maximum(v, -64.0), 64.0)

    def go(node: tuple[Any, ...]) -> Any:
        name, *parts = node
        given = [go(part) for part in parts]
        if name.startswith(("row_", "column_")):
            return small(getattr(f, name)(x * 0.0 + given[0], 23 if name.startswith("row") else 7))  # of a whole tile
        return {
            "x": lambda: x,
            "y": lambda: y,
            "rows": lambda: rows * 1.0,
            "columns": lambda: small(columns % 37 * 1.0),
            "stripes": lambda: ((columns // 3 - 9) % 5 - (rows - 4) // 3) * 1.0,
            "wrapped": lambda: ((columns - 5) * 2**29 // 2**26 + rows % 4) * 1.0,  # beyond 32 bits
            "two": lambda: 2.0,
            "minus": lambda: -1.0,
            "add": lambda: small(given[0] + given[1]),
            "sub": lambda: small(given[0] - given[1]),
            "mul": lambda: small(given[0] * given[1]),
            "maximum": lambda: f.maximum(*given),
            "minimum": lambda: f.minimum(*given),
            "larger": lambda: f.where(given[0] + x * 0.0 > given[1], given[0], given[1] - 1.0),
            "between": lambda: f.where((given[0] + x * 0.0 >= -3) & (given[1] + x * 0.0 != 2), 1.0, x),
            "neg": lambda: -given[0],
            "abs": lambda: f.abs(given[0]),
            "cast": lambda: f.cast(x * 0.0 + given[0], "bf16"),
            "floor": lambda: f.floor(small(given[0]) * 0.25),
            "few": lambda: f.where(columns < 11, given[0], y),
        }[name]()

    last, tree = tree
    found = small(go(tree))
    return {
        "same": lambda: found,
        "exp2": lambda: f.exp2(found * 0.25),
        "exp": lambda: f.exp(found * 0.125),
        "log2": lambda: f.log2(f.abs(found) + 1.0),
        "sqrt": lambda: f.sqrt(f.abs(found)),
        "sigmoid": lambda: f.sigmoid(found * 0.125),
        "tanh": lambda: f.tanh(found * 0.125),
        "reciprocal": lambda: 1.0 / (f.abs(found) + 1.0),
    }[last]()


def make(tree: tuple[Any, ...], tile: tuple[int, int], transposed: bool) -> tp.Schedule:
    """A schedule that computes the expression of x and y, tile by tile."""
    out = (tile[1], tile[0]) if transposed else tile

    class Expression(tp.Schedule):
        load, work = tp.Role(warps=1), tp.Role(warpgroups=1)
        ring = tp.BarrierRing(2, producer=load, consumer=work)
        x = tp.TmaLoadStage("m n", tile=tile, ring=ring, dtype="fp32")
        y = tp.TmaLoadStage("m n", tile=tile, ring=ring, dtype="fp32")
        d = tp.TmaStoreStage("n m" if transposed else "m n", tile=out, role=work, dtype="fp32")
        across = tp.ReductionScratch(work, rows=tile[0], columns=out[1])

        @load.jit
        def fill(self, k, tile):
            with k.ring.produce() as slot:
                slot.x.load(tile)
                slot.y.load(tile)

        @work.jit
        def compute(self, k, tile):
            with k.ring.consume() as slot:
                x, y = slot.x.read(transposed=transposed), slot.y.read(transposed=transposed)
            k.d.store(tile, value_of(tree, x, y, x.rows, x.columns, tp.math))

    return Expression()


def expected(
    tree: tuple[Any, ...], x: np.ndarray, y: np.ndarray, tile: tuple[int, int], transposed: bool
) -> np.ndarray:
    """What NumPy makes of it, tile by tile."""
    as_asked = (lambda a: a.T) if transposed else (lambda a: a)
    out = np.empty_like(as_asked(x))
    for m in range(0, x.shape[0], tile[0]):
        for n in range(0, x.shape[1], tile[1]):
            place = slice(m, m + tile[0]), slice(n, n + tile[1])
            a, b = as_asked(x[place]), as_asked(y[place])
            rows, columns = (np.arange(size, dtype=np.int32) for size in a.shape)
            rows, columns = rows[:, None], columns[None]
            with np.errstate(all="ignore"):
                found = value_of(tree, a, b, rows, columns, Whole)
            out[place[::-1] if transposed else place] = found
    return out


def problem(rng: random.Random) -> tuple[tuple[Any, ...], tuple[int, int], bool, np.ndarray, np.ndarray]:
    """A random expression, tile, form and inputs of whole tiles."""
    transposed = rng.random() < 0.4
    tile = (rng.choice((8, 16, 64)), 64) if transposed else rng.choice(TILES)
    shape = tile[0] * rng.randint(1, 2), tile[1] * rng.randint(1, 2)
    source = np.random.default_rng(rng.getrandbits(40))
    x, y = (source.integers(-4, 5, shape).astype(np.float32) for _ in range(2))
    return random_expression(rng), tile, transposed, x, y
