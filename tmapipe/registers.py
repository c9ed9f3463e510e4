"""What fragments need, by role, from the traced program: registers, and accesses of shared memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from tmapipe.errors import PipelineError
from tmapipe.machine.banks import Accesses, access_of, copies
from tmapipe.plan.explain import Touched
from tmapipe.plan.model import Plan
from tmapipe.program.expressions import Expr, Var, resolve
from tmapipe.program.int32 import FOLD
from tmapipe.program.nodes import Call, For, If, Let, While
from tmapipe.program.trace import Traced, trace
from tmapipe.program.uses import parts

__all__ = ["Most", "Needs", "explained", "fragments_held", "fragments_need", "touched_by"]

if TYPE_CHECKING:
    from tmapipe.schedule import Schedule

Nodes = Sequence[Any]


class Most(NamedTuple):
    """Registers a thread that fragments need at most at one time, and the line at which they do."""

    registers: int
    line: str


class Needs(NamedTuple):
    """Of one role. most: registers of its fragments; accesses: of its first warp, to slots."""

    most: Most
    accesses: Accesses


def fragments_held(program: Traced) -> dict[str, Most]:
    """Role -> the registers of `fragments_need`, of roles that have fragments."""
    return {role: needs.most for role, needs in fragments_need(program).items() if needs.most.registers}


def fragments_need(program: Traced) -> dict[str, Needs]:
    """Role -> what its fragments need at most."""
    found = {}
    for role in program.plan.roles:
        of_warp = _OfWarp(program, role.first_warp)
        accesses: Accesses = {}
        for node in of_warp.calls(program.nodes):
            made = access_of(node.method, node.args, node.named, role.first_warp)
            if made is not None:
                stage, access = made
                accesses.setdefault((stage, f"{access.what} ({node.where})"), access)
        of_warp.before(program.nodes, set())
        found[role.name] = Needs(of_warp.most, accesses)
    return found


class _OfWarp:
    """The program as one warp runs it.

    most: registers of the fragments that are live at a time, of the places that `before` has seen; carrier: for data that are
    a step of an operation on fragments, what they are made of.
    """

    def __init__(self, program: Traced, warp: int):
        self.made, self.warp = program.isa.fragments.registers, warp
        self.most = Most(0, "")
        self.carrier: dict[Var, set[Var]] = {}

    # ---- structure ------------------------------------------------------------------------------------------------

    def arms(self, node: If) -> Sequence[tuple[Nodes, int]]:
        """The arms that the warp may take, with the place of their values in `node.phis`."""
        holds = self._value(node.condition)
        both = (node.then, 1), (node.other, 2)
        return both if isinstance(holds, Expr) else both[:1] if holds else both[1:]

    def _value(self, x: Any) -> Any:
        """A number if the warp decides it, else an expression."""
        if not isinstance(x, Expr):
            return x
        if x.op == "symbol" and x.args[0] == "warp":
            return self.warp
        if x.op not in FOLD:
            return x
        args = [self._value(each) for each in x.args]
        return x if any(isinstance(each, Expr) for each in args) else FOLD[x.op](*args)

    def calls(self, nodes: Nodes) -> Iterator[Call]:
        for node in nodes:
            if type(node) is Call:
                yield node
            elif type(node) is If:
                for arm, _ in self.arms(node):
                    yield from self.calls(arm)
            elif type(node) is not Let:
                yield from self.calls(node.body)

    # ---- what is live ---------------------------------------------------------------------------------------------

    def before(self, nodes: Nodes, live: set[Var]) -> set[Var]:
        """The fragments that are live before *nodes*, of those that are live after them."""
        for node in nodes:
            if type(node) is Call:
                self._note_carriers(node)
        for node in reversed(nodes):
            if type(node) is Call:
                self._look(live, node)
                live = live.difference(node.results) | self.used(node.args) | self.used(node.named)
                self._look(live, node)
            elif type(node) is If:
                after = live.difference(phi for phi, _, _ in node.phis)
                chosen = [phi for phi in node.phis if phi[0] in live]
                arms = [
                    self.before(arm, after | self.used([phi[which] for phi in chosen]))
                    for arm, which in self.arms(node)
                ]
                live = set().union(*arms)
            elif type(node) in (For, While):
                live = self._before_loop(node, live)
        return live

    def _before_loop(self, node: For | While, live: set[Var]) -> set[Var]:
        phis = {phi for phi, _, _, _ in node.carried}
        after = live.difference(last for _, _, _, last in node.carried)
        begins: set[Var] = set()
        while True:
            kept = [each for each in node.carried if each[0] in begins or each[3] in live]
            ends = after | self.used([each[2] for each in kept]) | (begins - phis)
            found = self.before(node.body, ends)
            if found == begins:
                return (begins - phis) | self.used([each[1] for each in kept])
            begins = found

    def _note_carriers(self, node: Call) -> None:
        for result in node.results:
            if result not in self.made:
                self.carrier[result] = self.used(node.args) | self.used(node.named)

    def used(self, x: Any) -> set[Var]:
        """The fragments in an operand."""
        x = resolve(x)
        if isinstance(x, Var):
            return {x} if self.made.get(x) else self.carrier.get(x, set())
        return set() if isinstance(x, Expr) else set().union(*map(self.used, parts(x)))

    def _look(self, live: set[Var], node: Call) -> None:
        registers = sum(self.made[each] for each in live)
        if registers and registers >= self.most.registers:  # the first place of the program, from the end on
            self.most = Most(registers, node.where or "")


def explained(schedule: Schedule, plan: Plan) -> tuple[dict[str, Most], dict[str, list[Touched]]]:
    """What `explain` shows: registers of fragments, and accesses of slots, by role. Bodies that cannot be traced do nothing:
    a call or a check will say why."""
    try:
        program = trace(schedule, plan)
    except PipelineError:
        return {}, touched_by(plan, {})
    return fragments_held(program), touched_by(plan, fragments_need(program))


def touched_by(plan: Plan, needs: Mapping[str, Needs]) -> dict[str, list[Touched]]:
    """Role -> what its first warp does to slots, as `explain` shows it."""
    found: dict[str, list[Touched]] = {}
    copied = {load.name: load for load in plan.loads if load.vector}
    for ring in plan.rings:
        for role, loads in ring.loads.items():
            for load in (copied[name] for name in loads if name in copied):
                warps = plan.role(role).warps if ring.held else plan.role(role).team_warps
                found.setdefault(role, []).append((load.name, *copies(load, warps)))
    for role, need in needs.items():
        for (stage, what), access in need.accesses.items():
            found.setdefault(role, []).append((stage, what, access.taken, access.least))
    return found
