"""What the abstraction costs in instructions: the steady-state loops of our GEMM and of CUTLASS's example; suite `sass`.

python -m benchmarks.sass                                   both at 128x256x64, cluster 2x1, bf16; needs no GPU
python -m benchmarks.sass --tile 128 128 64 --cluster 1 2
python -m benchmarks.sass --cubin ours=a.cubin --cubin theirs=b.cubin --listing out

The math loop is the innermost loop with wgmma, the load loop the innermost loop with TMA loads. Counted are the instructions
that a warp issues for one k-tile if every wait succeeds at once (`benchmarks.sass_loops`). CUTLASS's example must be on
PYTHONPATH.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs

from benchmarks.cubin_resources import read_resources
from benchmarks.cubin_tools import disassemble
from benchmarks.results import OURS, Results, print_table
from benchmarks.sass_loops import Loop, innermost, loops, parse
from tmapipe.gpu.build import Resources

MATH, LOAD = r"[HQI]GMMA", r"UTMALDG"


@attrs.frozen
class Kernel:
    """math, load: the steady-state loops, None if there is none; ktiles: k-tiles of a trip of each; used: registers and
    memory; maxreg: what setmaxnreg asks for; size: instructions of the whole kernel."""

    math: Loop | None
    load: Loop | None
    ktiles: dict[str, float]
    used: Resources
    maxreg: list[int]
    size: int


def analyse(cubin: bytes, *, gmmas: int = 4, loads: int = 2) -> Kernel:
    """gmmas, loads: wgmma that a warpgroup issues, and TMA loads that the loader issues, for one k-tile."""
    return read(disassemble(cubin), read_resources(cubin), gmmas=gmmas, loads=loads)


def read(listing: str, used: Resources, *, gmmas: int = 4, loads: int = 2) -> Kernel:
    """As `analyse`, from a listing."""
    instructions, labels = parse(listing)
    found = loops(instructions, labels)
    math, load = innermost(found, MATH), innermost(found, LOAD)
    ktiles = {"math": math.count(MATH) / gmmas if math else 0.0, "load": load.count(LOAD) / loads if load else 0.0}
    asked = (i.operands for i in instructions if i.opcode.startswith("USETMAXREG"))
    maxreg = sorted({int(number, 0) for text in asked for number in re.findall(r"\b(?:0x[0-9a-f]+|\d+)\b", text)})
    return Kernel(math, load, ktiles, used, maxreg, sum(1 for i in instructions if i.opcode != "NOP"))


def ours_cubin(tile: tuple[int, int, int], cluster: tuple[int, int], stages: int | None) -> bytes:
    from benchmarks.ours import gemm_cubin

    return gemm_cubin(tile, cluster, stages)


def cutlass_cubin(tile: tuple[int, int, int], cluster: tuple[int, int]) -> bytes:
    from benchmarks.peer_cutlass import Config, compile_cubin

    return compile_cubin(Config((tile[0], tile[1]), cluster))


def compile_both(tile: tuple[int, int, int], cluster: tuple[int, int], stages: int | None) -> dict[str, bytes]:
    """The cubins by name; one that cannot be made is left out, with a line that says why."""
    os.environ.setdefault("CUTE_DSL_ARCH", "sm_90a")
    made = {OURS: lambda: ours_cubin(tile, cluster, stages), "cutlass": lambda: cutlass_cubin(tile, cluster)}
    cubins = {}
    with _scratch_folder():
        for name, make in made.items():
            try:
                cubins[name] = make()
            except Exception as error:
                print(f"{name}: absent ({type(error).__name__}: {error})")
    return cubins


def report(kernels: dict[str, Kernel]) -> None:
    """Tables: sizes and resources, then each loop by opcode."""
    names = list(kernels)
    lines: list[list[Any]] = []
    for loop in ("math", "load"):
        lines.append([f"{loop} loop: instructions a k-tile", *(_per_ktile(k, loop) for k in kernels.values())])
        lines.append([f"{loop} loop: k-tiles a trip (unrolled)", *(f"{k.ktiles[loop]:g}" for k in kernels.values())])
    lines.append(["instructions of the kernel", *(k.size for k in kernels.values())])
    lines.append(["registers a thread at launch", *(k.used.registers for k in kernels.values())])
    lines.append(["setmaxnreg", *("/".join(map(str, k.maxreg)) for k in kernels.values())])
    lines.append(["local memory a thread, bytes", *(k.used.spill_bytes for k in kernels.values())])
    print_table(lines, ["", *names], "Steady state")
    for loop in ("math", "load"):
        counts = [_opcodes(k, loop) for k in kernels.values()]
        ordered = sorted({op for c in counts for op in c}, key=lambda op: (-max(c[op] for c in counts), op))
        body = [[op, *(f"{c[op]:g}" if c[op] else "" for c in counts)] for op in ordered]
        print_table(
            [*body, ["sum", *(f"{sum(c.values()):g}" for c in counts)]], ["opcode", *names], f"{loop} loop, a k-tile"
        )


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tile", type=int, nargs=3, default=[128, 256, 64], metavar=("M", "N", "K"))
    parser.add_argument("--cluster", type=int, nargs=2, default=[2, 1], metavar=("M", "N"))
    parser.add_argument("--stages", type=int, default=4, help="of ours (default %(default)s)")
    parser.add_argument("--cubin", action="append", metavar="NAME=FILE", help="read these instead of compiling")
    parser.add_argument(
        "--gmmas", type=int, help="wgmma of a warpgroup for one k-tile (default: derived from the tile)"
    )
    parser.add_argument("--loads", type=int, default=2, help="TMA loads for one k-tile (default %(default)s)")
    parser.add_argument("--listing", type=Path, metavar="FOLDER", help="also write the disassembly there")
    parser.add_argument("--out", metavar="FOLDER", help="where sass.json goes (default: benchmarks/results)")
    args = parser.parse_args(argv)
    tile, cluster = tuple(args.tile), tuple(args.cluster)
    if args.cubin:
        cubins = {name: Path(path).read_bytes() for name, path in (text.split("=", 1) for text in args.cubin)}
    else:
        cubins = compile_both(tile, cluster, args.stages)
    if not cubins:
        return 1
    kernels = {
        name: analyse(cubin, gmmas=args.gmmas or _gmmas(name, tile), loads=args.loads) for name, cubin in cubins.items()
    }
    if args.listing:
        args.listing.mkdir(parents=True, exist_ok=True)
        for name, cubin in cubins.items():
            (args.listing / f"{name}.sass").write_text(disassemble(cubin))
    report(kernels)
    results = Results("sass", "none", {"steady state": "every wait succeeds at once"})
    problem = f"{tile[0]}x{tile[1]}x{tile[2]} cluster {cluster[0]}x{cluster[1]}"
    for name, kernel in kernels.items():
        for loop in ("math", "load"):
            if kernel.ktiles[loop]:
                counts = _opcodes(kernel, loop)
                results.add(
                    problem=problem, dtype="bf16", peer=name, variant=f"{loop} loop",
                    instructions_per_ktile=sum(counts.values()), ktiles_per_trip=kernel.ktiles[loop],
                    opcodes=dict(counts), kernel_instructions=kernel.size, setmaxnreg=kernel.maxreg,
                    registers=kernel.used.registers, spill_bytes=kernel.used.spill_bytes,
                )  # fmt: skip
    print(f"\nwritten: {results.write(args.out)}")
    return 0


def _gmmas(name: str, tile: tuple[int, ...]) -> int:
    """wgmma (64 rows, 16 of k) that one warpgroup issues for a k-tile. Two warpgroups share the tile's rows, but one has
    them all where there are 64, and in CUTLASS's example up to 128 columns."""
    m, n, k = tile
    alone = m == 64 or (name == "cutlass" and n <= 128)
    return k // 16 * (m // 64) // (1 if alone else 2)


def _opcodes(kernel: Kernel, loop: str) -> Counter[str]:
    found = getattr(kernel, loop)
    if not found or not kernel.ktiles[loop]:
        return Counter()
    return Counter({op: n / kernel.ktiles[loop] for op, n in found.opcodes().items()})


def _per_ktile(kernel: Kernel, loop: str) -> str:
    return f"{sum(_opcodes(kernel, loop).values()):g}" if kernel.ktiles[loop] else "-"


@contextlib.contextmanager
def _scratch_folder() -> Iterator[None]:
    """CuTe DSL leaves what it is asked to keep in the folder that is current at the first compilation."""
    here = os.getcwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(here)


if __name__ == "__main__":
    sys.exit(main())
