"""Cycle times of steady states: as the model's costs predict them, and as stamps in the kernel measure them.

python -m benchmarks.predicted                 measures on the GPU, predicts on the model; suite `predicted`
python -m benchmarks.predicted --measure       measures only
python -m benchmarks.predicted --model         predicts again, beside what the file has measured; needs no GPU
python -m benchmarks.predicted --only Gemm     some schedules
python -m benchmarks.predicted --compile       compiles all kernels, in as many processes as there are cores; needs no GPU

Of each schedule there are nine problems. The constants of `tmapipe.timeline.Costs` were fitted to the first three
alone. And there are four blind ones, predicted before anything like them was measured. A cycle time is `Trace.pace`:
cycles from one slot of the ring to the next, in the middle half of a mainloop, or of all tiles. It is measured in all
CTAs, of which the mean counts, and predicted on a part of the problem that keeps one cluster as busy.
slower: what stamps of the first four clusters cost, the stamped kernel's time over the plain one's, less 1.
spread: over the CTAs, as a part of the median.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import functools
import json
import os
import random
import statistics
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import numpy as np

from benchmarks.cli import gpu_of
from benchmarks.results import OURS, Results, folder_of, print_table, read
from examples.softmax import softmax_of
from tmapipe import schedules
from tmapipe.errors import InputError
from tmapipe.timeline.timed import pace_of
from tmapipe.timeline.trace import share_of, timed

RESULTS = folder_of() / "predicted.json"
KINDS = ("Copy", "Gemm", "PingPong", "Softmax", "Attention")
FITTED = 3  #: of each schedule's problems, the first ones
RECORDED = 4  #: clusters whose stamps are timed
ROUNDS, LAUNCHES, REST = 6, 4, 0.03  #: of each kernel, for what stamps cost; seconds before each batch of launches


@attrs.frozen
class Case:
    """A problem.

    Args:
        kind: One of `KINDS`.
        name: The schedule's options and the shapes, in words.
        make: Makes the schedule.
        shapes: Of the inputs.
        part: Of the inputs of the part that the model runs, on one cluster.
        fitted: Whether constants were fitted to it.
        blind: Whether it was predicted before it was measured.
    """

    kind: str
    name: str
    make: Callable[[], Any]
    shapes: tuple[tuple[int, ...], ...]
    part: tuple[tuple[int, ...], ...]
    fitted: bool = False
    blind: bool = False

    @property
    def dtype(self) -> str:
        """Of the inputs: copies move words."""
        return "int32" if self.kind == "Copy" else "float16"


def _copy(tile: tuple[int, int], stages: int, m: int, n: int) -> Case:
    rows, words = tile
    name = f"tile {rows}x{words} words, {stages} slots, {m}x{n}"
    part = ((rows * 48, 2 * words),)
    return Case("Copy", name, lambda: schedules.Copy(tile, stages), ((m, n),), part)


def _product(kind: str, tile: tuple[int, int, int], cluster: tuple[int, int], m: int, n: int, k: int) -> Case:
    name = f"tile {'x'.join(map(str, tile))}, cluster {cluster[0]}x{cluster[1]}, {m}x{n}x{k}"
    steps, tiles = 32 * tile[2], 3 if kind == "PingPong" else 1
    rows, columns = tile[0] * cluster[0] * tiles, tile[1] * cluster[1]
    make = getattr(schedules, kind)
    return Case(kind, name, lambda: make(tile, cluster), ((m, k), (n, k)), ((rows, steps), (columns, steps)))


def _softmax(rows: int, columns: int, warps: int, m: int, n: int) -> Case:
    name = f"tile {rows}x{columns}, {warps} warps, {m}x{n}"
    make = lambda: softmax_of(columns, rows, warps, held=True)  # noqa: E731
    return Case("Softmax", name, make, ((m, n),), ((32 * rows, n),))


def _attention(d: int | tuple[int, int], heads: int, m: int, causal: str | None = None) -> Case:
    qk, vo = d if isinstance(d, tuple) else (d, d)
    name = f"d {d}, {heads} heads, {m} tokens" + (", causal" if causal else "")
    make = lambda: schedules.Attention(d, causal=causal)  # noqa: E731
    full = ((1, heads, m, qk), (1, heads, m, qk), (1, heads, m, vo))
    part = ((1, 1, 192, qk), (1, 1, 128 * 12, qk), (1, 1, 128 * 12, vo))
    return Case("Attention", name, make, full, part)


def cases() -> list[Case]:
    """All problems: nine of each schedule, the fitted ones first, and four blind ones of each."""
    found = [
        _copy((8, 256), 8, 8192, 4096),
        _copy((16, 256), 4, 16384, 4096),
        _copy((4, 256), 3, 8192, 4096),
        _copy((8, 256), 4, 4096, 8192),
        _copy((16, 128), 8, 8192, 6144),
        _copy((32, 256), 4, 8192, 8192),
        _copy((4, 256), 16, 8192, 4096),
        _copy((2, 256), 4, 8192, 4096),
        _copy((16, 256), 12, 6144, 5120),
        _product("Gemm", (128, 256, 64), (2, 1), 4096, 4096, 4096),
        _product("Gemm", (128, 128, 64), (2, 1), 4096, 4096, 4096),
        _product("Gemm", (128, 64, 64), (1, 1), 4096, 4096, 2048),
        _product("Gemm", (128, 256, 64), (1, 1), 8192, 8192, 2048),
        _product("Gemm", (256, 128, 64), (1, 2), 4096, 8192, 4096),
        _product("Gemm", (128, 192, 64), (2, 1), 3072, 6144, 8192),
        _product("Gemm", (128, 256, 32), (2, 1), 2048, 4096, 4096),
        _product("Gemm", (128, 32, 64), (1, 1), 4096, 2048, 4096),
        _product("Gemm", (128, 128, 128), (1, 2), 1024, 2048, 8192),
        _product("PingPong", (128, 128, 64), (2, 1), 4096, 4096, 4096),
        _product("PingPong", (64, 256, 64), (1, 2), 4096, 4096, 4096),
        _product("PingPong", (64, 64, 64), (1, 1), 4096, 4096, 2048),
        _product("PingPong", (128, 128, 64), (1, 1), 8192, 8192, 2048),
        _product("PingPong", (128, 192, 64), (2, 1), 4096, 6144, 4096),
        _product("PingPong", (64, 192, 64), (2, 1), 4096, 3072, 8192),
        _product("PingPong", (64, 128, 64), (1, 1), 4096, 4096, 2048),
        _product("PingPong", (128, 64, 64), (2, 1), 8192, 2048, 4096),
        _product("PingPong", (64, 128, 128), (1, 1), 2048, 2048, 8192),
        _softmax(4, 1024, 4, 65536, 1024),
        _softmax(2, 2048, 4, 32768, 2048),
        _softmax(2, 4096, 8, 32768, 4096),
        _softmax(4, 1024, 4, 65536, 1000),
        _softmax(8, 512, 4, 131072, 512),
        _softmax(1, 4096, 4, 32768, 4096),
        _softmax(4, 2048, 8, 65536, 1920),
        _softmax(1, 8192, 8, 16384, 8192),
        _softmax(2, 1024, 8, 65536, 1024),
        _attention(128, 16, 8192),
        _attention(64, 32, 8192),
        _attention(256, 8, 8192),
        _attention(96, 16, 8192),
        _attention((192, 128), 16, 4096),
        _attention(128, 16, 8192, "end"),
        _attention(32, 32, 8192),
        _attention(80, 24, 4096),
        _attention((64, 128), 16, 8192),
    ]
    first: Counter[str] = Counter()
    for i, case in enumerate(found):
        found[i] = attrs.evolve(case, fitted=first[case.kind] < FITTED)
        first[case.kind] += 1
    return found + [attrs.evolve(case, blind=True) for case in _blind()]


def _blind() -> list[Case]:
    return [
        _copy((8, 128), 12, 8192, 5120),
        _copy((4, 512), 6, 4096, 8192),
        _product("Gemm", (128, 160, 64), (2, 1), 4096, 5120, 4096),
        _product("Gemm", (128, 128, 64), (1, 1), 2048, 8192, 4096),
        _product("PingPong", (128, 160, 64), (2, 1), 4096, 5120, 4096),
        _product("PingPong", (64, 224, 64), (1, 2), 4096, 7168, 2048),
        _softmax(1, 2048, 4, 65536, 2000),
        _softmax(4, 512, 4, 65536, 512),
        _attention(112, 16, 8192),
        _attention((96, 64), 24, 8192),
        _copy((8, 192), 6, 8192, 6144),
        _copy((16, 512), 3, 8192, 4096),
        _product("Gemm", (128, 96, 64), (2, 1), 4096, 6144, 4096),
        _product("Gemm", (128, 128, 128), (2, 1), 2048, 2048, 8192),
        _product("PingPong", (64, 160, 64), (2, 1), 4096, 5120, 4096),
        _product("PingPong", (128, 96, 64), (1, 1), 4096, 3072, 4096),
        _softmax(2, 512, 4, 65536, 512),
        _softmax(4, 1024, 8, 65536, 1024),
        _attention((128, 64), 16, 8192),
        _attention(160, 16, 4096),
    ]


# ---- the model -------------------------------------------------------------------------------------------------------


def predict(case: Case, **costs: float) -> float:
    """The predicted cycle time. costs: constants that are other ones than `H200`'s."""
    from tmapipe.timeline import H200

    schedule = case.make()
    bound, drawn = schedule.bind(*_arrays(case)), np.random.default_rng(0)
    part = schedule.bind(*(drawn.standard_normal(shape, np.float32).astype(case.dtype) for shape in case.part))
    constants = attrs.evolve(H200, **costs)
    machine, failure = timed(schedule, part, 1, share_of(schedule, bound, constants), constants)
    if failure is not None:
        raise failure
    return pace_of(machine.layout, machine.steps)


def _arrays(case: Case) -> list[Any]:
    return [np.empty(shape, case.dtype) for shape in case.shapes]  # nobody reads them


# ---- the GPU ---------------------------------------------------------------------------------------------------------


def measure(case: Case, clock: Any, raw: dict[str, Any], beside: bool = True) -> dict[str, float]:
    """What stamps and events say of a problem: cycles of all CTAs, and times with stamps of a few of them.

    Args:
        case: The problem.
        clock: A `CudaClock`.
        raw: Gets its stamps by place.
        beside: Whether the plain kernel is timed, too.
    """
    import torch

    from tmapipe.gpu.watchdog import EVERY
    from tmapipe.program import places, trace
    from tmapipe.timeline.stamped import launcher_of

    schedule = case.make()
    schedule.checked = False  # a test proves it
    tensors = [torch.randn(shape, device="cuda").to(getattr(torch, case.dtype)) for shape in case.shapes]
    bound = schedule.bind(*tensors)
    given, plan = list(bound.tensors.values()), schedule.plan(bound.dtypes)
    resident = torch.cuda.get_device_properties("cuda").multi_processor_count // plan.cluster_size
    every, stamps = launcher_of(schedule, bound, resident, EVERY)
    runs = launches(schedule, bound, [stamps.numbers[0], RECORDED * plan.cluster_size], beside)
    rounds = [_round(clock, runs) for _ in range(ROUNDS + 1)][1:]
    us = {name: statistics.median(each[name] for each in rounds) for name in runs}
    clock.batch(lambda: every.launch(given), 2)
    at = places(trace(schedule, plan))
    rows = stamps.rows(at)
    paces = _paces(plan, at, rows)
    rates = [row.ended[1] / max(1, row.ended[0] - row.began[0]) for row in rows]
    found = {
        "measured": statistics.mean(paces),
        "spread": (max(paces) - min(paces)) / statistics.median(paces),
        "ghz": round(statistics.median(rates), 3),
        **{"us" if name == "plain" else name: us[name] for name in us},
    }
    if beside:
        found["slower"] = statistics.median(each["stamped"] / each["plain"] - 1 for each in rounds)
    gaps = [_gaps(at, row) for row in rows if row.cta < 2]
    raw[f"{case.kind}: {case.name}"] = {**found, "paces": [round(pace, 1) for pace in paces], "rows": gaps}
    return found


def launches(schedule: Any, bound: Any, stamps: list[int], beside: bool = True) -> dict[str, Callable[[], Any]]:
    """Launches of the stamped kernel and, *beside* it, of the plain one, both with the same tensors. A call may launch another
    kernel: `Copy` joins rows that follow one another."""
    from tmapipe.calling import launcher_for

    given = list(bound.tensors.values())
    forms = {"stamped": stamps, **({"plain": []} if beside else {})}
    return {name: functools.partial(launcher_for(schedule, bound, form).launch, given) for name, form in forms.items()}


def _round(clock: Any, runs: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Each in a batch of its own, after a rest and in random order: microseconds."""
    us = {}
    for name in random.sample(list(runs), len(runs)):
        clock.rest(REST)
        us[name] = statistics.median(clock.batch(runs[name], LAUNCHES))
    return us


def _paces(plan: Any, at: list[Any], rows: list[Any]) -> list[float]:
    """Of each CTA that has waited for some slots."""
    from tmapipe.timeline.stamped import pace_of_rows

    by: dict[int, list[Any]] = {}
    for row in rows:
        by.setdefault(row.cta, []).append(row)
    paces = []
    for own in by.values():
        with contextlib.suppress(InputError):
            paces.append(pace_of_rows(plan, at, own))
    return paces


def _gaps(at: list[Any], row: Any) -> dict[str, Any]:
    """Cycles between one place and the next, of a warp: by both places, how often, and the median."""
    gaps: dict[str, list[int]] = {}
    name = [f"{i} {getattr(p.node, 'method', 'tile')}{'' if p.after else ' before'}" for i, p in enumerate(at)]
    clocks, numbers = row.clocks.tolist(), row.numbers.tolist()
    for i in range(1, len(clocks)):
        gaps.setdefault(f"{name[numbers[i - 1]]} -> {name[numbers[i]]}", []).append(clocks[i] - clocks[i - 1])
    facts = {key: [len(each), *np.percentile(each, [10, 50, 90]).tolist()] for key, each in gaps.items()}
    return {"cta": row.cta, "warp": row.warp, "full": row.full, "length": row.ended[1], "gaps": facts}


def _compiled(number: int) -> str:
    """Compiles both kernels of a problem, into the cache on disk."""
    from tmapipe.gpu.kernels import kernel_for

    case = cases()[number]
    schedule = case.make()
    bound = schedule.bind(*_arrays(case))
    plan, ranks = schedule.plan(bound.dtypes), {name: tensor.ndim for name, tensor in bound.tensors.items()}
    spilled = [kernel_for(schedule, plan, ranks, instrument=each).resources.spill_bytes for each in ("", "stamps")]
    return f"{case.kind}: {case.name}: bytes of spilled registers, plain and stamped: {spilled}"


# ---- the command -----------------------------------------------------------------------------------------------------


def _named(case: Case) -> dict[str, Any]:
    kind = {"dtype": case.dtype, "peer": OURS, "fitted": int(case.fitted), "blind": int(case.blind) or None}
    return {"problem": case.kind, "variant": case.name, **kind}


def _measure(results: Results, wanted: list[Case], folder: Path, file: Path | None) -> None:
    """Adds a row for each case that could be measured, and writes them to *folder*. file: for what each place took."""
    from tmapipe.gpu.launch import CudaClock

    clock, raw = CudaClock(), dict[str, Any]()
    for case in wanted:
        try:
            found = measure(case, clock, raw)
        except Exception as error:  # the others are still of use
            print(f"{case.kind}: {case.name}: {type(error).__name__}: {error}")
            continue
        results.add(**_named(case), **found)
        results.write(folder)
        if file is not None:
            file.write_text(json.dumps(raw))


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", action="store_true", help="predict only")
    parser.add_argument("--measure", action="store_true", help="measure only")
    parser.add_argument("--compile", action="store_true", help="compile only")
    parser.add_argument("--only", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--raw", type=Path, help="a file for what each place of the kernels took")
    parser.add_argument("--out", type=Path, help="the folder of the results")
    args = parser.parse_args(argv)
    wanted = [(i, case) for i, case in enumerate(cases()) if case.kind in args.only]
    if args.compile:
        with concurrent.futures.ProcessPoolExecutor(os.cpu_count()) as pool:
            for said in pool.map(_compiled, [i for i, _ in wanted]):
                if not said.endswith("[0, 0]"):
                    print(said)
        return 0
    folder = args.out or RESULTS.parent
    if args.model:
        results = Results(**read(folder / "predicted.json"))
    else:
        gpu = gpu_of("predicted")
        if not gpu:
            return 2
        results = Results("predicted", gpu)
        _measure(results, [case for _, case in wanted], folder, args.raw)
    if not args.measure:
        of = {(row["problem"], row["variant"]): row for row in results.rows}
        for _, case in wanted:
            row = of.get((case.kind, case.name)) or results.add(**_named(case))
            row["predicted"] = row["predicted"] if case.blind and "predicted" in row else round(predict(case), 1)
            if "measured" in row:
                row["off"] = round(row["predicted"] / row["measured"] - 1, 4)
        results.write(folder)
    shown = ("problem", "variant", "fitted", "predicted", "measured", "off", "spread", "ghz", "us", "slower")
    print_table([[row.get(name) for name in shown] for row in results.rows], shown)
    return 0


if __name__ == "__main__":
    sys.exit(main())
