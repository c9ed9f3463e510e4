"""Attention of few queries, by a kernel whose CTAs take parts of the keys; and what `Attention.of` chooses for tensors."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import attrs

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
from tmapipe.tiles.dynamic import DynamicTiles, GridTiles
from tmapipe.tiles.persistent import Backwards

# Microseconds on an H200, as measured at 2, 8 and 64 blocks a tile: of a block of 128 keys, by the elements of a head and the
# rows of a tile; of a tile's beginning and end; of a byte of tensors, of partial sums, and of copies; of a further kernel.
BLOCK = {64: {64: 0.75, 128: 1.13, 192: 1.38}, 128: {64: 1.02, 128: 1.46, 192: 2.16}}
BEGIN, KERNEL = 1.0, 5.0
BYTE, PART, COPY = 1 / 4.1e6, 1 / 3.3e6, 1 / 1e6
STORE = 1 / 1800  # of an element of a part's sums, behind which the CTA's next tile waits


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
        self.apart = heads if heads > 1 and 64 % heads == 0 else 1  # heads that q has in a dimension of their own
        # Several parts: a CTA takes its next one when the part before has been loaded.
        order = DynamicTiles(Backwards(1), stages=0 if parts > 1 or options.get("causal") else 2)
        super().__init__(d, lse=lse or parts > 1, tile=(rows, 1, None), tiles=order, **options)
        self.parts, self.together, self.returns_lse = parts, heads, lse
        if parts == 1:
            return
        self.combine, self.over = CombineParts(self.width, lse, heads=self.apart), "b h c m"  # h: of a group
        self.o = TmaStoreStage("b h c m e", source=self.pv, tile=(rows, self.width), dtype="fp32", stages=1)
        self.lse = ThreadStoreStage(dims="b h c m", tile=(rows,), role=self.work, vector=4, dtype="fp32")

    @classmethod
    def of(cls, q: Any, k: Any, v: Any = None, **options: Any) -> SplitAttention:
        """The schedule for tensors like *q*, *k* and *v*, in as many parts as `Attention.of` would choose. options: as of the
        constructor."""
        return cls(**Choice(q, k, v, options).in_parts())

    def _load_of_q(self, own: str, extents: tuple[int, ...]) -> TmaLoadStage:
        if self.apart == 1:
            return super()._load_of_q(own, extents)
        self.relations += Dim("p", size=self.apart), Dim("m", of="n", times=self.apart)
        return TmaLoadStage("b h n p d", tile=(self.rows // self.apart, self.apart, self.d), ring=self.queries)

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
        together, blocks = q.shape[1] // max(1, k.shape[1]), max(1, ceil_div(k.shape[2], self.keys_a_block))
        rule = f"is {self.together} times that of k, as SplitAttention(heads) says"
        fits = together == self.together or not (self.causal or self.score or self.with_sinks)
        require(fits, "q.shape[1]", q.shape[1], rule, f"say heads={together}")

        def apart(x: Any) -> Any:
            # Where rows may come in any order, they keep the order of most tensors, so that no copy is needed.
            return by_group(x, k).swapaxes(2, 3) if self.together > 1 else by_group(x, k)

        def merged(x: Any) -> Any:
            return apart(x).reshape(q.shape[0], k.shape[1], together * q.shape[2], *x.shape[3:])

        rows = apart(q) if self.apart > 1 else merged(q)
        in_place = self.parts > 1 and self.apart > 1  # rows of o go where they belong; if not, perhaps to a copy
        found: dict[str, Any] = {
            name: (apart if in_place else merged)(given[name]) for name in ("o", "lse") if name in given
        }
        if in_place and "lse" in found:
            found["lse"] = found["lse"][..., None]
        results = found
        if self.parts > 1:
            each = ceil_div(blocks, min(self.parts, blocks))
            shape = (*rows.shape[:2], ceil_div(blocks, each), together * q.shape[2])
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


@attrs.frozen
class Form:
    """How attention is cut into tiles.

    Args:
        rows: Of a tile: queries of its heads.
        heads: Those of a tile of `Attention`.
        parts: Of `SplitAttention`, whose tiles have the rows of all heads of a group; 0: of `Attention`.
        keys: Of a block; None: as the class takes by itself.
    """

    rows: int
    heads: int = 1
    parts: int = 0
    keys: int | None = None


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
        # After a warpgroup's first block: blocks that all its queries see as a whole, then blocks that some see in part.
        self.free = max(0, window // 64 - 1)
        self.partly = (window + 62) // 64 - self.free

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
    """The options of `Attention` and `SplitAttention` for tensors of some shapes: of all forms, that which an H200 is
    estimated to take the least time for.

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
        self.masks_rows = bool({"h", "m"} & {*self.given.mask_dims})

    def form(self, cls: type[Attention] = Attention) -> tuple[type[Attention], dict[str, Any]]:
        """What *cls* takes: a class, and its options."""
        windowed = cls is Attention and self._windowed
        best = Form(192) if windowed else min(self._forms(cls), key=self.time)
        if best.parts:
            return SplitAttention, self.in_parts(best)
        found = {"d": self.d, "tile": (best.rows // best.heads, best.heads, best.keys), **self.options}
        if windowed:
            cls, found["causal"] = WindowAttention, "end" if self.m == self.s else self.given.causal
            del found["tile"]
        if self.given.causal:  # tiles of a window take equal times, but for the first ones
            window, s = self.given.window, self.s
            seen = s if window is None else min(s, window + rows_of(*self.d))
            order = Backwards(self._band(seen, best))
            found.setdefault("tiles", DynamicTiles(order, stages=0 if 2 * seen > s else 2))
        return cls, found

    def in_parts(self, form: Form | None = None) -> dict[str, Any]:
        """Those of `SplitAttention`, by default of its best form."""
        given, found = self.given, {**self.options}
        best = min(self._forms_in_parts(), key=self.time) if form is None else form
        if given.causal == "end" and self.m == 1 and given.window is None:
            found["causal"] = None  # the one query sees all keys
        heads = self.together if self._rows_differ else 1
        return {"parts": best.parts, "d": self.d, "heads": heads, "rows": best.rows, **found}

    @property
    def _windowed(self) -> bool:
        """Whether it is `WindowAttention`: of narrow windows and heads, many keys, and queries that fill most of its tiles."""
        given, free = self.given, self.options.get("tile") is None
        few = given.window is not None and given.window <= 512 and self.widest <= 64 and not given.mask_dims
        return few and free and 3 * 192 * ceil_div(self.m, 192) <= 4 * self.m and self.s > 1024

    @property
    def _rows_differ(self) -> bool:
        """Whether results depend on the query and the head of a row."""
        given = self.given
        alone = given.causal == "end" and self.m == 1 and given.window is None
        return bool((given.causal and not alone) or given.score or given.with_sinks)

    def _forms(self, cls: type[Attention]) -> Iterator[Form]:
        given, m, s, together = self.given, self.m, self.s, self.together
        if any(self.options.get(name) is not None for name in ("tile", "tiles")):
            yield Form(given.rows, given.packed, keys=given.keys_a_block)
            return
        masked = "m" in given.mask_dims
        if (given.bounded or masked) and 96 < self.widest <= 128 < m:
            # Three warpgroups hide a longer softmax than two. Of a mask alone, two are faster, whose blocks are larger.
            yield Form(128) if masked and not (given.score or given.bounded) else Form(192, keys=80)
            return
        plain = not (given.score or given.mask_dims or given.with_sinks or given.window)
        many = (s if given.causal is None else s - m if given.causal == "end" else 0) >= 8192  # that all queries see
        wide = plain and many and 64 < self.widest <= 128 == rows_of(*self.d)
        for rows in self._heights:
            keys = 176 if wide and rows == 128 else None
            yield Form(rows, keys=keys)
            if together > 1 and 64 % together == 0 and not self.masks_rows:
                yield Form(rows, together, keys=keys)
        if cls is Attention and given.causal != "start" and not self.masks_rows and self.batch and self.groups:
            yield from self._forms_in_parts()

    @property
    def _heights(self) -> tuple[int, ...]:
        """Of tiles, in rows."""
        return (64, 128) if rows_of(*self.d) == 128 else (64, 128, 192)

    def _forms_in_parts(self) -> Iterator[Form]:
        for rows in self._heights:
            most = self._blocks(0, self.m - 1, keys_of(*self.d, rows)) // 8
            for parts in range(1, min(max(1, most), 64) + 1):
                if parts > 1 or self.together > 1:
                    yield Form(rows, parts=parts)

    def time(self, form: Form) -> float:
        """Microseconds that *form* is estimated to take, but for a launch. A multiprocessor works at one tile at a time."""
        parts, heads = max(1, form.parts), self.together if form.parts else form.heads
        keys = form.keys or keys_of(*self.d, form.rows, "m" in self.given.mask_dims)
        few, many, d = BLOCK[64][form.rows], BLOCK[128][form.rows], max(64, sum(self.d) / 2)
        block = few + (many - few) * (d / 64 - 1) if d < 128 else many * d / 128  # in between those measured, or above
        block *= keys / 128 * (0.97 if keys > 128 else 1)
        tiles, queries = max(1, ceil_div(self.m * heads, form.rows)), form.rows / max(1, heads)
        some = range(0, tiles, ceil_div(tiles, 8))
        counts = [self._blocks(int(i * queries), math.ceil((i + 1) * queries) - 1, keys) for i in some]
        rounds = max(1, self.batch * (self.heads // max(1, heads)) * tiles * parts) / MULTIPROCESSORS
        begin = BEGIN + (STORE * form.rows * self.d[1] if parts > 1 and rounds > 1 else 0)
        times = [begin + ceil_div(count, parts) * block for count in counts]
        # Of some rounds, the last one may be short, and its tiles are those with fewest keys.
        loaded = self._loaded(tiles * (self.together // max(1, heads))) / rounds + BEGIN
        mean = sum(times) / len(times)  # of a round
        whole, rest = int(rounds), rounds % 1
        last = max(rest * mean + (1 - rest) * min(times), rest * loaded) if rest else 0
        return max(max(times), whole * max(mean, loaded) + last) + self._more(form)

    def _loaded(self, tiles: int) -> float:
        """Microseconds in which q, k, v and o are moved. tiles: how many see the same keys; L2 does not serve all of them."""
        keys = self._blocks(0, self.m - 1, 1) * self.groups * (1 + 0.3 * (tiles - 1))
        return 2 * self.batch * sum(self.d) * (self.heads * self.m + keys) * BYTE

    def _more(self, form: Form) -> float:
        """Microseconds of the other kernels of a call: of the sums of parts, and of copies."""
        rows, lse, more = self.batch * self.heads * self.m, self.given.with_lse, 0.0
        if form.parts > 1:
            more += 1.5 * KERNEL + 4 * rows * form.parts * self.d[1] * PART
        copied = self._rows_differ and self.m > 1 and self.together > 1 and (form.parts == 1 or 64 % self.together)
        if form.parts and copied:
            more += (2 + lse) * KERNEL + 4 * rows * sum(self.d) * COPY
        return more

    def _blocks(self, first: int, last: int, keys: int) -> int:
        """How many blocks of so many keys the queries from number *first* to *last* see."""
        given, high = self.given, max(0, self.s - 1)
        if given.causal is None:
            return high // keys + 1
        offset = self.s - self.m if given.causal == "end" else 0
        high = min(max(0, min(last, self.m - 1) + offset), high)
        low = 0 if given.window is None else min(max(0, first + offset + 1 - given.window), high)
        return high // keys - low // keys + 1

    def _band(self, seen: int, form: Form) -> int:
        """Heads that causal tiles go through at once: so many that the last tiles are short, and fewer where L2 would not hold
        the keys and values of so many heads of more than 64 elements. Where few heads would be left for the last band, whose
        long tiles then end last, another number. seen: keys that a query sees at most."""
        heads, together = self.heads // form.heads, self.together // form.heads
        if self.widest <= 64:
            band = 32 if self.m <= 1024 else 16
        else:
            held = (24 << 20) * together // max(1, 2 * seen * sum(self.d))
            most = min(max(held, 1), ceil_div(512, max(1, ceil_div(self.m * form.heads, rows_of(*self.d)))))
            band = 1 << (most.bit_length() - 1)
        if heads < band or not 0 < heads % band < band / 2:
            return band
        return max(range(band // 2 + 1, 2 * band), key=lambda n: ((heads % n or n) / n, n))


# ---- combineparts: the end of attention whose keys are taken in parts ------------------------------------------------


class CombineParts(Schedule):
    """``o[b, h, m] = sum over c of w[c] x[b, h, c, m]``, w the softmax over c of the logarithms ``l[b, h, c, m]``.

    Args:
        width: Elements of a row of x and o.
        lse: Whether there is a second output, [b, h, m] in fp32: the logarithm of the sum over c of the powers of e.
        heads: How many heads have rows that come in turn: then o is [b, h, m, heads, width], and lse [b, h, m, heads, 1]. A
            power of 2 up to 64.
    """

    load, work = Role(warps=1), Role(warps=4)

    def __init__(self, width: int = 128, lse: bool = False, heads: int = 1):
        check_bool("lse", lse)
        fits = is_count(heads) and 64 % heads == 0
        require(fits, "CombineParts(heads)", heads, "is a power of 2 up to 64", "use 8")
        rows = max(8, heads)
        self.relations = (Dim("e", size=width),)
        if heads > 1:
            self.relations += Dim("p", size=heads), Dim("m", of="n", times=heads)
        self.ring, self.tiles = BarrierRing(4, producer=self.load, consumer=self.work), GridTiles()
        self.x = TmaLoadStage("b h c m e", tile=(rows, width), ring=self.ring, dtype="fp32")
        self.l = TmaLoadStage("b h c m", tile=(rows,), ring=self.ring, dtype="fp32")
        own, extents = ("b h n p", (rows // heads, heads)) if heads > 1 else ("b h m", (rows,))
        self.o = TmaStoreStage(f"{own} e", tile=(*extents, width), role=self.work)
        self.heads, self.with_lse = heads, lse
        if lse:
            dims, lines = (own + " u", (*extents, 1)) if heads > 1 else (own, extents)
            self.lse = ThreadStoreStage(dims=dims, tile=lines, role=self.work, vector=4, dtype="fp32")
            self.relations += (Dim("u", size=1),) * (heads > 1)

    @load.jit
    def fill(self, k: KernelContext, tile: Tile) -> None:
        if self.heads > 1:
            tile = tile.also(m=tile.n)
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
            k.lse.store(tile.also(u=0), (top + values_.log2(weight)) * (1 / LOG2_E))
