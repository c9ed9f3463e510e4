"""tmapipe's own variants: the only place in the GEMM and copy benchmarks that knows the library's API."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import attrs

# At the tile, cluster and stages of CUTLASS's example: to compare on equal terms.
PINNED = ("Gemm 128x256x64 cluster 2x1 stages 4", "fast Gemm 128x256x128 cluster 2x1 stages 4")


@attrs.frozen
class Config:
    """schedule: a name in `tmapipe.schedules`; tile: (m, n, k in bytes); options: what else its constructor is given, and
    early: whether each launch may start under the end of the one before."""

    schedule: str
    tile: tuple[int, int, int]
    cluster: tuple[int, int] = (2, 1)
    stages: int | None = None
    options: tuple[tuple[str, Any], ...] = ()

    def name(self, element_bytes: int) -> str:
        m, n, k = self.tile
        parts = [self.schedule, f"{m}x{n}x{k // element_bytes}", f"cluster {self.cluster[0]}x{self.cluster[1]}"]
        parts += [f"stages {self.stages}"] if self.stages else []
        return " ".join([*parts, *(f"{name} {value}" for name, value in self.options)])

    def build(self, element_bytes: int) -> Any:
        from tmapipe import schedules

        m, n, k = self.tile
        make = getattr(schedules, self.schedule)
        options = {name: _order(value) if name == "order" else value for name, value in self.options}
        early = options.pop("early", False)
        made = make(tile=(m, n, k // element_bytes), cluster=self.cluster, stages=self.stages, **options)
        for part in (made, getattr(made, "add_parts", made)) if early else ():
            part.starts_early = part.lets_next_start = True
        return made


def _order(text: str) -> Any:
    """The order of tiles that "snake 8" names."""
    import tmapipe as tp

    raster, rows = text.split()
    if raster == "dynamic":
        return tp.DynamicTiles(tp.Grouped(int(rows)))
    return tp.PersistentTiles({"grouped": tp.Grouped, "snake": tp.Snake, "hilbert": tp.Hilbert}[raster](int(rows)))


B_ONCE = ("l2_hints", (None, "evict_first"))  # b is read once: keep it from pushing other data out of L2

FEW = (
    Config("Gemm", (128, 256, 128), (2, 1), 4),
    Config("Gemm", (128, 192, 128), (2, 1)),
    Config("Gemm", (192, 176, 128), (1, 2), None, (("store_stages", 1),)),
    Config("Gemm", (64, 128, 128), (1, 1)),
    Config("Gemm", (64, 128, 128), (2, 1), None, (B_ONCE,)),
    Config("PingPong", (128, 128, 128), (1, 2), None, (("order", "grouped 16"),)),
    Config("PingPong", (128, 128, 128), (2, 1)),
    Config("PingPong", (128, 192, 128), (2, 1), None, (("store_stages", 1),)),
)
EVERY = (
    *FEW,
    Config("Gemm", (128, 256, 128), (1, 1), 4),
    Config("Gemm", (128, 256, 128), (2, 1), 4, (("order", "grouped 4"),)),
    Config("Gemm", (128, 256, 128), (2, 1), 4, (("order", "grouped 16"),)),
    Config("Gemm", (128, 256, 128), (2, 1), 4, (("order", "snake 8"),)),
    Config("Gemm", (128, 256, 128), (2, 1), 4, (("order", "hilbert 8"),)),
    Config("Gemm", (128, 256, 128), (2, 1), 4, (("order", "dynamic 8"),)),
    Config("Gemm", (64, 128, 128), (2, 1), None, (("order", "dynamic 8"),)),
    Config("PingPong", (128, 128, 128), (2, 1), None, (("order", "dynamic 8"),)),
    Config("Gemm", (64, 128, 128), (2, 1), None, (("early", True),)),
    Config("PingPong", (128, 128, 128), (2, 1), None, (("early", True),)),
    Config("Gemm", (128, 256, 128), (1, 2), 4),
    Config("Gemm", (128, 128, 128)),
    Config("Gemm", (128, 128, 128), (1, 1)),
    Config("Gemm", (256, 128, 128), (2, 1)),
    Config("PingPong", (128, 128, 128), (1, 1)),
    Config("PingPong", (128, 128, 128), (1, 2)),
)


def prepare(a: Any, b: Any, out: Any, every: bool) -> dict[str, Callable[[], object]]:
    variants = gemm_variants(a, b, out, every=every)
    if a.element_size() == 1:
        return {f"fast {name}": run for name, run in variants.items()}
    return variants


def gemm_variants(
    a: Any, b: Any, out: Any, only: Iterable[str] | None = None, *, every: bool = False
) -> dict[str, Callable[[], object]]:
    """Name -> launch of ``out = a @ b.t()``. only: names to keep; every: all configurations rather than a few."""
    size = a.element_size()
    configs = [*(EVERY if every else FEW), *_split_k(a.shape[0], b.shape[0], a.shape[1], out.element_size() == 4)]
    named = {config.name(size): config for config in configs}
    wanted = [name for name in named if only is None or name in set(only)]
    return {name: _launcher(_schedule(named[name], size), a, b, out) for name in wanted}


def copy_variants(x: Any, y: Any) -> dict[str, Callable[[], object]]:
    """Name -> launch of ``y = x`` for matrices with contiguous rows."""
    from tmapipe.schedules import Copy

    variants: dict[str, Callable[[], object]] = {}
    for rows, words, stages in ((4, 256, 12), (8, 256, 8), (16, 128, 12), (32, 64, 8)):
        copy = _copy(Copy, (rows, words), stages)
        variants[f"Copy {rows}x{words} words, stages {stages}"] = functools.partial(copy, x, out=y)
    return variants


def gemm_cubin(tile: tuple[int, int, int], cluster: tuple[int, int], stages: int | None) -> bytes:
    """The cubin of the bf16 GEMM at this tile; needs no GPU."""
    from tmapipe.schedules import Gemm

    return Gemm(tile=tile, cluster=cluster, stages=stages).compile({"a": "bf16", "b": "bf16", "d": "bf16"}).cubin


def _split_k(m: int, n: int, k: int, fp32_out: bool, multiprocessors: int = 132) -> list[Config]:
    """Split-K where output tiles alone leave half of the device idle, or more; stream-K where they leave any of it idle."""
    configs = []
    if 2 <= -(-m // 128) * -(-n // 256) < multiprocessors and k >= 1024:
        configs += [Config("StreamK", (128, 256, 128), (2, 1), None, (("shares", multiprocessors // 2),))]
    for tile in ((128, 128, 128), (128, 256, 128)):
        tiles = -(-m // tile[0]) * -(-n // tile[1])
        parts = multiprocessors // tiles
        if parts >= 2 and k // parts >= 256:
            counts = sorted({parts, _power_of_two(parts)})
            configs += [Config("SplitK", tile, (2, 1), None, (("parts", count),)) for count in counts]
            apart = (("parts", counts[-1]), ("interleaved", True))
            configs += [Config("SplitK", tile, (2, 1), None, option) for option in (apart, (*apart, ("early", True)))]
            if tiles % 4 == 0:
                configs += [Config("SplitK", tile, (2, 2), None, (("parts", _power_of_two(parts)),))]
            if fp32_out:
                configs += [Config("SplitK", tile, (2, 1), None, (("parts", counts[-1]), ("reduce", "add")))]
    return configs


def _power_of_two(most: int) -> int:
    return 1 << (most.bit_length() - 1)


@functools.cache
def _schedule(config: Config, element_bytes: int) -> Any:
    """One schedule a configuration, so that it compiles once a process."""
    try:
        return config.build(element_bytes)
    except Exception as error:
        return error


@functools.cache
def _copy(make: Any, tile: tuple[int, int], stages: int) -> Any:
    return make(tile=tile, stages=stages)


def _launcher(schedule: Any, a: Any, b: Any, out: Any) -> Callable[[], object]:
    if not isinstance(schedule, Exception):
        return functools.partial(schedule, a, b, out=out)

    def fail() -> None:
        raise schedule

    return fail
