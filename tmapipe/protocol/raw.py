"""Raw CuTe DSL in a body: the one way to use what the library does not cover.

``k.raw(gpu, cpu, reads=..., writes=..., updates=...)`` calls *gpu* with CuTe tensors while the body is traced, and *cpu* with
NumPy arrays on the CPU model. The check knows only the declared effects: which slots the calling warps access, as threads do.
The ring derives fences and releases from them, as from ``slot.x.read()`` and ``slot.x.write()``. How *gpu* distributes a
warp's rows over its lanes is not known, so the lanes synchronize before and after it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tmapipe.errors import InputError
from tmapipe.isa.interface import Isa
from tmapipe.isa.values import SlotRef
from tmapipe.plan.model import RoleWarps
from tmapipe.protocol.parts import PartInSlot

__all__ = ["raw"]

PROXIES = ("generic", "async")


def raw(
    isa: Isa,
    role: RoleWarps,
    gpu: Callable[..., None],
    cpu: Callable[..., None] | None,
    reads: Sequence[PartInSlot],
    writes: Sequence[PartInSlot],
    updates: Sequence[PartInSlot],
    proxy: str,
) -> None:
    """Does what `KernelContext.raw` says, for one warp of *role*."""
    accesses: list[tuple[SlotRef, str]] = []
    touched = False
    if proxy not in PROXIES:
        raise InputError("k.raw(proxy)", proxy, f"is one of {', '.join(PROXIES)}", "say how gpu reaches shared memory")
    for kind, parts in (("read", reads), ("write", writes), ("update", updates)):
        for part in parts:
            if not isinstance(part, PartInSlot):
                raise InputError(f"k.raw({kind}s)", part, "is a sequence of tiles of open slots", "e.g. (slot.x,)")
            rows = part.ref.buffer.tile[0]
            if kind != "read" and rows % role.team_warps:
                raise InputError(
                    f"k.raw({kind}s)",
                    part.ref.buffer.name,
                    f"has {rows} rows, which the {role.team_warps} warps of role {role.name} cannot share evenly",
                    "choose a tile whose first extent they divide, or read it whole and write another",
                )
            part.slot._check_open()
            touched = touched or part.ref.buffer.name in part.slot.touched_by_threads
            if proxy == "generic":
                part.by_threads()
            accesses.append((part.ref, kind))
    if touched and proxy == "async":
        isa.fence_proxy_async()
    if touched:
        isa.warp_sync()  # the elements are now distributed over the lanes in another way
    isa.fragments.raw(gpu, cpu, accesses, role, proxy)
    isa.warp_sync()
