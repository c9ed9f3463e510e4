"""Waits of a watched kernel: each looks at the clock, and ends the kernel if it takes too long.

The warp that gives up writes who it is, and what it waits for, into a row of the host's memory. It leaves others some time to
do the same, and traps. `tmapipe.gpu.watchdog` reads the rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import attrs

from tmapipe.gpu.control import emit_ptx
from tmapipe.plan.model import Plan
from tmapipe.plan.rings import Barrier
from tmapipe.program.expressions import Call, For, If, While
from tmapipe.program.trace import Traced

NUMBERS = 2  #: of a launch of a watched kernel: the address of the rows, and how long a wait may take (ns)
CTAS = 64  #: that have rows of their own; a power of two
TURNS = 4  #: innermost loops of which a row has the iteration
WORDS = 4 + TURNS  #: of 32 bits in a row: number of the wait and 1, CTA, slot, parity, iterations
WAIT = "mbarrier_wait"  #: the instruction that is watched
_GRACE = 250_000_000  # ns that others have to write what they wait for

# {wait}: the instruction; {hint}: how long it may sleep (ns). Operands: mbarrier, parity, address of the rows, ns, slot, and
# iterations.
_TEXT = """{{
.reg .pred done, again;
.reg .b64 start, now, row;
.reg .b32 cta, warp, place;
{wait} done, [$0], $1{hint};
@done bra passed_${{:uid}};
mov.u64 start, %globaltimer;
waits_${{:uid}}:
{wait} done, [$0], $1{hint};
@done bra passed_${{:uid}};
mov.u64 now, %globaltimer;
sub.u64 now, now, start;
setp.lt.u64 again, now, $3;
@again bra waits_${{:uid}};
mov.u32 cta, %ctaid.x;
mov.u32 warp, %tid.x;
shr.u32 warp, warp, 5;
and.b32 place, cta, {last_cta};
mad.lo.u32 warp, place, {warps}, warp;
mad.wide.u32 row, warp, {nbytes}, $2;
st.volatile.global.b32 [row+4], cta;
st.volatile.global.b32 [row+8], $4;
st.volatile.global.b32 [row+12], $1;
{turns}
fence.acq_rel.sys;
st.volatile.global.b32 [row], {number};
fence.acq_rel.sys;
mov.u64 start, %globaltimer;
others_${{:uid}}:
nanosleep.u32 100000;
mov.u64 now, %globaltimer;
sub.u64 now, now, start;
setp.lt.u64 again, now, {grace};
@again bra others_${{:uid}};
trap;
passed_${{:uid}}:
}}"""


@attrs.frozen
class Site:
    """A wait of a program.

    Args:
        node: Of the program.
        loops: Around it, as the rows have their iterations: outer ones first, at most `TURNS`.
    """

    node: Call
    loops: tuple[For, ...]

    @property
    def barrier(self) -> Barrier:
        """That is waited for."""
        found: Barrier = self.node.args[0]
        return found


def sites(program: Traced) -> list[Site]:
    """The waits of a program, in its order. Programs of one identity have the same."""
    return list(_sites(program.nodes, ()))


def _sites(nodes: Sequence[Any], loops: tuple[For, ...]) -> Iterator[Site]:
    for node in nodes:
        if isinstance(node, For):
            yield from _sites(node.body, (*loops, node))
        elif isinstance(node, While):
            yield from _sites(node.body, loops)
        elif isinstance(node, If):
            yield from _sites(node.then, loops)
            yield from _sites(node.other, loops)
        elif isinstance(node, Call) and node.method == WAIT:
            yield Site(node, loops[-TURNS:])


def rows(plan: Plan) -> int:
    """How many rows a kernel writes into: one a warp of the first CTAs, which later ones share."""
    return CTAS * plan.warps


def emit_wait(isa: Any, barrier: Barrier, stage: Any, parity: Any, number: int, turns: Sequence[Any]) -> None:
    """Emits a wait in the place of `GpuIsa.mbarrier_wait`.

    Args:
        isa: What the kernel was launched with is its `watch`: the address of the rows, and nanoseconds.
        barrier, stage, parity: As of `Isa.mbarrier_wait`.
        number: Of the wait, from 0.
        turns: Iterations of the loops around it, outer ones first.
    """
    kept = turns[-TURNS:]
    text = _TEXT.format(
        wait=f"mbarrier.{'try_wait' if isa.plan.target.tma else 'test_wait'}.parity.shared.b64",
        hint=", 10000000" if isa.plan.target.tma else "",
        last_cta=CTAS - 1,
        warps=isa.plan.warps,
        nbytes=4 * WORDS,
        number=number + 1,
        turns="\n".join(f"st.volatile.global.b32 [row+{16 + 4 * i}], ${5 + i};" for i in range(len(kept))),
        grace=_GRACE,
    )
    operands = [isa.mbarrier(barrier, stage).toint(), parity, *isa.watch, stage, *kept]
    emit_ptx(text, "rrllr" + "r" * len(kept), *operands)
