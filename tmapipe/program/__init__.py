"""The front end and the traced program: `trace` makes a program of a kernel, `replay` carries it out, `listing` prints it."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tmapipe.errors import ScopeError
from tmapipe.isa import Kind, declared
from tmapipe.isa.fragment import Fragment, SlotRef
from tmapipe.isa.ops import Exit
from tmapipe.kernel import kernel_main
from tmapipe.model.layout import Layout, Shapes, line_of, line_of_errors
from tmapipe.model.warp import MachineIsa
from tmapipe.plan.model import Plan
from tmapipe.program.control import Tracing
from tmapipe.program.expressions import Call, Expr, For, Function, If, Let, Var, While, of_warp, resolve, show
from tmapipe.program.isa import TracingIsa
from tmapipe.program.names import note_home
from tmapipe.program.python_text import code_of
from tmapipe.program.rewrite import tracing

# ---- trace -----------------------------------------------------------------------------------------------------------
#
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
_HIDDEN = ("tile.", "fetchedtiles", "tilesofgroups", "piecesofrole")  # carried coordinates and words


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
            if _is_hidden(phi):
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


def _is_hidden(phi: Var) -> bool:
    return phi.name.startswith(_HIDDEN)


def _short(text: str) -> str:
    return text if len(text) <= LONG else text[: LONG - 3] + "..."


def _entry(carried: list[Any]) -> str:
    """The first values of what a loop carries, other than the variable itself."""
    shown = [
        f"{show(phi)} = {_short(show(initial))}"
        for phi, initial, _, _ in carried
        if not _is_hidden(phi) and _base(resolve(initial)) != _base(phi)
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


def _sentence(op: Any) -> str:
    """What an operation does, as reports say it."""
    of = declared(type(op))
    if not isinstance(of.says, str):
        return f"{type(op).__name__} {op}"
    shown: dict[str, Any] = {}
    for name, kind in of.operands.items():
        value = getattr(op, name)
        if kind is Kind.BAR:
            shown[name] = f"{value[0].name}[{show(value[1])}]"
        elif kind is Kind.SLOT:
            shown[name] = f"{value.buffer.name}[{show(value.stage)}]"
        elif kind is Kind.BARRIER_ID:
            shown[name] = "the CTA's barrier" if type(value) is int and value == 0 else f"barrier {show(value)}"
        elif kind is Kind.FLAG:
            shown[name] = name if value else None
        elif kind is Kind.LANES:
            shown[name] = value.bit_count()
        else:
            shown[name] = show(value) if isinstance(value, Expr) else value

    def optional(match: re.Match[str]) -> str:
        values = [(name, shown[name]) for name in re.findall(r"{(\w+)}", match[1])]
        usual = ("lanes", "shares", "parts")
        left_out = any(v is None or (name in usual and type(v) is int and v == 1) for name, v in values)
        return "" if left_out else match[1]

    text = re.sub(r"\[(.*?)\](?![^{]*})", optional, of.says) if "[" in of.says else of.says
    at = getattr(op, "at", ())
    return text.format(**shown) + (f", from ({', '.join(map(show, at))})" if at else "")
