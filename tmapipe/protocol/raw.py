"""Raw CuTe DSL in a body: the one way to use what the library does not cover.

``k.raw(gpu, cpu, reads=..., writes=..., updates=...)`` calls *gpu* with CuTe tensors while the body is traced, and *cpu* with
NumPy arrays on the CPU model. The check knows only the declared effects: which slots the calling warps access, as threads do.
The ring derives fences and releases from them, as from ``slot.x.read()`` and ``slot.x.write()``. How *gpu* distributes a
warp's rows over its lanes is not known, so the lanes synchronize before and after it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tmapipe.errors import InputError
from tmapipe.isa.values import SlotRef
from tmapipe.protocol.parts import PartInSlot

__all__ = ["raw"]

PROXIES = ("generic", "async")


def raw(
    k: Any,
    gpu: Callable[..., None],
    cpu: Callable[..., None] | None = None,
    *,
    reads: Sequence[PartInSlot] = (),
    writes: Sequence[PartInSlot] = (),
    updates: Sequence[PartInSlot] = (),
    proxy: str = "generic",
) -> None:
    """Raw CuTe DSL in this role, declared by its effects on tiles of open slots, such as ``slot.x``.

    Each warp calls *gpu* with CuTe tensors in shared memory, or on the CPU model *cpu* with NumPy arrays: one per tile, in
    the order reads, writes, updates. All 32 lanes are converged. A function that has a parameter ``role`` also gets the
    role's `name`, its number of `warps`, the calling `warp`, and `extent(dim)`. `check` needs neither function: it
    believes the declaration.

    Args:
        gpu: Called while the body is traced.
        cpu: Called on the CPU model.
        reads: Tiles of which the function gets the whole, and writes nothing.
        writes: Tiles of which it gets the warp's share (tile[0] / warps rows), and overwrites it.
        updates: The same, read and written.
        proxy: "generic" for ordinary loads and stores; "async" for TMA and wgmma, for whose end *gpu* waits in all lanes.

    Raises:
        InputError: On the CPU model, without *cpu*.
        ScopeError: A function raised an error; names its line.
    """
    isa, role = k.isa, k.role
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
                rule = f"has {rows} rows, which the {role.team_warps} warps of role {role.name} cannot share evenly"
                fix = "choose a tile whose first extent they divide, or read it whole and write another"
                raise InputError(f"k.raw({kind}s)", part.ref.buffer.name, rule, fix)
            part.slot._check_open(part.ref.buffer.name)
            copied = part.part.load is not None and part.part.load.vector > 0
            touched = touched | copied | part.slot._touched((part.ref.buffer.name,))
            if proxy == "generic":
                part.by_threads(writes=kind != "read")
            accesses.append((part.ref, kind))
    if proxy == "async":
        isa.when(touched, isa.fence_proxy_async)
    isa.when(touched, isa.warp_sync)  # the elements are now distributed over the lanes in another way
    isa.fragments.raw(gpu, cpu, accesses, role, proxy)
    isa.warp_sync()
