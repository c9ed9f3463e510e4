"""How long first calls of processes take, and how many kernels the processes compile; suite `first_calls`, seconds.

python -m benchmarks.first_calls

Each row is a new process, or several at once, on a store of kernels that is empty or filled by the process before. Imports,
the context and a product by torch come first and are not counted. `kernels` counts compilations.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import Any

from benchmarks.cli import gpu_of
from benchmarks.results import OURS, Results, print_table

PROCESSES, LAYERS = 16, 128
# Runs {body} twice, once the device is warm, and prints the seconds of each run and the number of compilations.
PROGRAM = """
import json, time
import torch
import tmapipe as tp
import tmapipe.torch as tt
from tmapipe.gpu import kernels

made, build = [], kernels.build
kernels.build = lambda *given, **named: made.append(given) or build(*given, **named)
torch.manual_seed(0)
a, b = (torch.randn(4096, 4096, device="cuda").bfloat16() for _ in range(2))
torch.mm(a, b.T)
torch.cuda.synchronize()

def run():
    {body}

seconds = []
for _ in range(2):
    begin = time.perf_counter()
    run()
    torch.cuda.synchronize()
    seconds.append(time.perf_counter() - begin)
print(json.dumps([*seconds, len(made)]))
"""
GEMM = "tp.schedules.Gemm()(a, b)"  # a schedule of its own each time
LINEAR = f"""x = a
    for _ in range({LAYERS}):
        x = tt.Linear(4096, 4096, False, "cuda", torch.bfloat16)(x)"""


def measured(body: str, store: str, processes: int = 1) -> list[list[float]]:
    """[seconds of the first run, of the second, compilations] of each of some processes that begin at once."""
    environment = {**os.environ, "TMAPIPE_CACHE_DIR": store}
    command = [sys.executable, "-c", PROGRAM.format(body=body)]
    begun = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) for _ in range(processes)]
    said = [process.communicate()[0] for process in begun]
    if any(process.returncode for process in begun):
        raise RuntimeError(f"a process that ran {body!r} has failed")
    return [json.loads(text.splitlines()[-1]) for text in said]


def rows(store: Sequence[str]) -> list[dict[str, Any]]:
    """What is measured, in order: of three folders, each empty at first."""
    alone, many, layers = store
    plans = (
        ("Gemm 4096x4096x4096", "empty store", GEMM, alone, 1),
        ("Gemm 4096x4096x4096", "filled store", GEMM, alone, 1),
        (f"Gemm 4096x4096x4096, {PROCESSES} processes at once", "empty store", GEMM, many, PROCESSES),
        (f"{LAYERS} equal Linear layers", "empty store", LINEAR, layers, 1),
        (f"{LAYERS} equal Linear layers", "filled store", LINEAR, layers, 1),
    )
    found = []
    for problem, variant, body, folder, processes in plans:
        made = measured(body, folder, processes)
        firsts, seconds, kernels = zip(*made, strict=True)
        of = {"first_s": max(firsts), "second_s": max(seconds), "kernels": int(sum(kernels)), "processes": processes}
        found.append({"problem": problem, "dtype": "bf16", "peer": OURS, "variant": variant, **of})
    return found


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", metavar="FOLDER", help="where first_calls.json goes (default: benchmarks/results)")
    args = parser.parse_args(argv)
    gpu = gpu_of("first_calls")
    if not gpu:
        return 2
    with tempfile.TemporaryDirectory() as top:
        stores = [os.path.join(top, name) for name in ("alone", "many", "layers")]
        results = Results(
            "first_calls", gpu, {"second_s": "of the same process", "rows": "the slowest process of each"}
        )
        for row in rows(stores):
            results.add(**row)
    path = results.write(args.out)
    head = ["problem", "variant", "first_s", "second_s", "kernels"]
    print_table([[row[name] for name in head] for row in results.rows], head, "first calls, seconds")
    print(f"written: {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
