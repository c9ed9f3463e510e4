"""Executes emitted PTX with data: all threads of a launch, on arrays with an element a thread.

Threads at one instruction execute it together; those furthest behind in the text go first, so that lanes of a warp meet again
after a branch. An instruction of a whole warp waits until its lanes are there. A wait waits: if no thread can go on, the
engines do one thing that they have been asked for, and if there is none, that is an error.
"""

from __future__ import annotations

import functools
import re
from collections import defaultdict
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from tests.oracle.ptx import SHARED, Instruction, Ptx
from tests.oracle.ptx_execution import BASE
from tests.oracle.ptx_instructions import WAITS, Wait, action
from tests.oracle.ptx_memory import Barriers, Box, Engine, Memory, Wrong
from tests.oracle.ptx_numbers import UNSIGNED, kind_of, unsigned

__all__ = ["Machine"]

STEPS = 3_000_000  # instructions of groups of threads


class Decoded(NamedTuple):
    """target: of a branch; ends: of `ret`; waits: what it waits for before *act*."""

    instruction: Instruction
    guard: str | None
    wanted: bool
    target: int | None
    ends: bool
    waits: Wait | None
    act: Callable[[Any, Any], None] | None


class Machine:
    """One launch.

    Args:
        text: Of the PTX.
        ptx: The same, read.
        memory: With the tensors.
        values: Of each parameter's bytes.
        boxes: Of each parameter that is a descriptor.
        ctas: In the grid.
        seed: Of the engines' order.
    """

    def __init__(
        self,
        text: str,
        ptx: Ptx,
        memory: Memory,
        values: dict[int, bytes],
        boxes: dict[int, Box],
        ctas: int,
        seed: int = 0,
    ):
        self.ptx, self.memory, self.values, self.boxes = ptx, memory, values, boxes
        self.barriers, self.engine = Barriers(), Engine(seed)
        threads, cluster = ptx.plan.threads, ptx.plan.cluster_size
        self.threads, self.cluster, self.count = threads, cluster, threads * ctas
        number = np.arange(self.count)
        self.cta, self.alive = number // threads, np.ones(self.count, bool)
        self.met: dict[Any, list[int]] = defaultdict(lambda: [0, 0])  # (arrivals, generation) of barriers of threads
        self.until = np.zeros(self.count, np.int64)  # the generation that a thread waits for
        widths = _widths(text)
        self.registers = _Registers(widths, self.count)
        tid = (number % threads).astype(np.uint32)
        cta = self.cta.astype(np.uint32)
        for name, value in {
            "%tid.x": tid, "%laneid": tid % np.uint32(32), "%ctaid.x": cta, "%cluster_ctarank": cta % np.uint32(cluster),
            "%ntid.x": np.full(self.count, threads, np.uint32), "%nctaid.x": np.full(self.count, ctas, np.uint32),
            "%smid": cta, "%clusterid.x": cta // np.uint32(cluster), SHARED: np.full(self.count, BASE, np.uint32),
        }.items():  # fmt: skip
            self.registers[name] = value
        for name, which in set(re.findall(r"\b(\w+_param_(\d+))\b", text)):
            self.registers[name] = np.full(self.count, int(which) << 8, np.uint64)
        self.program = decoded(ptx)

    def write(self, register: str, at: Any, value: Any) -> None:
        self.registers[register][at] = unsigned(value)

    # ---- running --------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Until all threads have ended and the engines have done everything."""
        with np.errstate(all="ignore"):
            self._run()
            while self.engine.step():
                pass

    def _run(self) -> None:
        self.ready: dict[int, Any] = {0: slice(0, self.count)}
        self.blocked: dict[int, Any] = {}
        for _ in range(STEPS):
            if self.ready:
                self._advance(min(self.ready))
            elif not self.blocked:
                return
            elif not self._unblock():
                if not self.engine.step():
                    lines = [self.program[at].instruction for at in sorted(self.blocked)]
                    raise Wrong(
                        "nothing moves, and threads wait at " + "; ".join(f"{i.line}: {i.opcode}" for i in lines)
                    )
        raise Wrong(f"still running after {STEPS} steps")

    def _put(self, queue: dict[int, Any], at: int, group: Any) -> None:
        if at in queue:
            group = np.sort(np.concatenate((self.numbers(queue[at]), self.numbers(group))))
        queue[at] = _compact(group)

    def numbers(self, group: Any) -> np.ndarray:
        """A group as the numbers of its threads."""
        return np.arange(group.start, group.stop) if isinstance(group, slice) else group

    def _advance(self, at: int) -> None:
        """Executes the threads at instruction *at* until others are further behind."""
        group = self.ready.pop(at)
        behind = min(self.ready, default=len(self.program))
        while True:
            instruction, guard, wanted, target, ends, waits, act = self.program[at]
            some = group
            if guard is not None:
                truth = self.registers[guard][group]
                truth = truth if wanted else ~truth
                if not truth.all():
                    some = _compact(self.numbers(group)[truth]) if truth.any() else None
            if target is not None:
                if some is None:
                    at += 1
                else:
                    if some is not group:
                        self._put(self.ready, at + 1, _compact(self.numbers(group)[~truth]))
                    group, at = some, target
                    behind = min(self.ready, default=len(self.program))
            elif ends:
                if some is not None:
                    self.alive[some] = False
                if some is group:
                    return
                if some is not None:
                    group = _compact(self.numbers(group)[~truth])
                at += 1
            elif some is not None and waits is not None:
                if waits.arrive is not None:
                    waits.arrive(self, self.numbers(some))
                free = waits.test(self, self.numbers(some)) if some is group else np.zeros(1, bool)
                if free.all():
                    if act is not None:
                        act(self, some)
                    at += 1
                    if at >= behind:
                        self._put(self.ready, at, group)
                        return
                    continue
                if some is not group:
                    self._put(self.ready, at + 1, _compact(self.numbers(group)[~truth]))
                self._put(self.blocked, at, some)
                self._try(at)
                return
            else:
                if act is not None and some is not None:
                    try:
                        act(self, some)
                    except Wrong as wrong:
                        raise Wrong(f"line {instruction.line}, {instruction.opcode}: {wrong}") from None
                at += 1
            if at >= behind:
                self._put(self.ready, at, group)
                return

    def _try(self, at: int) -> bool:
        """Lets those of the threads that wait at an instruction go on that can."""
        group, step = self.numbers(self.blocked[at]), self.program[at]
        assert step.waits is not None
        free = step.waits.test(self, group)
        if not free.any():
            return False
        going = _compact(group[free])
        if step.act is not None:
            step.act(self, going)
        if free.all():
            del self.blocked[at]
        else:
            self.blocked[at] = _compact(group[~free])
        self._put(self.ready, at + 1, going)
        return True

    def _unblock(self) -> bool:
        return sum(self._try(at) for at in sorted(self.blocked)) > 0


def _compact(group: Any) -> Any:
    """A slice, where the threads follow each other."""
    if isinstance(group, slice) or not len(group):
        return group
    first, last = int(group[0]), int(group[-1])
    return slice(first, last + 1) if last - first + 1 == len(group) else group


class _Registers(dict[str, np.ndarray]):
    """Registers hold garbage until they are written."""

    def __init__(self, widths: dict[str, int], count: int):
        super().__init__()
        self.widths, self.count = widths, count

    def __missing__(self, name: str) -> np.ndarray:
        size = self.widths.get(name) or self.widths.get(name.rstrip("0123456789") + "<")
        if size is None:
            raise NotImplementedError(f"no register {name}")
        kind = np.dtype(bool) if size == -1 else UNSIGNED[size]
        found = self[name] = np.full(self.count, 0xA5A5A5A5A5A5A5A5 >> (64 - 8 * abs(size))).astype(kind)
        return found


def _widths(text: str) -> dict[str, int]:
    """Bytes of registers, -1 of predicates, by their names; of ``x<2>``, which are x0 and x1, by "x<"."""
    found = dict[str, int]()
    for word, names in re.findall(r"\.reg\s+\.(\w+)\s+([^;]+);", text):
        for name in names.split(","):
            size, name = -1 if word == "pred" else kind_of(word).itemsize, re.sub(r"<\d+>", "<", name.strip())
            if found.setdefault(name, size) != size:
                raise NotImplementedError(f"registers {name} of two sizes")
    return found


@functools.lru_cache(maxsize=4)
def decoded(ptx: Ptx) -> list[Decoded]:
    """The kernel's instructions, each looked at once."""
    found = []
    for i in ptx.instructions:
        guard = i.guard.lstrip("!") if i.guard is not None else None
        target = ptx.labels[i.operands[0]] if i.is_a("bra") else None
        ends = i.is_a("ret", "exit")
        waits = next((wait for words, wait in WAITS.items() if i.is_a(words)), None)
        act = None if target is not None or ends else action(i)
        found.append(
            Decoded(i, guard, not (i.guard or "").startswith("!"), target, ends, waits(i) if waits else None, act)
        )
    return found
