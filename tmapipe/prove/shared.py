"""What the walkers of one proof share: facts about the program, the points where all warps stand, and which loops they go
through together."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any, NamedTuple

import attrs

from tmapipe.isa import Kind, declared
from tmapipe.isa.fragment import Fragment
from tmapipe.model.layout import Layout
from tmapipe.parts import Scratch
from tmapipe.plan.rings import Barrier
from tmapipe.program.expressions import Call, Let, every, resolve
from tmapipe.protocol.tile import Tile
from tmapipe.prove.problem import DATA
from tmapipe.prove.solver import Solver, arithmetic, replaced
from tmapipe.prove.symbols import (
    WITHOUT_OPERATIONS,
    Slice,
    Sym,
    at_least_0,
    is_silent,
    leaf,
    leaves,
    named,
    operands,
    parts,
    tested,
    text,
    variables,
)
from tmapipe.prove.walker import Open, ProofIsa, Walker

# ---- shared ----------------------------------------------------------------------------------------------------------
#
# Facts about the program, each looked up once for all warps.


class Operands(NamedTuple):
    """The operands of an instruction.

    found: (place, argument, whether only data depends on it); variables: of the arguments on which more depends; special: the
    walker's method for this instruction, if there is one.
    """

    found: list[tuple[int | str, Any, bool]]
    variables: tuple[Any, ...]
    special: str


class Straight(NamedTuple):
    """Instructions one after another, none of which has a condition. calls: (number in the block, instruction); variables:
    on which the operations depend."""

    calls: list[tuple[int, Call]]
    variables: tuple[Any, ...]


class Shared:
    """The program, its layout, its symbols, and where operations go.

    cta: the only CTA that is looked at; by_rank: whether a warp has asked for the rank of its CTA; emitting: the queue that
    takes operations, and the node that they are of; foresee: told of each operation and its node; assume: told of conditions
    that hold of a tile; decides: the variables on which operations depend.
    """

    def __init__(self, program: Any, cta: int | None = None):
        self.program, self.layout = program, Layout(program.plan, cta)
        self.alone, self.by_rank = cta is not None, False
        self.layout.syncs, self.layout.written = program.isa.syncs, _written(program.schedule.declared)
        self.emitting: Any = None
        self.foresee: Callable[[Any, Any], None] = lambda node, op: None
        self.isas = [ProofIsa(self.layout, agent, self.emit) for agent in range(self.layout.agents)]
        self.stored = {store.argument for store in program.plan.stores}
        self.decides = Slice(program.nodes).decides
        self.teams = any(role.teams > 1 for role in program.plan.roles)
        self.tested = tested(program.nodes) if self.teams else frozenset()
        self.assume: Callable[[Any], None] = lambda condition: None
        self._next: dict[int, tuple[list[Any], list[int]]] = {}
        self.values: dict[Any, Any] = {}  # of expressions, by warp and values of their variables
        self.emitted: dict[Any, list[Any]] = {}  # operations of instructions, likewise
        self._straight: dict[tuple[int, int], Straight] = {}
        self.inert, self.carried = functools.cache(self._is_inert), functools.cache(self._carried_by)
        self.operands_of, self.symbol = functools.cache(self._operands_of), functools.cache(self._symbol)
        self.columns_of = functools.cache(self._columns_of)
        self.local: Callable[[Any], bool] = functools.cache(lambda kind: declared(kind).local)
        self.numbers_of = functools.cache(self._numbers_of)
        self.variables_in = functools.cache(lambda x: tuple(variables(x)))  # in an expression, in some order

    def _numbers_of(self, kind: Any) -> list[tuple[str, Kind]]:
        """The operands of an operation that have to be known."""
        return [(name, of) for name, of in declared(kind).operands.items() if of is not Kind.AT]

    def _operands_of(self, node: Call) -> Operands:
        """The operands of an instruction, and the variables on which its operations depend."""
        special = "_do_nothing" if node.method in WITHOUT_OPERATIONS else f"_{node.method}"
        if hasattr(Walker, special):
            return Operands([], (), special)
        given = operands(node)
        return Operands(given, tuple(variables([x for _, x, data in given if not data])), "")

    def _columns_of(self, mask: Any) -> int | None:
        """How many of a tile's columns, from the first on, a mask ``columns < number`` leaves; None for another mask."""
        nodes = (node for node in every(self.program.nodes) if type(node) is Call)
        made = {result: (node.method, *node.args) for node in nodes for result in node.results}
        found = made.get(mask.data, ("",))
        compared = made.get(found[3], ("",)) if found[0] == "fragments.expand" else found
        if compared[:2] != ("fragments.elementwise", "lt"):
            return None
        (index, *which), (number, *other) = (made.get(x, ("",)) for x in compared[2])
        by_column = index == "fragments.indices" and which[1] == "columns" and number == "fragments.number"
        return other[0] if by_column and type(other[0]) is int and other[0] > 0 else None

    def straight(self, nodes: list[Any], at: int) -> Straight:
        """The instructions from number *at* of a block on that come one after another; none if the first has a condition, or
        gives a number."""
        found = self._straight.get((id(nodes), at))
        if found is None:
            calls: list[tuple[int, Call]] = []
            while at < len(nodes) and type(nodes[at]) is Call and "when" not in nodes[at].named:
                if self.operands_of(nodes[at]).special:
                    break
                calls.append((at, nodes[at]))
                at = self.next_in(nodes)[at + 1]
            every = dict.fromkeys(var for _, node in calls for var in self.operands_of(node).variables)
            first = calls[0][0] if calls else at
            found = self._straight[id(nodes), first] = Straight(calls, tuple(every))
        return found

    def emit(self, op: Any) -> None:
        queue, node = self.emitting
        kind: Any = type(op)
        if self.local(kind):
            return
        self.foresee(node, op)
        for name, of in self.numbers_of(kind):
            if isinstance(getattr(op, name), Sym):
                raise Open(f"{text(getattr(op, name))}, an operand of {kind.__name__} at {node.where}")
            if of is Kind.MASK and self.alone and getattr(op, name) is not None:
                raise Open(f"peers, which {node.method} reaches at {node.where}")
        queue.append(op)

    def next_in(self, nodes: list[Any]) -> list[int]:
        """By number of a node, the first node from there on that executes something or gives a number that is needed."""
        known = self._next.get(id(nodes))
        if known is None:
            found = [len(nodes)]
            for i in range(len(nodes) - 1, -1, -1):
                found.append(found[-1] if self._is_nothing(nodes[i]) else i)
            known = self._next[id(nodes)] = nodes, found[::-1]
        return known[1]

    def _is_nothing(self, node: Any) -> bool:
        if type(node) is Let:
            return not self.coordinates(node)
        return node.method in WITHOUT_OPERATIONS if type(node) is Call else self.inert(node)

    def coordinates(self, node: Let) -> tuple[Any, ...]:
        """The coordinates of the tile with which a body begins, if teams decide by them how many slots they take."""
        tile = node.value
        if not self.teams or not isinstance(tile, Tile):
            return ()
        return tuple(x for x in map(resolve, tile._coordinates.values()) if x in self.decides or x in self.tested)

    def _is_inert(self, node: Any) -> bool:
        """Whether a loop or branch executes nothing that synchronizes, and gives no number that is needed."""
        silent = all(map(self.inert, node.inside)) and (type(node) is not Call or is_silent(node))
        return silent and self.decides.isdisjoint(node.given)

    def _carried_by(self, node: Any) -> list[Any]:
        """What a loop carries that decides something."""
        return [each for each in node.carried if each[0] in self.decides]

    def _symbol(self, x: Any) -> Any:
        """What a symbol of the program is."""
        extents = self.program.isa.symbols["extents"]
        if x not in extents:
            return leaf("of the launch", x.args[0])
        argument, dim = extents[x]
        return self.extent(self.program.plan.dims[argument][dim])

    def extent(self, name: str) -> Any:
        """The extent of a dimension, as a formula of the extents from which it follows."""
        relation = next((each for each in self.program.plan.relations if each.name == name), None)
        if relation is None or (relation.size is None and relation.of is None):
            return leaf("extent", name)
        if relation.size is not None:
            return relation.size
        of = self.extent(str(relation.of)) * relation.times
        found = (of + relation.per - 1) // relation.per + relation.plus
        if relation.plus >= 0:
            return found
        return arithmetic("max", found, 0)

    def entry(self, table: str, i: Any, walker: Walker, node: Any) -> Any:
        """An entry of a table. If the kernel stores to the table, each load may give another entry."""
        if table in self.stored:
            name = f"an entry of {table} in {self.layout.agent_name(walker.agent)}"
            return leaf("answer", name, *walker.instance(node))
        return leaf("entry", table, i)


def _written(declared: Any) -> dict[str, tuple[str, str, str | None]]:
    """What the program writes, as `Layout.written` has it."""
    found: dict[str, tuple[str, str, str | None]] = {}
    for name, stage in declared.shared.items():
        if stage.writer is not None:
            writer = declared.name_of(stage.writer)
            of = declared.befores if stage.ring.held else declared.bodies
            body = inspect.unwrap(of[writer]).__code__
            found[name] = writer, declared.name_of(stage.ring), f"{body.co_filename}:{body.co_firstlineno}"
    own = (item for item in declared.scratches.items() if type(item[1]) is Scratch)
    return found | {name: (declared.name_of(scratch.role), "", None) for name, scratch in own}


def bounds(x: Sym) -> tuple[int | None, int | None]:
    """The least and the most that a leaf may be."""
    kind = x.args[0]
    if kind == "extent" or (kind == "of the launch" and x.args[1] == "clusters"):
        return 1, 2**31 - 1
    if kind in ("turn", "of the launch"):
        return 0, 2**31 - 1
    return None, None


# ---- points ----------------------------------------------------------------------------------------------------------
#
# Where all warps of a cluster stand, and what has been decided.


class Loop(NamedTuple):
    """An open loop that warps go through together.

    A *turn* of the loop is a joint iteration: `pace` iterations of each member. (Turns of turnstiles are others.)

    site: its number; index: the symbol for the number of its turn; turn: the number of the turn that comes next, at most
    `apart`: from there on, turns are not told apart; members: (warp, node, first index, iterations left at entry, pace);
    before: facts at its entry; old: what its members carried when the turn began.
    """

    site: int
    index: Sym  # type: ignore[assignment]
    turn: int
    members: tuple[tuple[int, Any, Any, Any, int], ...]
    before: frozenset[Sym]
    old: dict[Any, Any]
    apart: int = 1

    def counts(self) -> dict[tuple[Any, int], None]:
        """The different (iterations left at entry, pace) of its members."""
        return dict.fromkeys((left, pace) for *_, left, pace in self.members)


class Point:
    """Where all warps are. facts: what is decided; loops: those entered, the innermost last; options: of the boundary."""

    __slots__ = ("facts", "key", "loops", "options", "walkers")

    def __init__(self, walkers: list[Walker], facts: frozenset[Sym], loops: tuple[Loop, ...], options: Any):
        self.walkers, self.facts, self.loops, self.options = walkers, facts, loops, options
        self.key: Any = None  # of the boundary, where states are compared

    def turns(self) -> dict[Any, Any]:
        """The numbers of turns, by symbol, of the loops whose turns are still told apart."""
        return {loop.index: loop.turn for loop in self.loops if loop.turn < loop.apart}


class Stopped(Exception):
    """The proof stops: an operation goes wrong, or is not understood."""


class Again(Exception):
    """The search begins again: a carried number was found to be no formula of the turn."""


class Impossible(Exception):
    """The decisions that were taken cannot occur together."""


# ---- skips -----------------------------------------------------------------------------------------------------------
#
# The position of a team behind slots that other teams take: a position, and a formula for the slots between, such as
# "5 * turn slots after slot 0 of 3". Five slots after slot 0 is as many as three slots after slot 2: so a turn that takes
# slots is taken off the formula and added to the position, until the formula is a plain number.


def arrays_of(plan: Any, ring: Any) -> list[str]:
    """The arrays of a ring: its barriers, then the slots of what is loaded into it."""
    loads = {name for names in ring.loads.values() for name in names}
    slots = [f"slots of {load.buffer.name}" for load in plan.loads if load.name in loads]
    return [*(barrier.name for barrier in ring.barriers), *slots]


def is_behind_skips(value: Any) -> bool:
    """Whether this is a slot or parity behind skipped slots whose number is open."""
    return isinstance(value, Sym) and value.op in ("slot after", "parity after")


# ---- together --------------------------------------------------------------------------------------------------------
#
# Which loops warps go through together, and how many iterations of each are one turn.


class Together:
    """Compares the loops before which warps stand."""

    def __init__(self, shared: Shared, solver: Solver):
        self.shared, self.solver = shared, solver
        self.arrays = functools.cache(self._arrays)

    def missing(self, now: Point, group: list[tuple[Walker, Any]], stops: list[Any]) -> set[str]:
        """The arrays of barriers of these loops for which a warp waits that has not come to its own loop."""
        names: set[str] = set().union(*(self.arrays(node) for _, node in group))
        waits = [self._of_op(w.queue[0]) for w, stop in zip(now.walkers, stops, strict=True) if stop is None]
        return names & set().union(*waits)

    def _of_op(self, op: Any) -> set[str]:
        return {self.shared.layout.bar_places[getattr(op, name)][0] for name in declared(type(op)).named(Kind.BAR)}

    def group(self, now: Point, heads: list[tuple[Walker, Any]]) -> list[tuple[Walker, Any]]:
        """The warps whose loops use the same barriers; of several such groups, the group of which fewest warps are missing."""
        groups: list[tuple[set[str], list[tuple[Walker, Any]]]] = []
        for walker, node in heads:
            names = set(self.arrays(node)) or {f"{id(node)}"}
            mine = [group for group in groups if group[0] & names]
            groups = [group for group in groups if group not in mine]
            groups.append((names.union(*(g[0] for g in mine)), [(walker, node), *(x for g in mine for x in g[1])]))

        def missing(group: tuple[set[str], Any]) -> int:
            inside = {walker.agent for walker, _ in group[1]}
            others = (walker for walker in now.walkers if walker.agent not in inside)
            return sum(bool(group[0] & self._remaining(walker)) for walker in others)

        found = min(groups, key=missing)[1]
        return sorted(found, key=lambda each: each[0].agent)

    def _remaining(self, walker: Walker) -> set[str]:
        """Arrays of barriers that a warp still comes to, in the iteration that it is in."""
        found = set().union(*map(self._of_op, walker.queue))
        for frame in reversed(walker.frames):
            if frame[0] == "block":
                for node in frame[1][frame[2] :]:
                    found |= self.arrays(node)
            elif frame[0] == "joint":
                break
        return found

    def _arrays(self, node: Any) -> set[str]:
        """Arrays of barriers that a node uses."""
        calls = (each for each in every([node]) if type(each) is Call)
        return {x.name for each in calls for x in each.args if isinstance(x, Barrier)}

    def paces(self, now: Point, nodes: list[Any], counts: list[Any]) -> list[int]:
        """How many iterations of each loop are one turn."""
        if all(self._as_often(now, counts[0], each) for each in counts[1:]):
            return [1] * len(nodes)
        slots = [max(self.waits(node).values(), default=0) for node in nodes]
        common = math.lcm(*(n for n in slots if n)) if any(slots) else 1
        found = [common // n if n else 1 for n in slots]
        if set(found) == {1}:  # a role of some teams, each of which takes its share of the iterations
            slopes = [_slope(count) for count in counts]
            if not self.shared.teams:  # one with one, also of a loop of loops
                slopes = [slope and Fraction(1, _share(count)) for slope, count in zip(slopes, counts, strict=True)]
            if min(slopes) > 0:
                whole = [int(each * math.lcm(*(slope.denominator for slope in slopes))) for each in slopes]
                return [each // math.gcd(*whole) for each in whole]
        return found

    def waits(self, node: Any) -> dict[str, int]:
        """By array of barriers, how many waits of it an iteration has outside of its own loops and branches."""
        found: dict[str, int] = {}
        for each in node.body:
            if type(each) is Call and each.method == "mbarrier_wait":
                found[each.args[0].name] = found.get(each.args[0].name, 0) + 1
        return found

    def _as_often(self, now: Point, a: Any, b: Any) -> bool:
        """Whether loops of these counts run equally often: not at all, if both are 0 or less."""
        return self.equal(now, a, b) or not any(
            self.solver.possible((at_least_0(one - other - 1), at_least_0(one - 1), *now.facts))
            for one, other in ((a, b), (b, a))
        )

    def equal(self, now: Point, a: Any, b: Any) -> bool:
        if a == b:
            return True
        turns = now.turns()
        apart = replaced(a - b, turns)
        if not isinstance(apart, Sym):
            return bool(apart == 0)
        facts = [replaced(each, turns) for each in now.facts]
        more, less = at_least_0(apart - 1), at_least_0(-1 - apart)
        return not (self.solver.possible((more, *facts)) or self.solver.possible((less, *facts)))


def _slope(x: Any) -> Fraction:
    """How fast a count grows with the numbers that it is a sum or a quotient of: 1/2 for ``n // 2``."""
    if isinstance(x, Sym) and x.op == "sum":
        return sum((n * _slope(term) for term, n in parts(x)[1].items()), Fraction(0))
    if isinstance(x, Sym) and x.op == "div" and type(x.args[1]) is int:
        return _slope(x.args[0]) / x.args[1]
    return Fraction(isinstance(x, Sym))


def _share(count: Any) -> int:
    """The number by which a count is divided: 4 for ``n // 4``."""
    if isinstance(count, Sym) and count.op == "sum":
        return math.lcm(*map(_share, parts(count)[1]))
    return count.args[1] if isinstance(count, Sym) and count.op == "div" and type(count.args[1]) is int else 1


def by_threads(part: Any, values: Any, columns: int | None) -> Any:
    """A store of as many columns as the values have, or of the first *columns* of these alone."""
    stored = part.tile[-1] if values.along != "tile" else values.layout.columns
    stored = stored if columns is None else min(stored, columns)
    if stored == part.tile[-1]:
        return part
    buffer = attrs.evolve(part.buffer, tile=(*part.buffer.tile[:-1], stored))
    return attrs.evolve(part, tile=(*part.tile[:-1], stored), buffer=buffer)


# ---- places ----------------------------------------------------------------------------------------------------------


#: Loads that start inside of their tensor, if nothing says otherwise, and stores that start at 0 or later.
BY_ENGINES = ("tma_load", "bulk_load", "cp_async", "tma_store", "bulk_store")
#: Reads of a part of a slot, at a place that may be known to a launch alone.
READS = frozenset(f"fragments.read_{name}" for name in ("part", "peer", "joined", "line", "number"))


class Part(NamedTuple):
    """What a read takes of a slot, and at which line. dims: what each of its places counts; limits: by place, the first number
    that is too large."""

    name: str
    dims: tuple[str, ...]
    limits: tuple[int, ...]

    @property
    def span(self) -> tuple[int, ...]:
        return (1,) * len(self.dims)


def part_read(node: Call, number: Callable[[Any], Any]) -> tuple[Part, tuple[Any, ...]] | None:
    """(the part, its places) of an instruction that reads at places which only a launch knows. number: the value of an
    argument."""
    of = dict(named(node)) if node.method in READS else {}
    at = of.get("at", of.get("index"))
    if at is None or isinstance(at, Fragment):
        return None
    open_ = [each for each in _places(node.method, of, at, number) if isinstance(each[1], Sym)]
    if not open_ or any(x.args[0] in DATA for _, place, _ in open_ for x in leaves(place)):
        return None
    dims, starts, limits = zip(*open_, strict=True)
    return Part(f"slot.{of['slot'].buffer.name}.read at {node.where}", dims, limits), starts


def _places(method: str, of: dict[str, Any], at: Any, number: Callable[[Any], Any]) -> list[tuple[str, Any, int]]:
    """(what is counted, place, first number that is too large) of a read, by its method and arguments."""
    layout: Any = of.get("layout")
    tile, each = of["slot"].buffer.tile, of.get("each", 1)
    width, size = tile[-1], math.prod(tile)
    first, *rest = [number(x) for x in (at if isinstance(at, tuple) else (at,))]
    if method == "fragments.read_number":
        return [("an element", first, size)]
    rows, columns = layout.rows, layout.columns
    if method == "fragments.read_line":
        count = -(-(rows if of["along"] == "rows" else columns) // each)
        whole = count // width if rest == [0] and count % width == 0 else 1  # rows, one after another
        return [("a row", first, size // width - whole + 1), ("a column", rest[0], width - count // whole + 1)]
    if method == "fragments.read_joined":
        gaps = [tuple(map(number, pair)) for pair in of["gaps"]]
        ks = (rest[0], rest[0] + columns - 1)
        both = [first + k + sum(k // length * further for length, further in gaps) for k in ks]
    elif of.get("pitch") is not None:
        both = [rest[0], rest[0] + (rows - 1) // each * number(of["pitch"]) + columns - 1]
    else:
        return [("a row", first, size // width - rows + 1), ("a column", rest[0], width - columns + 1)]
    return [("its first element", both[0], size), ("its last element", both[1], size)]
