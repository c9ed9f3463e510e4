"""Registers and local memory of a kernel from anywhere, from its cubin's own tables."""

from __future__ import annotations

import struct

from tmapipe.errors import PipelineError
from tmapipe.gpu.build import Resources

__all__ = ["read_resources"]

# Codes of the .nv.info attributes read here; the tables are those that cuobjdump -res-usage prints.
_EIATTR_FRAME_SIZE, _EIATTR_REGCOUNT = 0x11, 0x2F
_EIFMT_SVAL = 0x04


def read_resources(cubin: bytes) -> Resources:
    """Reads the ELF section ``.nv.info``.

    Args:
        cubin: Of one kernel.

    Raises:
        PipelineError: They lack the numbers.
    """
    info = _sections(cubin).get(".nv.info", b"")
    registers = stack = None
    at = 0
    while at + 4 <= len(info):
        kind, code, size = struct.unpack_from("<BBH", info, at)
        at += 4
        if kind == _EIFMT_SVAL:
            if size >= 8 and code in (_EIATTR_REGCOUNT, _EIATTR_FRAME_SIZE):
                value = struct.unpack_from("<I", info, at + 4)[0]
                if code == _EIATTR_REGCOUNT:
                    registers = value
                else:
                    stack = value
            at += size
    if registers is None or stack is None:
        raise PipelineError("the cubin's .nv.info section names no register count or frame size")
    return Resources(registers, stack, shared_bytes=0)  # which the launch asks for


def _sections(elf: bytes) -> dict[str, bytes]:
    """Name -> contents of the sections of a little-endian 64-bit ELF file."""
    start = struct.unpack_from("<Q", elf, 0x28)[0]
    size, count, names_index = struct.unpack_from("<HHH", elf, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", elf, start + i * size) for i in range(count)]
    names = elf[headers[names_index][4] :][: headers[names_index][5]]
    found = {}
    for name, _, _, _, offset, length in headers:
        end = names.index(b"\0", name)
        found[names[name:end].decode()] = elf[offset : offset + length]
    return found
