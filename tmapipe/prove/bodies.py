"""What bodies do, as the traced program says it: where they move tiles, on what they decide, and whether their loops end."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import attrs

from tmapipe.base import rank_stride
from tmapipe.check import Finding
from tmapipe.errors import InputError
from tmapipe.model import MachineIsa
from tmapipe.model.layout import Kind, Layout, locate
from tmapipe.model.run import lines
from tmapipe.plan.model import Load, Plan, Store
from tmapipe.program import replay
from tmapipe.program.expressions import Call, Expr, For, If, Let, Var, While, every, resolve
from tmapipe.protocol.tile import Tile
from tmapipe.prove.problem import DATA, OF_CLUSTER, Fork, Move, Problem, Visit, coordinate, every_cluster, is_turn
from tmapipe.prove.shared import BY_ENGINES, Part, Shared, bounds, by_threads, part_read
from tmapipe.prove.solver import Solver, arithmetic, replaced
from tmapipe.prove.symbols import Sym, at_least_0, in_steps, leaf, leaves, named, negated, parts, text, truth
from tmapipe.prove.walker import INLINE, Walker

# ---- body walk -------------------------------------------------------------------------------------------------------
#
# One warp's way through the traced program, each loop once, with the moves of tiles that it comes to.


class Walk(Walker):
    """One warp's way through the program, each loop once.

    found: its moves at a tile; before: those before the first tile; where: the line at which it is.
    """

    def __init__(self, bodies: Any, agent: int, facts: frozenset[Sym], forks: bool):
        super().__init__(bodies.shared, agent)
        self.bodies, self.facts, self.forks = bodies, facts, forks
        self.found, self.before = list[Move](), list[Move]()
        self.into: list[Move] | None = None  # where moves go; None outside of bodies
        self.loops: list[tuple[Sym, Any]] = []
        self.turns = 0  # conditions around that only some iterations of a loop fulfil
        self.known: dict[Any, Any] = {}
        self.where: str | None = None

    # ---- values -----------------------------------------------------------------------------------------------------

    def number(self, x: Any, memo: dict[Any, Any] | None = None) -> Any:
        x = resolve(x)
        if isinstance(x, Var):
            found = self.env.get(x)
            return leaf("unknown", x.name, id(x)) if found is None else found
        if not isinstance(x, Expr):
            return x
        return super().number(x, dict(self.known) if memo is None else memo)

    def _computed(self, x: Expr, memo: dict[Any, Any]) -> Any:
        if x.op == "flipped" and any(isinstance(self.number(a, memo), Sym) for a in x.args):
            return leaf("unknown", "a parity", id(x))
        found = super()._computed(x, memo)
        if x.op in ("add", "sub", "mul") and isinstance(found, Sym):
            constant, factors = parts(found)
            for number in (constant, *factors.values()):
                if not -(2**31) <= number < 2**31:
                    rule = "has more than the 32 bits of a number of the kernel, as a factor or summand"
                    raise InputError("number in a body", number, rule, f"use smaller numbers. At {self.where}")
        return found

    # ---- nodes ------------------------------------------------------------------------------------------------------

    def nodes(self, nodes: list[Any]) -> None:
        for node in nodes:
            self.where = getattr(node, "where", None)
            called = self.program.calls.get(id(node))
            if called is not None:
                around, self.loops = self.loops, []
                self._enter(called[2])
            if type(node) is not Let:
                getattr(self, f"_{type(node).__name__}")(node)
            if id(node) in self.bodies.ends:
                self.loops, self.into, self.known = around, None, {}

    def _enter(self, tile: Tile | None) -> None:
        self.into = self.before if tile is None else self.found
        if tile is not None:
            for name, value in tile._coordinates.items():
                value = resolve(value)
                if isinstance(value, Expr):
                    (self.env if isinstance(value, Var) else self.known)[value] = self._coordinate(name)

    def _coordinate(self, name: str) -> Any:
        plan = self.bodies.layout.plan
        dims = {dim for part in plan.transfers for dim in part.dims}
        if name in OF_CLUSTER or not (name in plan.cluster or name in dims):
            return coordinate(name)
        return coordinate_in_cluster(plan, self.rank, name) + coordinate(name) * plan.cluster.get(name, 1)

    def _If(self, node: If) -> None:
        condition = truth(self.number(node.condition))
        if isinstance(condition, Sym):
            self._ask(condition, node)
            outcome = self._decided(condition, node)
        else:
            outcome = bool(condition)
        if outcome is None:
            by_turn = any(map(is_turn, leaves(condition)))
            self.turns += by_turn
            own = in_steps(condition, *self.loops[-1]) if by_turn and self.loops else None
            self.nodes(node.then) if own is None else self._in_steps(node.then, *own)
            self.nodes(node.other)
            self.turns -= by_turn
        else:
            self.nodes(node.then if outcome else node.other)
        for phi, then, other in node.phis:
            values = [] if outcome is False else [self.number(then)]
            values += [] if outcome is True else [self.number(other)]
            if all(each == values[0] for each in values):
                self.env[phi] = values[0]

    def _in_steps(self, nodes: list[Any], at: Any, loop: tuple[Sym, Any]) -> None:
        """Nodes that only some turns of the innermost loop come to, as a *loop* of these alone, with the index *at*."""
        env, around = self.env, self.loops[-1]
        self.env = {variable: replaced(value, {around[0]: at}) for variable, value in env.items()}
        self.loops[-1], self.turns = loop, self.turns - 1
        self.nodes(nodes)
        self.env, self.loops[-1], self.turns = env, around, self.turns + 1

    def _ask(self, value: Any, node: Any) -> None:
        """Notes a condition or a count on which a body decides."""
        if isinstance(value, Sym) and self.into is not None and not self.shared.inert(node):
            self.bodies.asked.setdefault(value, node.where)

    def _decided(self, condition: Sym, node: If) -> bool | None:
        if self.into is None or not self.bodies.stores(node) or any(map(is_turn, leaves(condition))):
            return None
        if not self.forks:
            self.bodies.forks = True
            return None
        outcome = self.bodies.solver.decided(condition, self.facts)
        if outcome is None:
            raise Fork(condition)
        return outcome

    def _For(self, node: For) -> None:
        count = self.number(node.count)
        self._ask(count, node)
        if not isinstance(count, Sym) and count <= INLINE:
            self._start(node)
            for i in range(count):
                self.env[node.index] = i
                self.nodes(node.body)
                self._next(node)
            self.leave_loop(node)
            return
        index = leaf("index" if self.into is not None else "turn", id(node))
        self.env[node.index] = index
        self.loops.append((index, count))
        self.nodes(node.body)
        self.loops.pop()

    def _followed(self, node: Any) -> list[Any]:
        return node.carried

    def _While(self, node: While) -> None:
        condition = truth(self.number(node.condition))
        self._ask(condition, node)
        self.loops.append((leaf("index" if self.into is not None else "turn", id(node)), None))
        self.nodes(node.body)
        self.loops.pop()

    def _Call(self, node: Call) -> None:
        move = self.bodies.move_of(node)
        if move is not None:
            self._move(node, *move)
        elif self.into is not None and (read := part_read(node, self.number)) is not None:
            self.into.append(Move(*read, tuple(self.loops), False, self.agent, node.where, True))
        if "when" in node.named:
            self._ask(truth(self.number(node.named["when"])), node)
        special = getattr(self, f"_of_{node.method}", None)
        if special is not None:
            special(node)

    def _move(self, node: Call, part: Load | Store, at: Any) -> None:
        bodies = self.bodies
        if self.into is None:
            return
        bodies.lines.setdefault(part.name, node.where)
        if isinstance(part, Store):
            bodies.stored.add(part.name)
        if node.method in ("tma_gather", "tma_scatter"):
            bodies.by_rows.add(part.name)
        start = tuple([self.number(x) for x in at])
        data = any(each.args[0] in DATA for x in start for each in leaves(x))
        if data:
            _lies_anywhere(node)
        sometimes = self.turns > 0
        if node.method == "store_values":
            columns = None if node.args[4] is None else self.shared.columns_of(node.args[4])
            part = by_threads(part, node.args[2], columns)
            sometimes = sometimes or (columns is None and node.args[4] is not None)
        inside = node.method in BY_ENGINES and not (data or _anywhere(node))
        rows = self.number(node.args[3]) if node.method == "tma_store" and len(node.args) > 3 else None
        self.into.append(Move(part, start, tuple(self.loops), sometimes, self.agent, node.where, inside, rows))

    def _of_here(self, node: Call) -> None:
        self.env[node.results[0]] = self.number(node.args[0])

    _of_shuffle = _of_here

    def _of_load_entry(self, node: Call) -> None:
        table, i, _ = node.args
        self.env[node.results[0]] = self.shared.entry(table, self.number(i), self, node)


def _anywhere(node: Call) -> bool:
    """Whether a load may start outside of its tensor."""
    return bool(node.args[-1] if node.method == "cp_async" else node.named.get("anywhere"))


def _lies_anywhere(node: Call) -> None:
    """A load that data places may lie outside of its tensor: which entries a table has is no matter of the program."""
    if node.method == "tma_load":
        node.named["anywhere"] = True
    elif node.method == "cp_async":
        node.args = (*node.args[:-1], True)


def coordinate_in_cluster(plan: Plan, rank: int, axis: str) -> int:
    """That of a CTA along an axis of its cluster."""
    return rank // rank_stride(plan.cluster, axis) % plan.cluster[axis] if plan.cluster.get(axis, 1) > 1 else 0


# ---- concrete --------------------------------------------------------------------------------------------------------
#
# The moves of one warp in one concrete problem: the program is carried out on the model's instructions, without data.


class MovesOf(MachineIsa):
    """The instructions of one warp in one problem, which note the tiles that they move, and emit nothing.

    visits: (place of an output tile, the moves there); first the moves before the first tile, whose place is None.
    """

    def __init__(self, layout: Layout, agent: int, problem: Problem):
        of, tables = problem, {table: problem.tables.get(table, ()) for table in layout.plan.tables}
        super().__init__(layout, agent, of.cluster, of.clusters, of.shapes, emit=lambda op: None, tables=tables)
        self.visits: list[tuple[Mapping[str, int] | None, list[Move]]] = [(None, [])]

    def enter(self, tile: Tile) -> None:
        plan = self.plan
        dims = {dim for part in plan.transfers for dim in part.dims}
        place = {
            dim: (value - coordinate_in_cluster(plan, self.cta_rank, dim)) // plan.cluster.get(dim, 1)
            for dim, value in tile._coordinates.items()
            if dim in dims
        }
        self.visits.append((place, []))

    def start(self, of: Load | Store, at: Sequence[Any]) -> tuple[int, ...]:
        start = super().start(of, at)
        self._note(of, start, False)
        return start

    def store_values(self, store: Store, at: Any, values: Any, surely: Any = None, mask: Any = None) -> None:
        part = by_threads(store, values, None if mask is None else store.tile[-1])
        self._note(part, super().start(store, at), mask is not None)

    def ask(self, op: Any, without_data: Callable[[], Sequence[int]], *data: Any) -> Sequence[int]:
        """Before the first tile, the order of tiles asks: there, a table has what a run without data has."""
        return without_data() if len(self.visits) == 1 else super().ask(op, without_data)

    def _note(self, part: Load | Store, start: tuple[int, ...], sometimes: bool) -> None:
        self.visits[-1][1].append(Move(part, start, (), sometimes, self.agent, locate()))


# ---- bodies ----------------------------------------------------------------------------------------------------------
#
# What bodies do at a tile, taken from the traced program: the moves of tiles, and the conditions of branches.
#
# Coordinates of a tile are symbols (`coordinate`), and so is the index of a loop of open count (`turn_of`). A loop is
# gone through once, and both arms of a branch, unless it stores: then once for each outcome. So what is said here
# holds for every shape. `Visits` of one problem have numbers in the place of symbols.


CASES = 100  # that the solver tries: it is asked far less often than the search asks


class Bodies:
    """The bodies of one program.

    asked: on what they decide: conditions and counts; stored: names of the outputs that they store; lines: where a load or
    store stands first, by its name; by_rows: loads and stores of rows by number; fixed: dimensions whose coordinate the order
    of tiles fixes.
    """

    def __init__(self, program: Any):
        self.program, self.shared = program, Shared(program)
        self.layout: Layout = self.shared.layout
        self.solver = Solver(
            lambda x: (0, 2**31 - 1) if x.args[0] in ("tile", "index") else bounds(x), CASES, inside=True
        )
        self.ends = {id(last): last for _, last, _ in program.calls.values()}
        coordinates = (each for *_, tile in program.calls.values() if tile for each in tile._coordinates.items())
        self.fixed = {name for name, x in coordinates if not isinstance(resolve(x), Expr)}
        self.asked: dict[Any, str | None] = {}
        self.stored: set[str] = set()
        self.by_rows: set[str] = set()
        self.lines: dict[str, str | None] = {}
        self.move_of, self.stores = functools.cache(self._move_of), functools.cache(self._stores)
        self.forks = False
        self.every = self._walked(None, frozenset())
        self.visits = self._by_outcomes() if self.forks else self.every

    def moves(self) -> Iterator[Move]:
        """The moves of all tiles, also moves that only some tiles make, without reads of slots."""
        every = (move for visit in self.every for own in visit.moves.values() for move in own)
        return (move for move in every if not isinstance(move.part, Part))

    def _by_outcomes(self) -> list[Visit]:
        """A visit for each combination of decisions that stores depend on."""
        found: list[Visit] = []
        todo: list[frozenset[Sym]] = [frozenset()]
        while todo:
            facts = todo.pop()
            try:
                found += self._walked(True, facts)
            except Fork as fork:
                for outcome in (fork.condition, negated(fork.condition)):
                    if self.solver.possible((*facts, outcome)):
                        todo.append(facts | {outcome})
        return found

    def _walked(self, forks: bool | None, facts: frozenset[Sym]) -> list[Visit]:
        """The visits, before the first tile and at a tile of each team."""
        before: dict[int, list[Move]] = {}
        teams: list[dict[int, list[Move]]] = [{} for _ in range(max([role.teams for role in self.layout.plan.roles]))]
        for agent in range(self.layout.agents):
            walk = Walk(self, agent, facts, bool(forks))
            walk.nodes(self.program.nodes)
            before[agent], warp = walk.before, agent % self.layout.warps
            for role in self.layout.plan.roles:
                if 0 <= warp - role.first_warp < role.warps:
                    for moves in teams if role.teams == 1 else [teams[role.team(warp)]]:
                        moves[agent] = walk.found
        place = {dim: coordinate(dim) for dim in self.program.schedule.axes}
        found = [Visit(place, facts, moves) for moves in teams]
        return [*found, Visit(None, facts, before)] if any(before.values()) else found

    def of_problem(self, problem: Problem) -> list[Visit]:
        """The visits of the clusters that take all tiles of a problem: of one, if the order of tiles does not say how many."""
        found = dict[Any, Visit]()
        for each in every_cluster(self.program, problem):
            for agent in range(self.layout.agents):
                isa = MovesOf(self.layout, agent, each)
                replay(self.program, isa)
                for place, moves in isa.visits:
                    key = None if place is None else tuple(sorted(place.items()))
                    visit = found.setdefault(key, Visit(place, frozenset(), {}))
                    visit.moves.setdefault(agent, []).extend(moves)
        return list(found.values())

    def _move_of(self, node: Call) -> Any:
        """(load or store, where it starts) of an instruction; None if it moves nothing."""
        part = next((x for x in node.args if isinstance(x, (Load, Store))), None)
        at = None if part is None else next((x for name, x in named(node) if name == "at"), None)
        return None if at is None else (part, at)

    def _stores(self, node: Any) -> bool:
        """Whether something in a node stores an output."""
        if type(node) is not Call:
            return any(map(self.stores, node.inside))
        move = self.move_of(node)
        return move is not None and isinstance(move[0], Store) and move[0].reduce is None


# ---- endings ---------------------------------------------------------------------------------------------------------
#
# Whether `while` loops of bodies end: the proof goes through any number of iterations; here a last one is looked for.
#
# A loop ends if its condition says that a number is at least 0, alone or with others, and each iteration makes it less.
# Where entries of tables or answers decide, that they let the loop end is taken for granted.


@attrs.frozen
class Endings:
    """never: loops that do not end; open: of which one is it not shown, in words, or empty."""

    never: tuple[Finding, ...] = ()
    open: str = ""


def look_at_loops(bodies: Bodies) -> Endings:
    """The rule, for all loops of the bodies."""
    whiles = (node for node in every(bodies.program.nodes) if type(node) is While)
    if all(node.iterations is not None for node in whiles):  # of orders of tiles
        return Endings()
    found: dict[str | None, str] = {}
    never: dict[str | None, Finding] = {}
    for role in bodies.layout.plan.roles:
        walk = _Ends(bodies, role.first_warp)
        walk.nodes(bodies.program.nodes)
        found |= walk.open
        never |= walk.never
    open_ = next((f"{said} at {where}" for where, said in found.items() if where not in never), "")
    return Endings(tuple(never.values()), open_)


class _Ends(Walk):
    """One warp's way through the program. given: conditions of what is around; open, never: as of `Endings`, by line."""

    def __init__(self, bodies: Bodies, agent: int):
        super().__init__(bodies, agent, frozenset(), False)
        self.given: list[Any] = []
        self.open, self.never = dict[str | None, str](), dict[str | None, Finding]()

    def _move(self, node: Any, part: Any, at: Any) -> None:
        pass

    def _ask(self, value: Any, node: Any) -> None:
        pass

    def _Call(self, node: Call) -> None:
        super()._Call(node)
        for result in node.results:  # of instructions that answer, such as counters
            self.env.setdefault(result, leaf("answer", result.name, id(result)))

    def _If(self, node: If) -> None:
        condition = truth(self.number(node.condition))
        if not isinstance(condition, Sym):
            self.nodes(node.then if condition else node.other)
        else:
            self._within(condition, node.then)
            self._within(negated(condition), node.other)
        for phi, then, other in node.phis:
            self.env[phi] = arithmetic("select", condition, self.number(then), self.number(other))

    def _within(self, condition: Any, nodes: list[Any]) -> None:
        self.given.append(condition)
        self.nodes(nodes)
        self.given.pop()

    def _While(self, node: While) -> None:
        if node.iterations is not None:
            super()._While(node)
            return
        first = {leaf("carried", phi.name, id(phi)): self.number(initial) for phi, initial, _, _ in node.carried}
        self.env.update(zip((phi for phi, *_ in node.carried), first, strict=True))
        condition = truth(self.number(node.condition))
        self._within(condition, node.body)
        following = {x: self.number(last) for x, (_, _, last, _) in zip(first, node.carried, strict=True)}
        if isinstance(condition, Sym):
            self._look(node, condition, first, following)

    def _look(self, node: While, condition: Sym, first: dict[Sym, Any], following: dict[Sym, Any]) -> None:
        decides = leaves(condition) | {x for each in leaves(condition) for x in leaves(following.get(each, 0))}
        if any(x.args[0] in DATA for x in decides):
            return
        known = [*self.given, condition, *self._never_negative(condition, first, following)]
        terms = condition.args if condition.op == "all" else (condition,)
        if any(self._comes_closer(term, known, first, following) for term in terms):
            return
        if replaced(condition, following) is not condition:
            self.open[node.where] = "a loop is not known to end"
        elif self._possible([*self.given, replaced(condition, first)]):
            said = f"no iteration of a loop changes its condition, {text(condition)}: once it is entered, it goes on for ever"
            fix = "let each iteration change what the condition compares"
            self.never[node.where] = Finding(Kind.ENDLESS, said, fix, where=lines([node.where]))

    def _never_negative(self, condition: Sym, first: dict[Sym, Any], following: dict[Sym, Any]) -> list[Any]:
        """Facts that carried numbers are at least 0: of the numbers whose first value is, and whose next value is while these
        facts hold."""
        left = [x for x, number in first.items() if not self._possible([*self.given, negated(at_least_0(number))])]
        while True:
            known = [at_least_0(x) for x in left]
            given = [*self.given, condition, *known]
            stay = [x for x in left if not self._possible([*given, negated(at_least_0(following[x]))])]
            if stay == left:
                return known
            left = stay

    def _comes_closer(self, term: Any, known: list[Any], first: dict[Sym, Any], following: dict[Sym, Any]) -> bool:
        """Whether a condition says that a number is at least 0, and each iteration makes it less; or that it is not 0, and
        each iteration brings it closer by 1."""
        if term.op == "ge":
            number = term.args[0]
            change = replaced(number, following) - number
            return not self._possible([*known, at_least_0(change)])
        if term.op == "not" and term.args[0].op == "eq":
            number = term.args[0].args[0]
            change, start = replaced(number, following) - number, replaced(number, first)
            if change not in (-1, 1):
                return False
            away = -1 - start if change == -1 else start - 1  # at least 0 if it begins on the other side
            return not self._possible([*self.given, at_least_0(away)])
        return False

    def _possible(self, conditions: list[Any]) -> bool:
        return self.bodies.solver.possible(conditions)
