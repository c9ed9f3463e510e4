"""How long a check takes, by the number of events: the table and the plot of docs/internals/appendix-checker.md. Needs no GPU.

python -m benchmarks.checker [--plot docs/img/checker.svg]
"""

from __future__ import annotations

import argparse
import importlib
import multiprocessing
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tmapipe as tp
from benchmarks.results import OURS, Results, print_table
from tests.check.five_roles import FiveRoles, FiveRolesOneSilent
from tests.oracle.one_run import check_program
from tests.oracle.registry import REGISTRY
from tests.programs import PROGRAMS
from tmapipe import schedules
from tmapipe.check import Report
from tmapipe.kernel import kernel_main

__all__ = ["draw", "main"]

REPEATS = 3  # the fastest counts


FIVE = {"x": (8, 64 * 16), "y": (8, 64 * 16)}  # 16 tiles
LARGE: dict[str, Any] = {"tile": (128, 128, 64), "cluster": (2, 2), "stages": 5}
EVERY: dict[str, Callable[[], Any]] = (
    {
        "five roles, 3 stages": FiveRoles,
        "five roles, 3 stages, one silent": FiveRolesOneSilent,
        "Gemm, cluster 2x2, 5 stages": lambda: schedules.Gemm(**LARGE),
        "SplitK, cluster 2x2, 5 stages": lambda: schedules.SplitK(3, **LARGE),
        "PingPong, cluster 2x2, 5 stages": lambda: schedules.PingPong(**LARGE),
        "Gemm, cluster 2x1, dynamic order": lambda: schedules.Gemm(tiles=tp.tiles.DynamicTiles()),
        "Gemm, cluster 1x2, by GPC": lambda: schedules.Gemm(cluster=(1, 2), tiles=tp.tiles.GpcTiles()),
    }
    | {made.name: made.make for made in REGISTRY}
    | {name: made.make for name, made in PROGRAMS.items()}
)
K_TILES = (8, 16, 32, 64, 128, 256)


def one_run(schedule: Any, shapes: dict[str, tuple[int, ...]]) -> Report:
    """One concrete problem on one cluster."""
    plan = schedule.plan()
    return check_program(plan, lambda isa: kernel_main(isa, schedule), shapes)


def gemm_shapes(schedule: Any, k_tiles: int, output_tiles: int) -> dict[str, tuple[int, ...]]:
    """A problem of so many output tiles a CTA."""
    cluster = schedule.plan().cluster
    m, n, k = schedule.mma.a.tile[0], schedule.mma.b.tile[0], schedule.mma.a.tile[1]
    rows, columns = m * cluster["m"], n * cluster["n"] * output_tiles
    return {"a": (1, rows, k * k_tiles), "b": (1, columns, k * k_tiles), "d": (1, rows, columns)}


def timed(check: Callable[[], Report]) -> dict[str, Any]:
    """What a check says, and the processor's microseconds, tracing included: in this process."""
    started = time.process_time()
    report = check()
    us = 1e6 * (time.process_time() - started)
    verdict = "safe" if report.ok else ", ".join(sorted(kind.name for kind in report.kinds()))
    return {"events": report.events, "us": us, "verdict": verdict, "trips": report.trips}


def apart(check: Callable[[], Report]) -> dict[str, Any]:
    """The same in a new process, which has imported the library and checked nothing."""
    receive, send = multiprocessing.Pipe(duplex=False)
    child = multiprocessing.get_context("fork").Process(target=lambda: send.send(timed(check)))
    child.start()
    send.close()  # so that a child that fails ends the wait
    row: dict[str, Any] = receive.recv()
    child.join()
    return row


def measure() -> Results:
    """All checks."""
    importlib.import_module("tmapipe.prove")  # which the library imports when it checks first
    how = {"repeats": REPEATS, "time": "of the processor, tracing included, each in a new process, the fastest"}
    results = Results("checker", "none", how)

    def add(problem: str, trips: str, check: Callable[[], Report]) -> None:
        row = min((apart(check) for _ in range(REPEATS)), key=lambda row: row["us"])
        results.add(problem=problem, dtype="bf16", peer=OURS, variant=trips, **row)

    for name, make in EVERY.items():
        add(name, "every trip count", lambda make=make: make().check())  # type: ignore[misc]
    for name, make in (("five roles, 3 stages", FiveRoles), ("five roles, 3 stages, one silent", FiveRolesOneSilent)):
        add(f"{name}, 16 tiles", "one run", lambda make=make: one_run(make(), FIVE))  # type: ignore[misc]
    gemm = schedules.Gemm(**LARGE)
    for k_tiles in K_TILES:
        shapes = gemm_shapes(gemm, k_tiles, 3)
        name = f"Gemm, cluster 2x2, 5 stages, 3 output tiles, {k_tiles} k-tiles"
        add(name, "one run", lambda shapes=shapes: one_run(gemm, shapes))  # type: ignore[misc]
    return results


def draw(rows: list[dict[str, Any]], path: Path) -> bool:
    """Seconds over events. Without matplotlib it says so and returns False."""
    try:
        import matplotlib
    except ImportError:
        print(f"no plot {path}: matplotlib is not installed (it is in the extra 'bench')")
        return False
    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "tmapipe"
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7.0, 4.0), layout="constrained")
    for variant, style in (("one run", "o-"), ("every trip count", "s")):
        points = sorted(
            (r["events"], r["us"] / 1e6) for r in rows if r["variant"] == variant and r["verdict"] == "safe"
        )
        axes.loglog(*zip(*points, strict=True), style, label=variant)
    axes.set_xlabel("events")
    axes.set_ylabel("seconds")
    axes.grid(alpha=0.3)
    axes.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    pyplot.close(figure)
    return True


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plot", type=Path, help="write the plot here")
    parser.add_argument("--out", type=Path, help="folder of the results file")
    args = parser.parse_args(argv)
    results = measure()
    table = [(r["problem"], r["variant"], r["verdict"], r["events"], f"{r['us'] / 1e6:.3f}") for r in results.rows]
    print_table(table, ("check", "of", "verdict", "events", "seconds"))
    registered = [r["us"] / 1e6 for r in results.rows if r["problem"] in {made.name for made in REGISTRY}]
    print(f"{len(registered)} registered schedules: {sum(registered):.1f} s, the longest {max(registered):.2f} s")
    print(results.write(args.out))
    if args.plot and draw(results.rows, args.plot):
        print(args.plot)


if __name__ == "__main__":
    main()
