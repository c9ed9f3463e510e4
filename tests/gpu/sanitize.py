"""Every registered schedule and program, small, under compute-sanitizer: ``python -m tests.gpu.sanitize --jobs 8``.

Prints a table: what each tool says of each schedule. Before, a kernel with a planted fault says whether the tool works on this
machine at all: some refuse it. What a tool has to say about a schedule is printed below the table.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import cutlass
import cutlass.cute as cute
import torch
from cutlass.cute.runtime import from_dlpack

import tmapipe as tp
from tests.oracle.registry import REGISTRY
from tests.programs import PROGRAMS, check

__all__ = ["NAMES", "PLANTED", "run_one", "says"]

REGISTERED = {registered.name: registered.make for registered in REGISTRY}
NAMES = (*REGISTERED, *PROGRAMS)
EXTENTS = {"l": 2, "s": 3, "m": 200, "n": 136, "k": 200}
SECONDS = 100  # for one schedule under one tool
ROOT = Path(__file__).parents[2]


class Unsynced(tp.Schedule):
    """Planted: threads read what others have written to scratch memory, without waiting for them."""

    load, work = tp.Role(warps=1), tp.Role(warpgroups=1)
    ring = tp.BarrierRing(2, producer=load, consumer=work)
    x = tp.TmaLoadStage("m n", tile=(64, 64), ring=ring, dtype="fp32")
    scratch = tp.Scratch(work, tile=(64, 64), dtype="fp32")
    y = tp.TmaStoreStage("n m", tile=(64, 64), role=work, dtype="fp32")
    checked = False

    @load.jit
    def fill(self, k: Any, tile: Any) -> None:
        with k.ring.produce() as slot:
            slot.x.load(tile)

    @work.jit
    def change(self, k: Any, tile: Any) -> None:
        with k.ring.consume() as slot:
            k.scratch.write(slot.x.read())
            k.y.store(tile, k.scratch.read(transposed=True))


@cute.kernel
def _write(x: cute.Tensor) -> None:
    x[cute.arch.thread_idx()[0]] = cutlass.Float32(1)


@cute.jit
def outside(x: cute.Tensor) -> None:
    """Planted: 256 threads write an element each."""
    _write(x).launch(grid=[1, 1, 1], block=[256, 1, 1])


#: For each tool, what it is tried on first: a planted fault, or a schedule.
PLANTED = {"memcheck": "outside", "racecheck": "unsynced", "synccheck": "Copy"}


def inputs(schedule: tp.Schedule) -> dict[str, torch.Tensor]:
    """Small whole numbers for each input, of its declared type or bf16."""
    torch.manual_seed(0)
    made, grouped = {}, "offsets" in schedule.declared.arguments
    for name, stage in schedule.declared.loads.items():
        dims = [dim for dim in stage.dims if dim != "l" or grouped]
        dtype = torch.bfloat16 if stage.dtype is None else getattr(torch, stage.dtype.torch)
        made[name] = torch.randint(-2, 3, tuple(EXTENTS[dim] for dim in dims)).to(dtype)
        made[name] = made[name].mT if name in schedule.transposed else made[name]
    if grouped:
        made["offsets"] = torch.tensor([70, EXTENTS["m"]], dtype=torch.int32)
    return {name: made[name] for name in schedule.declared.arguments if name in made}


def run_one(name: str) -> None:
    """Runs it on the device, and compares: a registered schedule with the model, a program with torch."""
    if name == "outside":
        outside(from_dlpack(torch.zeros(128, device="cuda")))
    elif name == "unsynced":
        Unsynced()(torch.zeros(64, 64, device="cuda"))
    elif name in PROGRAMS:
        program = PROGRAMS[name]
        check(program, program.make(), random.Random(name), 150, "cuda")
    else:
        given = inputs(schedule := REGISTERED[name]())
        found = schedule(**{each: tensor.cuda() for each, tensor in given.items()})
        torch.cuda.synchronize()
        torch.testing.assert_close(found.cpu(), schedule(**given), rtol=1e-2, atol=1e-2)
    torch.cuda.synchronize()
    print("right")


class Said(NamedTuple):
    """What a tool said. what: "clean", the number of errors, or why there is no answer."""

    what: str
    lines: list[str]
    seconds: float
    works: bool = True  # whether the tool came to a result


def says(tool: str, name: str, filtered: bool = True) -> Said:
    """Runs *name* in a process of its own under *tool*, which looks at our kernels alone, or at those of torch too."""
    api = ["--report-api-errors", "no"] if tool == "memcheck" else []  # libraries ask the driver for what it may lack
    command = ["compute-sanitizer", "--tool", tool, *api, "--error-exitcode", "77", "--print-limit", "3"]
    command += ["--kernel-name", "kns=kernel_cutlass_"] if filtered else []  # those that CuTe DSL makes
    command += [sys.executable, "-m", "tests.gpu.sanitize", "--only", name]
    environment = {**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1", "CUTE_DSL_DISABLE_FILE_CACHING": "1"}
    start = time.monotonic()
    try:
        ended = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=SECONDS, cwd=ROOT, env=environment
        )
    except subprocess.TimeoutExpired as error:
        text = (error.stdout or b"").decode(errors="replace")
        return Said(f"no end after {SECONDS} s", text.splitlines()[-5:], time.monotonic() - start, False)
    lines = (ended.stdout + ended.stderr).splitlines()
    told = [line.strip("= ") for line in lines if line.startswith("=========")]
    summary = [line.split(":", 1)[1].strip() for line in told if "SUMMARY" in line and "not printed" not in line]
    seconds = time.monotonic() - start
    if not summary or ("right" not in lines and name not in ("outside", "unsynced")):
        what = f"{summary[-1]}, " if summary else ""
        why = [line for line in lines if "Error: " in line and not line.startswith("===")]
        return Said(f"{what}not right (exit code {ended.returncode})", [*told[:16], *why[-2:]], seconds, bool(summary))
    return Said("clean" if ended.returncode == 0 else summary[-1], told[1:25] if ended.returncode else [], seconds)


def _told(job: tuple[str, str], filtered: bool) -> Said:
    said = says(*job, filtered)
    print(f"{job[0]} of {job[1]}: {said.what}\n", end="", flush=True)
    return said


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help=argparse.SUPPRESS)
    parser.add_argument("--tools", nargs="+", choices=list(PLANTED), default=list(PLANTED))
    parser.add_argument("--all-kernels", action="store_true", help="torch's kernels too")
    parser.add_argument("--jobs", type=int, default=8, help="processes at a time")
    parser.add_argument("names", nargs="*", help=f"of {', '.join(NAMES)}; all if there is none")
    given = parser.parse_args()
    if given.only:
        run_one(given.only)
        return 0
    if not torch.cuda.is_available() or not shutil.which("compute-sanitizer"):
        print(f"CUDA device: {torch.cuda.is_available()}; compute-sanitizer: {shutil.which('compute-sanitizer')}")
        return 2
    print(
        subprocess.run(["compute-sanitizer", "--version"], capture_output=True, text=True)
        .stdout.strip()
        .splitlines()[-1]
    )
    names = given.names or list(NAMES)
    with ThreadPoolExecutor(given.jobs) as pool:
        probes = dict(
            zip(
                given.tools,
                pool.map(lambda tool: _told((tool, PLANTED[tool]), not given.all_kernels), given.tools),
                strict=True,
            )
        )
        for tool, said in probes.items():
            print(f"{tool} on {PLANTED[tool]} (planted, if that is no schedule): {said.what}")
            print(*(f"    {line}" for line in said.lines[:12]), sep="\n")
        tools = [tool for tool, said in probes.items() if said.works]
        for tool in set(given.tools) - set(tools):
            print(f"{tool} is refused by this machine")
        jobs = [(tool, name) for name in names for tool in tools]
        found = dict(zip(jobs, pool.map(lambda job: _told(job, not given.all_kernels), jobs), strict=True))
    print("\n" + " ".join([f"{'':28}", *(f"{tool:>36}" for tool in tools)]))
    for name in names:
        cells = [f"{found[tool, name].what} {found[tool, name].seconds:4.0f} s" for tool in tools]
        print(" ".join([f"{name:28}", *(f"{cell:>36}" for cell in cells)]))
    bad = [job for job in jobs if found[job].what != "clean"]
    for job in bad:
        print(f"\n{job[0]} of {job[1]}: {found[job].what}", *found[job].lines, sep="\n    ")
    return 1 if bad or len(tools) < len(given.tools) else 0


if __name__ == "__main__":
    sys.exit(main())
