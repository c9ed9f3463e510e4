"""``python -m tests.emit.counts BEFORE AFTER``: how two folders of `tests.emit.dump` differ in numbers of instructions.

A line a kernel that differs: registers, bytes of local memory, instructions, and the kinds of which the counts differ.
"""

from __future__ import annotations

import argparse
import collections
import re
from pathlib import Path

#: Kinds of instructions by how they begin.
KINDS = {
    "mbarrier": "mbarrier",
    "try_wait": "mbarrier.try_wait",
    "bar": "bar",
    "fence": "fence",
    "wgmma": "wgmma.mma_async",
    "cp.async": "cp",
    "elect": "elect.sync",
    "shfl": "shfl",
    "branch": "bra",
    "local": ("ld.local", "st.local"),
    "shared": ("ld.shared", "st.shared", "stmatrix", "ldmatrix"),
    "mul": ("mul", "mad"),
    "div": ("div", "rem"),
    "fp32": ("fma.rn.f32", "add.f32", "mul.f32", "max.f32", "ex2"),
}


def counts_of(text: str) -> collections.Counter[str]:
    """How many instructions of each kind a file of PTX has."""
    found: collections.Counter[str] = collections.Counter()
    registers, memory = re.match(r"// (\d+) registers, (\d+) bytes", text).groups()  # type: ignore[union-attr]
    found["registers"], found["bytes"] = int(registers), int(memory)
    for line in text.split("\n"):
        opcode = re.match(r"\s*(?:@!?%\w+\s+)?([a-z][\w.:]*)[\s;]", line)
        if opcode is None:
            continue
        found["instructions"] += 1
        for kind, begins in KINDS.items():
            found[kind] += opcode[1].startswith(begins)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    options = parser.parse_args()
    same = 0
    for path in sorted(options.after.glob("*.ptx")):
        other = options.before / path.name
        if not other.exists():
            print(f"{path.stem}: only after")
            continue
        texts = other.read_text(), path.read_text()
        if texts[0] == texts[1]:
            same += 1
            continue
        before, after = map(counts_of, texts)
        kinds = [k for k in ("registers", "bytes", "instructions", *KINDS) if before[k] != after[k]]
        print(f"{path.stem}: {', '.join(f'{k} {before[k]} -> {after[k]}' for k in kinds) or 'other order'}")
    print(f"{same} are the same")


if __name__ == "__main__":
    main()
