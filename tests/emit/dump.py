"""``python -m tests.emit.dump FOLDER``: writes the PTX of every kernel of `tests.emit.kernels`, as it is compiled to run.

Two revisions made the same code if ``diff -r`` of their folders is empty. Names that CuTe DSL derives from those of Python
objects are replaced, so that renaming a class or moving a file makes no difference. `tests.emit.counts` says how folders
differ in numbers. The first line of a file has the registers and the local memory of a thread (bytes).
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from tests.emit.kernels import KERNELS, build


def text_of(ptx: str) -> str:
    """The PTX without comments, and with the kernel's name replaced."""
    entry = re.search(r"\.entry\s+(\w+)", ptx)
    assert entry is not None
    lines = (line.split("//")[0].rstrip() for line in ptx.replace(entry[1], "kernel").split("\n"))
    return "\n".join(line for line in lines if line) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where to write the files")
    parser.add_argument("--only", default="", help="kernels whose name has this in it")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    for name, kernel in KERNELS.items():
        if options.only in name:
            compiled = build(kernel, unroll=True).compiled
            assert compiled.ptx is not None
            used = compiled.resources
            text = f"// {used.registers} registers, {used.spill_bytes} bytes\n{text_of(compiled.ptx)}"
            (options.folder / (re.sub(r"\W+", "-", name) + ".ptx")).write_text(text)


if __name__ == "__main__":
    main()
