"""How many of a GEMM's reads the L2 cache has to serve, counted by NVIDIA's profiler (ncu).

python -m benchmarks.l2_requests
python -m benchmarks.l2_requests --shapes 4096x4096x4096 --peers tmapipe cublas

Fewer bytes reach L2 than are delivered to the SMs: a multicast load is one request, and the hardware merges reads of the same
lines by several SMs at about the same time. Measured are the schedule that `tmapipe.tuning.choose` takes and each peer's first
configuration: bf16, one launch, cold caches, the profiler's base clock. fraction: bytes requested from L2 over bytes delivered
to the SMs. between_halves_sectors: sectors of 32 bytes between the halves of L2. Writes
``benchmarks/results/l2_requests.json``.
"""

from __future__ import annotations

import argparse
import csv
import functools
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from benchmarks.cli import gpu_of
from benchmarks.gemm import make_operands, shape
from benchmarks.peers import PEERS, prepare
from benchmarks.results import OURS, Results, print_table

SHAPES = ("512x512x65536", "4096x4096x4096", "8192x8192x512")
SECTOR = 32  # bytes
COUNTERS = {
    "us_at_base_clock": "gpu__time_duration.sum",
    "request_sectors": "lts__t_sectors_srcunit_tex.sum",
    "delivered_bytes": "l1tex__m_xbar2l1tex_read_bytes.sum",
    "between_halves_sectors": "lts__t_sectors_srcunit_ltcfabric.sum",
    "dram_read_bytes": "dram__bytes_read.sum",
}
UNITS = {
    "ns": 1e-3,
    "us": 1.0,
    "byte": 1.0,
    "Kbyte": 1e3,
    "Mbyte": 1e6,
    "Gbyte": 1e9,
    "sector": 1.0,
}  # to us, bytes, sectors


def counted(text: str) -> dict[str, Any]:
    """The counters of `COUNTERS`, summed over all kernels of a report that ncu printed with ``--csv --page raw``, and the
    kernels' names. Raises `ValueError` if there is none."""
    lines = [line for line in csv.reader(text.splitlines()) if len(line) > len(COUNTERS)]
    if len(lines) < 3 or "Kernel Name" not in lines[0]:
        raise ValueError(f"no kernel in what ncu printed: {text[-500:]!r}")
    header, units, *kernels = lines
    found: dict[str, Any] = {}
    for name, counter in COUNTERS.items():
        at = header.index(counter)
        found[name] = sum(float(kernel[at].replace(",", "")) for kernel in kernels) * UNITS[units[at]]
    found["fraction"] = SECTOR * found["request_sectors"] / found["delivered_bytes"]
    found["kernels"] = [kernel[header.index("Kernel Name")] for kernel in kernels]
    return found


def profile(text: str, peer: str) -> str:
    """What ncu prints of one launch. Raises `RuntimeError` if it fails."""
    command = ["ncu", "--profile-from-start", "off", "--cache-control", "all", "--csv", "--page", "raw"]
    command += ["--metrics", ",".join(COUNTERS.values())]
    inside = [sys.executable, "-m", "benchmarks.l2_requests", "--launch", "--shapes", text, "--peers", peer]
    done = subprocess.run([*command, *inside], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"ncu ended with {done.returncode}: {(done.stdout + done.stderr)[-500:]}")
    return done.stdout


def launch(problem: tuple[int, int, int], peer: str) -> None:
    """One launch, between the profiler's start and stop; prints the variant's name."""
    import torch

    from tmapipe.tuning import Problem, ranked

    a, b, out = make_operands(*problem, "bf16", 0)
    run: Callable[[], object]
    if peer == OURS:
        best, _ = ranked(Problem.of(a, b), most=1)[0]
        name, run = str(best), functools.partial(best.build(Problem.of(a, b)), a, b, out=out)
    else:
        name, run = next(iter(prepare(peer, a, b, out).items()))
    run()
    torch.cuda.synchronize()
    torch.cuda.cudart().cudaProfilerStart()
    run()
    torch.cuda.synchronize()
    torch.cuda.cudart().cudaProfilerStop()
    print(f"variant {name}")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", type=shape, nargs="+", metavar="MxNxK", default=[shape(text) for text in SHAPES])
    parser.add_argument("--peers", nargs="+", choices=tuple(PEERS), default=[OURS, "cublas"])
    parser.add_argument("--out", metavar="FOLDER", help="where l2_requests.json goes (default: benchmarks/results)")
    parser.add_argument("--launch", action="store_true", help=argparse.SUPPRESS)  # what runs under ncu
    args = parser.parse_args(argv)
    if args.launch:
        launch(args.shapes[0], args.peers[0])
        return 0
    gpu = gpu_of("l2_requests")
    if not gpu:
        return 2
    results = Results("l2_requests", gpu, {"tool": "ncu", "caches": "cold", "clock": "base"})
    for m, n, k in args.shapes:
        for peer in args.peers:
            printed = profile(f"{m}x{n}x{k}", peer)
            name = next(line for line in printed.splitlines() if line.startswith("variant ")).removeprefix("variant ")
            results.add(problem=f"{m}x{n}x{k}", dtype="bf16", peer=peer, variant=name, **counted(printed))
    columns = (
        "problem",
        "peer",
        "variant",
        "fraction",
        "between_halves_sectors",
        "dram_read_bytes",
        "us_at_base_clock",
    )
    print_table([[row[name] for name in columns] for row in results.rows], columns)
    print(f"\nwritten: {results.write(args.out)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
