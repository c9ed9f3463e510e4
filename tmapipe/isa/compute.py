"""Operations and instructions of threads and tensor cores: slots read and written, wgmma, registers, the end of a warp."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tmapipe.isa.effects import (
    Access,
    Accumulators,
    AwaitGroup,
    EndGroup,
    Group,
    Return,
    SetRegisters,
    Start,
    Until,
    Use,
    operation,
)
from tmapipe.isa.lowering import Lowering
from tmapipe.isa.operands import Flag, Mask, Name, Number, Pending, ProxyName, Slot
from tmapipe.isa.values import SlotRef, Value
from tmapipe.plan.model import Matmul

__all__ = [
    "AccumulatorRead", "AccumulatorWrite", "ComputeInstructions", "Exit", "PeerRead", "SetMaxNreg", "SlotRead",
    "SlotWrite", "Wgmma", "WgmmaCommit", "WgmmaFence", "WgmmaFromRegisters", "WgmmaWait",
]  # fmt: skip

IN_GROUP = Until(Group.WGMMA)


@operation("", "writes the registers of {matmul}", Accumulators(Use.WRITE))
class AccumulatorWrite(NamedTuple):
    """Registers of a matmul written by the warp: its accumulators set to zero or scaled, or its operand a. Facts: None."""

    matmul: Name


@operation("", "reads the accumulators of {matmul}", Accumulators(Use.READ))
class AccumulatorRead(NamedTuple):
    """Registers of an accumulator read by the warp. Facts: None."""

    matmul: Name


@operation("wgmma.fence.sync.aligned", "fences the accumulators (wgmma.fence)", Accumulators(Use.FENCE))
class WgmmaFence(NamedTuple):
    """Facts: None."""


@operation(
    "wgmma.mma_async.sync.aligned",
    "starts wgmma {matmul}, which reads {a} and {b}",
    Start("a", IN_GROUP),
    Start("b", IN_GROUP),
    Accumulators(Use.UPDATE),
)
class Wgmma(NamedTuple):
    """By one warp of the four. Facts: tuple of its `Flight`, which all four have."""

    matmul: Name
    a: Slot
    b: Slot


@operation(
    "wgmma.mma_async.sync.aligned",
    "starts wgmma {matmul}, which reads registers and {b}",
    Start("b", IN_GROUP),
    Accumulators(Use.UPDATE),
)
class WgmmaFromRegisters(NamedTuple):
    """As `Wgmma`, with a from registers, which count among the accumulators. Facts: as of `Wgmma`."""

    matmul: Name
    b: Slot


@operation("wgmma.commit_group.sync.aligned", "commits a wgmma group", EndGroup(Group.WGMMA))
class WgmmaCommit(NamedTuple):
    """Facts: n: the group ends before serial n of the warpgroup's wgmmas."""


@operation("wgmma.wait_group.sync.aligned", "waits for wgmma groups (wait_group {pending})", AwaitGroup(Group.WGMMA))
class WgmmaWait(NamedTuple):
    """Facts: n: the warpgroup's wgmmas 0 .. n - 1 are now complete."""

    pending: Pending


def _part(op: SlotRead | SlotWrite) -> str:
    cut, _, raw = op.split.partition("/")
    share = f" (part {op.part} of {op.parts}, by {cut})" if op.parts > 1 else ""
    proxy = ", through the async proxy" if op.proxy == "async" else ""
    return f"{share} in {raw}{proxy}" if raw else share


@operation("", lambda names, op: f"reads {names.slot_name(op.slot)}{_part(op)}", Access(proxy="proxy"))
class SlotRead(NamedTuple):
    """``ld.shared`` or ``ldmatrix`` of part `part` of `parts` of a slot by all lanes.

    split: how the parts are cut: "vectors of 8" or "rows in vectors of 8" (see `plan.thread_layout.VectorLayout`), "rows"
    (contiguous along the first extent) or "numbers of rows" (of columns), and after a slash which raw function distributes its
    part over the lanes. Parts of the same cut with different numbers are disjoint; of everything else assume that they
    overlap. proxy: "generic", or "async": raw code reaches it by TMA or wgmma, and goes on in all lanes only when that has
    ended. Facts: None.
    """

    slot: Slot
    part: Number = 0
    parts: Number = 1
    split: Name = "rows"
    proxy: ProxyName = "generic"


@operation("", lambda names, op: f"writes {names.slot_name(op.slot)}{_part(op)}", Access(write=True, proxy="proxy"))
class SlotWrite(NamedTuple):
    """``st.shared``, ``stmatrix``: operands as `SlotRead`. Facts: None."""

    slot: Slot
    part: Number = 0
    parts: Number = 1
    split: Name = "rows"
    proxy: ProxyName = "generic"


@operation("ld.shared::cluster", "reads {slot} of CTA {mask}", Access(mask="mask"))
class PeerRead(NamedTuple):
    """Of a slot of the CTA in `mask`, by all lanes; which elements is left open. Facts: None."""

    slot: Slot
    mask: Mask


@operation("setmaxnreg.sync.aligned.u32", "sets {registers} registers a thread", SetRegisters())
class SetMaxNreg(NamedTuple):
    """``.inc`` or ``.dec``, registers a thread. Facts: registers a thread before."""

    registers: Number
    increase: Flag


@operation("ret", "returns", Return())
class Exit(NamedTuple):
    """The warp returns. Facts: whether it was the last of its CTA."""


class ComputeInstructions(Lowering):
    """Instructions of threads and tensor cores. What works on values is in `tmapipe.isa.fragments`."""

    def wgmma_fence(self) -> None:
        """``wgmma.fence``: orders register accesses before the next wgmma."""
        self.emit(WgmmaFence())

    def wgmma(self, matmul: Matmul, acc: Any, a: Any, b: SlotRef) -> None:
        """``wgmma.mma_async`` for all k of the slots, asynchronously: reads the slots (async proxy) and *acc* until a
        `wgmma_wait` says otherwise. a: a slot, or what `Fragments.operand` has made, which is read as long."""
        second = self.slot(b.buffer, b.stage)
        if isinstance(a, SlotRef):
            self.emit(Wgmma(matmul.name, self.slot(a.buffer, a.stage), second))
        else:
            self.emit(WgmmaFromRegisters(matmul.name, second))

    def wgmma_commit(self) -> None:
        """``wgmma.commit_group``."""
        self.emit(WgmmaCommit())

    def wgmma_wait(self, pending: int) -> None:
        """``wgmma.wait_group``: until at most *pending* groups of this warpgroup are incomplete."""
        self.emit(WgmmaWait(pending))

    def read_words(self, slot: SlotRef, count: int, without_data: Callable[[], Sequence[int]]) -> Sequence[Value]:
        """``ld.shared``: the slot's first *count* words of 4 bytes, in all lanes. without_data: what they are in the
        machine where it runs without data. Generic proxy."""
        found = self.ask(SlotRead(self.slot(slot.buffer, slot.stage)), without_data)
        return [int(word) for word in found[:count]]

    def setmaxnreg(self, registers: int, increase: bool) -> None:
        """``setmaxnreg.inc/dec``: registers a thread from here on (24 to 256, a multiple of 8), for every warp of the
        warpgroup. An increase blocks until the CTA's pool has that many free."""
        self.emit(SetMaxNreg(registers, increase))

    def griddepcontrol_wait(self) -> None:
        """``griddepcontrol.wait``: until the kernels before this one in the stream have ended and their writes are
        visible. Nothing in global memory may be touched earlier, since the launch does not wait for them. In the machine,
        which runs one kernel: nothing."""

    def griddepcontrol_launch_dependents(self) -> None:
        """``griddepcontrol.launch_dependents``: once each CTA has executed it, the next kernel's CTAs may start wherever
        there is room (and wait there, as above). Orders nothing."""
