"""Random moves of boxes: a load of some kind, a store of some kind, tensors that lie anyhow, and what must come out."""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Sequence
from typing import Any

import attrs
import torch

import tmapipe as tp
from tests.fuzz.outcomes import Wrong
from tests.unit.test_added import BY_HAND
from tmapipe.store_pipeline import REDUCTIONS

__all__ = ["Case", "draw"]

TORCH = {
    "bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32, "int8": torch.int8, "int32": torch.int32,
    "int64": torch.int64, "fp64": torch.float64, "fp8_e4m3": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2,
}  # fmt: skip
NAMES = "abcde"
LOADS = (
    "whole", "whole", "shifted", "strided", "nan", "parts", "copies", "copies", "bulk", "bulk rows", "gathered", "windows",
    "multicast", "through", "rotated",
)  # fmt: skip
STORES = ("slot", "slot", "shifted", "parts", "threads", "registers", "reduced", "reduced", "bulk", "scattered")
SENTINEL = 7


@attrs.frozen
class Moves:
    """What the bodies do. dims: of the input, out: of the output; tile: extents along the last of these; start: by how many
    elements a load starts before its tile, shift: by how many a store starts behind; reduce: as of stores."""

    load: str
    store: str
    dims: tuple[str, ...]
    out: tuple[str, ...]
    tile: tuple[int, ...]
    start: tuple[int, ...]
    shift: tuple[int, ...]
    parts: int = 1
    element: tuple[int, ...] = ()
    reduce: str | None = None

    @property
    def spans(self) -> tuple[int, ...]:
        return (1,) * (len(self.out) - len(self.tile)) + self.tile

    def places(self, tile: Any, by: Sequence[int]) -> tuple[Any, ...]:
        return tuple(tile[d] * n + i for d, n, i in zip(self.out, self.spans, by, strict=True))

    def fill(self, k: Any, slot: Any, tile: Any) -> None:
        """The load, into an open slot."""
        named = {d: tile[o] for d, o in zip(self.dims, self.out, strict=False)}
        if self.load == "multicast":
            slot.x.load(tile)
        elif self.load == "windows":
            first = k.windows("x", tile.a * self.tile[0])
            slot.x.load_windows(first, *self.element, tile.b * self.tile[1])
        elif self.load == "gathered":
            slot.x.gather(k.index, tile[self.out[-2]] * self.tile[0], **{d: i for d, i in named.items() if d != "r"})
        elif self.load == "parts":
            for i in range(self.parts):
                slot.x.load_part(i, tile)
        elif self.load in ("shifted", "nan") or (self.load == "copies" and any(self.start)):
            slot.x.load_from(*self.places(tile, [-i for i in self.start]))
        else:
            slot.x.load(**named)

    def drain(self, k: Any, slot: Any, tile: Any) -> None:
        """The store from an open slot."""
        if self.store == "shifted":
            slot.y.store_from(*self.places(tile, self.shift))
        elif self.store == "parts":
            for i in range(self.parts):
                slot.y.store_part(i, tile)
        elif self.store == "scattered":
            *outer, row, last = self.out
            slot.y.scatter(k.index, tile[row] * self.tile[0], **{d: tile[d] for d in (*outer, last)})
        else:
            slot.y.store(tile)

    def put(self, k: Any, values: Any, tile: Any) -> None:
        """The store of a fragment."""
        if any(self.shift):
            k.y.store_from(*self.places(tile, self.shift), values=values)
        else:
            k.y.store(tile, values)


class FromSlots(tp.Schedule):
    load, work = tp.Role(warps=1), tp.Role(warps=1)

    @load.jit
    def fill(self, k, tile):
        with k.ring.produce() as slot:
            self.moves.fill(k, slot, tile)

    @work.jit
    def drain(self, k, tile):
        with k.ring.consume() as slot:
            self.moves.drain(k, slot, tile)


class Through(FromSlots):
    """Rows from one that a table says on, as many as another one says, by a descriptor for each."""

    load, work, point = FromSlots.load, FromSlots.work, tp.Role(warps=1)

    @point.jit
    def show(self, k, tile):
        with k.views.produce() as slot:
            slot.rows.set(k.firsts.entry(tile.a), k.counts.entry(tile.a))

    @load.jit
    def fill(self, k, tile):
        with k.views.consume() as views:
            view = views.rows.acquire()
            with k.ring.produce() as slot:
                slot.x.load_through(view, r=tile.b, c=tile.c)

    @work.jit
    def drain(self, k, tile):
        with k.views.consume(), k.ring.consume() as slot:
            self.moves.drain(k, slot, tile)


class Rotated(FromSlots):
    """Each CTA of a group gets the tile of the one behind it."""

    load, work, send = FromSlots.load, FromSlots.work, tp.Role(warps=1)

    @send.jit
    def turn(self, k, tile):
        with k.ring.consume() as slot:
            slot.z.send((slot.z.rank + slot.z.peers - 1) % slot.z.peers)


class ByThreads(FromSlots):
    load, work = FromSlots.load, FromSlots.work

    @work.jit
    def drain(self, k, tile):
        with k.ring.consume() as slot:
            values = slot.x.read()
        self.moves.put(k, values, tile)


OF_LOADS = {"through": Through, "rotated": Rotated}  # all others: FromSlots


@attrs.frozen
class View:
    """Where a tensor lies: elements before it, and its shape and strides."""

    first: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def of(self, memory: torch.Tensor) -> torch.Tensor:
        return memory.as_strided(self.shape, self.strides, self.first)

    @property
    def elements(self) -> int:
        """Of the memory that it needs, with some behind it."""
        return self.first + sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True)) + 1 + 64


@attrs.define
class Case:
    """One schedule and its problem.

    make: the schedule; moves, dtype: of it; x, y: where the tensors lie; tables: by name; windows: of im2col.
    """

    seed: int
    text: str
    make: Any
    moves: Moves
    dtype: str
    x: View
    y: View
    tables: dict[str, list[int]]
    shape: tuple[int, ...]
    windows: Any = None
    steps: tuple[int, ...] = ()
    peers: int = 1

    @functools.cached_property
    def schedule(self) -> tp.Schedule:
        return self.make()

    def run(self, device: str) -> None:
        """Runs it, and compares. Raises `Wrong` for a wrong result or what lies around it written; else as the library."""
        schedule = self.schedule
        made = torch.Generator().manual_seed(self.seed)
        kind = TORCH[self.dtype]
        values = torch.randint(-4, 5, (self.x.elements,), generator=made).float()
        before = torch.full((self.y.elements,), float(SENTINEL))
        self.y.of(before).copy_(torch.randint(-4, 5, self.y.shape, generator=made))
        source, whole = (memory.to(device, kind, copy=True) for memory in (values, before))
        given = [self.x.of(source)]
        tables: Any = {name: torch.tensor(t, dtype=torch.int32, device=device) for name, t in self.tables.items()}
        if device == "cpu":
            schedule.bind(*given, out=self.y.of(whole), **tables)
            types = {"x": self.dtype, "y": self.dtype}
            report = schedule.check(types)
            try:
                schedule.simulate(*given, out=self.y.of(whole), seed=self.seed, **tables)
            except tp.errors.HazardError as error:
                if report.ok:
                    raise Wrong(f"check() passes what the model refuses: {error}") from None
                raise
            if not report.ok:
                raise Wrong(f"runs, but check() finds: {report}")
        else:
            schedule(*given, out=self.y.of(whole), **tables)
            torch.cuda.synchronize()
        expected = before.clone()
        self._expect(self.x.of(values), self.y.of(expected))
        found = whole.float().cpu()
        same = (found == expected) | (found.isnan() & expected.isnan())
        if not same.all():
            inside = torch.zeros(self.y.elements, dtype=torch.bool)
            self.y.of(inside).fill_(True)
            where = "inside" if (~same & inside).any() else "outside"
            raise Wrong(f"{int((~same).sum())} elements differ, some of them {where} of the output")
        if not torch.equal(source.float().cpu(), values):
            raise Wrong("the input was written")

    def _expect(self, x: torch.Tensor, y: torch.Tensor) -> None:
        """What *y* becomes, in fp32."""
        loaded = self._loaded(x, self.shape)
        if self.moves.store == "scattered":
            for i, row in enumerate(self.tables["index"]):
                if 0 <= row < y.shape[-2]:
                    y[..., row, :] = self._stored(y[..., row, :], loaded[..., i, :])
            return
        shift = self.moves.shift if self.moves.store in ("shifted", "threads", "registers") else (0,) * y.ndim
        kept = tuple(slice(0, max(0, n - s)) for n, s in zip(y.shape, shift, strict=True))
        target = y[tuple(slice(s, None) for s in shift)]
        target.copy_(self._stored(target, loaded[kept]))

    def _stored(self, old: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        """What elements become."""
        how = self.moves.reduce
        if how in (None, "add") or TORCH[self.dtype].is_floating_point:
            return {None: new, "add": old + new, "min": torch.fmin(old, new), "max": torch.fmax(old, new)}[how]
        bits = 2 ** (8 * TORCH[self.dtype].itemsize)
        sign = 0 if how in ("min", "max") else bits - 1  # without one
        pairs = zip(*(t.reshape(-1).long().tolist() for t in (old, new)), strict=True)
        found = [BY_HAND[how](*(i & sign if sign else i for i in pair)) for pair in pairs]
        return torch.tensor([i - bits if i >= bits // 2 else i for i in found]).view(old.shape).float()

    def _loaded(self, x: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
        """What is loaded for each element of the output."""
        moves = self.moves
        if moves.load == "windows":
            return self._window_elements(x, shape)
        if moves.load == "strided":
            return x[tuple(slice(None, None, step) for step in self.steps)]
        if moves.load == "multicast":
            return x.expand(tuple(shape))
        if moves.load == "rotated":
            made = torch.zeros(tuple(shape))
            for i in range(len(made)):
                source = i - i % self.peers + (i + 1) % self.peers
                made[i] = x[source] if source < len(x) else 0
            return made
        if moves.load == "through":
            made = torch.zeros(tuple(shape))
            for i, (first, count) in enumerate(zip(self.tables["firsts"], self.tables["counts"], strict=True)):
                rows = min(count, shape[1])
                made[i, :rows] = x[first : first + rows]
            return made
        if moves.load == "gathered":
            index = torch.tensor(self.tables["index"])
            rows = x[..., index.clamp(0, x.shape[-2] - 1), :]
            return torch.where(((index >= 0) & (index < x.shape[-2]))[:, None], rows, 0.0)
        made = torch.full(tuple(shape), float("nan") if moves.load == "nan" else 0.0)
        start = moves.start if any(moves.start) else (0,) * x.ndim
        put = tuple(slice(max(0, s), max(0, min(n, n + s))) for s, n in zip(start, shape, strict=True))
        take = tuple(slice(max(0, -s), max(0, min(n, n - s))) for s, n in zip(start, shape, strict=True))
        if all(part.stop > part.start for part in put):
            made[put] = x[take]
        return made

    def _window_elements(self, x: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
        """One element of each window."""
        windows, (images, *extents, channels) = self.windows, x.shape
        counts = windows.counts(extents)
        found = torch.zeros((images, *counts, channels))
        steps = zip(self.moves.element, windows.dilation, windows.padding, windows.stride, counts, strict=True)
        axes = [[e * d - p + s * i for i in range(n)] for e, d, p, s, n in steps]
        for at in torch.cartesian_prod(*(torch.arange(n) for n in counts)).reshape(-1, len(counts)).tolist():
            place = [axis[i] for axis, i in zip(axes, at, strict=True)]
            if all(0 <= i < n for i, n in zip(place, extents, strict=True)):
                found[(slice(None), *at)] = x[(slice(None), *place)]
        return found.reshape(tuple(shape))


# ---- drawing ----------------------------------------------------------------------------------------------------------


def draw(seed: int) -> Case:
    """The case of this seed."""
    rng = random.Random(seed)
    dtype = rng.choice(list(TORCH))
    size = TORCH[dtype].itemsize
    load, store, reduce = rng.choice(LOADS), rng.choice(STORES), None
    if store == "scattered" and load not in ("whole", "shifted", "nan", "copies", "parts", "multicast"):
        store = "slot"
    if load in ("through", "rotated") and store in ("threads", "registers", "parts", "bulk"):
        store = "slot"
    if store == "bulk":
        load = rng.choice(("whole", "bulk", "bulk", "copies", "shifted", "nan"))
    if store == "reduced" or (store in ("bulk", "scattered") and rng.random() < 0.5):
        reduce = "add" if load == "nan" else rng.choice(list(REDUCTIONS))
    fitting = (
        REDUCTIONS[reduce] if reduce else [name for name, t in TORCH.items() if t.is_floating_point and t.itemsize > 1]
    )
    if rng.random() < 0.8 and (load == "nan" or reduce):  # of other types they are refused
        dtype = rng.choice(fitting)
        size = TORCH[dtype].itemsize
    tile, rank = _tile(rng, load, store, size)
    dims = tuple(NAMES[:rank])
    out, steps, relations, windows, element = dims, (1,) * rank, (), None, ()
    tables: dict[str, list[int]] = {}
    spans = (1,) * (rank - len(tile)) + tile
    shape = [_extent(rng, n) for n in spans]
    if rng.random() < 0.85:  # whole units of 16 bytes
        shape[-1] = -(-shape[-1] * size // 16) * 16 // size
    if rng.random() < 0.2 or (load in ("bulk", "bulk rows") and rng.random() < 0.7):  # whole tiles
        shape[-1] = spans[-1] * rng.randint(1, 3)
    made = list(shape)
    if load == "strided":
        steps = (*(1 for _ in range(rank - len(tile))), *(rng.choice((1, 2, 3, 8, 9)) for _ in tile[:-1]), 1)
        out = tuple(f"{d}{d}" if step > 1 else d for d, step in zip(dims, steps, strict=True))
        relations = tuple(tp.Dim(f"{d}{d}", of=d, per=step) for d, step in zip(dims, steps, strict=True) if step > 1)
        shape = [n * step - rng.randrange(step) for n, step in zip(shape, steps, strict=True)]
    if load == "gathered":
        rows = rng.randint(1, 60)
        dims = (*dims[:-2], "r", dims[-1])
        tables["index"] = [rng.randint(-2, rows + 1) for _ in range(shape[-2])]
        shape[-2] = rows
    if load == "multicast":
        dims, shape = dims[1:], shape[1:]
    if load == "through":
        rows = rng.randint(1, 60)
        firsts = [rng.randrange(rows) for _ in range(shape[0])]
        tables |= {"firsts": firsts, "counts": [rng.randint(1, rows - first) for first in firsts]}
        dims, shape = ("r", "c"), [rows, shape[-1]]
    if load == "windows":
        windows, shape, made, element = _windows(rng, tile, shape[-1])
        dims, out = ("n", *"hwd"[: len(windows.size)], "b"), ("a", "b")
    loaded = tuple(made)
    if store == "scattered":
        rows = max(1, made[-2] + rng.randint(-3, 5))
        tables["index"] = rng.sample(range(-5, rows + 5), made[-2])
        made[-2] = rows
    start = shift = (0,) * len(out)
    if load in ("shifted", "nan") or (load == "copies" and rng.random() < 0.5):
        start = _shift(rng, spans, size, rng.random() < 0.5)
    if store in ("shifted", "threads", "registers") and (store == "shifted" or rng.random() < 0.3):
        far = (*(1 for _ in range(len(out) - len(tile))), *tile)
        shift = tuple(map(abs, _shift(rng, far, size, False)))
    parts = rng.choice([n for n in (1, 2, 2, 4, tile[0]) if tile[0] % n == 0] if rng.random() < 0.9 else (2, 3, 5))
    moves = Moves(load, store, dims, out, tile, start, shift, parts, element, reduce)
    vector = rng.choice((4, 8, 16, 16))
    cluster = rng.choice(((1, None), (2, None), (4, None), (4, 2), (6, 3), (4, 3)))
    makes = functools.partial(
        _schedule, moves, dtype, relations, steps, windows, vector, _swizzle(rng, tile[-1] * size),
        rng.choice((1, 1, 2, 4)), rng.choice((1, 2, 4, 4)), rng.choice((1, 2, 3)), rng.choice((1, 2, 4, 8, 16)),
        cluster, rng.random() < 0.5,
    )  # fmt: skip
    unit = vector if load == "copies" else 16
    x, y = _view(rng, shape, size, unit), _view(rng, made, size, 16)
    text = f"boxes {seed}: {load} to {store}, {dtype} {tuple(shape)} by {x.strides} from {x.first}, tile {tile}"
    return Case(seed, text, makes, moves, dtype, x, y, tables, loaded, windows, steps, cluster[1] or cluster[0])


def _swizzle(rng: random.Random, row: int) -> int | None:
    """A span, mostly one that divides a row of so many bytes; None: derived."""
    fit = [span for span in (0, 32, 64, 128) if not span or row % span == 0]
    return None if rng.random() < 0.7 else rng.choice(fit if rng.random() < 0.8 else (0, 32, 64, 128))


def _tile(rng: random.Random, load: str, store: str, size: int) -> tuple[tuple[int, ...], int]:
    """Extents of a tile, and dimensions of the output."""
    if load in ("bulk", "bulk rows") or store == "bulk":
        return (rng.choice((16, 64, 256, 1024, 100)),), 1 if load != "bulk rows" else rng.choice((2, 3))
    bytes_of_row = rng.choice((32, 64, 128, 128, 128, 256, 256, 512))
    columns = (bytes_of_row if rng.random() < 0.85 else rng.randint(1, 700)) // size or 1
    if load in ("gathered", "windows", "through") or store == "scattered":
        rank = {"windows": 2, "through": 3, "multicast": 3}.get(load)
        return (rng.choice((4, 8, 16, 32, 5)), columns), rank or rng.choice((2, 2, 3))
    rank = rng.choice((1, 2, 2, 2, 3, 3, 4, 5))
    core = rng.randint(1, rank)
    if load in ("multicast", "rotated"):  # an outer dimension, along which CTAs lie
        core, rank = min(core, 4), max(rank, min(core, 4) + 1)
    if load == "strided":
        core = rank = max(2, rank)
    outer: list[int] = []
    for _ in range(core - 1):
        most = 4096 // (columns * math.prod(outer)) or 1
        outer.append(min(most, rng.choice((1, 2, 3, 4, 8, 8, 16, 32))))
    return (*outer, columns), rank


def _extent(rng: random.Random, span: int) -> int:
    if span == 1:
        return rng.choice((1, 1, 2, 3))
    return max(1, span * rng.choice((1, 1, 2, 3)) - rng.choice((0, 0, rng.randrange(span))))


def _shift(rng: random.Random, spans: Sequence[int], size: int, free: bool) -> tuple[int, ...]:
    """Elements along each dimension; along the last one mostly whole units of 16 bytes."""
    last = rng.randint(-2, 2) * (16 // size)
    if free and rng.random() < 0.3:
        last = rng.randint(-5, 5)
    return (*(rng.randint(-n, n) if n > 1 else 0 for n in spans[:-1]), last)


def _windows(
    rng: random.Random, tile: tuple[int, ...], channels: int
) -> tuple[Any, list[int], list[int], tuple[int, ...]]:
    """Windows, shapes of the images and of the output, and which element of a window is loaded."""
    rank = rng.choice((1, 2, 2, 3))
    while True:
        try:
            windows = tp.Windows(
                tuple(rng.randint(1, 3) for _ in range(rank)),
                padding=rng.randint(0, 2), stride=rng.randint(1, 3), dilation=rng.randint(1, 2),
            )  # fmt: skip
        except tp.InputError:
            continue
        images = [rng.randint(3, 9) for _ in range(rank)]
        counts = windows.counts(images)
        if min(counts) > 0:
            break
    number = rng.randint(1, 3)
    element = tuple(rng.randrange(n) for n in windows.size)
    return windows, [number, *images, channels], [number * math.prod(counts), channels], element


def _view(rng: random.Random, shape: Sequence[int], size: int, unit: int) -> View:
    """A place in memory, with the outer dimensions in any order and gaps, mostly as the engine wants it."""
    step = max(1, unit // size) if rng.random() < 0.93 else 1
    order = list(range(len(shape) - 1))
    if rng.random() < 0.3:
        rng.shuffle(order)
    strides, reach = [1] * len(shape), shape[-1]
    for i in reversed(order):
        reach = -(-reach // step) * step + step * rng.choice((0, 0, 0, 1, 3))
        strides[i], reach = reach, reach * shape[i]
    return View(64 + step * rng.choice((0, 0, 1, 5)), tuple(shape), tuple(strides))


def _schedule(
    moves: Moves, dtype: str, relations: Any, steps: tuple[int, ...], windows: Any, vector: int, swizzle: int | None,
    copiers: int, workers: int, stages: int, wide: int, cluster: tuple[int, int | None], whole: bool,
) -> tp.Schedule:  # fmt: skip
    """The schedule. Raises `InputError` for what the library refuses."""
    threads = moves.store in ("threads", "registers")
    made: Any = ByThreads() if threads else OF_LOADS.get(moves.load, FromSlots)()
    made.moves, made.relations = moves, relations
    if moves.load == "copies":
        made.load = tp.Role(warps=copiers)
    if threads:
        made.work = tp.Role(warps=workers)
    chain = (made.load, made.send, made.work) if moves.load == "rotated" else (made.load, made.work)
    made.ring = ring = tp.BarrierRing(stages, chain=chain)
    dims, out, options = " ".join(moves.dims), " ".join(moves.out), {"dtype": dtype, "ring": ring}
    if moves.load == "copies":
        x: Any = tp.CpAsyncLoadStage(dims, tile=moves.tile, vector=vector, swizzle=swizzle, **options)
    elif moves.load in ("bulk", "bulk rows"):
        x = tp.BulkLoadStage(dims, tile=moves.tile, **options)
    elif moves.load == "windows":
        x = tp.Im2colLoadStage(dims, tile=moves.tile, windows=windows, swizzle=swizzle, **options)
    else:
        x = tp.TmaLoadStage(dims, tile=moves.tile, swizzle=swizzle, **options)
    if moves.load == "multicast":
        made.cluster = {moves.out[0]: cluster[0]}
        group = tp.MulticastGroup(moves.out[0], ctas=cluster[1], whole=whole)
        x = tp.TmaLoadStage(dims, tile=moves.tile, swizzle=swizzle, multicast=group, **options)
    if moves.load == "strided":
        x = x.strided(**{d: step for d, step in zip(moves.dims, steps, strict=True) if step > 1})
    elif moves.load == "nan":
        x = x.nan_outside()
    elif moves.load == "parts":
        x = x.in_parts(moves.parts)
    elif moves.load == "gathered":
        x = x.in_parts(moves.tile[0])
    made.x = x
    if moves.load == "rotated":
        made.cluster = {moves.out[0]: cluster[0]}
        x = made.z = tp.SharedStage(group=tp.Exchange(tp.MulticastGroup(moves.out[0], ctas=cluster[1]), made.send, x))
    if moves.load == "gathered" or moves.store == "scattered":
        made.index = tp.Table(moves.out[-2])
    if moves.load == "through":
        made.views = tp.BarrierRing(2, producer=made.point, consumer=(made.load, made.work))
        made.rows = tp.DescriptorStage(x, ring=made.views)
        made.firsts, made.counts = tp.Table("a"), tp.Table("a")
    if moves.store == "threads":
        y: Any = tp.TmaStoreStage(out, tile=moves.tile, role=made.work, dtype=dtype)
    elif moves.store == "registers":
        y = tp.ThreadStoreStage(out, tile=moves.tile, role=made.work, vector=wide, dtype=dtype)
    elif moves.store == "bulk":
        y = tp.BulkStoreStage(out, source=x, reduce=moves.reduce)
    elif moves.store == "scattered":
        made.over = out
        y = tp.TmaStoreStage(" ".join((*moves.out[:-2], "s", moves.out[-1])), source=x, reduce=moves.reduce)
        y = y.in_parts(moves.tile[0])
    else:
        y = tp.TmaStoreStage(out, source=x, stages=0, reduce=moves.reduce)
        y = y.in_parts(moves.parts) if moves.store == "parts" else y
    made.y = y
    return made
