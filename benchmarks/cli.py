"""What the suites' command lines share: options, and the end of a run."""

from __future__ import annotations

import argparse
import os
import threading
import time
from typing import Any

import attrs

from benchmarks.results import OURS, Results
from benchmarks.tables import print_summary
from tmapipe.tuning.cost import Method

__all__ = ["add_options", "finish", "gpu_of", "guarded", "kept", "method_of", "settings"]


def guarded(seconds: float) -> float:
    """When a run of so many *seconds* ends, by `time.monotonic`. Ends the process a minute later: a device may not answer."""
    guard = threading.Timer(1.1 * seconds + 60, os._exit, (3,))
    guard.daemon = True
    guard.start()
    return time.monotonic() + seconds


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options that every suite on the GPU has."""
    standard = Method()
    parser.add_argument(
        "--rounds", type=int, default=standard.rounds, help="rounds of all variants (default %(default)s)"
    )
    parser.add_argument("--batch", type=int, default=standard.batch, help="launches a batch (default %(default)s)")
    parser.add_argument(
        "--rest", type=float, default=standard.rest, help="seconds before each batch (default %(default)s)"
    )
    parser.add_argument(
        "--seed", type=lambda text: int(text, 0), default=standard.seed, help="of data and order (default %(default)s)"
    )
    parser.add_argument("--sustained", action="store_true", help="also the second table: a hot card, long batches")
    parser.add_argument(
        "--keep", type=int, default=2, help="variants of each peer after screening (default %(default)s)"
    )
    parser.add_argument("--every", action="store_true", help="try all configurations of each peer, not a few")
    parser.add_argument(
        "--skip", action="append", default=[], metavar="TEXT", help="leave out variants named like this"
    )
    parser.add_argument(
        "--flush", choices=("write", "read", "none"), default="write", help="of L2 (default %(default)s)"
    )
    parser.add_argument("--out", metavar="FOLDER", help="where <suite>.json goes (default: benchmarks/results)")
    parser.add_argument("--append", action="store_true", help="keep the rows of an earlier file of the same software")
    parser.add_argument("--plot", action="store_true", help="also a chart beside the results (needs matplotlib)")


def gpu_of(suite: str) -> str:
    """The name of the GPU that *suite* measures on; "", which is said, if there is none: then it ends with 2."""
    import torch

    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    print(f"no GPU here: benchmarks.{suite} measures on one")
    return ""


def method_of(args: argparse.Namespace) -> Method:
    return Method(rounds=args.rounds, batch=args.batch, rest=args.rest, seed=args.seed)


def kept(candidates: dict[tuple[str, str], Any], args: argparse.Namespace) -> dict[tuple[str, str], Any]:
    """Without those whose "peer variant" contains a ``--skip`` text."""
    return {key: run for key, run in candidates.items() if not any(text in " ".join(key) for text in args.skip)}


def settings(args: argparse.Namespace) -> dict[str, Any]:
    """What a results file says of how it was measured."""
    return {
        "rounds": args.rounds,
        "batch": args.batch,
        "rest_s": args.rest,
        "flush": args.flush,
        "data": "random normal",
    }


def finish(results: Results, args: argparse.Namespace, measure: str, failed: list[str]) -> int:
    """Prints the summaries and what failed, plots if asked to; the exit status: 1 if a variant of ours failed."""
    for mode in ("rested", "sustained"):
        print_summary(results, measure, mode)
    path = results.write(args.out)
    print(f"\nwritten: {path}")
    if args.plot:
        from benchmarks.plot import plot

        plot(attrs.asdict(results), path.with_suffix(".svg"))
    if failed:
        print("\nleft out:")
        for line in dict.fromkeys(failed):
            print(f"  {line}")
    return int(any(line.startswith(f"{OURS} ") for line in failed))
