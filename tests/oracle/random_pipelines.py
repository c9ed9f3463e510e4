"""Random pipelines from the public objects, each with inputs and the result that it must give: `draw(seed)`.

Small whole numbers wherever a sum has an order, so that the right result is one bit pattern.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from typing import Any

import attrs
import torch

import tmapipe as tp
from tests.oracle.pipeline_schedules import (
    Chain0,
    Chain1,
    Chain2,
    Chain3,
    Gathered,
    Held,
    Shared,
    TwoRings,
    TwoWriters,
)

__all__ = ["FAMILIES", "Pipeline", "draw"]

TORCH = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32, "int32": torch.int32}
ROUNDING = {"bf16": 4e-3, "fp16": 5e-4, "fp32": 1e-5}  # relative error of a result rounded once to the type


@attrs.frozen
class Pipeline:
    """One schedule and its problem.

    text: what was drawn; dtypes, shapes: of the tensors, by stage; reference: inputs in float64 -> result; tolerance:
    relative error (0: every bit); pads: by tensor, elements that its rows in memory have beyond those of its shape.
    """

    seed: int
    text: str
    schedule: Any
    dtypes: dict[str, str]
    shapes: dict[str, tuple[int, ...]]
    reference: Callable[..., Any]
    tolerance: float = 0.0
    pads: dict[str, int] = attrs.field(factory=dict)

    @property
    def loads(self) -> list[str]:
        return list(self.schedule.declared.loads)

    def inputs(self, device: str, number: int) -> list[Any]:
        """The *number*-th set of inputs, the same on every device."""
        made = torch.Generator().manual_seed(1000 * self.seed + number)
        found = []
        for name in self.loads:
            dtype, (*outer, columns) = TORCH[self.dtypes[name]], self.shapes[name]
            shape = (*outer, columns + self.pads.get(name, 0))
            values = (
                torch.randn(shape, generator=made) if self.tolerance else torch.randint(-8, 9, shape, generator=made)
            )
            found.append(values.to(dtype).to(device)[..., :columns])
        return found

    def poisoned(self, device: str) -> Any:
        """An output that nothing has written to."""
        name = next(iter(self.schedule.declared.stores))
        dtype = TORCH[self.dtypes[name]]
        value = -77777 if dtype == torch.int32 else float("nan")
        return torch.full(self.shapes[name], value, dtype=dtype, device=device)

    def wrong(self, out: Any, inputs: list[Any]) -> str | None:
        """What is wrong with a result, or None."""
        expected = self.reference(*(x.double() for x in inputs))
        found = out.double()
        if torch.isnan(found).any():
            return f"{int(torch.isnan(found).sum())} elements never written"
        if self.tolerance:
            error = ((found - expected).norm() / expected.norm()).item()
            return None if error < self.tolerance else f"relative error {error:.2g}"
        differ = int((found != expected).sum())
        return f"{differ} of {found.numel()} elements differ" if differ else None

    def plan_shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes as the plan's arguments have them: with 1s for the batch dimensions that a tensor lacks."""
        parts = {**self.schedule.declared.loads, **self.schedule.declared.stores}
        return {n: (1,) * (len(parts[n].dims) - len(shape)) + shape for n, shape in self.shapes.items()}


# ---- drawing ----------------------------------------------------------------------------------------------------------

#: Tiles of a matrix along each dimension; rows and columns of a GEMM's result. "laps" and "many": several laps of the rings,
#: of one cluster and of a whole GPU.
TILES = {"small": (3, 6), "laps": (8, 9), "any": (1, 40), "many": (30, 50)}
GEMM_TILES = {"small": (64, 300), "laps": (256, 400), "any": (8, 900), "many": (1500, 2500)}


def _extent(rng: random.Random, tile: int, tiles: tuple[int, int]) -> int:
    """So many tiles, the last one often cut short."""
    return tile * rng.randint(*tiles) - (rng.randrange(tile) if rng.random() < 0.5 else 0)


def _matrix(rng: random.Random, tile: tuple[int, int], nbytes: int, size: str) -> tuple[int, int]:
    """Rows and columns of a matrix that TMA can address."""
    tiles = TILES[size]
    step = 16 // nbytes
    return _extent(rng, tile[0], tiles), -(-_extent(rng, tile[1], tiles) // step) * step


def _tile(rng: random.Random, nbytes: int) -> tuple[int, int]:
    """Tiles that up to 4 warps share evenly: whole vectors of 16 bytes a thread, slots at multiples of 128 bytes."""
    return rng.choice([8, 16, 32]), rng.choice([256, 512]) // nbytes


def _chain(rng: random.Random, sizes: random.Random, size: str) -> dict[str, Any]:
    kind = rng.choice([Chain0, Chain1, Chain1, Chain2, Chain3])
    dtype = rng.choice(["bf16", "fp16", "fp32", "int32"])
    nbytes = TORCH[dtype].itemsize
    tile = _tile(rng, nbytes)
    stages, pending = rng.randint(1, 6), rng.randint(0, 3)
    drawn = {
        "tile": tile,
        "stages": stages,
        "warps": [rng.choice([1, 2, 4]) for _ in kind.steps],
        "pending": min(pending, stages - 1),
        "group": rng.choice([1, 3, 8]),
        "cluster": rng.choice([{}, {}, {"m": 2}, {"n": 2}, {"m": 2, "n": 2}]),
    }
    shape = _matrix(sizes, tile, nbytes, size)
    after: dict[Any, Callable[[Any], Any]] = {
        Chain0: lambda x: x,
        Chain1: lambda x: 2 * x + 1,
        Chain2: lambda x: 2 * x + 4,
        Chain3: lambda x: 4 * x + 8,
    }
    return _made(kind, drawn, {"x": dtype, "y": dtype}, {"x": shape, "y": shape}, after[kind])


def _shared(rng: random.Random, sizes: random.Random, size: str) -> dict[str, Any]:
    dtype = rng.choice(["bf16", "fp16", "fp32", "int32"])
    nbytes = TORCH[dtype].itemsize
    tile = _tile(rng, nbytes)
    drawn = {
        "tile": tile,
        "stages": rng.randint(1, 5),
        "warps": rng.choice([1, 2, 4]),
        "buffers": rng.randint(1, 3),
        "cluster": rng.choice([1, 2, 2, 4]),
    }
    rows, columns = _matrix(sizes, tile, nbytes, size)
    many = (sizes.randint(1, 9), rows, columns)
    return _made(
        Shared,
        drawn,
        {"x": dtype, "s": dtype, "y": dtype},
        {"x": many, "s": (rows, columns), "y": many},
        lambda x, s: x + s,
    )


def _two_rings(rng: random.Random, sizes: random.Random, size: str) -> dict[str, Any]:
    dtype = rng.choice(["fp16", "fp32", "int32"])
    nbytes = TORCH[dtype].itemsize
    tile = _tile(rng, nbytes)
    drawn = {
        "tile": tile,
        "stages": (rng.randint(1, 4), rng.randint(1, 4)),
        "warps": (rng.choice([1, 2, 4]), rng.choice([1, 2, 4])),
        "buffers": rng.randint(1, 3),
        "dtype": dtype,
    }
    shape = _matrix(sizes, tile, nbytes, size)
    return _made(TwoRings, drawn, {"x": dtype, "y": dtype}, {"x": shape, "y": shape}, lambda x: 2 * x + 1)


def _two_writers(rng: random.Random, sizes: random.Random, size: str) -> dict[str, Any]:
    tile = _tile(rng, 4)
    drawn = {
        "tile": tile,
        "stages": rng.randint(1, 4),
        "warps": (rng.choice([1, 2, 4]), rng.choice([1, 2, 4])),
        "buffers": rng.randint(1, 3),
    }
    shape = _matrix(sizes, tile, 4, size)
    return _made(TwoWriters, drawn, {"x": "int32", "y": "int32"}, {"x": shape, "y": shape}, lambda x: x + 3)


def _add_parts(rng: random.Random, sizes: random.Random, size: str) -> dict[str, Any]:
    tile = (rng.choice([4, 8]), rng.choice([128, 256]))
    drawn = {"tile": tile, "stages": rng.randint(2, 12)}
    shape = _matrix(sizes, tile, 4, size)
    many = (sizes.randint(1, 6), *shape)
    return _made(tp.schedules.AddParts, drawn, {"x": "fp32", "d": "fp32"}, {"x": many, "d": shape}, lambda x: x.sum(0))


def _gemm(rng: random.Random, sizes: random.Random, size: str) -> dict[str, Any]:
    kind = rng.choice([tp.schedules.Gemm, tp.schedules.Gemm, tp.schedules.PingPong])
    tiles = [(64, 128, 64), (64, 64, 64), (64, 192, 64), (64, 128, 32)]
    if kind is tp.schedules.Gemm:
        tiles += [(128, 128, 64), (128, 64, 64), (128, 256, 64), (192, 128, 64), (256, 64, 64)]
    drawn = {
        "tile": rng.choice(tiles),
        "cluster": rng.choice([(1, 1), (2, 1), (1, 2), (2, 2), (4, 1), (1, 4)]),
        "stages": rng.randint(2, 4),
        "epilogue": tp.epilogue.Epilogue(stages=rng.choice([1, 2])),
        "tiles": tp.tiles.PersistentTiles(rng.choice([tp.tiles.Grouped(1), tp.tiles.Snake(3), tp.tiles.Hilbert(8)])),
    }
    dtype = rng.choice(["bf16", "fp16"])
    out = rng.choice([dtype, "fp32"])
    low, high = GEMM_TILES[size]
    m, n, k = sizes.randint(low, high), 8 * sizes.randint(low // 8, high // 8), 8 * sizes.randint(8, 80)
    return _made(
        kind,
        drawn,
        {"a": dtype, "b": dtype, "d": out},
        {"a": (m, k), "b": (n, k), "d": (m, n)},
        lambda a, b: a @ b.T,
        ROUNDING[out],
    )


def _held(rng: random.Random, sizes: random.Random, size: str, over: bool = False) -> dict[str, Any]:
    dtype = rng.choice(["fp32", "bf16"])
    tile = _tile(rng, 2)
    drawn = {
        "tile": tile,
        "stages": rng.randint(1, 4),
        "warps": rng.choice([1, 2, 4]),
        "parts": rng.choice([1, 2, 4]),
        "pending": 0,
        "copies": rng.choice([1, 2]),
        "cluster": rng.choice([1, 2, 2, 4]),
        "dtype": dtype,
        **({"over": True} if over else {}),
    }
    drawn["pending"] = rng.randint(0, drawn["stages"] - 1)
    rows, _ = _matrix(sizes, tile, 4, size)
    many = (sizes.randint(1, 9), rows, tile[1])
    return _made(
        Held,
        drawn,
        {"s": "fp32", "x": "fp32", "y": dtype},
        {"s": tile, "x": many, "y": many},
        lambda s, x: 2 * x + s.repeat(-(-x.shape[1] // len(s)), 1)[: x.shape[1]],
    )


def _gathered(rng: random.Random, sizes: random.Random, size: str) -> dict[str, Any]:
    tile = _tile(rng, 4)
    by = (rng.randint(-20, 20), 4 * rng.randint(-10, 10))
    drawn = {
        "tile": tile,
        "by": by,
        "stages": rng.randint(1, 4),
        "warps": rng.choice([1, 2, 4]),
        "buffers": rng.randint(1, 3),
        "halo": (rng.randint(0, 3), 4 * rng.randint(0, 3)),
    }
    many = (sizes.randint(1, 4), *_matrix(sizes, tile, 4, size))

    def moved(x: Any) -> Any:
        wide = torch.nn.functional.pad(x, (64, 64, 64, 64))
        return wide[:, 64 + by[0] :, 64 + by[1] :][:, : x.shape[1], : x.shape[2]]

    return _made(Gathered, drawn, {"x": "fp32", "y": "fp32"}, {"x": many, "y": many}, moved)


def _copied(rng: random.Random, sizes: random.Random, size: str) -> dict[str, Any]:
    """One of the others, whose x is copied by threads, from rows that begin at any multiple of 4, 8 or 16 bytes."""
    family = rng.choice([_chain, _shared, _two_rings, _two_writers])
    made = family(rng, sizes, size)
    schedule = made["schedule"]
    x, vector, warps = schedule.x, rng.choice([4, 8, 16]), rng.choice([1, 2, 3])
    if family is not _shared:  # whose role loads by TMA too
        schedule.load = tp.Role(warps=warps)
    schedule.x = tp.CpAsyncLoadStage(" ".join(x.dims), tile=x.tile, ring=x.ring, vector=vector, loader=x.loader)
    pad = vector * sizes.randint(0, 3) // TORCH[made["dtypes"]["x"]].itemsize
    text = f"{schedule.load.warps} warps copy {vector} bytes: {made['text']}"
    return {**made, "text": text, "pads": {"x": pad}}


def _made(kind: Any, drawn: dict[str, Any], dtypes: Any, shapes: Any, reference: Any, tolerance: float = 0.0) -> Any:
    options = ", ".join(f"{name}={value}" for name, value in drawn.items())
    tensors = ", ".join(f"{name} {dtypes[name]}{list(shape)}" for name, shape in shapes.items())
    return {
        "text": f"{kind.__name__}({options}) on {tensors}",
        "schedule": kind(**drawn),
        "dtypes": dtypes,
        "shapes": shapes,
        "reference": reference,
        "tolerance": tolerance,
    }


FAMILIES = (_chain, _shared, _two_rings, _two_writers, _add_parts, _gemm)
WEIGHTS = (6, 4, 3, 2, 1, 4)
#: What seeds from NEW on draw from; results of earlier runs name the pipelines of smaller seeds.
NEW_FAMILIES = (_held, _gathered)
NEW, OVER, COPIED = 10_000, 20_000, 30_000


def draw(seed: int, size: str = "any") -> Pipeline:
    """The pipeline of *seed* with a problem of a size: "small" (for the model), "laps" (for the checker), "any" or "many"
    (for a GPU). The schedule is the same for all sizes. From `NEW` on: of slots that are held, and starts anywhere; from
    `OVER` on: of tiles over others; from `COPIED` on: of copies by threads."""
    rng = random.Random(seed)
    while True:
        family = rng.choices(FAMILIES, WEIGHTS)[0] if seed < NEW else rng.choice(NEW_FAMILIES)
        if seed >= OVER:
            family = functools.partial(_held, over=True) if seed < COPIED else _copied
        made = family(rng, random.Random(seed), size)
        try:
            made["schedule"].plan(made["dtypes"])
            return Pipeline(seed, **made)
        except tp.InputError:
            continue
