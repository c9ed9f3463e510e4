"""Attention of few queries with many keys, such as a decoder's: parts of the keys at once, and a kernel that combines them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tmapipe import math as values_
from tmapipe.barrier import BarrierRing, Role
from tmapipe.base.arithmetic import Dim, ceil_div, fp32
from tmapipe.bind.tensors import match, new_like
from tmapipe.errors import InputError, is_count
from tmapipe.kernel import KernelContext
from tmapipe.protocol.tile import Tile
from tmapipe.schedule import Schedule
from tmapipe.schedules.attention import LOG2_E, Attention, empty_like, keys_of
from tmapipe.stage import TmaLoadStage
from tmapipe.store_pipeline import ThreadStoreStage, TmaStoreStage
from tmapipe.tiles.dynamic import DynamicTiles

__all__ = ["CombineParts", "SplitAttention"]


class CombineParts(Schedule):
    """``o[b, h, m] = sum over c of w[c] x[b, h, c, m]``, w the softmax over c of the logarithms ``l[b, h, c, m]``.

    Args:
        width: Elements of a row of x and o.
    """

    load, work = Role(warps=1), Role(warps=4)

    def __init__(self, width: int = 128):
        self.relations = (Dim("e", size=width),)
        self.ring = BarrierRing(4, producer=self.load, consumer=self.work)
        self.x = TmaLoadStage("b h c m e", tile=(8, width), ring=self.ring, dtype="fp32")
        self.l = TmaLoadStage("b h c m", tile=(8,), ring=self.ring, dtype="fp32")
        self.o = TmaStoreStage("b h m e", tile=(8, width), role=self.work)

    @load.jit
    def fill(self, k: KernelContext, tile: Tile) -> None:
        for c in range(k.steps("x", "c")):
            with k.ring.produce() as slot:
                slot.x.load(tile, c=c)
                slot.l.load(tile, c=c)

    @work.jit
    def combine(self, k: KernelContext, tile: Tile) -> None:
        with k.ring.consume() as slot:
            total: Any = slot.x.read()
            top: Any = slot.l.read(rows_of=total) * LOG2_E
        weight: Any = k.full("x", 1.0, "rows")
        for _ in range(k.steps("x", "c") - 1):
            with k.ring.consume() as slot:
                values = slot.x.read()
                power = slot.l.read(rows_of=values) * LOG2_E
            higher = values_.maximum(top, power)
            before, now = values_.exp2(top - higher), values_.exp2(power - higher)
            total, weight, top = total * before + values * now, weight * before + now, higher
        k.o.store(tile, total * (1 / weight))


class SplitAttention(Attention):
    """`Attention` of few queries, which all see all keys: CTAs take parts of the keys, and `CombineParts` adds what they find.

    The queries of all heads of a group are the rows of one matrix, so that keys and values are read once.

    Args:
        parts: How many parts keys are divided into, at most.
        d: Elements of a head, as of `Attention`.
        scale: Of the products; None: 1 / sqrt(d).

    Raises:
        InputError: As `Attention`.
    """

    one_kernel = False

    def __init__(self, parts: int, d: int | tuple[int, int] = 128, *, scale: float | None = None):
        if not is_count(parts):
            raise InputError("SplitAttention(parts)", parts, "is a number of parts", "use 8")
        pair = d if isinstance(d, tuple) and len(d) == 2 else (d, d)
        keys = keys_of(*pair, 64) if all(map(is_count, pair)) else 128
        super().__init__(d, scale=scale, lse=True, tile=(64, 1, keys), tiles=DynamicTiles())
        self.parts, self.combine = parts, CombineParts(self.width)
        self.over = "b h c m"
        self.o = TmaStoreStage("b h c m e", source=self.pv, tile=(64, self.width), dtype="fp32", stages=1)
        self.lse = ThreadStoreStage(dims="b h c m", tile=(64,), role=self.work, vector=4, dtype="fp32")

    @classmethod
    def of(cls, q: Any, k: Any, v: Any = None, **options: Any) -> SplitAttention:
        """The schedule for tensors like *q*, *k* and *v*, in as many parts as `Attention.of` would choose. options: scale, or
        causal="end" of one query.

        Raises:
            InputError: Another option, with which queries do not see all keys.
        """
        others = [name for name, option in options.items() if name != "scale" and option is not None]
        if others and not (others == ["causal"] and options["causal"] == "end" and q.shape[2] == 1):
            rule = "is no option of SplitAttention, whose queries see all keys"
            raise InputError(f"SplitAttention.of({others[0]})", options[others[0]], rule, "use Attention")
        width = (k if v is None else v).shape[3]
        parts = parts_for(q.shape, k.shape, width, options)
        return cls(parts, (q.shape[3], width), scale=options.get("scale"))

    def _blocks(self, k: KernelContext, tile: Tile) -> tuple[Any, Any, Any, Any]:
        """As of `Attention`, of the tile's part."""
        blocks = k.steps("k", "s")
        each = ceil_div(blocks, k.extent("c"))
        end = k.isa.select((tile.c + 1) * each < blocks, (tile.c + 1) * each, blocks)
        more = end - 1 - tile.c * each
        return end - 1, 0, k.isa.select(more > 0, more, 0), 0

    def __call__(self, *tensors: Any, out: Any = None, **named: Any) -> Any:
        """Runs the schedule as `Schedule.__call__` does: q, k, v, then o."""
        given = match(["q", "k", "v", "o"], tensors, named, out, "o")
        self.check_tensors(given)
        q, k, v = (given[name] for name in "qkv")
        groups, blocks = k.shape[1], ceil_div(k.shape[2], self.keys_a_block)
        rows = q.reshape(q.shape[0], groups, -1, q.shape[3])
        if "o" not in given:
            given["o"] = empty_like(q, self.width)
        o = given["o"].reshape(*rows.shape[:3], self.width)  # a copy, if heads do not lie one after another
        each = ceil_div(blocks, min(self.parts, max(1, blocks)))
        shape = (*rows.shape[:2], ceil_div(blocks, each), rows.shape[2])
        parts = new_like(q, (*shape, self.width), fp32)
        lse = new_like(q, (*shape[:3], ceil_div(shape[3], 4) * 4), fp32)[..., : shape[3]]
        Schedule.__call__(self, rows, k, v, out=parts, lse=lse)
        self.combine(parts, lse, out=o)
        if not _same_memory(o, given["o"]):
            given["o"][...] = o.reshape(given["o"].shape)
        return given["o"]


def parts_for(q: Sequence[int], k: Sequence[int], width: int, options: dict[str, Any]) -> int:
    """Into how many parts `Attention.of` divides the keys of tensors of these shapes: four for each multiprocessor of an H200,
    each of eight blocks or more; 1 where queries do not see all keys or there are many."""
    groups, together = k[1], q[1] // max(1, k[1])
    alone = options.get("causal") is None or (
        options["causal"] == "end" and q[2] == 1 and options.get("window") is None
    )
    others = {name for name, option in options.items() if option is not None and option is not False}
    if not alone or together * q[2] > 64 or others - {"causal", "scale"} or not (q[0] and groups):
        return 1
    blocks = k[2] // keys_of(q[3], width, 64)
    return max(1, min(ceil_div(4 * 132, q[0] * groups), blocks // 8))


def _same_memory(x: Any, y: Any) -> bool:
    return bool(x.data_ptr() == y.data_ptr() if hasattr(x, "data_ptr") else x.ctypes.data == y.ctypes.data)
