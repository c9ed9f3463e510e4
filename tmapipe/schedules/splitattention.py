"""Attention of few queries with many keys, such as a decoder's: parts of the keys at once, and a kernel that combines them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tmapipe import math as values_
from tmapipe.barrier import BarrierRing, Role
from tmapipe.base.arithmetic import Dim, ceil_div, fp32
from tmapipe.bind.tensors import new_like
from tmapipe.errors import InputError, check_bool, is_count
from tmapipe.kernel import KernelContext
from tmapipe.protocol.tile import Tile
from tmapipe.schedule import Schedule
from tmapipe.schedules.attention import (
    LEAST,
    LOG2_E,
    NEVER,
    Attention,
    Score,
    clamp,
    heads_last,
    keys_of,
    rows_of,
)
from tmapipe.stage import TmaLoadStage
from tmapipe.store_pipeline import ThreadStoreStage, TmaStoreStage
from tmapipe.tiles.dynamic import DynamicTiles
from tmapipe.tiles.persistent import Backwards

__all__ = ["CombineParts", "SplitAttention"]


class CombineParts(Schedule):
    """``o[b, h, m] = sum over c of w[c] x[b, h, c, m]``, w the softmax over c of the logarithms ``l[b, h, c, m]``.

    Args:
        width: Elements of a row of x and o.
        lse: Whether there is a second output, [b, h, m] in fp32: the logarithm of the sum over c of the powers of e.
    """

    load, work = Role(warps=1), Role(warps=4)

    def __init__(self, width: int = 128, lse: bool = False):
        check_bool("lse", lse)
        self.relations = (Dim("e", size=width),)
        self.ring = BarrierRing(4, producer=self.load, consumer=self.work)
        self.x = TmaLoadStage("b h c m e", tile=(8, width), ring=self.ring, dtype="fp32")
        self.l = TmaLoadStage("b h c m", tile=(8,), ring=self.ring, dtype="fp32")
        self.o = TmaStoreStage("b h m e", tile=(8, width), role=self.work)
        self.with_lse = lse
        if lse:
            self.lse = ThreadStoreStage(dims="b h m", tile=(8,), role=self.work, vector=4, dtype="fp32")

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
            less = values_.maximum(higher, LEAST)  # of a row of which no part sees a key
            before, now = values_.exp2(top - less), values_.exp2(power - less)
            total, weight, top = total * before + values * now, weight * before + now, higher
        k.o.store(tile, total * (1 / values_.where(weight == 0, 1.0, weight)))
        if self.with_lse:
            k.lse.store(tile, (top + values_.log2(weight)) * (1 / LOG2_E))


class SplitAttention(Attention):
    """`Attention` of few queries: each CTA takes a part of the keys, and `CombineParts` adds the CTAs' sums, if there are
    several parts.

    The queries of all heads of a group are the rows of one matrix, so that keys and values are read once.

    Args:
        parts: How many parts keys are divided into, at most.
        d: Elements of a head, as of `Attention`.
        heads: How many share a group, where attention is causal, or has a score or sinks; else of any number.
        lse: Whether the call returns (o, lse).
        rows: Of a tile, which are queries of all these heads: a multiple of 64.
        options: causal, window, scale, and a score with a mask of keys alone or none, as of `Attention`.

    Raises:
        InputError: As `Attention`.
    """

    one_kernel, merges_heads = False, True

    def __init__(
        self,
        parts: int,
        d: int | tuple[int, int] = 128,
        *,
        heads: int = 1,
        lse: bool = False,
        rows: int = 64,
        **options: Any,
    ):
        for name, count in (("parts", parts), ("heads", heads), ("rows", rows)):
            if not is_count(count):
                raise InputError(f"SplitAttention({name})", count, f"is a number of {name}", "use 8")
        pair = d if isinstance(d, tuple) and len(d) == 2 else (d, d)
        keys = keys_of(*pair, rows) if all(map(is_count, pair)) else 128
        # A CTA takes its next part when the part before has been loaded. Parts that are fixed beforehand are as fast.
        super().__init__(d, lse=lse or parts > 1, tile=(rows, 1, keys), tiles=DynamicTiles(stages=0), **options)
        self.parts, self.together, self.returns_lse = parts, heads, lse
        if parts == 1:
            return
        self.combine, self.over = CombineParts(self.width, lse), "b h c m"  # h: of a group
        self.o = TmaStoreStage("b h c m e", source=self.pv, tile=(rows, self.width), dtype="fp32", stages=1)
        self.lse = ThreadStoreStage(dims="b h c m", tile=(rows,), role=self.work, vector=4, dtype="fp32")

    @classmethod
    def of(cls, q: Any, k: Any, v: Any = None, **options: Any) -> SplitAttention:
        """The schedule for tensors like *q*, *k* and *v*, in as many parts as `Attention.of` would choose. options: as of the
        constructor."""
        width = width_of(q, k, v, options)
        parts = max(1, parts_for(q.shape, k.shape, width, options))
        if options.get("causal") == "end" and q.shape[2] == 1 and options.get("window") is None:
            options["causal"] = None  # the one query sees all keys
        score = Score.of(options.get("score"))
        rows_differ = options.get("causal") or score.function or score.sinks
        together = q.shape[1] // max(1, k.shape[1]) if rows_differ else 1
        rows = tile_rows(q.shape, k.shape, width)
        return cls(parts, (q.shape[3], width), heads=together, rows=rows, **options)

    def _queries(self, k: KernelContext) -> Any:
        return k.extent("m") // self.together

    def _part(
        self, k: KernelContext, tile: Tile, first: Any, begin: Any, free: Any, last: Any
    ) -> tuple[Any, tuple[Any, ...], Any]:
        """As of `Attention`, of the tile's part: where there is none, a block behind all keys."""
        if self.parts == 1:
            return super()._part(k, tile, first, begin, free, last)
        isa, behind, each = k.isa, k.steps("k", "s"), ceil_div(last - first + 1, k.extent("c"))
        high = last - tile.c * each
        low = isa.select(high < first, behind, clamp(isa, high - (each - 1), first, last))
        high = isa.select(high < first, behind, high)
        free = clamp(isa, free, low, high)
        return super()._part(k, tile, low, clamp(isa, begin, low, free), free, high)

    def _fill_keys(self, k: KernelContext, tile: Tile, block: Any) -> None:
        first = block * self.keys_a_block  # perhaps behind all keys
        with k.keys.produce() as slot:
            slot.k.load_from(tile.b, self._group(k, tile), first, 0)
        if self.mask_dims:
            with k.masks.produce() as slot:
                slot.mask.load_from(tile.b, first)

    def _fill_values(self, k: KernelContext, tile: Tile, block: Any) -> None:
        with k.values.produce() as slot:
            slot.v.load_from(tile.b, self._group(k, tile), block * self.keys_a_block, 0)

    def _sink(self, k: KernelContext, tile: Tile, slot: Any, row: Any) -> Any:
        """As of `Attention`, in the first part alone."""
        sink = super()._sink(k, tile, slot, row)
        return sink if self.parts == 1 else values_.where(row < k.isa.select(tile.c == 0, self.rows, 0), sink, NEVER)

    def __call__(self, *tensors: Any, out: Any = None, **named: Any) -> Any:
        """Runs the schedule as `Schedule.__call__` does: q, k, v, the mask and sinks if it has them, then o, and lse."""
        given = self.given(tensors, out, named)
        q, k, groups = given["q"], given["k"], given["k"].shape[1]
        together, blocks = q.shape[1] // max(1, groups), ceil_div(k.shape[2], self.keys_a_block)
        if together != self.together and (self.causal or self.score or self.with_sinks):
            rule = f"is {self.together} times that of k, as SplitAttention(heads) says"
            raise InputError("q.shape[1]", q.shape[1], rule, f"say heads={together}")
        each = ceil_div(blocks, min(self.parts, max(1, blocks)))

        def apart(x: Any) -> Any:
            # Where rows may come in any order, they keep the order of most tensors, so that no copy is needed.
            return heads_last(x, groups) if self.together > 1 else heads_last(x, groups).swapaxes(2, 3)

        def merged(x: Any) -> Any:
            return apart(x).reshape(q.shape[0], groups, together * q.shape[2], *x.shape[3:])

        rows = merged(q)
        found: dict[str, Any] = {name: merged(given[name]) for name in ("o", "lse") if name in given}  # perhaps a copy
        results = found
        if self.parts > 1:
            shape = (*rows.shape[:2], ceil_div(blocks, each), rows.shape[2])
            lse = new_like(q, (*shape[:3], ceil_div(shape[3], 4) * 4), fp32)[..., : shape[3]]
            results = {"o": new_like(q, (*shape, self.width), fp32), "lse": lse}
        # All by name: then a call's signature is known, and its launcher is kept.
        Schedule.__call__(self, **(given | {"q": rows} | results))
        if self.parts > 1:
            self.combine(x=results["o"], l=results["lse"], **found)
        for name, x in found.items():
            if not _same_memory(x, given[name]):
                target = apart(given[name])
                target[...] = x.reshape(target.shape)
        return (given["o"], given["lse"]) if self.returns_lse else given["o"]


def width_of(q: Any, k: Any, v: Any, options: dict[str, Any]) -> int:
    """Elements of a row of the values. v: None: as k. Raises `InputError` unless each has the shape of heads of batches, and
    those *options* that shapes decide on are of the right types."""
    for name, tensor in (("q", q), ("k", k), ("v", k if v is None else v)):
        if not isinstance(shape := getattr(tensor, "shape", None), tuple) or len(shape) != 4:
            rule = "is a tensor of dimensions batch, heads, tokens, d"
            raise InputError(name, tensor if shape is None else shape, rule, "pass a view with these")
    if not isinstance(options.get("causal"), str | None):
        raise InputError("Attention(causal)", options["causal"], "is a string or None", "leave it out")
    check_bool("Attention(lse)", options.get("lse", False))
    Score.of(options.get("score"))
    if not isinstance(window := options.get("window"), int | None):
        raise InputError("Attention(window)", window, "is a number of keys or None", "leave it out")
    return int((k if v is None else v).shape[3])


def band_of(d: int, width: int, m: int, s: int, heads: int, together: int) -> int:
    """Heads that causal tiles go through at once, as measured on an H200: so many that the last tiles are short, and fewer
    where L2 would not hold the keys and values of so many heads of more than 64 elements. Where few heads would be left for
    the last band, whose long tiles then end last, another number."""
    if max(d, width) <= 64:
        band = 32 if m <= 1024 else 16
    else:
        held = (24 << 20) * together // max(1, 2 * s * (d + width))
        most = min(max(held, 1), ceil_div(512, max(1, ceil_div(m, rows_of(d, width)))))
        band = 1 << (most.bit_length() - 1)
    if heads < band or not 0 < heads % band < band / 2:
        return band
    return max(range(band // 2 + 1, 2 * band), key=lambda n: ((heads % n or n) / n, n))


def options_for(q: Sequence[int], k: Sequence[int], width: int, options: dict[str, Any]) -> dict[str, Any]:
    """*options*, with those that `Attention.of` chooses for tensors of these shapes."""
    d, m, s, together, found = q[3], q[2], k[2], q[1] // max(1, k[1]), dict(options)
    score, causal, widest = Score.of(options.get("score")), options.get("causal"), max(d, width)
    if m < 64 and together > 1 and 64 % together == 0 and not options.get("lse") and not {"h", "m"} & {*score.dims}:
        rows = 64 if m * together <= 64 else 128  # two warpgroups read keys once, and take turns
        found.setdefault("tile", (rows // together, together, keys_of(d, width, rows)))
    elif m <= 64:
        found.setdefault("tile", (64, 1, keys_of(d, width, 64, "m" in score.dims)))
    elif (score.function or "m" in score.dims) and 96 < widest <= 128 < m:
        found.setdefault("tile", (192, 1, 80))  # three warpgroups: two would not hide so long a softmax
    elif rows_of(d, width) == 192 and (m <= 128 or (widest <= 64 and causal and s <= 1024)):
        found.setdefault("tile", (128, 1, keys_of(d, width, 128, "m" in score.dims)))
    elif 64 < widest <= 128 == rows_of(d, width) and causal is None and s >= 8192 and not (score.mask or score.sinks):
        found.setdefault("tile", (128, 1, 176))
    if causal:  # tiles of a window take equal times, but for the first ones
        seen = s if (window := options.get("window")) is None else min(s, window + rows_of(d, width))
        order = Backwards(band_of(d, width, m, seen, q[1], together))
        found.setdefault("tiles", DynamicTiles(order, stages=0 if 2 * seen > s else 2))
    return found


def parts_for(q: Sequence[int], k: Sequence[int], width: int, options: dict[str, Any]) -> int:
    """Into how many parts `Attention.of` divides the keys of tensors of these shapes: those with which an H200's
    multiprocessors, each at one part at a time, end first. 0 where `Attention` takes it: of many queries, of a mask that
    varies with them or their heads, or of one part, unless the heads of a group cannot share its tiles."""
    groups, together, window = k[1], q[1] // max(1, k[1]), options.get("window")
    given = {name for name, option in options.items() if option is not None and option is not False}
    others = given - {"causal", "window", "scale", "score", "lse"} or {"h", "m"} & {
        *Score.of(options.get("score")).dims
    }
    if others or options.get("causal") == "start" or not (q[0] and groups):
        return 0
    rows, whole = tile_rows(q, k, width), rows_of(q[3], width)
    tiles = ceil_div(together * q[2], rows)
    alone = together * ceil_div(q[2], 64 if q[2] <= 64 else whole)  # tiles of one head each
    if rows > 64 and (k[2] < 1024 or 5 * tiles > 4 * alone):
        return 0
    blocks = ceil_div(k[2] if window is None else min(k[2], window + q[2]), keys_of(q[3], width, rows))

    def time(parts: int) -> float:
        # In blocks. A tile begins in the time of one block, as measured; a second kernel takes two.
        rounds = ceil_div(q[0] * groups * tiles * parts, 132)
        return rounds * (ceil_div(blocks, parts) + 1) + (2 + parts / 8 if parts > 1 else 0)

    parts = min(range(1, max(2, blocks // 8 + 1)), key=time)
    return parts if parts > 1 or (together > 1 and (64 % together or "lse" in given or q[2] >= 64)) else 0


def tile_rows(q: Sequence[int], k: Sequence[int], width: int) -> int:
    """Rows of a tile of `SplitAttention` for tensors of these shapes, which are queries of all heads of a group."""
    return 64 if q[1] // max(1, k[1]) * q[2] <= 64 else rows_of(q[3], width)


def _same_memory(x: Any, y: Any) -> bool:
    return bool(x.data_ptr() == y.data_ptr() if hasattr(x, "data_ptr") else x.ctypes.data == y.ctypes.data)
