"""Kernels of this version beside those of another one, in one process on the same data.

git worktree add ../before <commit>
python -m benchmarks.versions --other ../before/tmapipe

The other package is copied under the name `tmapipe_other`, with its imports renamed. Both make the same calls on the same
tensors, and their results must agree. ratio is the other's time over this one's. Writes ``benchmarks/results/versions.json``.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import re
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.cli import add_options, gpu_of, method_of, settings
from benchmarks.results import Results, print_table
from tmapipe.tuning.cost import rested

OTHER = "tmapipe_other"


def add_other(parser: argparse.ArgumentParser) -> None:
    """The option that names the other version."""
    parser.add_argument("--other", type=Path, help="folder of the other package")


def other_package(parser: argparse.ArgumentParser, source: Path | None) -> Any:
    """The package at *source*, imported under its other name. Ends the program if the option is not given."""
    if source is None:
        parser.error("--other FOLDER names the other version's package")
    folder = Path(tempfile.mkdtemp(prefix="tmapipe-other-"))
    shutil.copytree(source, folder / OTHER, ignore=shutil.ignore_patterns("__pycache__"))
    for path in (folder / OTHER).rglob("*.py"):
        path.write_text(re.sub(r"\btmapipe\b", OTHER, path.read_text()))
    sys.path.insert(0, str(folder))
    return importlib.import_module(OTHER)


def calls(tp: Any) -> dict[str, tuple[Any, Callable[[dict[str, Any]], tuple[tuple[Any, ...], dict[str, Any]]]]]:
    """By name: a schedule of the package *tp*, and its arguments out of the tensors of `tensors`."""
    kinds, gelu = tp.epilogue, tp.math.gelu
    bias = kinds.Epilogue(lambda acc, bias: gelu(acc + bias), operands={"bias": kinds.PerColumn()})
    residual = kinds.Epilogue(lambda acc, c: acc + c, operands={"c": kinds.Matrix()})
    sums = kinds.Epilogue(lambda acc: {"d": acc, "rows": acc}, outputs={"rows": kinds.RowSum()})
    both = kinds.Epilogue(
        lambda acc: {"d": acc, "rows": acc, "columns": acc * acc},
        outputs={"rows": kinds.RowSum(), "columns": kinds.ColumnSum()},
    )
    gemm, pingpong, gated = tp.schedules.Gemm, tp.schedules.PingPong, tp.schedules.GatedGemm

    def plain(t: dict[str, Any]) -> Any:
        return (t["a"], t["b"]), {}

    def long(t: dict[str, Any]) -> Any:
        return (t["long a"], t["long b"]), {}

    return {
        "gemm": (gemm((128, 256, 64), (2, 1)), plain),
        "gemm bias+gelu": (gemm((128, 256, 64), (2, 1), epilogue=bias), lambda t: ((t["a"], t["b"], t["row"]), {})),
        "pingpong bias+gelu": (pingpong((128, 128, 64), (2, 1), epilogue=bias), lambda t: ((t["a"], t["b"], t["row"]), {})),
        "gemm residual": (gemm((128, 256, 64), (2, 1), epilogue=residual), lambda t: ((t["a"], t["b"], t["c"]), {})),
        "pingpong residual": (pingpong((128, 128, 64), (2, 1), epilogue=residual), lambda t: ((t["a"], t["b"], t["c"]), {})),
        "gemm row sums": (gemm((128, 256, 64), (2, 1), epilogue=sums), plain),
        "pingpong row and column sums": (pingpong((128, 128, 64), (2, 1), epilogue=both), plain),
        "gated": (gated((128, 128, 64), (2, 1)), lambda t: ((t["a"], t["b"], t["up"]), {})),
        "split-k": (tp.schedules.SplitK(parts=4), long),
        "stream-k": (tp.schedules.StreamK(shares=132), long),
        "split-k bias+gelu": (tp.schedules.SplitK(parts=4, epilogue=bias), lambda t: (long(t)[0], {"bias": t["short row"]})),
    }  # fmt: skip


def tensors() -> dict[str, Any]:
    """4096^3, and 512 x 512 x 16384."""
    import torch

    def normal(*shape: int) -> Any:
        return torch.randn(shape, device="cuda").bfloat16()

    n = 4096
    made = {name: normal(n, n) for name in ("a", "b", "c", "up")}
    return made | {
        "row": normal(n), "long a": normal(512, 16384), "long b": normal(512, 16384), "short row": normal(512),
    }  # fmt: skip


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_other(parser)
    parser.add_argument("--only", nargs="+", default=[], help="parts of names")
    add_options(parser)
    args = parser.parse_args(argv)
    gpu = gpu_of("versions")
    if not gpu:
        return 2
    import torch

    import tmapipe
    from tmapipe.gpu.launch import CudaClock

    results, clock = Results("versions", gpu, settings(args)), CudaClock(args.flush)
    given, body, wrong = tensors(), [], []
    ours, theirs = calls(tmapipe), calls(other_package(parser, args.other))
    for name in ours:
        if args.only and not any(text in name for text in args.only):
            continue
        runs: dict[str, Callable[[], Any]] = {}
        for version, (schedule, arguments) in (("this", ours[name]), ("other", theirs[name])):
            positional, named = arguments(given)
            runs[version] = functools.partial(schedule, *positional, **named)
        found = [run() for run in runs.values()]
        pairs = zip(*(each if isinstance(each, tuple) else (each,) for each in found), strict=True)
        same = all(torch.allclose(x.float(), y.float(), rtol=2e-2, atol=1e-1) for x, y in pairs)
        wrong += [] if same else [name]
        timings = rested(runs, clock, method_of(args))
        ratio = timings["other"].us / timings["this"].us
        body.append(
            [name, f"{timings['other'].us:.1f}", f"{timings['this'].us:.1f}", f"{ratio:.4f}", "" if same else "differs"]
        )
        for version, timing in timings.items():
            results.add(
                problem=name, dtype="bf16", peer="tmapipe" if version == "this" else "other version", variant=version,
                us=timing.us, spread=timing.spread, mode="rested", ratio=ratio if version == "this" else None,
            )  # fmt: skip
        results.write(args.out)
    print_table(body, ["kernel", "other, us", "this, us", "ratio", ""], "versions")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
