"""MachineIsa: one warp's view of the machine, the CPU backend's instruction set.

Instructions make operations as `tmapipe.isa` declares them and hand each to `emit`, which returns when the machine has
executed it, or at once if the operations are only listed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tmapipe.errors import InputError
from tmapipe.isa.fragment import Fragment
from tmapipe.isa.globals import TableLoad
from tmapipe.isa.interface import Isa
from tmapipe.isa.values import SlotRef
from tmapipe.machine.fragments import MachineFragments
from tmapipe.machine.hazard import hazard, set_location
from tmapipe.machine.layout import Layout, Shapes
from tmapipe.machine.locate import locate
from tmapipe.machine.memory import Memory
from tmapipe.plan.model import Barrier, Buffer, Load, Matmul, NamedBarrier, Store
from tmapipe.protocol.tile import Tile
from tmapipe.tma_rules import ALIGNMENT

__all__ = ["MachineIsa"]


class MachineIsa(Isa):
    """Methods as documented in `tmapipe.isa`.

    memory: None when the protocol runs without data. tables: entries of tables, known without data; 1 behind the last one.
    """

    fragments: MachineFragments

    def __init__(
        self,
        layout: Layout,
        agent: int,
        cluster_id: int,
        clusters: int,
        shapes: Shapes,
        emit: Callable[[Any], None],
        memory: Memory | None = None,
        tables: Mapping[str, Sequence[int]] | None = None,
    ):
        self._tables = tables or {}
        self.layout, self.plan, self.agent, self.memory = layout, layout.plan, agent, memory
        self.syncs = layout.syncs
        self.emit = emit  # type: ignore[method-assign, assignment]
        self.cta_rank, self.warp = divmod(agent, layout.warps)
        self.cluster_id, self.clusters, self._shapes = cluster_id, clusters, shapes
        self.fragments = MachineFragments(self)

    # ---- what the kernel was launched with -------------------------------------------------------------------------

    def extent(self, argument: str, dim: int) -> int:
        return self._shapes[argument][dim]

    def divisors(self, values: dict[str, int]) -> dict[str, int]:
        return values

    def enter(self, tile: Tile) -> None:
        """A role's body begins, of a tile of the output."""
        if self.memory is not None and self.memory.written is not None:
            self.memory.written.tiles[self.agent] = str(tile)

    # ---- instructions that answer, or take data -------------------------------------------------------------------

    def ask(self, op: Any, without_data: Callable[[], Sequence[int]]) -> Sequence[int]:
        self.emit(op)
        if self.memory is not None:
            return self.memory.results[self.agent]
        entries = self._tables.get(op.table) if type(op) is TableLoad else None
        if entries is None:
            return without_data()
        return [int(entries[i]) if 0 <= i < len(entries) else 1 for i in op.entries]

    def store_values(self, store: Store, at: Sequence[int], values: Fragment, surely: tuple[int, int] = (0, 0)) -> None:
        if self.memory is not None and surely[0] < surely[1]:
            extent = self.memory.tensors[store.argument].shape[-1]
            if at[-1] + surely[0] < 0 or at[-1] + surely[1] > extent:
                rule = f"are columns inside the tensor, of a tile at {at[-1]}, where there are {extent}"
                raise InputError(f"{store.name}.store(surely)", surely, rule, "say so of those alone that always are")
            tensor = self.memory.tensors[store.argument]
            place = tensor.ctypes.data + sum(i * step for i, step in zip(at[::-1], tensor.strides[::-1], strict=False))
            inside = all(i < n for i, n in zip(at[-2::-1], tensor.shape[-2::-1], strict=False))
            if store.wide and inside and place % ALIGNMENT:
                rule = f"are stored {ALIGNMENT} bytes at once, of a tile that begins at a multiple of them"
                raise InputError(f"{store.name}.store(surely)", surely, rule, "leave it out for such a tensor")
        self.give(self.fragments.places(values))
        super().store_values(store, at, values)

    def reduces(self, values: Fragment, along: str, inside: Any) -> None:
        """Is told of each reduction of a fragment, with the arguments of `Fragments.reduce`."""

    def wgmma(self, matmul: Matmul, acc: Any, a: Any, b: SlotRef) -> None:
        self.give((acc, None if isinstance(a, SlotRef) else a))
        super().wgmma(matmul, acc, a, b)

    def griddepcontrol_wait(self) -> None:
        pass  # the machine runs one kernel

    def griddepcontrol_launch_dependents(self) -> None:
        pass

    # ---- operands -------------------------------------------------------------------------------------------------

    def give(self, values: Any) -> None:
        """Hands *values* to the next operation of this warp."""
        if self.memory is not None:
            self.memory.operands[self.agent] = values

    def bar(self, barrier: Barrier, stage: int) -> int:
        if 0 <= stage < barrier.stages:
            return self.layout.bar_base[barrier.name] + stage
        raise self._outside(f"uses {barrier.name}[{stage}], but it has {barrier.stages} stages")

    def slot(self, buffer: Buffer, stage: int) -> int:
        if 0 <= stage < buffer.stages:
            return self.layout.slot_base[buffer.name] + stage
        raise self._outside(f"uses slot {buffer.name}[{stage}], but there are {buffer.stages}")

    def start(self, of: Load | Store, at: Sequence[Any]) -> tuple[int, ...]:
        whole = (isinstance(x, (int, np.integer)) and not isinstance(x, bool) and -(2**31) <= x < 2**31 for x in at)
        if len(at) != len(of.dims) or not all(whole):
            rule = (
                f"is where a tile starts: one whole number of 32 bits, of elements, along each of {', '.join(of.dims)}"
            )
            raise InputError(f"start of {of.name}'s tile", tuple(at), rule, "use integers, and // instead of /")
        return tuple(at)

    def part(self, of: Load | Store, index: Any) -> Any:
        if index is None or 0 <= index < of.parts:
            return index
        does = "loads" if isinstance(of, Load) else "stores"
        raise self._outside(f"{does} part {index} of a slot of {of.name}, which has {of.parts}")

    def plain(self, number: Any) -> Any:
        return number

    def barrier_id(self, barrier: NamedBarrier, instance: int) -> int:
        if 0 <= instance < barrier.instances:
            return barrier.id + instance
        raise self._outside(f"uses {barrier.name}[{instance}], but it has {barrier.instances} instances")

    def _outside(self, text: str) -> Exception:
        return set_location(hazard(self.layout, "no-such-stage", int(self.agent), None, text), locate())
