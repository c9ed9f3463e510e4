"""Attention: softmax(q k^T) v for each head.

load (1 warp)        q of a tile of queries; k, then v of its blocks of keys, from the last one that they see to the first
work (warpgroups)    64 queries each. While the tensor core multiplies a block of values, the softmax of the next block of
                     keys is found on registers; the warpgroups take turns, so that one's softmax runs under the other's
                     matmuls
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from numbers import Real
from typing import Any

import numpy as np

from tmapipe import math as values_
from tmapipe.barrier import BarrierRing, Role
from tmapipe.base.arithmetic import Dim, ceil_div, fp32
from tmapipe.bind.bound import check_kind
from tmapipe.bind.tensors import match, new_like
from tmapipe.errors import InputError, is_count
from tmapipe.kernel import KernelContext
from tmapipe.parts.matmul import Wgmma
from tmapipe.parts.stages import Turnstile
from tmapipe.protocol.tile import Tile
from tmapipe.schedule import Schedule
from tmapipe.stage import TmaLoadStage
from tmapipe.store_pipeline import ThreadStoreStage, TmaStoreStage
from tmapipe.tiles.dynamic import DynamicTiles
from tmapipe.tiles.order import TileOrder
from tmapipe.tiles.persistent import Backwards

LOG2_E = math.log2(math.e)
ROOM = 226 << 10  # bytes of shared memory for slots and buffers of results, or a little more
NEVER, LEAST = float("-inf"), -1e30  # of a key that is not seen; what a row without any is less by


class Attention(Schedule):
    """``o[b, h, i] = sum over j of softmax over j of (scale * q[b, h, i] . k[b, g, j]) * v[b, g, j]``, of bf16 or fp16.

    q and o are [batch, heads, queries, d], k and v [batch, groups, keys, d], v and o perhaps of another d. The heads are a
    multiple of the groups, and that many next to each other share a group's keys and values. Dimensions may lie in memory in
    any order, d contiguous: of tensors [batch, tokens, heads, d] pass ``x.transpose(1, 2)``.

    Args:
        d: Elements of a head: a multiple of 16 up to 256. A pair: those of q and k, and those of v and o.
        causal: "start": query i sees the keys up to number i; "end": query i of m sees those up to number i + s - m of s, so
            that the last query sees all; None: each sees all.
        window: How many keys a query sees at most, where attention is causal: the last ones.
        scale: Of the products; None: 1 / sqrt(d).
        score: ``score(x, i, j)`` of a product times scale and the numbers of its query and key, fragments, gives what the
            softmax is of: ``lambda x, i, j: 30 * tp.math.tanh(x / 30)``.
        lse: Whether the call returns (o, lse), lse [batch, heads, queries] in fp32: the logarithm of the sum over j of the
            powers of e; minus infinity of a query that sees no key, of which o is 0.
        tile: (queries, heads, keys) of a tile, the first two together 64 for each warpgroup. The heads are of one group, the
            queries of each next to each other: for few queries. None: 192 or 128 queries of one head, and 128 keys, or as many
            as there is room for.
        tiles: The order of tiles.

    Raises:
        InputError: For parts that do not go together, or that cannot be planned.
    """

    load = Role(warps=1, registers=24)
    work = Role(warpgroups=2, registers=240)

    def __init__(
        self,
        d: int | tuple[int, int] = 128,
        *,
        causal: str | None = None,
        window: int | None = None,
        scale: float | None = None,
        score: Callable[..., Any] | None = None,
        lse: bool = False,
        tile: tuple[int, int, int] | None = None,
        tiles: TileOrder | None = None,
    ):
        pair = d if isinstance(d, tuple) else (d, d)
        if len(pair) != 2 or not all(is_count(n) and n % 16 == 0 and n <= 256 for n in pair):
            raise InputError("Attention(d)", d, "is a multiple of 16 up to 256, or a pair", "e.g. 64, or (192, 128)")
        d, width = pair
        if causal not in (None, "start", "end"):
            rule = 'is "start" or "end", where query 0 sees the first key or the last query the last key, or None'
            raise InputError("Attention(causal)", causal, rule, 'use "end"')
        if window is not None and not (is_count(window) and causal):
            rule = "is a positive number of keys, of causal attention"
            raise InputError("Attention(window)", window, rule, 'e.g. window=512, causal="end"')
        if scale is not None and (isinstance(scale, bool) or not isinstance(scale, Real) or not abs(scale) < 1e30):
            raise InputError("Attention(scale)", scale, "is a finite number", "e.g. 0.125")
        if score is not None and (isinstance(score, type) or not callable(score)):
            rule = "is a function of scores, and of where they are"
            raise InputError("Attention(score)", score, rule, "pass a function")
        if tiles is not None and not isinstance(tiles, TileOrder):
            raise InputError("Attention(tiles)", tiles, "is an order of output tiles", "e.g. PersistentTiles()")
        tile = (rows_of(d, width), 1, keys_of(d, width, rows_of(d, width))) if tile is None else tile
        if not isinstance(tile, tuple) or len(tile) != 3 or not all(map(is_count, tile)) or tile[0] * tile[1] % 64:
            rule = "is (queries, heads, keys), of which the first two are together a multiple of 64"
            raise InputError("Attention(tile)", tile, rule, "e.g. (128, 1, 128), or (8, 8, 128) for few queries")
        queries, packed, n = tile
        if packed > 1 and lse:
            raise InputError("Attention(lse)", lse, "is of tiles of one head", "leave it out, or pass such a tile")
        self.d, self.causal, self.window, self.score = d, causal, window, score
        self.scale = 1 / math.sqrt(d) if scale is None else float(scale)
        self.queries_a_tile, self.packed, self.keys_a_block, rows = queries, packed, n, queries * packed
        self.width, self.scales_late = width, max(d, width) <= 64 and rows > 128
        self.relations = (Dim("d", size=d), Dim("e", size=width))
        groups = rows // 64
        if groups != 2:
            self.work = Role(warpgroups=groups, registers=160 if groups > 2 else 240)
        load, work = self.load, self.work
        slots = slots_of(d, width, n, rows)
        self.queries, self.keys, self.values = (BarrierRing(each, producer=load, consumer=work) for each in slots)
        self.over, extents = ("b g m", (queries, packed)) if packed > 1 else ("b h m", (rows,))
        dims = f"{self.over} p" if packed > 1 else self.over
        self.q = TmaLoadStage(f"{dims} d", tile=(*extents, d), ring=self.queries)
        self.k = TmaLoadStage("b g s d", tile=(n, d), ring=self.keys)
        self.v = TmaLoadStage("b g s e", tile=(n, width), ring=self.values)
        self.qk = Wgmma(self.q, self.k, in_flight=0)
        self.pv = Wgmma(self.qk, self.v)  # its first operand comes from registers
        self.o = TmaStoreStage(f"{dims} e", source=self.pv, tile=(*extents, width), stages=1 if slots[0] == 1 else 2)
        self.with_lse = lse
        if lse:
            self.lse = ThreadStoreStage(dims="b h m", tile=(rows,), role=work, vector=4, dtype="fp32")
        if groups > 1:
            self.order = Turnstile(work)
        # Those with most keys first, of several heads in turn, and none before its cluster has loaded the one before.
        self.tiles = tiles or (DynamicTiles(Backwards(8), stages=0) if causal else DynamicTiles(Backwards(1)))

    @classmethod
    def of(cls, q: Any, k: Any, v: Any = None, **options: Any) -> Attention:
        """The schedule for tensors like *q*, *k* and *v* (if that is not like k), which are looked at for their shapes alone.
        options: as of the constructor.

        Where one head has less than 64 queries, the heads of a group share tiles, and if all see all of many keys, it is
        `SplitAttention`. As measured on an H200, blocks of 176
        keys are faster where each query sees many (from 8,192 on), and of heads of 64 elements, tiles of 128 queries where
        causal ones see few. Causal tiles go through several heads at once.
        """
        from tmapipe.schedules.splitattention import SplitAttention, parts_for

        width = (k if v is None else v).shape[3]
        if cls is Attention and (parts := parts_for(q.shape, k.shape, width, options)) > 1:
            return SplitAttention(parts, (q.shape[3], width), scale=options.get("scale"))
        return cls((q.shape[3], width), **options_for(q.shape, k.shape, width, options))

    def __call__(self, *tensors: Any, out: Any = None, **named: Any) -> Any:
        """Runs the schedule as `Schedule.__call__` does: q, k, v, then o, and lse if there is one."""
        names = ["q", "k", "v", "o", *(("lse",) if self.with_lse else ())]
        given = match(names, tensors, named, out, "o")
        self.check_tensors(given)
        q, groups = given["q"], max(1, given["k"].shape[1])
        if "o" not in given:
            given["o"] = empty_like(q, self.width)
        if self.with_lse and "lse" not in given:
            given["lse"] = new_like(q, tuple(q.shape[:3]), fp32)
        if self.packed > 1:
            super().__call__(**{name: heads_last(x, groups) if name in ("q", "o") else x for name, x in given.items()})
        else:
            super().__call__(**given)
        return (given["o"], given["lse"]) if self.with_lse else given["o"]

    def check_tensors(self, given: dict[str, Any]) -> None:
        """Raises `InputError` unless those *given*, by name, are heads of batches that go together."""
        for name, tensor in given.items():
            check_kind(name, tensor)
            if getattr(tensor, "ndim", None) != (3 if name == "lse" else 4):
                dims = "batch, heads, queries" if name == "lse" else "batch, heads, tokens, d"
                raise InputError(
                    f"{name}.shape", tuple(tensor.shape), f"has dimensions {dims}", "pass a view with these"
                )
        heads, groups = given["q"].shape[1], max(1, given["k"].shape[1])
        if heads % groups:
            rule = f"has a multiple of {groups} heads, as many as k has"
            raise InputError("q.shape[1]", heads, rule, "repeat keys and values, or leave heads out")

    # ---- which keys a tile of queries sees --------------------------------------------------------------------------

    def _diagonal(self, k: KernelContext, tile: Tile) -> Any:
        """The last key that the tile's first query sees, where attention is causal."""
        first = tile.m * self.queries_a_tile
        return first + k.extent("s") - k.extent("m") if self.causal == "end" else first

    def _blocks(self, k: KernelContext, tile: Tile) -> tuple[Any, Any, Any, Any]:
        """Which block of keys comes first, and how many come after it: such as some query of the tile sees in part, such as
        all see as a whole, and again such as some sees in part.
        """
        n, rows = self.keys_a_block, self.queries_a_tile
        last = k.steps("k", "s") - 1
        if self.causal is None:
            return last, 0, last, 0
        seen = self._diagonal(k, tile)

        def most(a: Any, b: Any) -> Any:
            return k.isa.select(a > b, a, b)

        def least(a: Any, b: Any) -> Any:
            return k.isa.select(a < b, a, b)

        def within(x: Any) -> Any:
            """x, where keys may end before the first one."""
            return most(x, 0) if self.causal == "end" else x

        last = least(within(seen + (rows - 1)) // n, last)
        free = least(within(seen + 1) // n, last)  # the end of the blocks that all queries see as a whole
        if self.window is None:
            return last, last - free, free, 0
        first = least(most(seen + (1 - self.window), 0) // n, last)
        begin = least((most(seen + (rows - self.window), 0) + (n - 1)) // n, last)
        free = most(free, first)
        begin = least(begin, free)
        return last, last - free, free - begin, begin - first

    def _visible(self, k: KernelContext, tile: Tile, scores: Any, block: Any, last: bool) -> Any:
        """The scores of a block of which some query does not see all keys. last: whether keys may be missing."""
        start = self.keys_a_block * block
        seen = scores.columns < k.extent("s") - start if last or self.causal is None else None
        if self.causal is not None:
            ends = self._query(scores) + (self._diagonal(k, tile) - start)
            before = scores.columns <= ends
            seen = before if seen is None else seen & before
            if self.window is not None:
                seen = seen & (scores.columns > ends - self.window)
        return values_.where(seen, scores, NEVER)

    def _query(self, scores: Any) -> Any:
        """The query of each row in its tile."""
        return scores.rows // self.packed if self.packed > 1 else scores.rows

    # ---- softmax ----------------------------------------------------------------------------------------------------

    def _scores(self, k: KernelContext, tile: Tile, sums: Any, block: Any, mask: bool, last: bool = False) -> Any:
        """What the softmax of a block is of."""
        scores = sums.values()
        if self.score is not None:
            at = self._query(scores) + tile.m * self.queries_a_tile, scores.columns + block * self.keys_a_block
            scores = self.score(scores * self.scale, *at)
        return self._visible(k, tile, scores, block, last) if mask else scores

    @property
    def _factor(self) -> float:
        """Of scores, for powers of 2."""
        return LOG2_E if self.score is not None else self.scale * LOG2_E

    def _less(self, top: Any, mask: bool) -> Any:
        """What is subtracted before the powers. mask: whether a row may have seen no key so far."""
        if (mask and self.causal is not None) or self.score is not None:
            top = values_.maximum(top, LEAST)
        return top * self._factor

    def _higher(self, top: Any, scores: Any, mask: bool) -> tuple[Any, Any, Any]:
        """The maximum so far with that of a block, what the sums so far count for then, and what is subtracted."""
        higher = values_.maximum(top, values_.row_max(scores))
        less = self._less(higher, mask)
        return higher, values_.exp2(top * self._factor - less), less

    def _powers(self, scores: Any, less: Any) -> Any:
        """The weights, before they are divided by their sum."""
        return values_.exp2(scores * self._factor - less)

    def _group(self, k: KernelContext, tile: Tile) -> Any:
        """Whose keys and values the tile's queries see."""
        if self.packed > 1:
            return tile.g
        return tile.h * k.extent("g") // k.extent("h")

    def _whole(self, tile: Tile) -> Tile:
        """The tile, with the dimensions that a single tile covers."""
        return tile.also(p=0, d=0, e=0) if self.packed > 1 else tile.also(d=0, e=0)

    # ---- bodies -----------------------------------------------------------------------------------------------------

    @load.jit
    def fill(self, k: KernelContext, tile: Tile) -> None:
        first, before, whole, after = self._blocks(k, tile)
        group = self._group(k, tile)
        with k.keys.produce() as slot:
            slot.k.load(self._whole(tile), g=group, s=first)
        with k.queries.produce() as slot:
            slot.q.load(self._whole(tile))
        if self.causal is not None:
            for i in range(before):
                self._fill_next(k, tile, group, first, i)
        for i in range(whole):
            self._fill_next(k, tile, group, first, before + i)
        if self.window is not None:
            for i in range(after):
                self._fill_next(k, tile, group, first, before + whole + i)
        with k.values.produce() as slot:
            slot.v.load(self._whole(tile), g=group, s=first - before - whole - after)

    def _fill_next(self, k: KernelContext, tile: Tile, group: Any, first: Any, i: Any) -> None:
        """Keys of the block after the i-th, and the values of that."""
        with k.keys.produce() as slot:
            slot.k.load(self._whole(tile), g=group, s=first - 1 - i)
        with k.values.produce() as slot:
            slot.v.load(self._whole(tile), g=group, s=first - i)

    def _turn(self, k: KernelContext) -> AbstractContextManager[object]:
        """The scope in which a warpgroup starts its matmuls."""
        return nullcontext() if self.work.warps == 4 else k.order.turn()

    def _block(
        self,
        k: KernelContext,
        tile: Tile,
        out: Any,
        own: Any,
        state: tuple[Any, ...],
        at: Any,
        mask: bool,
    ) -> tuple[Any, ...]:
        """One block of keys, and the product of the weights of the block before with its values.

        state: those weights, the sums so far, the maximum, and the factor of what is in *out*, which is multiplied under the
        next block's first product, or here with three warpgroups; returned as this block leaves it. mask: whether some query
        sees not all keys.
        """
        weights, total, top, fewer = state
        with k.keys.consume() as slot, self._turn(k):
            block = k.qk.start(own.q, slot.k)
            if not self.scales_late:
                out.scale(fewer)
            with k.values.consume() as seen:
                product = out.start(weights, seen.v)
        scores = self._scores(k, tile, block.wait(), at, mask)
        top, fewer, less = self._higher(top, scores, mask)
        if (
            not self.scales_late
        ):  # some powers are found while the product runs, and the others while the next warpgroup's do
            less = values_.where(scores.columns < 64, less, product.wait().after(less))
        weights = self._powers(scores, less)
        total = total * fewer + values_.row_sum_parts(weights)
        if self.scales_late:
            product.wait()
        weights = k.pv.operand(weights)
        if self.scales_late:
            out.scale(fewer)
        return weights, total, top, fewer

    @work.jit
    def attend(self, k: KernelContext, tile: Tile) -> None:
        first, before, whole, after = self._blocks(k, tile)
        with k.pv.accumulate(empty=False) as out:
            with k.queries.consume() as own:
                with k.keys.consume() as slot:
                    block = k.qk.start(own.q, slot.k).wait()
                scores = self._scores(k, tile, block, first, True, last=True)
                top: Any = values_.row_max(scores)
                weights = self._powers(scores, self._less(top, True))
                total, fewer = values_.row_sum_parts(weights), k.full("qk", 1.0, "rows")
                weights = k.pv.operand(weights)
                if self.causal is not None:
                    for i in range(before):
                        at = first - 1 - i
                        weights, total, top, fewer = self._block(
                            k, tile, out, own, (weights, total, top, fewer), at, True
                        )
                for i in range(whole):
                    at = first - 1 - before - i
                    weights, total, top, fewer = self._block(k, tile, out, own, (weights, total, top, fewer), at, False)
                if self.window is not None:
                    for i in range(after):
                        at = first - 1 - before - whole - i
                        weights, total, top, fewer = self._block(
                            k, tile, out, own, (weights, total, top, fewer), at, True
                        )
            if not self.scales_late:
                out.scale(fewer)
            with k.values.consume() as slot:
                product = out.start(weights, slot.v)
            sums: Any = values_.row_sum(total)
            product.wait()
            out.scale(1 / values_.where(sums == 0, 1.0, sums))
        k.o.store(self._whole(tile), out)
        if self.with_lse:
            k.lse.store(tile, (top * self._factor + values_.log2(sums)) * (1 / LOG2_E))


def rows_of(d: int, width: int) -> int:
    """Queries of a tile of one head. width: elements of a head's values, as everywhere here."""
    return 192 if max(d, width) <= 64 else 128


def keys_of(d: int, width: int, rows: int) -> int:
    """Keys of a block: 128, or as many as two slots of keys and of values have room for, and registers: of a row a thread
    holds half of the scores and of the sums, and weights in pairs."""
    if max(d, width) <= 128:
        return 128
    shared, registers = (ROOM - 2 * rows * (d + 64)) // (4 * (d + width)), (200 - width // 2) * 4 // 3
    return min(128, shared // 16 * 16, registers // 16 * 16)


def slots_of(d: int, width: int, keys: int, rows: int) -> tuple[int, int, int]:
    """Slots of queries, of keys and of values, for tiles of so many keys and rows of queries."""
    if max(d, width) <= 64:
        return (2, 4, 4) if keys <= 128 else (2, 3, 3)
    if keys > 128 or max(d, width) > 128:
        return 1, 2, 2
    return (1, 3, 3) if rows == 64 else (2, 2, 2)


def band_of(d: int, width: int, m: int, s: int, together: int) -> int:
    """Heads that causal tiles go through at once, as measured on an H200: so many that the last tiles are short, and fewer
    where L2 would not hold the keys and values of so many heads of more than 64 elements."""
    if max(d, width) <= 64:
        return 32 if m <= 1024 else 16
    held = (24 << 20) * together // max(1, 2 * s * (d + width))
    most = min(max(held, 1), ceil_div(512, max(1, ceil_div(m, rows_of(d, width)))))
    return 1 << (most.bit_length() - 1)


def options_for(q: Sequence[int], k: Sequence[int], width: int, options: dict[str, Any]) -> dict[str, Any]:
    """*options*, with those that `Attention.of` chooses for tensors of these shapes."""
    d, m, s, together, found = q[3], q[2], k[2], q[1] // max(1, k[1]), dict(options)
    if m < 64 and together > 1 and 64 % together == 0 and not options.get("lse"):
        found.setdefault("tile", (64 // together, together, keys_of(d, width, 64)))
    elif m <= 64:
        found.setdefault("tile", (64, 1, keys_of(d, width, 64)))
    elif 64 < max(d, width) <= 128 and options.get("causal") is None and s >= 8192:
        found.setdefault("tile", (128, 1, 176))
    elif max(d, width) <= 64 and options.get("causal") and s <= 1024:
        found.setdefault("tile", (128, 1, 128))
    if options.get("causal"):
        found.setdefault("tiles", DynamicTiles(Backwards(band_of(d, width, m, s, together)), stages=0))
    return found


def empty_like(x: Any, width: int) -> Any:
    """A new tensor like *x*, whose dimensions lie in the same order, with *width* elements along the last one."""
    if width == x.shape[3]:
        return np.empty_like(x) if isinstance(x, np.ndarray) else sys.modules["torch"].empty_like(x)
    strides = x.strides if isinstance(x, np.ndarray) else x.stride()
    order = sorted(range(3), key=lambda i: -strides[i])
    back, shape = (*(order.index(i) for i in range(3)), 3), (*(x.shape[i] for i in order), width)
    return np.empty(shape, x.dtype).transpose(back) if isinstance(x, np.ndarray) else x.new_empty(shape).permute(back)


def heads_last(x: Any, groups: int) -> Any:
    """A view of [batch, heads, queries, d] as [batch, groups, queries, heads, d]."""
    shape = (x.shape[0], groups, x.shape[1] // groups, *x.shape[2:])
    found = x.reshape(shape) if not hasattr(x, "data_ptr") else x.unflatten(1, shape[1:3])
    return found.swapaxes(2, 3)
