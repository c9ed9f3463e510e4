"""Machine code of kernels as object files: exported from what CuTe DSL has compiled, and loaded without its compiler."""

from __future__ import annotations

import functools
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cutlass.cute as cute

from tmapipe.program.trace import ONE_AT_A_TIME

__all__ = ["Code"]

_SYMBOL = "tmapipe_kernel"


class Code:
    """A kernel's machine code.

    Args:
        export: Returns the object file. Called once, when it is needed.
    """

    def __init__(self, export: Callable[[], bytes]):
        self._export: Callable[[], bytes] | None = export

    @staticmethod
    def of(compiled: Any) -> Code:
        """Of what `cute.compile` has returned."""
        return Code(functools.partial(_exported, compiled))

    @functools.cached_property
    def object(self) -> bytes:
        """The object file."""
        with ONE_AT_A_TIME:
            if self._export is None:  # another thread has exported it meanwhile
                return self.object
            found = self._export()
            self.__dict__["object"], self._export = found, None  # the IR is no longer needed
        return found

    @functools.cached_property
    def function(self) -> Any:
        """Call it with a list of tensors and a list of numbers, as `Compiled` says."""
        file = os.memfd_create(_SYMBOL)
        try:
            with open(file, "wb", closefd=False) as to:
                to.write(self.object)
            module = cute.runtime.load_module(f"/proc/self/fd/{file}", enable_tvm_ffi=True)
        finally:
            os.close(file)
        return getattr(module, _SYMBOL)


def _exported(compiled: Any) -> bytes:
    with tempfile.TemporaryDirectory(prefix="tmapipe-") as folder:
        path = Path(folder, "kernel.o")
        compiled.export_to_c(str(path), function_name=_SYMBOL)
        return path.read_bytes()
