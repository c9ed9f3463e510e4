"""RingEnd, one role's end of a ring: its pipeline state, the events that it waits for and signals, its open slots. Here is
also `Groups`, the wgmma groups of a role, since they say when a slot may be released.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from tmapipe.errors import MissingPartError, ScopeError, permit
from tmapipe.isa.fragment import Block, Carried
from tmapipe.isa.ops import Isa
from tmapipe.plan.rings import Ring
from tmapipe.protocol.tile import peer_mask

if TYPE_CHECKING:
    from tmapipe.protocol.matmuls import Accumulator


# ---- groups ----------------------------------------------------------------------------------------------------------
#
# The wgmma groups of a warpgroup retire in the order of their commits, whatever rings and accumulators they use. So a role has
# one `Groups` for all of its rings. How many groups lie between two points of a body is known only where both points are in
# one block of code, since a loop may run any number of times. A group that was committed in another block is not counted. So
# a wait is at worst stricter than it needs to be.


class Groups(Carried):
    """The wgmma groups of one role, as its body is traced.

    steps: how many commits, and waits for all groups, there were so far. latest: the block of the last of these. open: blocks
    of wgmmas that may not have been committed. running: blocks of commits whose groups may still run. started: matmuls that
    were started and not yet awaited.
    """

    def __init__(self, isa: Isa):
        self.isa = isa
        self.steps = 0
        self.latest: Block = ()
        self.open: list[Block] = []
        self.running: list[Block] = []
        self.started: list[Started] = []

    def issued(self) -> None:
        """A wgmma has been issued, and belongs to the next group."""
        _note(self.open, self.isa.block())

    def commit(self) -> None:
        """Ends a group."""
        block = self.isa.block()
        self.isa.wgmma_commit()
        self._step(block)
        self.open = [each for each in self.open if not _within(each, block)]
        _note(self.running, block)
        for started in self.started:
            started.later.append(block)

    def commit_since(self, steps: int) -> None:
        """Ends a group, if there was a wgmma since the last commit, or if `steps` is still *steps*, or in another block."""
        if self.open or self.steps == steps or self.latest != self.isa.block():
            self.commit()

    def wait(self, pending: int) -> None:
        """Waits until at most *pending* groups may still run."""
        self.isa.wgmma_wait(pending)
        if pending == 0:
            block = self.isa.block()
            self._step(block)
            self.running = [each for each in self.running if not _within(each, block)]

    def close(self) -> None:
        """Ends the open group, if there is one."""
        if self.open:
            self.commit()

    def settle(self) -> None:
        """Waits for all groups, if one of them may still run."""
        if self.running:
            self.wait(0)

    def _step(self, block: Block) -> None:
        self.steps, self.latest = self.steps + 1, block

    def check_awaited(self) -> None:
        """Raises `ScopeError` if a matmul has been started and not awaited."""
        if self.started:
            name = self.started[0].accumulator.matmul.name
            rule = "was started, but not awaited where it was started. Call .wait() on it."
            raise ScopeError(f"a matmul of {name} {rule}")


class Started(Carried):
    """A matmul that has been started, and runs until `wait`.

    slots: the slots that it reads. later: the blocks of the commits that came after its own.
    """

    def __init__(self, groups: Groups, accumulator: Accumulator, slots: list[Slot]):
        self.groups, self.accumulator, self.slots = groups, accumulator, slots
        self.block = groups.isa.block()
        groups.commit()
        groups.started.append(self)
        self.later: list[Block] = []
        for slot in slots:
            slot.reads.append(self)

    @property
    def over(self) -> bool:
        """Whether it has been awaited."""
        return all(each is not self for each in self.groups.started)

    def wait(self) -> Accumulator:
        """Waits until this matmul is done, and all that were started before it. Matmuls that were started later may go on.

        After the wait its sums can be used. Slots that were left while it read them are released.

        Returns:
            The accumulator.

        Raises:
            ScopeError: It was started in another block of code (a loop, a branch), or has been awaited already.
        """
        name = self.accumulator.matmul.name
        permit(not self.over, f"a matmul of {name} awaited twice. Call .wait() once for each start().")
        block = self.groups.isa.block()
        if block != self.block:
            fix = "Start and await it in the same iteration of a loop, or the same branch."
            raise ScopeError(f"a matmul of {name} awaited in another block of code than it was started in. {fix}")
        self.groups.wait(sum(each == block for each in self.later))
        self.groups.started = [each for each in self.groups.started if each is not self]
        for slot in self.slots:
            slot.end.reads_over(slot)
        return self.accumulator


def _note(blocks: list[Any], block: Block) -> None:
    if block not in blocks:
        blocks.append(block)


def _within(inner: Block, outer: Block) -> bool:
    return inner[: len(outer)] == outer


# ---- ring ------------------------------------------------------------------------------------------------------------

Parts = Mapping[str, Callable[["Slot"], Any]]


class RingEnd(Carried):
    """One role's end of a ring: its pipeline state, and the events that it waits for and signals.

    As scopes: ``with end.produce() as slot`` in the first phase, ``with end.consume() as slot`` in any other. As single
    events: `acquire` and `commit`, or `wait` and `release`, both once for each slot and in the order of the ring.

    The pipeline state (index and parity) advances when a slot is entered, and the slot keeps its index. So leaving a slot
    changes only the barriers. The state lives in registers (`Isa.cells`), so a second name for the ring never has an old copy.

    parts: stage -> a function that makes the stage's tile of an open slot. groups: the role's wgmma groups.
    """

    _facts: ClassVar[dict[str, str]] = {"by_threads": "flag"}

    def __init__(self, isa: Isa, ring: Ring, role: str, parts: Parts, groups: Groups | None = None):
        phase = ring.phase_of(role)
        assert phase is not None
        self.isa, self.ring, self.role, self.phase, self.parts = isa, ring, role, phase, parts
        self.awaited = ring.barriers[phase - 1]
        # the last phase of a held slot signals no barrier
        self.signalled = ring.barriers[min(phase, len(ring.barriers) - 1)]
        self.lag = ring.lag.get(role, 0)
        self.readers = ring.readers.get(role, ())
        self.state = isa.cells(0, 1 if phase == 0 else 0, names=f"{ring.name}.slot {ring.name}.parity")
        # Slots not yet released, oldest first; -1: none.
        self.held: Any = isa.cells(*[-1] * self.lag, names=f"{ring.name}.held") if self.lag else ()
        self.groups = groups or Groups(isa)
        self.left = 0  # `groups.steps` when the last slot was left
        self.by_engines = isa.plan.by_engines  # stages that the async proxy accesses, in any phase
        self.by_threads = False  # whether threads have touched a slot of this end
        last = phase == len(ring.phases) - 1 and role not in ring.local
        self.to_peers = ring.peers > 1 and (last or phase in ring.far)
        self.mask: Any = None
        isa.follow(self)
        if self.to_peers:
            for axes in ring.groups:
                peers = peer_mask(isa, axes)
                self.mask = peers if self.mask is None else self.mask | peers

    # ---- scoped ---------------------------------------------------------------------------------------------------

    def produce(self) -> Slot:
        """The scope of the next free slot.

        Entering waits until every reader, in every CTA that gets the data, has released the slot. Then it arms the bytes of
        the loads. Leaving commits the slot.

        Raises:
            ScopeError: The role belongs to a later phase.
        """
        self._only_phase(0)
        return Slot(self)

    def consume(self) -> Slot:
        """The scope of the next slot that the phase before has finished.

        Entering waits for this phase. Leaving releases the slot, once this role's reads of it have retired.

        Raises:
            ScopeError: The role belongs to the first phase.
        """
        self._only_phase(None)
        return Slot(self)

    def pass_over(self) -> None:
        """Waits until the phase before has finished the next slot, and releases it at once, unread: for a slot that only other
        warps of the role use.

        Raises:
            ScopeError: The role belongs to the first phase.
        """
        self._only_phase(None)
        self._signal(self._enter())

    # ---- events ---------------------------------------------------------------------------------------------------

    def acquire(self) -> Slot:
        """In the first phase: waits until the next slot is free, and arms the bytes of the loads. Pair it with `commit`."""
        return self.produce().__enter__()

    def commit(self, slot: Slot | None = None) -> None:
        """In the first phase: hands *slot* on. Loads complete by themselves. Writes by threads are fenced and signalled
        here."""
        self._left(slot)

    def wait(self) -> Slot:
        """In a later phase: waits until the phase before has finished the next slot. Pair it with `release`."""
        return self.consume().__enter__()

    def release(self, slot: Slot | None = None) -> None:
        """In a later phase: hands *slot* on to the next phase. While asynchronous reads of the slot may still run, it is
        handed on some slots later."""
        self._left(slot)

    def _left(self, slot: Slot | None) -> None:
        if not isinstance(slot, Slot) or slot.end is not self:
            verb, given = ("commit", "acquire") if self.phase == 0 else ("release", "wait")
            what = f"one of ring {slot.end.ring.name!r}" if isinstance(slot, Slot) else type(slot).__name__
            rule = f"takes the slot that {given}() gave, not {'nothing' if slot is None else what}"
            raise ScopeError(f"{verb}() on ring {self.ring.name!r} in role {self.role!r} {rule}.")
        slot.__exit__(None, None, None)

    def drain(self) -> None:
        """Waits for all asynchronous reads of this role, and releases every slot that was held back for them."""
        if self.lag:
            self._retire(0)
            for i in range(self.lag):
                self._signal(self.held[i], when=self.held[i] >= 0)
                self.held[i] = -1

    def skip(self, slots: Any) -> None:
        """Skips *slots* slots, which another team of this role takes."""
        self.isa.skip(self.state, slots, self.ring)

    def finish(self) -> None:
        """Called after the last tile of the role: drains.

        If peers may still signal this CTA's barriers, the producer also waits for the last release of every slot, so that the
        CTA does not exit before its peers have signalled.
        """
        self.drain()
        if self.phase == 0 and self.ring.peers > 1:
            for _ in range(self.ring.stages):
                self.isa.mbarrier_wait(self.awaited, self.state[0], self.state[1])
                self.isa.advance(self.state, self.ring.stages)

    # ---- what the scopes do ---------------------------------------------------------------------------------------

    def _only_phase(self, phase: int | None) -> None:
        if (phase == 0) != (self.phase == 0):
            verb, other = ("produce", "consume") if phase == 0 else ("consume", "produce")
            rule = f"which plays phase {self.phase} of {len(self.ring.phases)}. Use {other}()."
            raise ScopeError(f"{verb}() on ring {self.ring.name!r} in role {self.role!r}, {rule}")

    def _enter(self) -> Any:
        index = self.state[0]
        self._wait(index, self.state[1])
        nbytes = self.ring.armed.get(self.role, 0)
        if nbytes:  # each warp arms an equal part
            nbytes //= self.isa.plan.role(self.role).team_warps
            self.isa.mbarrier_arrive_expect_tx(self.signalled, index, nbytes)
        self.isa.advance(self.state, self.ring.stages)
        return index

    def _wait(self, index: Any, parity: Any) -> None:
        """Waits until the phase before is done with the slot. Fences, if this role reads through the async proxy a tile that
        threads have copied."""
        self.isa.mbarrier_wait(self.awaited, index, parity)
        if self.role in self.ring.fenced:
            self.isa.fence_proxy_async()

    def _leave(self, slot: Slot) -> None:
        touched, by_engines = slot._touched(), slot._touched(self.by_engines)
        if self.to_peers:
            self.by_threads = self.by_threads | touched
        self.isa.when(by_engines, self.isa.fence_proxy_async)
        self.isa.when(touched, self.isa.warp_sync)
        awaited_apart = bool(slot.reads) and not slot.added
        if "wgmma" in self.readers and not slot.retired and not awaited_apart:
            self.groups.commit_since(max(slot.entered, self.left))
        self.left = self.groups.steps
        if "tma" in self.readers:
            self.isa.bulk_commit_group()
        if self.lag:
            self._retire(self.lag)
            self._signal(self.held[0], when=self.held[0] >= 0)
            for i in range(self.lag - 1):
                self.held[i] = self.held[i + 1]
            self.held[self.lag - 1] = slot.index
        elif self.role in self.ring.signals:
            if not slot.retired:
                self._retire(0, by_wgmma=not awaited_apart)
            slot.open = False
            self.reads_over(slot)

    def reads_over(self, slot: Slot) -> None:
        """Releases a slot that has been left, unless a matmul that was started on the slot still reads it."""
        if not slot.open and all(started.over for started in slot.reads):
            self._signal(slot.index)

    def _retire(self, pending: int, by_wgmma: bool = True) -> None:
        if "wgmma" in self.readers and by_wgmma:
            self.groups.wait(pending)
        if "tma" in self.readers:
            self.isa.bulk_wait_group(pending, read=True)

    def _signal(self, index: Any, when: Any = True) -> None:
        if self.to_peers:
            # Peers will overwrite the slot. Reads by TMA and wgmma have retired. Accesses by threads have to be released:
            # those of this role, and those of earlier phases, for which this role has waited.
            released = self.by_threads if self.phase == 1 else True
            if isinstance(released, bool):
                scope = "cluster" if released else "relaxed"
                return self.isa.mbarrier_arrive_cluster(self.signalled, index, self.mask, when, scope)
            self.isa.mbarrier_arrive_cluster(self.signalled, index, self.mask, when & released, "cluster")
            self.isa.mbarrier_arrive_cluster(self.signalled, index, self.mask, when & (released == 0), "relaxed")
        else:
            self.isa.mbarrier_arrive(self.signalled, index, when=when)


class Slot(Carried):
    """A slot between entry and exit. The tiles in the slot are its attributes, by the names of the stages, such as `a` in
    ``slot.a.load(tile, k=i)``."""

    _carries, _apart = ("index", "touched_by_threads"), ("gone", "entered")
    _facts: ClassVar[dict[str, str]] = {
        "open": "same", "retired": "both", "touched_by_threads": "flags", "gone": "union",
    }  # fmt: skip

    def __init__(self, end: RingEnd):
        end.isa.follow(self)
        self.end = end
        self.index: Any = None
        self.open = False
        self.retired = False  # whether the role has waited for its asynchronous reads already
        # Stage -> whether threads accessed its tile.
        self.touched_by_threads: dict[str, Any] = dict.fromkeys(end.parts, False)
        self.entered = 0  # `groups.steps` when the slot was entered
        self.added = False  # whether `acc.add` has read the slot
        self.reads: list[Started] = []  # matmuls that were started on the slot
        self.gone: set[str] = set()  # stages whose tiles this role has overwritten with tiles of other stages

    def __enter__(self) -> Slot:
        self.index = self.end._enter()
        self.entered = self.end.groups.steps
        self.open = True
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is None:
            where = f"in role {self.end.role!r}. Leave each slot once, at the end of its `with` block."
            permit(self.open, f"a slot of ring {self.end.ring.name!r} left a second time, or from outside, {where}")
            self.end._leave(self)
        self.open = False

    def _joined(self, versions: tuple[Slot, ...]) -> None:
        self.end.isa.follow(self)
        self.touched_by_threads = dict(self.touched_by_threads)
        self.gone = set().union(*(each.gone for each in versions))
        self.entered = self.end.groups.steps
        for started in self.reads:
            started.slots.append(self)
        self.reads = list(self.reads)

    def _touched(self, stages: Any = None) -> Any:
        """Whether threads have accessed the tile of one of *stages*; None: of any stage."""
        touched: Any = False
        for stage, condition in self.touched_by_threads.items():
            if stages is None or stage in stages:
                touched = True if condition is True or touched is True else touched | condition
        return touched

    def _check_open(self, stage: str = "") -> None:
        """Raises `ScopeError` if the slot is not open, or the tile of *stage* is gone."""
        ring, role = self.end.ring, self.end.role
        where = (
            f"outside its `with` block in role {role!r}. Move the use into the block, or before its commit or release."
        )
        permit(self.open, f"a slot of ring {ring.name!r} used {where}")
        if stage in self.gone or stage in ring.gone.get(role, ()):
            rule = "after a stage that lies over it was written. Use it before."
            raise ScopeError(f"{stage!r} used in role {role!r} {rule}")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        self._check_open()
        part = self.end.parts.get(name)
        if part is None:
            known = ", ".join(self.end.parts) or "none"
            fix = f"its stages are {known}. Use one of those, or declare {name} with this ring."
            raise MissingPartError(f"ring {self.end.ring.name!r} has no stage {name!r}; {fix}")
        return part(self)


class HeldEnd(RingEnd):
    """One role's end of a ring that is filled once in each CTA (``BarrierRing(per="cta")``).

    The roles of the last phase wait for the slot before their first tile, and keep it. In their bodies, the tiles of the slot
    are attributes of the ring, such as ``k.weights.w.read()``. The other roles enter the slot once, in their methods
    `@role.before.jit`.
    """

    _facts: ClassVar[dict[str, str]] = {**RingEnd._facts, "slot": "always"}

    def __init__(self, isa: Isa, ring: Ring, role: str, parts: Parts, groups: Groups | None = None):
        super().__init__(isa, ring, role, parts, groups)
        self.last = self.phase == len(ring.phases) - 1
        self.before = False  # whether the role runs its method before the first tile
        self.slot: Slot | None = None

    def begin(self) -> None:
        """Called before the role's method `@role.before.jit`. The last phase waits for the slot; other roles may enter it from
        now on."""
        self.before = True
        if self.last:
            self._wait(0, 0)
            self.slot = Slot(self)
            self.slot.index, self.slot.open = 0, True
            # As if read already: no tile differs from the first.
            self.slot.touched_by_threads |= dict.fromkeys(self.parts, True)

    def begun(self) -> None:
        """Called after this method. Raises `ScopeError` if the role has not entered the slot."""
        self.before = False
        if self.slot is None:
            verb = "consume" if self.phase else "produce"
            fix = f"In `@{self.role}.before.jit`: `with k.{self.ring.name}.{verb}() as slot`."
            raise ScopeError(f"ring {self.ring.name!r} is filled once a CTA, and role {self.role!r} does not. {fix}")

    def skip(self, slots: Any) -> None:
        """Does nothing: all teams have the same slot."""

    def finish(self) -> None:
        """Does nothing: the slot is never overwritten, so no role waits until it has been read."""

    def _enter(self) -> Any:
        if self.last or not self.before or self.slot is not None:
            fix = f"read k.{self.ring.name}.<stage>" if self.last else f"enter it in `@{self.role}.before.jit`, once"
            rule = f"it is filled once a CTA, before the first tile, and then held. To use it, {fix}."
            raise ScopeError(f"a slot of ring {self.ring.name!r} entered in role {self.role!r}: {rule}")
        if self.phase:
            self._wait(0, 0)
        nbytes = self.ring.armed.get(self.role, 0)
        if nbytes:
            self.isa.mbarrier_arrive_expect_tx(self.signalled, 0, nbytes)
        self.slot = Slot(self)
        return 0

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or "slot" not in self.__dict__:
            raise AttributeError(name)
        if self.slot is None or not self.last:
            rule = "The last phase of a ring filled once a CTA reads it so; others enter it."
            raise MissingPartError(f"k.{self.ring.name}.{name} in role {self.role!r}. {rule}")
        return getattr(self.slot, name)
