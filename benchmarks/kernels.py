"""Every registered schedule and example of this version beside another one's, in one process on the same data.

git worktree add ../before <commit>
python -m benchmarks.kernels --other ../before --rounds 7 --rest 0.1 --seconds 270

The other version's packages are copied under names with `_other` at the end. Three variants are timed in turn: this version,
the other one, and the other one again, which shows what differs by chance. ratio is the other's time, the mean of both, over
this one's; control is the other's over its own again. same: all outputs are equal bit by bit. first: seconds of the first
call, which compiles. The most important come first, and none is begun after so many seconds. Writes
``benchmarks/results/kernels.json`` after each.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs

from benchmarks.cli import add_options, gpu_of, method_of, settings
from benchmarks.results import Results, print_table
from tmapipe.tuning.cost import rested

FOLDERS = ("tmapipe", "examples", "tests")
OTHER = "_other"
ROWS = {"m": 16384, "n": 1024}
LARGE = {"l": 1, "m": 4096, "n": 4096, "k": 4096}
LONG = {"l": 1, "m": 512, "n": 512, "k": 16384}
HEADS = {"b": 4, "g": 16, "h": 1, "m": 4096, "s": 4096}


@attrs.frozen
class Case:
    """Args:
    of: "registry" or "programs": where in `tests` it is made, by its name.
    name: There.
    sizes: Extents by dimension.
    dtypes: Types of torch by argument, where the plan's are not meant.
    given: Makes further arguments, from those that are drawn.
    """

    of: str
    name: str
    sizes: dict[str, int]
    dtypes: dict[str, str] = attrs.field(factory=dict)
    given: Callable[[Any, dict[str, int]], dict[str, Any]] = lambda torch, sizes: {}


def bounds(name: str, dim: str, rows: str) -> Callable[[Any, dict[str, int]], dict[str, Any]]:
    """The ends of groups of rows: the first ones are small, and one has none."""

    def made(torch: Any, sizes: dict[str, int]) -> dict[str, Any]:
        count, last = sizes[dim], sizes[rows]
        found = [min(last, i * i * last // (count * count)) for i in range(count)]
        return {name: torch.tensor([*found[:-1], last], dtype=torch.int32, device="cuda")}

    return made


REGISTRY = functools.partial(Case, "registry")
PROGRAMS = functools.partial(Case, "programs")
COPIED = {"x": "float32"}
IMAGES = {"n": 32, "h": 56, "w": 56, "c": 128, "o": 128, "r": 3, "s": 3}
CASES = (
    REGISTRY("Gemm", LARGE),
    REGISTRY("PingPong", LARGE),
    PROGRAMS("attention", HEADS),
    PROGRAMS("softmax", ROWS),
    REGISTRY("Copy", {"m": 16384, "n": 8192}, COPIED),
    PROGRAMS("attention, causal", HEADS),
    REGISTRY("GroupedGemm", LARGE | {"l": 16, "m": 16384}, given=bounds("offsets", "l", "m")),
    REGISTRY("StreamK", LONG | {"s": 67}),
    REGISTRY("ClusterSplitK", LONG),
    PROGRAMS("gemm_block_scaled", LARGE | {"kb": 32, "nb": 32}),
    PROGRAMS("rmsnorm", ROWS),
    REGISTRY("GatedGemm", LARGE),
    REGISTRY("Conv", {"i": 64, "w": 1024, "c": 512, "n": 512, "s": 2}),
    PROGRAMS("conv", IMAGES),
    REGISTRY("Gemm, along n", LARGE),
    REGISTRY("Gemm, along n, with a matrix", LARGE),
    REGISTRY("Gemm, transposed", LARGE),
    REGISTRY("SplitK", LONG | {"s": 3}),
    REGISTRY("Copy, dynamic", {"m": 16384, "n": 8192}, COPIED),
    REGISTRY("Copy, by GPC", {"m": 16384, "n": 8192}, COPIED),
    REGISTRY("AddParts", {"l": 1, "s": 4, "m": 4096, "n": 4096}),
    REGISTRY("FinishParts", {"s": 4, "m": 4096, "n": 4096}),
    PROGRAMS("gemm_row_max", LARGE),
    PROGRAMS("mlp", {"m": 65536, "k": 256, "h": 1024, "n": 256}),
    PROGRAMS("dequant_gemm of int8", LARGE | {"bytes": 4096}),
    PROGRAMS("dequant_gemm of int4", LARGE | {"bytes": 2048}),
    PROGRAMS("transpose", {"m": 16384, "n": 16384}),
    PROGRAMS("ragged", {"m": 65536, "n": 2048, "bounds": 2049}, given=bounds("begins", "bounds", "m")),
    PROGRAMS("histogram", {"m": 16384, "n": 4096}),
    PROGRAMS("stencil", {"m": 8192, "n": 8192}),
    PROGRAMS("row_sums", {"m": 2048, "n": 32768}),
    PROGRAMS("attention of 64", HEADS | {"g": 32}),
    PROGRAMS("attention of 64, causal", HEADS | {"g": 32}),
    PROGRAMS("softmax of short rows", {"m": 131072, "n": 128}),
    PROGRAMS("softmax of long rows", {"m": 8192, "n": 4096}),
    PROGRAMS("softmax over CTAs", {"m": 8192, "n": 4096}),
    PROGRAMS("softmax of rows of 200", {"m": 65536, "n": 200}),
    PROGRAMS("softmax of rows of 2048", {"m": 16384, "n": 2048}),
    PROGRAMS("rmsnorm of rows of 1024", ROWS),
    PROGRAMS("rmsnorm, a few rows a cluster", {"m": 256, "n": 1024}),
    PROGRAMS("rmsnorm over CTAs", {"m": 8192, "n": 4096}),
    PROGRAMS("two passes", {"m": 8192, "n": 2048}),
    PROGRAMS("transpose fp32", {"m": 8192, "n": 8192}),
    PROGRAMS("row_sums over CTAs", {"m": 2048, "n": 32768}),
    PROGRAMS("conv of several images", IMAGES | {"h": 14, "w": 14}),
    REGISTRY("Gemm", {"l": 1, "m": 512, "n": 512, "k": 512}),
    REGISTRY("Gemm", {"l": 1, "m": 8192, "n": 8192, "k": 512}),
    REGISTRY("PingPong", {"l": 1, "m": 8192, "n": 8192, "k": 512}),
    PROGRAMS("softmax", {"m": 1024, "n": 1024}),
)


def copied(root: Path) -> None:
    """Puts the other version's packages on the path, under their other names."""
    folder = Path(tempfile.mkdtemp(prefix="tmapipe-other-"))
    for name in FOLDERS:
        shutil.copytree(root / name, folder / (name + OTHER), ignore=shutil.ignore_patterns("__pycache__"))
    for path in folder.rglob("*.py"):
        text = re.sub(r"\btmapipe\b", f"tmapipe{OTHER}", path.read_text())
        path.write_text(re.sub(r"\b(from|import) (examples|tests)\b", rf"\1 \2{OTHER}", text))
    sys.path.insert(0, str(folder))


def schedules(suffix: str) -> dict[tuple[str, str], Callable[[], Any]]:
    """What makes each schedule, of one version."""
    registry = importlib.import_module(f"tests{suffix}.oracle.registry").REGISTRY
    programs = importlib.import_module(f"tests{suffix}.programs").PROGRAMS
    return {("registry", each.name): each.make for each in registry} | {
        ("programs", name): program.make for name, program in programs.items()
    }


def inputs(case: Case, schedule: Any) -> dict[str, Any]:
    """Random tensors for all arguments but the outputs."""
    import torch

    plan = schedule.plan()
    found = case.given(torch, case.sizes)
    types = {part.argument: part.buffer.dtype.name for part in plan.transfers}
    known = {"bf16": "bfloat16", "fp32": "float32", "fp8_e4m3": "float8_e4m3fn", "int8": "int8", "int32": "int32"}
    outputs = {part.argument for part in plan.stores}
    for name, dims in plan.dims.items():
        if name in outputs or name in found:
            continue
        dtype = getattr(torch, case.dtypes.get(name) or known[types[name]])
        shape = [(plan.fixed | case.sizes)[dim] for dim in dims]
        if dtype.is_floating_point:
            found[name] = torch.randn(shape, device="cuda").to(dtype)
        else:
            found[name] = torch.randint(-8, 40, shape, device="cuda", dtype=dtype)
    return found


def together(found: Any) -> tuple[Any, ...]:
    """The outputs of a call."""
    return found if isinstance(found, tuple) else (found,)


def measure(case: Case, made: Callable[[], Any], other: Callable[[], Any], clock: Any, args: Any) -> dict[str, Any]:
    """One row of the results, without what all rows have."""
    import torch

    torch.manual_seed(args.seed)
    versions = {"this": made(), "other": other()}
    given = inputs(case, versions["this"])
    outputs, first = {}, {}
    for name, schedule in versions.items():
        began = time.perf_counter()
        outputs[name] = together(schedule(**given))
        torch.cuda.synchronize()
        first[name] = time.perf_counter() - began
    pairs = list(zip(outputs["this"], outputs["other"], strict=True))
    same = all(bool((x.view(torch.uint8) == y.view(torch.uint8)).all()) for x, y in pairs)
    far = max(float((x.double() - y.double()).abs().nan_to_num().max()) for x, y in pairs)
    runs: dict[str, Callable[[], Any]] = {}
    for name, schedule in versions.items():
        out = outputs[name] if len(outputs[name]) > 1 else outputs[name][0]
        runs[name] = functools.partial(schedule, **given, out=out)
    runs["again"] = runs["other"]
    timings = rested(runs, clock, method_of(args))
    us = {name: timing.us for name, timing in timings.items()}
    return {
        "us": us["this"],
        "other_us": us["other"],
        "ratio": (us["other"] + us["again"]) / 2 / us["this"],
        "control": us["other"] / us["again"],
        "spread": timings["this"].spread,
        "same": same,
        "far": far,
        "first": first["this"],
        "other_first": first["other"],
    }


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--other", type=Path, help="folder of the other version, with its tests and examples")
    parser.add_argument("--only", nargs="+", default=[], help="parts of names")
    parser.add_argument("--seconds", type=float, default=1e9, help="no case is begun later")
    parser.add_argument("--begin", type=int, default=0, help="the first case, by number")
    add_options(parser)
    args = parser.parse_args(argv)
    began, gpu = time.perf_counter(), gpu_of("kernels")
    if not gpu:
        return 2
    if args.other is None:
        parser.error("--other FOLDER names the other version")
    from tmapipe.gpu.launch import CudaClock

    copied(args.other)
    ours, theirs = schedules(""), schedules(OTHER)
    results, clock, body, wrong = Results("kernels", gpu, settings(args)), CudaClock(args.flush), [], []
    for number, case in enumerate(CASES):
        if number < args.begin or (args.only and not any(text in case.name for text in args.only)):
            continue
        if time.perf_counter() - began > args.seconds:
            print(f"stopped before case {number}", flush=True)
            break
        problem = f"{case.name} {' '.join(f'{dim}{size}' for dim, size in case.sizes.items())}"
        try:
            row = measure(case, ours[case.of, case.name], theirs[case.of, case.name], clock, args)
        except Exception as error:  # the others are measured all the same
            wrong.append(problem)
            print(f"{number} {problem}: {type(error).__name__}: {str(error)[:300]}", flush=True)
            continue
        wrong += [] if row["same"] else [problem]
        line = [problem, f"{row['other_us']:.1f}", f"{row['us']:.1f}", f"{row['ratio']:.4f}", f"{row['control']:.4f}"]
        body.append(
            [
                *line,
                "same" if row["same"] else f"differ by {row['far']:.3g}",
                f"{row['first']:.1f} {row['other_first']:.1f}",
            ]
        )
        print(number, *body[-1], flush=True)
        results.add(problem=problem, dtype="", peer="tmapipe", variant="this", mode="rested", **row)
        results.write(args.out)
    print_table(body, ["kernel", "other, us", "this, us", "ratio", "control", "bits", "first calls, s"], "kernels")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
