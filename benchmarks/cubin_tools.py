"""NVIDIA's disassembler, from the package nvidia-cuda-nvdisasm."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import tempfile
from pathlib import Path

__all__ = ["disassemble", "find_tool"]


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


def _run(tool: str, arguments: list[str], cubin: bytes) -> str:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        return subprocess.run(
            [find_tool(tool), *arguments, file.name], capture_output=True, text=True, check=True
        ).stdout
