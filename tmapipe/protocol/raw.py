"""Raw CuTe DSL in a body: the one way to use what the library does not cover.

``k.raw(gpu, cpu, reads=..., writes=..., updates=...)`` calls *gpu* with CuTe tensors while the body is traced, and *cpu* with
NumPy arrays on the CPU model. The check knows only the declared effects: which slots the calling warps access, as threads do.
The ring derives fences and releases from them, as from ``slot.x.read()`` and ``slot.x.write()``. How *gpu* distributes a
warp's rows over its lanes is not known, so the lanes synchronize before and after it.
"""

from __future__ import annotations

import functools
import inspect
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from tmapipe.errors import InputError, PipelineError, ScopeError
from tmapipe.isa.interface import Isa
from tmapipe.isa.values import Carried, SlotRef, Value
from tmapipe.plan.model import RoleWarps
from tmapipe.protocol.parts import PartInSlot

__all__ = ["RawRole", "raw"]

PROXIES = ("generic", "async")


class RawRole(Carried):
    """What a raw function is told of its role, if it has a parameter ``role``.

    name: of the role; warp: the calling one, counted from 0 in its team; warps: of the team; extent: elements along a
    dimension of the tensors, by its name.
    """

    def __init__(self, isa: Isa, role: RoleWarps):
        self.isa, self.role, self.name, self.warps = isa, role, role.name, role.team_warps

    @property
    def warp(self) -> Value:
        return (self.isa.warp - self.role.first_warp) % self.warps

    def extent(self, dim: str) -> Value:
        """Elements along dimension *dim* of the tensors that have it."""
        return self.isa.extent_along("role.extent", dim)


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
    told = RawRole(isa, role)
    isa.fragments.raw(_called(gpu, told), None if cpu is None else _called(cpu, told), accesses, role, proxy)
    isa.warp_sync()


def _called(function: Callable[..., None], role: RawRole) -> Callable[..., None]:
    """*function* with its role, if it takes that, and with the line in the errors that it raises."""

    @functools.wraps(function)
    def call(*tensors: Any) -> None:
        try:
            takes_role = "role" in inspect.signature(function).parameters
            function(*tensors, **({"role": role} if takes_role else {}))
        except PipelineError:
            raise
        except Exception as error:
            frames = traceback.extract_tb(error.__traceback__)
            code = getattr(inspect.unwrap(function), "__code__", None)
            inside = [frame for frame in frames if code is not None and frame.filename == code.co_filename]
            where = f"{inside[-1].filename}:{inside[-1].lineno}: " if inside else ""
            name = getattr(function, "__name__", type(function).__name__)
            raise ScopeError(f"{where}{name}() of k.raw raised {type(error).__name__}: {error}") from error

    return call
