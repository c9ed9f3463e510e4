"""NVIDIA's disassembler and resource reader, from the packages nvidia-cuda-nvdisasm and nvidia-cuda-cuobjdump."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

__all__ = ["disassemble", "find_tool", "resources"]


def find_tool(name: str) -> str:
    """The program's path: on PATH, else in NVIDIA's Python packages. Raises `FileNotFoundError` that says what to install."""
    found = shutil.which(name)
    if found:
        return found
    spec = importlib.util.find_spec("nvidia")
    for place in (spec.submodule_search_locations or []) if spec else []:
        for path in sorted(Path(place).glob(f"*/bin/{name}"), reverse=True):
            return str(path)
    raise FileNotFoundError(f"{name} is not here: pip install nvidia-cuda-{name}")


def disassemble(cubin: bytes) -> str:
    """SASS with labels, as ``nvdisasm -c`` prints it."""
    return _run("nvdisasm", ["-c"], cubin)


def resources(cubin: bytes) -> dict[str, int]:
    """What ``cuobjdump -res-usage`` says of the first kernel: registers a thread at launch, bytes of stack and local memory
    a thread (spills), bytes of static shared memory a CTA (dynamic shared memory stands in no cubin)."""
    text = _run("cuobjdump", ["-res-usage"], cubin)
    found = {name: int(value) for name, value in re.findall(r"\b(REG|STACK|LOCAL|SHARED):(\d+)", text)}
    if "REG" not in found:
        raise ValueError(f"cuobjdump -res-usage says nothing of registers:\n{text}")
    names = {"registers": "REG", "stack_bytes": "STACK", "local_bytes": "LOCAL", "static_shared_bytes": "SHARED"}
    return {name: found[key] for name, key in names.items()}


def _run(tool: str, arguments: list[str], cubin: bytes) -> str:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        return subprocess.run(
            [find_tool(tool), *arguments, file.name], capture_output=True, text=True, check=True
        ).stdout
