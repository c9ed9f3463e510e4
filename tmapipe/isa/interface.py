"""Isa: the instruction set that every ring, stage, store and tile scheduler is written in.

Two backends implement it. `tmapipe.gpu` emits the CuTe DSL operation for each instruction while CuTe DSL traces the body.
`tmapipe.machine` makes the operations of the table and carries them out on a model of the hardware. The protocol
(`tmapipe.protocol`) knows only this package.

**Who executes.** A body runs once per *warp*. All 32 lanes are converged at every instruction. Where the hardware wants one
thread (an arrive, an expect-tx, a TMA instruction, a bulk group) the backend elects one lane, the same one each time. An
instruction that says "each lane" is executed by all.

**Values.** An index, a parity, a coordinate or a rank is an ``int`` in the machine and an ``Int32`` when traced; both take the
usual arithmetic. A condition is a ``bool`` or a ``Boolean``. Python's ``if`` on such a value works only in traced bodies, so
library code branches with `Isa.when` and selects with `Isa.select`.

**Proxies.** *Generic*: ordinary loads and stores by threads. *Async*: what TMA and wgmma do to shared memory. Accesses to
the same bytes through different proxies are ordered only by a proxy fence, by an mbarrier completion (async writes, for
whoever waits), or by a group wait (async reads and writes of one's own).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tmapipe.isa.barriers import BarrierInstructions
from tmapipe.isa.compute import ComputeInstructions
from tmapipe.isa.copies import CopyInstructions
from tmapipe.isa.descriptors import DescriptorInstructions
from tmapipe.isa.fragments import Fragments
from tmapipe.isa.globals import GlobalInstructions
from tmapipe.isa.peers import PeerInstructions
from tmapipe.isa.rows import RowInstructions
from tmapipe.isa.values import Block, Carried, Cells, Condition, Value
from tmapipe.plan.model import Load
from tmapipe.plan.rings import Ring

__all__ = ["Isa"]


class Isa(
    BarrierInstructions,
    CopyInstructions,
    PeerInstructions,
    RowInstructions,
    DescriptorInstructions,
    ComputeInstructions,
    GlobalInstructions,
):
    """One warp's view of the hardware: control flow, what a kernel was launched with, and the instructions of the table.

    `fragments` works on values that are distributed over threads.
    """

    fragments: Fragments

    def cells(self, *initial: Value) -> Cells:
        """Mutable integers, one for each initial value."""
        raise NotImplementedError

    def follow(self, part: Carried) -> None:
        """Told of each object of the protocol that has `_facts`: a trace joins them where paths meet. Else of no matter."""

    def select(self, condition: Condition, then: Value, otherwise: Value) -> Value:
        """``selp``: *then* if *condition* else *otherwise*, without a branch."""
        raise NotImplementedError

    def advance(self, state: Cells, stages: int, parity: bool = True) -> None:
        """Moves a pipeline state (index, parity) on to the next of *stages* slots. *parity*: whether it has one."""
        following = state[0] + 1
        wrapped = following == stages
        if parity:
            state[1] = self.select(wrapped, state[1] ^ 1, state[1])
        state[0] = self.select(wrapped, 0, following)

    def skip(self, state: Cells, slots: Value, ring: Ring) -> None:
        """Moves a pipeline state (index, parity) on by *slots* slots of *ring*, 0 or more."""
        index = state[0] + slots
        laps = index // ring.stages
        state[0] = index - laps * ring.stages
        state[1] = state[1] ^ (laps & 1)

    def here(self, value: Value) -> Value:
        """The same value in all lanes, computed at this point of the program and not where it is used."""
        raise NotImplementedError

    def when(self, condition: Condition, body: Callable[[], None]) -> None:
        """Runs *body* if *condition*. The condition must be the same in all lanes of the warp."""
        raise NotImplementedError

    def loop(self, trips: Value, body: Callable[[Value], None]) -> None:
        """Runs ``body(0)`` .. ``body(trips - 1)``."""
        raise NotImplementedError

    def loop_while(self, state: Cells, body: Callable[[], None], iterations: Callable[[], int] | None = None) -> None:
        """Runs ``body()`` as long as ``state[0]``, which is the same in all lanes that run it, is not 0.

        Args:
            iterations: Where data decides that: how often it runs in the check, which has no data.
        """
        raise NotImplementedError

    def block(self) -> Block:
        """The block of code that the calling body is at. Two points in one block are executed equally often, in turn."""
        raise NotImplementedError

    def call(self, body: Callable[..., None], *arguments: Any) -> None:
        """Runs a role's body: traced by CuTe DSL, or called as it is."""
        raise NotImplementedError

    def evaluate(self, function: Callable[..., Value], *arguments: Any) -> Value:
        """What a method of the schedule says outside bodies, e.g. how many slots a tile takes."""
        return function(*arguments)

    def extent(self, argument: str, dim: int) -> Value:
        """Extent (elements) of dimension *dim* of the tensor bound to *argument*; a Python number if it is fixed."""
        raise NotImplementedError

    def window_start(self, load: Load, number: Value) -> tuple[Value, ...]:
        """(image, where in it) window *number* of the load's tensor begins (elements)."""
        assert load.windows is not None
        return load.windows.start(number, [self.extent(load.argument, i) for i in range(1, len(load.dims) - 1)])

    def divisors(self, values: dict[str, Value]) -> dict[str, Any]:
        """Each value as something to divide by (``x // d`` for x >= 0).

        A number in the machine. When traced, a multiplier and a shift that the host has computed: an integer division takes
        some 150 cycles. The values are those of the order's `divisors`, the same in all CTAs.
        """
        raise NotImplementedError
