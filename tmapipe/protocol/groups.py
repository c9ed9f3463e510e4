"""The wgmma groups of a role: what has been committed, what may still run, and matmuls that are started and awaited apart.

A warpgroup's groups retire in the order of their commits, whatever rings and accumulators they use, so a role has one `Groups`
for all of them. Which groups lie between two points of a body is known only where both are in one block of code: a loop may
run any number of times. What is committed in another block than where it is counted does not count, so that waits are at worst
stricter than they need be.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tmapipe.errors import ScopeError
from tmapipe.isa.interface import Isa
from tmapipe.isa.values import Block, Carried

if TYPE_CHECKING:
    from tmapipe.protocol.matmuls import Accumulator
    from tmapipe.protocol.ring import Slot

__all__ = ["Groups", "Started"]


class Groups(Carried):
    """The groups of one role, as its body is executed or traced.

    steps: commits and waits for all groups so far; latest: the block of the last one; open: blocks of wgmmas that no commit
    after them is sure to cover; running: blocks of commits that no wait after them is sure to cover; started: matmuls not yet
    awaited.
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
        """Ends a group, unless after the first *steps* one was ended, or all were waited for, with no wgmma issued since."""
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
        """Waits for all groups, if some may still run."""
        if self.running:
            self.wait(0)

    def _step(self, block: Block) -> None:
        self.steps, self.latest = self.steps + 1, block

    def check_awaited(self) -> None:
        """Raises `ScopeError` if a matmul has been started and not awaited."""
        if self.started:
            name = self.started[0].accumulator.matmul.name
            raise ScopeError(
                f"a matmul of {name} was started, but not awaited where it was started. Call .wait() on it."
            )


class Started(Carried):
    """A matmul that has been started, and runs until `wait`.

    slots: which it reads; later: the blocks of commits after its own.
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
        """Waits until the matmul is done, and those that were started before it. What was started after it may go on.

        Its sums can be used then, and slots that were left while it read them are released.

        Returns:
            The accumulator.

        Raises:
            ScopeError: It was started in another block of code (a loop, a branch), or has been awaited already.
        """
        name = self.accumulator.matmul.name
        if self.over:
            raise ScopeError(f"a matmul of {name} awaited twice. Call .wait() once for each start().")
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
