"""Attention of few queries, by a kernel whose CTAs take parts of the keys; and what `Attention.of` chooses for tensors."""

from __future__ import annotations

import functools
from typing import Any

from tmapipe import math as values_
from tmapipe.barrier import BarrierRing, Role
from tmapipe.base.arithmetic import LOG2_E, Dim, ceil_div, fp32
from tmapipe.bind.tensors import new_like
from tmapipe.errors import check_bool, is_count, require
from tmapipe.kernel import KernelContext
from tmapipe.protocol.tile import Tile
from tmapipe.schedule import Schedule
from tmapipe.schedules.attention import LEAST, NEVER, Attention, by_group, clamp, keys_of, rows_of
from tmapipe.schedules.rowform import address_of
from tmapipe.schedules.rows import MULTIPROCESSORS
from tmapipe.stage import TmaLoadStage
from tmapipe.store_pipeline import ThreadStoreStage, TmaStoreStage
from tmapipe.tiles.dynamic import DynamicTiles
from tmapipe.tiles.persistent import Backwards


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
            require(is_count(count), f"SplitAttention({name})", count, f"is a number of {name}", "use 8")
        # A CTA takes its next part when the part before has been loaded. Parts that are fixed beforehand are as fast.
        super().__init__(d, lse=lse or parts > 1, tile=(rows, 1, None), tiles=DynamicTiles(stages=0), **options)
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
        return cls(**Choice(q, k, v, options).in_parts())

    def _bounds(self, k: KernelContext, tile: Tile) -> tuple[Any, Any, Any, Any]:
        """As of `Attention`, of the tile's part: where there is none, a block behind all keys."""
        first, whole, end, last = super()._bounds(k, tile)
        if self.parts == 1:
            return first, whole, end, last
        isa, behind, each = k.isa, k.steps("k", "s"), ceil_div(last - first + 1, k.extent("c"))
        high = last - tile.c * each
        low = isa.select(high < first, behind, clamp(isa, high - (each - 1), last, first))
        high = isa.select(high < first, behind, high)
        end = clamp(isa, end, high, low)
        return low, clamp(isa, whole, end, low), end, high

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
        q, k = given["q"], given["k"]
        together, blocks = q.shape[1] // max(1, k.shape[1]), ceil_div(k.shape[2], self.keys_a_block)
        rule = f"is {self.together} times that of k, as SplitAttention(heads) says"
        fits = together == self.together or not (self.causal or self.score or self.with_sinks)
        require(fits, "q.shape[1]", q.shape[1], rule, f"say heads={together}")

        def apart(x: Any) -> Any:
            # Where rows may come in any order, they keep the order of most tensors, so that no copy is needed.
            return by_group(x, k).swapaxes(2, 3) if self.together > 1 else by_group(x, k)

        def merged(x: Any) -> Any:
            return apart(x).reshape(q.shape[0], k.shape[1], together * q.shape[2], *x.shape[3:])

        rows = merged(q)
        found: dict[str, Any] = {name: merged(given[name]) for name in ("o", "lse") if name in given}  # perhaps a copy
        results = found
        if self.parts > 1:
            each = ceil_div(blocks, min(self.parts, max(1, blocks)))
            shape = (*rows.shape[:2], ceil_div(blocks, each), rows.shape[2])
            lse = new_like(q, (*shape[:3], ceil_div(shape[3], 4) * 4), fp32)[..., : shape[3]]
            results = {"o": new_like(q, (*shape, self.width), fp32), "lse": lse}
        # All by name: then a call's signature is known, and its launcher is kept.
        Schedule.__call__(self, **(given | {"q": rows} | results))
        if self.parts > 1:
            self.combine(x=results["o"], l=results["lse"], **found)
        for name, x in found.items():
            if address_of(x) != address_of(given[name]):
                target = apart(given[name])
                target[...] = x.reshape(target.shape)
        return (given["o"], given["lse"]) if self.returns_lse else given["o"]


class WindowAttention(Attention):
    """`Attention` of a window of keys. Each warpgroup visits the blocks of 64 keys that its 64 queries see, counted from the
    tile's last query, and passes over those that only other warpgroups see.

    Args:
        window: How many keys a query sees at most: the last ones.
        d: Elements of a head, as of `Attention`.
        causal: "start" or "end", as of `Attention`.
        queries: Of a tile, 64 for each warpgroup.
        options: scale, score without a mask, lse and tiles, as of `Attention`.

    Raises:
        InputError: As `Attention`.
    """

    def __init__(
        self, window: int, d: int | tuple[int, int] = 64, *, causal: str = "end", queries: int = 192, **options: Any
    ):
        super().__init__(d, causal=causal, window=window, tile=(queries, 1, 64), **options)
        rule = "is of keys counted from a tile's last query, where TMA cannot begin a tile of a mask"
        require(not self.mask_dims, "WindowAttention(mask)", self.mask_dims, rule, "use Attention")
        self.groups, self.order = queries // 64, None  # without turns: warpgroups are at different blocks
        self.free = max(
            0, window // 64 - 1
        )  # blocks of a warpgroup after its first that all its queries see as a whole
        self.partly = (window + 62) // 64 - self.free  # those after them

    def _end(self, k: KernelContext, tile: Tile) -> Any:
        """The number of the key behind the last one that the tile sees."""
        return (tile.m + 1) * self.rows + self._offset(k)

    def _own(self, k: KernelContext) -> Any:
        """The number of the warpgroup."""
        return k.isa.warp // 4 - k.role.first_warp // 4

    def _start(self, k: KernelContext, tile: Tile, block: Any) -> Any:
        """Block 0 is the last one that the first warpgroup sees, and so on; blocks before it have negative numbers."""
        return self._end(k, tile) + (block - self.groups) * 64

    def _blocks(self, k: KernelContext, tile: Tile) -> tuple[Any, tuple[Any, ...], Any]:
        """As of `Attention`; of those that work, of the warpgroup. The first tiles have less whole blocks, and then one more
        for each warpgroup, which may lie before the first key."""
        isa, end, groups = k.isa, self._end(k, tile), self.groups
        whole = clamp(isa, (end - 1) // 64 - groups, self.free)
        partly = isa.select(whole < self.free, groups, self.partly) if self.free else self.partly
        if self.causal == "start":  # where keys are missing, none is
            partly = isa.select(end > k.extent("s"), partly + whole, partly)
            whole = isa.select(end > k.extent("s"), 0, whole)
        some = ((0, whole, ""), (whole, partly, "<" if self.causal == "end" else "<>"))
        if k.role.name == "work":
            last = self._own(k)
            return last, some, last - whole - partly
        return groups - 1, ((0, groups - 1, ""), *((done + groups - 1, n, at) for done, n, at in some)), -whole - partly

    def _visible(self, k: KernelContext, tile: Tile, scores: Any, block: Any, unseen: str, last: bool) -> Any:
        """As of `Attention`; a block may begin before the first key."""
        scores = values_.where(scores.columns >= -self._start(k, tile, block), scores, NEVER)
        return super()._visible(k, tile, scores, block, unseen, True)

    def _fill_keys(self, k: KernelContext, tile: Tile, block: Any) -> None:
        with k.keys.produce() as slot:
            slot.k.load_from(tile.b, self._group(k, tile), self._start(k, tile, block), 0)

    def _fill_values(self, k: KernelContext, tile: Tile, block: Any) -> None:
        with k.values.produce() as slot:
            slot.v.load_from(tile.b, self._group(k, tile), self._start(k, tile, block), 0)

    @Attention.work.jit
    def attend(self, k: KernelContext, tile: Tile) -> None:
        for _ in range(self.groups - 1 - self._own(k)):
            k.keys.pass_over()
            k.values.pass_over()
        Attention.attend(self, k, tile)
        for _ in range(self._own(k)):
            k.keys.pass_over()
            k.values.pass_over()


class Choice:
    """The options of `Attention` and `SplitAttention` for tensors of some shapes, as measured on an H200.

    Args:
        q, k, v: The tensors. v: None: as k.
        options: As of `Attention`.

    Raises:
        InputError: They have not the shape of heads of batches, or for options that `Attention` refuses.
    """

    def __init__(self, q: Any, k: Any, v: Any, options: dict[str, Any]):
        for name, tensor in (("q", q), ("k", k), ("v", k if v is None else v)):
            shape = getattr(tensor, "shape", None)
            fits = isinstance(shape, tuple) and len(shape) == 4
            rule, given = "is a tensor of dimensions batch, heads, tokens, d", tensor if shape is None else shape
            require(fits, name, given, rule, "pass a view with these")
        self.batch, self.heads, self.m, d = q.shape
        self.groups, self.s, self.d = k.shape[1], k.shape[2], (d, (k if v is None else v).shape[3])
        self.together, self.widest = self.heads // max(1, self.groups), max(self.d)
        self.options, self.given = options, Attention(self.d, **options)
        self.rows = 64 if self.together * self.m <= 64 else rows_of(*self.d)  # of all heads of a group
        self.masks_rows = bool({"h", "m"} & {*self.given.mask_dims})

    def form(self, cls: type[Attention] = Attention) -> tuple[type[Attention], dict[str, Any]]:
        """What *cls* takes: a class, and its options."""
        if cls is Attention and self.parts:
            return SplitAttention, self.in_parts()
        found = {"d": self.d, "tile": self._tile(), **self.options}
        few = (
            self.given.window is not None
            and self.given.window <= 512
            and self.widest <= 64
            and not self.given.mask_dims
        )
        if cls is Attention and few and found["tile"] == (192, 1, None):
            cls = WindowAttention
            del found["tile"]
            found["causal"] = "end" if self.m == self.s else self.given.causal
        if self.given.causal:  # tiles of a window take equal times, but for the first ones
            window, s = self.given.window, self.s
            seen = s if window is None else min(s, window + rows_of(*self.d))
            order = Backwards(self._band(seen))
            found.setdefault("tiles", DynamicTiles(order, stages=0 if 2 * seen > s else 2))
        return cls, found

    def in_parts(self) -> dict[str, Any]:
        """Those of `SplitAttention`."""
        given, found = self.given, {**self.options}
        if given.causal == "end" and self.m == 1 and given.window is None:
            found["causal"] = None  # the one query sees all keys
        rows_differ = found.get("causal") or given.score or given.with_sinks
        heads = self.together if rows_differ else 1
        return {"parts": max(1, self.parts), "d": self.d, "heads": heads, "rows": self.rows, **found}

    def _tile(self) -> tuple[int, int, int | None]:
        """Of `Attention`."""
        given, m, rows = self.given, self.m, rows_of(*self.d)
        if m < 64 and self.together > 1 and 64 % self.together == 0 and not (given.with_lse or self.masks_rows):
            rows = 64 if m * self.together <= 64 else 128  # two warpgroups read keys once, and take turns
            return rows // self.together, self.together, None
        if m <= 64:
            return 64, 1, None
        if given.score and 96 < self.widest <= 128 < m:
            return 192, 1, 80  # three warpgroups: two would not hide so long a softmax
        if rows == 192 and (m <= 128 or (self.widest <= 64 and given.causal and self.s <= 1024)):
            return 128, 1, None
        plain = given.causal is None and not (given.mask_dims or given.with_sinks)
        return rows, 1, 176 if plain and self.s >= 8192 and 64 < self.widest <= 128 == rows else None

    def _band(self, seen: int) -> int:
        """Heads that causal tiles go through at once: so many that the last tiles are short, and fewer where L2 would not hold
        the keys and values of so many heads of more than 64 elements. Where few heads would be left for the last band, whose
        long tiles then end last, another number. seen: keys that a query sees at most."""
        if self.widest <= 64:
            band = 32 if self.m <= 1024 else 16
        else:
            held = (24 << 20) * self.together // max(1, 2 * seen * sum(self.d))
            most = min(max(held, 1), ceil_div(512, max(1, ceil_div(self.m, rows_of(*self.d)))))
            band = 1 << (most.bit_length() - 1)
        if self.heads < band or not 0 < self.heads % band < band / 2:
            return band
        return max(range(band // 2 + 1, 2 * band), key=lambda n: ((self.heads % n or n) / n, n))

    @functools.cached_property
    def parts(self) -> int:
        """Into how many parts keys are divided: those with which an H200's multiprocessors, each at one part at a time, end
        first. 0 where `Attention` takes it: of many queries, of a mask that varies with them or their heads, or of one part,
        unless the heads of a group cannot share its tiles."""
        given, m, s = self.given, self.m, self.s
        own = {"tile", "tiles"} & {name for name, option in self.options.items() if option is not None}
        if own or self.masks_rows or given.causal == "start" or not (self.batch and self.groups):
            return 0
        rows, together = self.rows, self.together
        tiles = ceil_div(together * m, rows)
        alone = together * ceil_div(m, 64 if m <= 64 else rows_of(*self.d))  # tiles of one head each
        if rows > 64 and (s < 1024 or 5 * tiles > 4 * alone):
            return 0
        blocks = ceil_div(s if given.window is None else min(s, given.window + m), keys_of(*self.d, rows))

        def time(parts: int) -> float:
            # In blocks. A tile begins in the time of one block, as measured; a second kernel takes two.
            rounds = ceil_div(self.batch * self.groups * tiles * parts, MULTIPROCESSORS)
            return rounds * (ceil_div(blocks, parts) + 1) + (2 + parts / 8 if parts > 1 else 0)

        parts = min(range(1, max(2, blocks // 8 + 1)), key=time)
        return parts if parts > 1 or (together > 1 and (64 % together or given.with_lse or m >= 64)) else 0


# ---- combineparts: the end of attention whose keys are taken in parts ------------------------------------------------


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
            less = values_.maximum(higher, LEAST)
            before, now = values_.exp2(top - less), values_.exp2(power - less)
            total, weight, top = total * before + values * now, weight * before + now, higher
        k.o.store(tile, total * (1 / values_.where(weight == 0, 1.0, weight)))
        if self.with_lse:
            k.lse.store(tile, (top + values_.log2(weight)) * (1 / LOG2_E))
