"""The front end, and the traced program: `trace` makes it of a kernel, `replay` carries it out, `listing` prints it, and
`places` are where it stamps the clock."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from tmapipe.errors import ScopeError
from tmapipe.isa import declared
from tmapipe.isa.fragment import Fragment, SlotRef
from tmapipe.isa.ops import ARRIVALS, COMMITS, Exit
from tmapipe.kernel import kernel_main
from tmapipe.model import MachineIsa
from tmapipe.model.layout import Layout, Shapes, line_of, line_of_errors
from tmapipe.plan.model import Plan
from tmapipe.program.calls import Reads
from tmapipe.program.control import Tracing
from tmapipe.program.expressions import (
    Call,
    Expr,
    For,
    Function,
    If,
    Let,
    Node,
    Var,
    While,
    of_warp,
    resolve,
    show,
)
from tmapipe.program.isa import TracingIsa
from tmapipe.program.names import note_home
from tmapipe.program.python_text import code_of
from tmapipe.program.rewrite import tracing

# ---- trace -----------------------------------------------------------------------------------------------------------

#: Held by whoever traces or proves: expressions are shared, and two traces at once in threads break CuTe DSL.
ONE_AT_A_TIME = threading.RLock()


class Traced:
    """The program of a kernel: one for all warps of all CTAs.

    code: as of `code_of`, once it has been asked for; calls: of bodies, by the id of the first node: (first node, last node,
    tile; None before the first tile).
    """

    def __init__(self, schedule: Any, plan: Any, nodes: list[Any], isa: TracingIsa):
        self.schedule, self.plan, self.nodes, self.isa = schedule, plan, nodes, isa
        self.code: Callable[[Any], None] | None = None
        self.calls = isa.calls


def trace(schedule: Any, plan: Any = None) -> Traced:
    """The program of a schedule. plan: of the schedule, by default with the types that it declares."""
    schedule._refresh()
    plan = plan or schedule.plan()
    note_home(type(schedule))
    tracer = Tracing()
    isa = TracingIsa(plan, tracer)
    before = dict(vars(schedule))
    with tracing(tracer):
        kernel_main(isa, schedule)
    own = [(name, value) for name, value in vars(schedule).items() if not name.startswith("_")]
    changed = [name for name, value in own if name not in before or before[name] is not value]
    if changed:
        raise ScopeError(f"self.{changed[0]} is set by a body, which is traced once and keeps no state")
    earlier = vars(schedule).get("_reads")
    reads = Reads(schedule, {**dict.fromkeys(earlier.functions if earlier else ()), **tracer.users})
    if reads.entries:
        vars(schedule)["_reads"] = reads
    return Traced(schedule, plan, tracer.nodes, isa)


# ---- replay ----------------------------------------------------------------------------------------------------------
#
def operations(
    program: Traced,
    layout: Layout,
    agent: int,
    shapes: Shapes,
    cluster: int = 0,
    clusters: int = 1,
    tables: Mapping[str, Sequence[int]] | None = None,
    emit: Callable[[Any], None] | None = None,
) -> list[Any]:
    """The operations of one warp, `Exit` last, in a run without data.

    Args:
        program: As `trace` makes it.
        layout: Of its plan.
        agent: The warp, of all of the cluster.
        shapes: Of tensors, by argument.
        cluster: Its number in the grid.
        clusters: How many the grid has.
        tables: Entries of tables, by name; 1 stands behind the last. A table that is left out has what `Isa.load_entry` says.
        emit: Takes each operation, while its source line can still be asked for; then the list has `Exit` alone.
    """
    listed: list[Any] = []
    replay(program, MachineIsa(layout, agent, cluster, clusters, shapes, emit or listed.append, tables=tables))
    listed.append(Exit())
    return listed


def replay(program: Traced, isa: Any) -> None:
    """Carries out *program* for the warp of *isa*, an instruction set whose values are numbers, such as the model's.

    Raises:
        ScopeError: A number of the program has no value, such as one divided by 0.
    """
    if program.code is None:
        program.code = code_of(program)
    try:
        with line_of_errors():
            program.code(isa)
    except ZeroDivisionError as error:
        raise ScopeError(f"{error}. At {line_of(error)}.") from error


# ---- listing ---------------------------------------------------------------------------------------------------------
#
# A traced program as text, role by role, with the user's lines: to be laid beside the PTX. Positions in a ring stand by name
# (`ring.slot`, `ring.parity`), and each loop ends with how they go on. Where tiles lie is computed at length, and left out.

LINES_AT = 116  # the column at which source lines begin
LONG = 110  # characters of an expression that is shown whole
_HIDDEN = ("tile.", "cell")  # carried coordinates, and words of tile schedulers


def listing(program: Traced) -> str:
    """The program as text: what is given, rings, then each role's loops and operations."""
    return _Listing(program).text()


class _Listing:
    def __init__(self, program: Traced):
        self.program, self.plan = program, program.plan
        self.out: list[str] = []
        self.level = 0
        self.last: str | None = None  # the source line that stands last

    def text(self) -> str:
        plan = self.plan
        cluster = " x ".join(f"{n} {axis}" for axis, n in plan.cluster.items()) or "1"
        self._say(f"kernel {plan.name}: {plan.warps} warps, cluster {cluster}")
        rank = ["rank"] if plan.cluster_size > 1 else []
        given = ["cluster", "clusters", *rank, *map(show, self.program.isa.symbols["extents"])]
        self._say(f"given  {', '.join(given)}")
        for ring in plan.rings:
            phases = " -> ".join(" + ".join(phase) for phase in ring.phases)
            barriers = ", ".join(barrier.name for barrier in ring.barriers)
            self._say(f"ring   {ring.name}: {ring.stages} slots, {phases}, barriers {barriers}")
        self._say("")
        self._nodes(self.program.nodes)
        return "\n".join(self.out)

    def _say(self, text: str, where: str | None = None, deeper: int = 0) -> None:
        line = f"{'    ' * (self.level + deeper)}{text}"
        if where and where != self.last:
            file, _, number = where.rpartition(":")
            line = f"{line:<{LINES_AT}}  # {os.path.basename(file)}:{number}"
            self.last = where
        self.out.append(line.rstrip())

    def _nodes(self, nodes: list[Any]) -> None:
        for node in nodes:
            if type(node) is not Let:
                getattr(self, f"_{type(node).__name__.lower()}")(node)

    def _inside(self, nodes: list[Any]) -> None:
        self.level += 1
        self._nodes(nodes)
        self.level -= 1

    # ---- structure ------------------------------------------------------------------------------------------------

    def _for(self, node: For) -> None:
        self._say(f"for {show(node.index)} in 0 .. {_short(show(node.count))}:{_entry(node.carried)}", node.where)
        self._body(node)

    def _while(self, node: While) -> None:
        self._say(f"while {show(node.condition)}:{_entry(node.carried)}", node.where)
        self._body(node)

    def _body(self, node: Any) -> None:
        self._inside(node.body)
        said, hidden = [], []
        for phi, _, last, _ in node.carried:
            last = resolve(last)
            if phi.name.startswith(_HIDDEN):
                hidden.append(show(phi))
            elif _base(last) != _base(phi):
                said.append(f"{show(phi)} = {_short(show(last))}")
        if hidden:
            said.append(f"{', '.join(dict.fromkeys(hidden))} of the next tile")
        if said:
            self._say("next   " + "; ".join(said), deeper=1)

    def _if(self, node: If) -> None:
        loops = any(isinstance(each, (For, While)) for each in node.then)
        role = _role_of(self.plan, node.condition) if loops else None
        if role:
            self._say("")
        self._say(f"role {role}:" if role else f"if {show(node.condition)}:", None if role else node.where)
        self._inside(node.then)
        self._chosen([(phi, then) for phi, then, _ in node.phis])
        if node.other or node.phis:
            self._say("else:")
            self._inside(node.other)
            self._chosen([(phi, other) for phi, _, other in node.phis])

    def _chosen(self, values: list[tuple[Any, Any]]) -> None:
        for phi, value in values:
            self._say(f"{show(phi)} = {_short(show(value))}", deeper=1)

    # ---- instructions ---------------------------------------------------------------------------------------------

    def _call(self, node: Call) -> None:
        when = node.named.get("when", True)
        tail = "" if when is True else f"   if {show(when)}"
        if node.method == "here":
            self._say(f"{show(node.results[0])} = {_short(show(node.args[0]))}", node.where)
        elif node.ops:
            self._operations(node, tail)
        else:
            name, given = node.method.removeprefix("fragments."), list(node.args)
            if name == "elementwise":
                name, given = given[0], given[1]
            left = ", ".join(map(show, node.results))
            right = f"{name}({', '.join(filter(None, map(_argument, given)))})"
            self._say((f"{left} = " if left else "") + right + tail, node.where)

    def _operations(self, node: Call, tail: str) -> None:
        ops = [op for i, op in enumerate(node.ops) if not (i and type(op).__name__ == "BarWait")]
        if len(ops) > 2 and len(set(map(type, ops))) == 1:
            first, last = _sentence(ops[0]), _sentence(ops[-1])
            self._say(f"{first}  ...  {last.split(' ', 1)[1]}", node.where)
            return
        for op in ops:
            self._say(_sentence(op) + tail, node.where)


# ---- words --------------------------------------------------------------------------------------------------------------


def _base(value: Any) -> str | None:
    """The name of a variable, without the number that tells variables of one register apart."""
    return value.name.split("'")[0] if isinstance(value, Var) else None


def _short(text: str) -> str:
    return text if len(text) <= LONG else text[: LONG - 3] + "..."


def _entry(carried: list[Any]) -> str:
    """The first values of what a loop carries, other than the variable itself."""
    shown = [
        f"{show(phi)} = {_short(show(initial))}"
        for phi, initial, _, _ in carried
        if not phi.name.startswith(_HIDDEN) and _base(resolve(initial)) != _base(phi)
    ]
    return f"   with {', '.join(shown)}" if shown else ""


def _argument(x: Any) -> str:
    x = resolve(x)
    if isinstance(x, Expr):
        return _short(show(x))
    if isinstance(x, SlotRef):
        return f"{x.buffer.name}[{show(x.stage)}]"
    if isinstance(x, Fragment):
        return show(x.data)
    if isinstance(x, Function):
        return x.name
    if isinstance(x, (list, tuple)):
        return ", ".join(filter(None, map(_argument, x)))
    if isinstance(x, dict):
        return ", ".join(f"{name}={_argument(value)}" for name, value in x.items())
    if isinstance(x, (int, float, str)):
        return str(x)
    name = getattr(x, "name", getattr(x, "__name__", ""))
    return name if isinstance(name, str) else ""


def _role_of(plan: Plan, condition: Any) -> str | None:
    """The role whose warps a branch is for, with the numbers of the warps."""
    warps = [warp for warp in range(plan.warps) if of_warp(condition, warp) is True]
    for role in plan.roles:
        first, last = role.first_warp, role.first_warp + role.warps
        if warps == list(range(first, last)):
            return f"{role.name}, warp {first}" if role.warps == 1 else f"{role.name}, warps {first} to {last - 1}"
    return None


class _Shown:
    """Names of mbarriers, slots and hardware barriers whose numbers only the kernel knows."""

    def bar_name(self, bar: Any) -> str:
        return f"{bar[0].name}[{show(bar[1])}]"

    def slot_name(self, slot: Any) -> str:
        return f"{slot.buffer.name}[{show(slot.stage)}]"

    def named_barrier_name(self, id: Any) -> str:
        return "the CTA's barrier" if type(id) is int and id == 0 else f"barrier {show(id)}"


def _sentence(op: Any) -> str:
    """What an operation does, as reports say it."""
    at = getattr(op, "at", ())
    return declared(type(op)).sentence(_Shown(), op) + (f", from ({', '.join(map(show, at))})" if at else "")


# ---- places ----------------------------------------------------------------------------------------------------------
#
# Where a kernel stamps the clock: at as few places as tell what happened (docs/timeline.md).

_WAITS = ("mbarrier_wait", "wgmma_wait", "bulk_wait_group", "cta_sync", "cluster_wait")
_ISSUES = ("wgmma", "tma_store", "bulk_store")
_IDLE = ("fragments.accumulator", "fragments.operand")  # of no instruction
IN_RECORD = 12  #: places of a record, at most
LEFT = Expr.of("symbol", "left")  #: whether a loop over tiles has more of them than are stamped
HELD = 4  #: clocks that wait in registers to be written, at most, of a kernel whose accumulators need them


@attrs.frozen
class Place:
    """Where a program stamps.

    Args:
        node: An instruction, or a loop over tiles, each of whose turns is stamped when it begins.
        after: Whether after the instruction, or after the turns of a loop that are stamped.
        computes: Whether the warp computes with fragments since the place before.
        passed: Instructions since the place before that have no place of their own: commits of wgmmas, which came right after
            that place, and waits that ended right before this one.
        issues: The wgmma or store before it, if there is one.
        warps: Those of the stamping ones that come here.
        shared: Whether the clock of the stamp after it is its own, too: so little is between them.
        kept: Whether its clock waits in a register, to be written with that of the next place.
        last: Whether it is the last place of a record.
    """

    node: Node
    after: bool
    computes: bool
    passed: tuple[Call, ...]
    issues: Call | None
    warps: frozenset[int] = frozenset()
    shared: bool = False
    kept: bool = False
    last: bool = False

    @property
    def slot(self) -> Any:
        """What is stamped besides the place: the stage of a barrier, or its instance; after a loop `LEFT`. Of others 0."""
        if self.after and not isinstance(self.node, Call):
            return LEFT
        if isinstance(self.node, Call) and "barrier" in self.node.method and len(self.node.args) > 1:
            return self.node.args[1]
        return 0


def places(program: Traced) -> list[Place]:
    """Where a program stamps, in its order, at as few places as tell what happened. Programs of one identity have the same."""
    planned = _Places(stamping(program.plan), bool(program.plan.matmuls))
    planned.walk(program.nodes)
    planned.end()
    return planned.places


def stamping(plan: Plan) -> list[int]:
    """The warps that stamp: of each role the first one, and the first of each warpgroup."""
    return sorted({warp for role in plan.roles for warp in range(role.first_warp, role.first_warp + role.warps, 4)})


class _Places:
    """What has come since the place before, or ever. warps: those of the stamping ones that come here; multiplies: whether
    clocks do not wait in registers while the warp computes, nor across branches."""

    def __init__(self, warps: Sequence[int], multiplies: bool):
        self.places: list[Place] = []
        self.warps, self.multiplies = frozenset(warps), multiplies
        self.first = 0  # place of the record
        self.inside = False  # a loop over tiles
        self.held = 0  # clocks that are to be written together so far
        self.computes, self.passed, self.issues = False, tuple[Call, ...](), None

    def add(self, node: Node, after: bool) -> None:
        if len(self.places) - self.first == IN_RECORD:
            self.end()
        before = self.places[-1] if self.first < len(self.places) else None
        if before and method_of(before.node) in COMMITS and self._follows(node) and before.warps <= self.warps:
            self.share()
        if self.multiplies and (self.computes or self.held == HELD):
            self.held = 0
        if self.held:
            self.places[-1] = attrs.evolve(self.places[-1], kept=True)
        self.places.append(Place(node, after, self.computes, self.passed, self.issues, self.warps))
        self.computes, self.passed = False, ()
        self.held += 1

    def _follows(self, node: Node) -> bool:
        """Whether it is an arrival, and no wait or arithmetic is between it and the place before or after."""
        return method_of(node) in ARRIVALS and not self.computes and not self.passed

    def share(self) -> None:
        """The last place needs no clock of its own."""
        self.places[-1] = attrs.evolve(self.places[-1], shared=True)

    def end(self) -> None:
        """Ends the record: at the last place to which all of its warps come, and behind it those of some warps."""
        while self.first < len(self.places):
            of = self.places[self.first :]
            every = frozenset().union(*(place.warps for place in of))
            count = max((i + 1 for i, place in enumerate(of) if place.warps == every), default=0)
            while not count or (count < len(of) and of[count].warps == of[count - 1].warps != every):
                count += 1  # places of some warps in a row
            self.first += count
            self.places[self.first - 1] = attrs.evolve(self.places[self.first - 1], kept=False, last=True)
        self.held = 0

    def walk(self, nodes: Sequence[Any]) -> None:
        known = [node for node in nodes if not isinstance(node, Let)]
        for node, following in zip(known, [*known[1:], None], strict=False):
            if isinstance(node, (For, While)):
                self.loop(node)
            elif isinstance(node, If):
                self.branch(node)
            else:
                self.instruction(node, following)

    def loop(self, node: For | While) -> None:
        """A record ends with a turn. Loops over tiles in which nothing is stamped have no place."""
        self.end()
        of_tiles, outer, before = f"tmapipe{os.sep}tiles{os.sep}" in str(node.where), not self.inside, len(self.places)
        if of_tiles:
            self.inside = True
            self.add(node, False)
        self.walk(node.body)
        if of_tiles and self.first < len(self.places):
            if len(self.places) == before + 1:
                empty = self.places.pop()
                self.computes, self.passed = self.computes or empty.computes, empty.passed
            elif self._follows(self.places[-1].node) and not self.places[-1].passed:
                self.share()
        self.end()
        if of_tiles and outer:
            self.inside = False
            if before < len(self.places) and isinstance(node, For):
                self.add(node, True)
                self.end()

    def branch(self, node: If) -> None:
        """A record goes on where a warp's number says where it goes, unless slots are stamped that are known only inside."""
        came, goes = self.warps, {warp: of_warp(node.condition, warp) for warp in self.warps}
        straight = not any(isinstance(way, Expr) for way in goes.values())
        for side, way in ((node.then, True), (node.other, False)):
            self.warps = frozenset(warp for warp in came if isinstance(goes[warp], Expr) or bool(goes[warp]) is way)
            before, self.held = len(self.places), 0 if self.multiplies else self.held
            if not straight:
                self.end()
            if self.warps:
                self.walk(side)
            if not straight or any(isinstance(place.slot, Expr) for place in self.places[before:]):
                self.end()
        self.warps, self.held = came, 0 if self.multiplies else self.held

    def instruction(self, node: Any, following: Any) -> None:
        method = node.method
        if method in _WAITS and self.computes:
            self.add(node, False)
        if method in _ISSUES:
            self.issues = node
        elif method == "wgmma_commit" or (method in _WAITS and getattr(following, "method", "") in ARRIVALS):
            self.passed = (*self.passed, node)
        elif method in (*_WAITS, *ARRIVALS, *COMMITS):
            self.add(node, True)
        else:
            self.computes |= method.startswith("fragments.") and method not in _IDLE


def method_of(node: Node) -> str:
    """The name of an instruction; of a loop ""."""
    return node.method if isinstance(node, Call) else ""
