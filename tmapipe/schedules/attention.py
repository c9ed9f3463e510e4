"""Attention: softmax(q k^T) v for each head.

load (1 warp)        q of a tile of queries; k, then v of its blocks of keys, from the last one that they see to the first
work (warpgroups)    64 queries each. While the tensor core multiplies a block of values, the softmax of the next block of
                     keys is found; the warpgroups take turns, so that one's softmax runs under the other's matmuls
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from numbers import Real
from typing import Any

import attrs

from tmapipe import math as values_
from tmapipe.barrier import BarrierRing, Role, Turnstile
from tmapipe.base.arithmetic import LOG2_E, Dim, bf16, fp32
from tmapipe.bind import check_kind
from tmapipe.bind.tensors import in_integers, match, new_in_order, new_like
from tmapipe.errors import IS_BOOL, ScopeError, check_bool, is_count, is_number, must, optional, require
from tmapipe.kernel import KernelContext
from tmapipe.parts import Wgmma
from tmapipe.protocol.tile import Tile
from tmapipe.schedule import Schedule
from tmapipe.stage import TmaLoadStage
from tmapipe.store_pipeline import ThreadStoreStage, TmaStoreStage
from tmapipe.tiles.dynamic import DynamicTiles
from tmapipe.tiles.order import TileOrder
from tmapipe.tiles.persistent import Backwards

ROOM = 226 << 10  # bytes of shared memory for slots and buffers of results, or a little more
LEAST = -1e30  # what the numbers of a row are less by, of which no part sees any
NEVER = float("-inf")  # of a key that is not seen
SINKS, UNIT = 128, 8  # of a tile; it begins at a multiple of so many heads, which are 16 bytes or more
MASKS = ("s", "h s", "b s", "b h s", "m s", "h m s", "b m s", "b h m s")


def _is_function(value: Any) -> bool:
    return callable(value) and not isinstance(value, type)


_of_scores = must(optional(_is_function), "is a function of scores, and of where they are", "pass a function")
_is_mask = must(optional(MASKS.__contains__), 'names dimensions of "b h m s" in this order, s last', 'e.g. "b s"')


@attrs.frozen
class Score:
    """What the softmax of `Attention` is of: a function of products times scale, and what else a call is given.

    Args:
        function: ``function(x, i, j)`` of a product times scale and the numbers of its query and key, fragments, such as
            ``lambda x, i, j: 30 * tp.math.tanh(x * (1 / 30))``. None: x.
        mask: The names of a mask's dimensions, those of "b h m s" that it has: "h m s", or "b s" of keys alone. Of bool or
            int8, keys are not seen where it is 0; of q's type, it is added to what the function gives.
        sinks: Whether each head has a number, in a tensor [heads], which counts in the sums of its softmax as one more x does,
            of a key whose values are 0.
        bound: What scores are at most, and with the other sign at least, up to 60: 30 of the function above. A mask's numbers
            count, but for minus infinity. The softmax of bf16 then needs no highest scores. Nothing checks
            the bound; rows whose highest score is beyond 75, or below -75, can come out as infinity or NaN.

    Raises:
        InputError: For any other value.
    """

    function: Callable[..., Any] | None = attrs.field(default=None, validator=_of_scores)
    mask: str | None = attrs.field(default=None, kw_only=True, validator=_is_mask)
    sinks: bool = attrs.field(default=False, kw_only=True, validator=IS_BOOL)
    bound: float | None = attrs.field(default=None, kw_only=True)

    def __attrs_post_init__(self) -> None:
        bound = self.bound
        fits = bound is None or (is_number(bound) and 0 < bound <= 60 and (self.function or self.mask))
        require(fits, "Score(bound)", bound, "is up to 60, of a function or with a mask", "leave it out")

    @classmethod
    def of(cls, value: Score | Callable[..., Any] | None) -> Score:
        """*value*, or the score of a plain function. Raises `InputError` for anything else."""
        fits, rule = isinstance(value, Score | None) or _is_function(value), "is a Score, or a function of scores"
        require(fits, "Attention(score)", value, f"{rule} and of where they are", "pass a function")
        return value if isinstance(value, Score) else cls(value)


class MaskStage(TmaLoadStage):
    """A load stage of masks, which threads read as accumulators are distributed: eight rows at once."""

    @property
    def spread(self) -> bool:
        return len(self.tile) == 2


class Attention(Schedule):
    """``o[b, h, i] = sum over j of softmax over j of (scale * q[b, h, i] . k[b, g, j]) * v[b, g, j]``, of bf16 or fp16.

    q and o are [batch, heads, queries, d], k and v [batch, groups, keys, d], v and o perhaps of another d. The heads are a
    multiple of the groups, and that many next to each other share a group's keys and values. Dimensions may lie in memory in
    any order, d contiguous: of tensors [batch, tokens, heads, d] pass ``x.transpose(1, 2)``. A call takes q, k, v, then the
    mask and the sinks that it has.

    Args:
        d: Elements of a head: a multiple of 16 up to 256. A pair: those of q and k, and those of v and o.
        causal: "start": query i sees the keys up to number i; "end": query i of m sees those up to number i + s - m of s, so
            that the last query sees all; None: each sees all.
        window: How many keys a query sees at most, where attention is causal: the last ones.
        scale: Of the products; None: 1 / sqrt(d).
        score: What the softmax is of beside products times scale, or the function alone.
        lse: Whether the call returns (o, lse), lse [batch, heads, queries] in fp32: the logarithm of the sum over j of the
            powers of e, a sink's among them; minus infinity of a query that sees no key, of which o is 0.
        tile: (queries, heads, keys) of a tile, the first two together 64 for each warpgroup. The heads are of one group, the
            queries of each next to each other: for few queries. None: 192 or 128 queries of one head. keys: None: 128, or as
            many as there is room for.
        tiles: The order of tiles.

    Raises:
        InputError: For parts that do not go together, or that cannot be planned. Tiles of several heads have no mask that
            varies with heads or queries.
    """

    load = Role(warps=1, registers=24)
    work = Role(warpgroups=2, registers=240)
    merges_heads = False  # rows of several heads, of a tensor where they lie one after another

    def __init__(
        self,
        d: int | tuple[int, int] = 128,
        *,
        causal: str | None = None,
        window: int | None = None,
        scale: float | None = None,
        score: Score | Callable[..., Any] | None = None,
        lse: bool = False,
        tile: tuple[int, int, int | None] | None = None,
        tiles: TileOrder | None = None,
    ):
        pair = d if isinstance(d, tuple) and len(d) == 2 else (d, d)
        fits: Any = all(is_count(n) and n % 16 == 0 and n <= 256 for n in pair)
        require(fits, "Attention(d)", d, "is a multiple of 16 up to 256, or a pair", "e.g. 64, or (192, 128)")
        fits = isinstance(causal, str | None) and causal in (None, "start", "end")
        rule = 'is "start" or "end", where query 0 sees the first key or the last query the last key, or None'
        require(fits, "Attention(causal)", causal, rule, 'use "end"')
        fits = window is None or (is_count(window) and causal)
        rule = "is a positive number of keys, of causal attention"
        require(fits, "Attention(window)", window, rule, 'e.g. window=512, causal="end"')
        fits = scale is None or (isinstance(scale, Real) and not isinstance(scale, bool) and abs(scale) < 1e30)
        require(fits, "Attention(scale)", scale, "is a finite number", "e.g. 0.125")
        check_bool("Attention(lse)", lse)
        (d, width), score = pair, Score.of(score)
        self.mask_dims = dims = tuple(score.mask.split()) if score.mask else ()
        of: Any = (rows_of(d, width), 1, None) if tile is None else tile
        fits = isinstance(of, tuple) and len(of) == 3 and all(map(is_count, of[:2])) and of[0] * of[1] % 64 == 0
        fits = fits and (of[2] is None or is_count(of[2]))
        rule = "is (queries, heads, keys), of which the first two are together a multiple of 64"
        require(fits, "Attention(tile)", tile, rule, "e.g. (128, 1, 128), or (8, 8, 128) for few queries")
        queries, self.packed, n = of
        several = self.packed > 1
        fits = not {"h", "m"} & {*dims} or not (several or self.merges_heads)
        rule = "varies with no heads or queries, where tiles have several heads"
        require(fits, "Attention(mask)", score.mask, rule, 'e.g. mask="b s", or a tile of one head')
        self.rows = queries * self.packed
        self.keys_a_block = n = n or keys_of(d, width, self.rows, "m" in dims)
        self.d, self.width, self.causal, self.window, self.score = d, width, causal, window, score.function
        self.scale = 1 / math.sqrt(d) if scale is None else float(scale)
        self.scales_late = max(d, width) <= 64 and self.rows > 128
        self.relations = (Dim("d", size=d), Dim("e", size=width), *[Dim("p", at_most=self.packed)] * several)
        groups, load = self.rows // 64, self.load
        self.work = work = Role(warpgroups=groups, registers=160 if groups > 2 else 240)
        slots = slots_of(d, width, n, self.rows, "m" in dims)
        self.queries, self.keys, self.values = (BarrierRing(each, producer=load, consumer=work) for each in slots)
        self.over, extents = ("b g m", (queries, self.packed)) if several else ("b h m", (self.rows,))
        own = self.over + " p" * several
        self.q = self._load_of_q(own, extents)
        self.k = TmaLoadStage("b g s d", tile=(n, d), ring=self.keys)
        self.v = TmaLoadStage("b g s e", tile=(n, width), ring=self.values)
        if dims:
            self.masks = BarrierRing(2, producer=load, consumer=work)
            self.mask = MaskStage(score.mask, tile=(self.rows, n) if "m" in dims else (n,), ring=self.masks)
        self.bounded = score.bound is not None
        self.with_sinks, self.with_lse, self.returns_lse, self.together = score.sinks, lse, lse, self.packed
        if score.sinks:
            self.sinks = TmaLoadStage("w", tile=(SINKS,), ring=self.queries)
        self.qk = Wgmma(self.q, self.k, in_flight=0)
        self.pv = Wgmma(self.qk, self.v)  # its first operand comes from registers
        self.o = TmaStoreStage(f"{own} e", source=self.pv, tile=(*extents, width), stages=1 if slots[0] == 1 else 2)
        if lse:
            lines = (*extents, 1) if several else extents
            self.lse = ThreadStoreStage(own + " u" * several, tile=lines, role=work, vector=4, dtype="fp32")
            self.relations += (Dim("u", size=1),) * several
        self.order = Turnstile(work) if groups > 1 else None
        if shares := {"h", "m"} <= {*dims} and "b" not in dims:
            self.over = "h b m"  # several batches in turn, which see the same tiles of the mask
        # Those with most keys first, of several heads in turn, and none before its cluster has loaded the one before.
        default = DynamicTiles(Backwards(8), stages=0) if causal else DynamicTiles(Backwards(8 if shares else 1))
        self.tiles = default if tiles is None else tiles

    @classmethod
    def of(cls, q: Any, k: Any, v: Any = None, **options: Any) -> Attention:
        """The schedule for tensors with the shapes of *q*, *k* and *v* (None: as k). options: as of the constructor.

        It is the form that an H200 is estimated to take the least time for: tiles of 64, 128 or 192 rows, of one head or of
        all heads of a group, or `SplitAttention`; of windows of 512 keys or less and heads of up to 64 elements, tiles of 192
        are `WindowAttention`. As measured, blocks of 176 keys are faster where each query sees 8,192 or more. Causal tiles go
        through several heads at once.
        """
        from tmapipe.schedules.splitattention import Choice

        kind, chosen = Choice(q, k, v, options).form(cls)
        return kind(**chosen)

    def _load_of_q(self, own: str, extents: tuple[int, ...]) -> TmaLoadStage:
        """own: o's dimensions but the last one; extents: those of a tile's queries."""
        return TmaLoadStage(f"{own} d", tile=(*extents, self.d), ring=self.queries)

    def __call__(self, *tensors: Any, out: Any = None, **named: Any) -> Any:
        """Runs the schedule as `Schedule.__call__` does: q, k, v, the mask and sinks if it has them, then o, and lse."""
        given = self.given(tensors, out, named)
        packed: dict[str, Any] = {name: given[name] for name in ("q", "o", "lse") if self.packed > 1 and name in given}
        for name, x in packed.items():
            x = by_group(x, given["k"]).swapaxes(2, 3)
            packed[name] = x[..., None] if name == "lse" else x
        super().__call__(**(given | packed))
        return (given["o"], given["lse"]) if self.with_lse else given["o"]

    def given(self, tensors: tuple[Any, ...], out: Any, named: dict[str, Any]) -> dict[str, Any]:
        """The tensors of a call by name, with o and lse.

        Args:
            tensors: By position, in the order of `__call__`.
            out: A tensor for o, or None.
            named: The others, by name.

        Raises:
            InputError: Heads and batches do not go together.
        """
        names = [name for name in self.declared.arguments if name != "lse" or self.returns_lse]
        given = match(names, tensors, named, out, "o")
        for name in dict.fromkeys([*"qkv", *given]):
            x: Any = given.get(name)
            check_kind(name, x)
            dims = "batch, heads, queries" if name == "lse" else "batch, heads, tokens, d"
            fits = name in ("mask", "sinks") or x.ndim == dims.count(",") + 1
            require(fits, f"{name}.shape", tuple(x.shape), f"has dimensions {dims}", "pass a view with these")
        q, heads, groups = given["q"], given["q"].shape[1], max(1, given["k"].shape[1])
        rule = f"has a multiple of {groups} heads, as many as k has"
        require(heads % groups == 0, "q.shape[1]", heads, rule, "repeat keys and values, or leave heads out")
        if "sinks" in given:
            count, rule = given["sinks"].shape[0], f"is {heads}, the number of heads, up to {SINKS - UNIT} a group"
            require(count == heads <= groups * (SINKS - UNIT), "sinks.shape[0]", count, rule, "pass one number a head")
        if "bool" in (kind := str(getattr(given.get("mask"), "dtype", ""))):
            given["mask"] = in_integers(given["mask"], 1)
        require("int" not in kind, "mask.dtype", kind, "is bool, or floats to be added", "mask.bool()")
        if "o" not in given:
            given["o"] = new_in_order(q, self.width)
        if self.returns_lse and "lse" not in given:
            given["lse"] = new_like(q, tuple(q.shape[:3]), fp32)
        return given

    def empty_value(self, bound: Any) -> Any:
        """Of no keys: no value has a weight."""
        if "sinks" in bound.shapes and "lse" in bound.stores:
            return super().empty_value(bound)
        return {"o": 0.0, "lse": -math.inf}

    def _offset(self, k: KernelContext) -> Any:
        """How much the number of the last key that a query sees is above its own, where attention is causal."""
        rows = self.together // self.packed  # along m, of one query
        return 0 if self.causal == "start" else k.extent("s") - k.extent("m") // rows

    def _query(self, tile: Tile, row: Any) -> Any:
        """The number of the query of a row of the tile."""
        return (row + tile.m * self.rows) // self.together

    def _bounds(self, k: KernelContext, tile: Tile) -> tuple[Any, Any, Any, Any]:
        """The numbers of the tile's first and last blocks of keys, and between: of the first that all queries see as a whole,
        and of the end of those. In the order first, whole, end, last."""
        n, last = self.keys_a_block, k.steps("k", "s") - 1
        if self.causal is None:
            return 0, 0, last, last
        low, high = (self._query(tile, row) + self._offset(k) for row in (0, self.rows - 1))  # keys that are seen last
        last = clamp(k.isa, high // n, last)
        end = clamp(k.isa, (low + 1) // n, last)
        if self.window is None:
            return 0, 0, end, last
        first = clamp(k.isa, (low + 1 - self.window) // n, last)
        end = clamp(k.isa, end, last, first)
        return first, clamp(k.isa, (high - self.window + n) // n, end, first), end, last

    def _blocks(self, k: KernelContext, tile: Tile) -> tuple[Any, tuple[Any, ...], Any]:
        """The number of the block of keys that comes first, the loops over those after it, and the number of the last one.

        Of each loop: how many blocks are before it, how many it has, and which keys some query does not see, as of `_block`.
        """
        first, whole, end, last = self._bounds(k, tile)
        if self.causal is None:
            return last, ((0, last - first, ""),), first
        wide = self.window is None or self.window >= self.rows + self.keys_a_block  # no block has keys of both kinds
        later, earlier = (">", "<") if wide else ("<>", "<>")
        loops = (0, last - end, later), (last - end, end - whole, ""), (last - whole, whole - first, earlier)
        return last, loops[: 2 if self.window is None else 3], first

    def _start(self, k: KernelContext, tile: Tile, block: Any) -> Any:
        """The number of a block's first key."""
        return self.keys_a_block * block

    def _visible(self, k: KernelContext, tile: Tile, scores: Any, block: Any, unseen: str, last: bool) -> Any:
        """The scores of a block of which some query does not see all keys. last: whether keys may be missing."""
        start = self._start(k, tile, block)
        missing = k.extent("s") - 1 - start
        if self.causal is None:
            return values_.where(scores.columns <= missing, scores, NEVER)
        end = self._query(tile, scores.rows) + (self._offset(k) - start)
        if self.window is not None and "<" in unseen:
            scores = values_.where(scores.columns > end - self.window, scores, NEVER)
        if ">" in unseen:
            end = values_.minimum(end, missing) if last and self.causal == "start" else end
            scores = values_.where(scores.columns <= end, scores, NEVER)
        return scores

    @property
    def _plain(self) -> bool:
        """Whether the softmax is of products alone, whose scale is then that of the powers."""
        return self.score is None and not self.mask_dims and self.scale > 0

    def _mask(self, k: KernelContext, early: bool = True) -> Any:
        """The mask of the next block, or None. Two warpgroups have registers to read it *early*, under the product."""
        if not self.mask_dims or early != (self.rows <= 128):
            return None
        scores = k.full("qk", 0.0)
        with k.masks.consume() as slot:
            return slot.mask.read(like=scores) if "m" in self.mask_dims else slot.mask.read(columns_of=scores)

    def _scores(
        self, k: KernelContext, tile: Tile, sums: Any, mask: Any, block: Any, unseen: str, last: bool = False
    ) -> Any:
        """What the softmax of a block is of."""
        scores = sums.values() if self._plain else sums.values() * self.scale
        if self.score is not None:
            scores = self.score(scores, self._query(tile, scores.rows), scores.columns + self._start(k, tile, block))
            if getattr(scores, "along", None) != "tile":
                raise ScopeError(f"a function of scores returned {scores!r:.80}, not a score for each query and key")
        if self.mask_dims:
            mask = self._mask(k, early=False) if mask is None else mask
            scores = values_.where(mask != 0, scores, NEVER) if mask.kind == "int32" else scores + mask
        return self._visible(k, tile, scores, block, unseen, last) if unseen else scores

    @property
    def _factor(self) -> float:
        """Of scores, for powers of 2."""
        return self.scale * LOG2_E if self._plain else LOG2_E

    def _rises(self, k: KernelContext) -> bool:
        """Whether the highest score so far is subtracted. Powers of bounded scores are numbers of bf16, not of fp16."""
        return not (self.bounded and k.plan.buffer("q").dtype == bf16)

    def _first_sink(self, tile: Tile) -> Any:
        """The head of the tile's first row."""
        return (tile.g if self.packed > 1 else tile.h) * self.together

    def _sink(self, k: KernelContext, tile: Tile, slot: Any, row: Any) -> Any:
        """The logarithm to base 2 of what the head of each row adds to its sums. row: the numbers of rows."""
        first = self._first_sink(tile) % UNIT
        found = slot.sinks.read(at=first)
        for p in range(1, self.together):
            found = values_.where((row + tile.m * self.rows) % self.together == p, slot.sinks.read(at=first + p), found)
        return found * LOG2_E

    @load.jit
    def fill(self, k: KernelContext, tile: Tile) -> None:
        (last, loops, first), tile = self._blocks(k, tile), tile.also(p=0, d=0, e=0, n=tile.m)  # of a single tile
        self._fill_keys(k, tile, last)
        with k.queries.produce() as slot:
            slot.q.load(tile)
            if self.with_sinks:
                slot.sinks.load_from(self._first_sink(tile) // UNIT * UNIT)
        for done, count, _ in loops:
            for i in range(count):
                self._fill_keys(k, tile, last - 1 - done - i)
                self._fill_values(k, tile, last - done - i)
        self._fill_values(k, tile, first)

    def _group(self, k: KernelContext, tile: Tile) -> Any:
        """Whose keys and values the tile's queries see."""
        return tile.g if self.packed > 1 else tile.h * k.extent("g") // k.extent("h")

    def _fill_keys(self, k: KernelContext, tile: Tile, block: Any) -> None:
        with k.keys.produce() as slot:
            slot.k.load(tile, g=self._group(k, tile), s=block)
        if self.mask_dims:
            with k.masks.produce() as slot:
                slot.mask.load(tile, s=block)

    def _fill_values(self, k: KernelContext, tile: Tile, block: Any) -> None:
        with k.values.produce() as slot:
            slot.v.load(tile, g=self._group(k, tile), s=block)

    def _block(
        self, k: KernelContext, tile: Tile, out: Any, own: Any, state: tuple[Any, ...], at: Any, unseen: str
    ) -> tuple[Any, ...]:
        """One block of keys, and the product of the weights of the block before with its values.

        state: those weights, the sums so far, what is subtracted before the powers, and the factor of what is in *out*, which
        is multiplied under the next block's first product, or here with three warpgroups; returned as this block leaves it.
        unseen: which keys some query does not see: those after its last one, ">", before its first one, "<", or both.
        """
        (weights, total, less, fewer), rises = state, self._rises(k)
        with k.keys.consume() as slot, k.order.turn() if self.order else nullcontext():
            block = k.qk.start(own.q, slot.k)
            if rises and not self.scales_late:
                out.scale(fewer)
            with k.values.consume() as seen:
                product = out.start(weights, seen.v)
        mask = self._mask(k)
        scores = self._scores(k, tile, block.wait(), mask, at, unseen)
        higher = values_.maximum(less, values_.row_max(scores) * self._factor) if rises else less
        fewer, least = values_.exp2(less - higher) if rises else fewer, higher
        if not self.scales_late:
            # Some powers are found while the product runs, and the others while the next warpgroup's do.
            least = values_.where(scores.columns < 64, higher, product.wait().after(higher))
        weights = values_.exp2(scores * self._factor - least)
        total = (total * fewer if rises else total) + values_.row_sum_parts(weights)
        if self.scales_late:
            # What the loop carries is tied to the product, or ptxas finds all powers twice, to save registers.
            higher = product.wait().after(higher)
        weights = k.pv.operand(weights)
        if rises and self.scales_late:
            out.scale(fewer)
        return weights, total, higher, fewer

    @work.jit
    def attend(self, k: KernelContext, tile: Tile) -> None:
        last, loops, _ = self._blocks(k, tile)
        with k.pv.accumulate(empty=False) as out:
            with k.queries.consume() as own:
                with k.keys.consume() as slot:
                    started, mask = k.qk.start(own.q, slot.k), self._mask(k)
                    block = started.wait()
                scores = self._scores(k, tile, block, mask, last, "<>", last=True)
                rises, zero = self._rises(k), k.full("qk", 0.0, "rows")
                less: Any = values_.row_max(scores) * self._factor if rises else zero
                if self.causal is not None or not self._plain:  # a row may see no key of this block
                    less = values_.maximum(less, LEAST)
                weights = values_.exp2(scores * self._factor - less)
                state: Any = k.pv.operand(weights), values_.row_sum_parts(weights), less, k.full("qk", 1.0, "rows")
                for done, count, unseen in loops:
                    for i in range(count):
                        state = self._block(k, tile, out, own, state, last - 1 - done - i, unseen)
                weights, total, less, fewer = state
                sink = self._sink(k, tile, own, less.rows) if self.with_sinks else None
            if rises and not self.scales_late:
                out.scale(fewer)
            with k.values.consume() as slot:
                product = out.start(weights, slot.v)
            sums: Any = values_.row_sum(total)
            scale: Any = 1.0
            if sink is not None:
                higher = values_.maximum(less, sink)
                scale = values_.exp2(less - higher)
                sums, less = sums * scale + values_.exp2(sink - higher), higher
            product.wait()
            out.scale(scale / values_.where(sums == 0, 1.0, sums))
        k.o.store(tile.also(p=0, e=0), out)
        if self.with_lse:
            k.lse.store(tile.also(p=0, u=0), (less + values_.log2(sums)) * (1 / LOG2_E))


def rows_of(d: int, width: int) -> int:
    """Queries of a tile of one head. width: elements of a head's values, as everywhere here."""
    return 192 if max(d, width) <= 64 or d == width == 96 else 128


def keys_of(d: int, width: int, rows: int, masked: bool = False) -> int:
    """Keys of a block: 128, or as many as two slots of keys, of values and of a mask have room for, and registers: of a row a
    thread holds half of the scores and of the sums, and weights in pairs. masked: whether a mask varies with queries. Then 128
    with one slot of values are faster."""
    if max(d, width) <= (64 if masked and rows != 128 else 128):
        return 128 if rows < 192 or max(d, width) <= 64 else 112 if max(d, width) <= 96 else 96
    shared = (ROOM - 2 * rows * (d + 64)) // (4 * (d + width + (rows if masked else 0)))
    return min(128, shared // 32 * 32 if masked else shared // 16 * 16, (200 - width // 2) * 4 // 3 // 16 * 16)


def slots_of(d: int, width: int, keys: int, rows: int, masked: bool = False) -> tuple[int, int, int]:
    """Slots of queries, of keys and of values, for tiles of so many keys and rows of queries."""
    if masked or max(d, width) > (128 if keys <= 128 else 64) or (rows == 192 and max(d, width) > 96):
        return 1, 2, 1 if masked and rows == keys == 128 and max(d, width) > 64 else 2
    if max(d, width) <= 64:
        return (2, 4, 4) if keys <= 128 else (2, 3, 3)
    return (2, 2, 2) if rows == 128 else (1, 3, 3)


def clamp(isa: Any, x: Any, most: Any, least: Any = 0) -> Any:
    """*x*, but at most *most* and at least *least*, which is no more."""
    lower = isa.select(x < most, x, most)
    return isa.select(lower > least, lower, least)


def by_group(x: Any, k: Any) -> Any:
    """A view of [batch, heads, queries, d] as [batch, groups, heads, queries, d], of the groups that *k* has."""
    groups = k.shape[1]
    return x.reshape(x.shape[0], groups, x.shape[1] // groups, *x.shape[2:])
