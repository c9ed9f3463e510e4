"""Role and BarrierRing: the warps that run one body, and the slots of shared memory that roles hand on to each other."""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import attrs

from tmapipe.errors import InputError, ScopeError, is_count, must, optional

# ---- role ------------------------------------------------------------------------------------------------------------
#
# Role: the warps that run one body, and the rules that a body obeys.


_MARK = "__tmapipe_role__"


@attrs.frozen(eq=False, init=False, repr=False)
class Role:
    """A part that warps of the CTA play: producer, consumer, storer, ...

    The body is a method of the schedule, decorated ``@role.jit``: CuTe DSL's preprocessor looks for that word. It is called
    once an output tile, as ``body(self, k, tile)``. A method decorated ``@role.before.jit`` is called once a CTA before
    its first tile, as ``method(self, k)``. A subclass that assigns another role to the same name keeps the body, and
    one that assigns None to it has neither.

    Args:
        warps: How many warps run the body.
        warpgroups: The same in warpgroups of 4 warps, which is what wgmma and setmaxnreg work on. Pass one of the two.
        registers: A thread, set by setmaxnreg where the body begins: 24 to 256, a multiple of 8. Left out, the library splits
            the register file if some role uses wgmma, and leaves it alone otherwise.
        teams: Equal parts of the warps that take output tiles in turn. A tile and its slots are one team's alone; a
            `Turnstile` orders the teams.
        early: Names of constant tensors, such as weights, which no kernel writes that may still run. Then the body starts
            before the kernels before have ended, may load these, and calls ``k.dependency_wait()`` before it touches others.
        dependents: Whether the body says when the next kernel may start, by ``k.launch_dependents()``. Where no role does,
            each CTA says so as it begins. A CTA that never says so does as it ends.

    Raises:
        InputError: For any other value.
    """

    warps: int  #: in any case, of all teams
    by_warpgroup: bool
    registers: int | None = attrs.field(
        validator=must(
            optional(lambda n: is_count(n) and 24 <= n <= 256 and n % 8 == 0),
            "setmaxnreg takes 24 to 256 in steps of 8",
            "round to a multiple of 8",
        )
    )
    teams: int = attrs.field()
    early: tuple[str, ...] = attrs.field(
        validator=must(
            lambda names: isinstance(names, tuple) and all(isinstance(name, str) for name in names),
            "are names of tensors",
            'pass a tuple, such as ("b",)',
        )
    )
    dependents: bool = attrs.field(validator=must(lambda x: isinstance(x, bool), "is True or False", "pass one"))

    def __init__(
        self,
        *,
        warps: int | None = None,
        warpgroups: int | None = None,
        registers: int | None = None,
        teams: int = 1,
        early: Sequence[str] = (),
        dependents: bool = False,
    ):
        if (warps is None) == (warpgroups is None):
            raise InputError("Role(warps, warpgroups)", (warps, warpgroups), "takes exactly one of the two", "pass one")
        count = warps if warps is not None else warpgroups
        if not is_count(count):
            raise InputError("Role(warps or warpgroups)", count, "must be a positive integer", "use 1 or more")
        assert count is not None
        names: Any = (early,) if isinstance(early, str) else tuple(early) if isinstance(early, (tuple, list)) else early
        size = count if warps is not None else 4 * count
        self.__attrs_init__(size, warpgroups is not None, registers, teams, names, dependents)

    @teams.validator
    def _teams_divide(self, field: Any, teams: Any) -> None:
        count = self.warps // 4 if self.by_warpgroup else self.warps
        if not is_count(teams) or count % teams:
            raise InputError("Role(teams)", teams, f"must divide the {count} warps or warpgroups", "use 1 or 2")

    def __repr__(self) -> str:
        size = f"warpgroups={self.warps // 4}" if self.by_warpgroup else f"warps={self.warps}"
        registers = f", registers={self.registers}" if self.registers else ""
        teams = f", teams={self.teams}" if self.teams > 1 else ""
        early = f", early={self.early}" if self.early else ""
        dependents = ", dependents=True" if self.dependents else ""
        return f"Role({size}{registers}{teams}{early}{dependents})"

    def jit(self, body: Callable[..., None]) -> Callable[..., None]:
        """Registers *body*, a method of a schedule, as what this role runs.

        Raises:
            ScopeError: For `break`, `continue`, `return` or `yield` in it, or for an `async` one.
            InputError: For what is no function of ``(self, k, tile)``, is the body of another role, or if its class has
                another body of this name.
        """
        return _marked(self, False, body, sys._getframe(1).f_locals)

    @property
    def before(self) -> _Before:
        """``@role.before.jit`` registers a method that the role runs once a CTA, before its first tile."""
        return _Before(self)


@attrs.frozen
class _Before:
    role: Role

    def jit(self, body: Callable[..., None]) -> Callable[..., None]:
        """Registers *body*, a method ``(self, k)`` of a schedule. Raises what `Role.jit` does."""
        return _marked(self.role, True, body, sys._getframe(1).f_locals)


def mark_of(method: Any) -> tuple[Role, bool] | None:
    """(the role that runs *method*, whether before its first tile), or None."""
    return getattr(method, _MARK, None)


def _marked(role: Role, before: bool, body: Callable[..., None], namespace: Any) -> Callable[..., None]:
    """*body*, marked as the role's. namespace: where it is defined."""
    if not inspect.isfunction(body):
        raise InputError("Role.jit(body)", body, "is a method of a schedule", "decorate a function with it")
    _refuse_early_exit(body)
    earlier = namespace.get(body.__name__) if "__qualname__" in namespace else None  # of a class
    if mark_of(earlier) is not None or mark_of(body) not in (None, (role, before)):
        rule = "is the body of a role already, which would be lost"
        raise InputError(body.__qualname__, earlier or body, rule, "give each body a name of its own")
    takes = ("self", "k") if before else ("self", "k", "tile")
    try:
        inspect.signature(body).bind(*takes)
    except TypeError:
        rule = f"is called with {', '.join(takes)}" + " once a CTA" * before
        fix = f"def {body.__name__}({', '.join(takes)})"
        raise InputError(body.__qualname__, str(inspect.signature(body)), rule, fix) from None
    setattr(body, _MARK, (role, before))
    return body


def _refuse_early_exit(body: Callable[..., None]) -> None:
    """Refuses an early exit: CuTe DSL cannot trace it from run-time control flow, and the events of a ring would not pair up.

    A generator or a coroutine would not even begin when it is called.
    """
    code = body.__code__
    if code.co_flags & (inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR):
        word = "yield" if code.co_flags & inspect.CO_GENERATOR else "async"
        where = f"{code.co_filename}:{code.co_firstlineno}"
        raise ScopeError(f"{where}: `{word}` in the body of a role, which runs from its beginning to its end.")
    try:
        source, first = inspect.getsourcelines(body)
        parsed = ast.parse(textwrap.dedent("".join(source))).body[0]
    except (OSError, TypeError, SyntaxError):  # no source, or a lambda's: the lines of what it stands in
        return
    for node in _own_nodes(parsed):
        if isinstance(node, (ast.Break, ast.Continue, ast.Return)):
            word = type(node).__name__.lower()
            where = f"{inspect.getsourcefile(body)}:{first + node.lineno - 1}"
            rule = "Use `if`/`else` so that every scope ends normally."
            raise ScopeError(f"{where}: `{word}` in the body of a role. {rule}")


def _own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes inside *node*, without those of functions defined there, whose `return` is no exit of the body."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield child
            yield from _own_nodes(child)


# ---- barrier ---------------------------------------------------------------------------------------------------------
#
# BarrierRing: slots of shared memory that roles hand on to each other, and the mbarriers that signal it.
#
# A ring is a chain of phases. In ``load -> use`` the loader fills a slot and the user empties it; ``load -> transform
# -> store`` has one more role. Each phase has one mbarrier per slot, which completes when the phase is done with the
# slot::
#
# load    --full-->    transform    --ready-->    store
#   ^                                               |
#   +--------------------- free --------------------+
#
# A role waits on the mbarrier of the phase before its own (the first role on that of the last) and signals its own.
# Its pipeline state is the index of its next slot and a parity, which flips when the index wraps. The first role
# starts with parity 1, since every slot is free at first; all others start with parity 0.


@attrs.frozen(eq=False, init=False, repr=False)
class BarrierRing:
    """Declares a ring of slots and the chain of roles that use them.

    What lies in a slot is declared by the stages that name this ring. Everything else is derived: arrival counts from the
    roles' warps and the multicast peers, expect-tx bytes from the stages, parities, initialization and tail.

    A ring ``per="cta"`` is filled once a CTA, before its first tile, and then held: its one slot is read at every tile. The
    roles fill it in methods `@role.before.jit`, and the last phase reads it as ``k.<ring>.<stage>``.

    Args:
        stages: How many slots there are; None: as many as shared memory holds.
        producer: The first of two phases: a role, or a tuple of roles that play it at once.
        consumer: The second of two phases, likewise.
        chain: Any number of phases from two on, instead of producer and consumer: ``chain=(load, transform, store)``.
        per: "tile": output tiles use the slots in turn. "cta": the ring has one slot, which is filled once a CTA.

    Raises:
        InputError: For any other value.
    """

    stages: int | None = attrs.field(
        validator=must(
            optional(lambda n: is_count(n) and n < 2**31),
            "must be a positive integer or None, below 2^31",
            "use 1 or more",
        )
    )
    phases: tuple[tuple[Role, ...], ...] = attrs.field()
    per: str = attrs.field(
        default="tile", validator=must(lambda per: per in ("tile", "cta"), 'is "tile" or "cta"', "leave it out")
    )

    def __init__(
        self,
        stages: int | None = None,
        *,
        producer: Role | Iterable[Role] | None = None,
        consumer: Role | Iterable[Role] | None = None,
        chain: Iterable[Role | Iterable[Role]] | None = None,
        per: str = "tile",
    ):
        if (chain is None) == (producer is None or consumer is None):
            rule = "takes either producer and consumer, or chain"
            fix = "name each phase once"
            raise InputError("BarrierRing(producer, consumer, chain)", (producer, consumer, chain), rule, fix)
        if chain is None:
            phases = [("producer", producer), ("consumer", consumer)]
        else:
            phases = [("chain", phase) for phase in _several("chain", chain)]
        if isinstance(per, str) and per == "cta":
            if stages not in (None, 1):
                raise InputError("BarrierRing(stages)", stages, "is 1 for what is filled once a CTA", "leave it out")
            stages = 1
        of_phases = tuple((p,) if isinstance(p, Role) else tuple(_several(name, p)) for name, p in phases)
        self.__attrs_init__(stages, of_phases, per)

    @phases.validator
    def _roles_differ(self, field: Any, phases: tuple[tuple[Role, ...], ...]) -> None:
        if len(phases) < 2 or not all(phases):
            raise InputError("BarrierRing(chain)", phases, "needs at least two phases of one role each", "add a role")
        roles = [role for phase in phases for role in phase]
        for role in roles:
            if not isinstance(role, Role):
                raise InputError("BarrierRing(chain)", role, _ROLES, "e.g. producer=load")
        if len(set(roles)) != len(roles):
            raise InputError("BarrierRing(chain)", roles, "a role plays one phase of a ring", "use a role a phase")

    def phase_of(self, role: Role) -> int | None:
        """The phase that *role* plays, or None."""
        return next((p for p, roles in enumerate(self.phases) if any(each is role for each in roles)), None)

    def __repr__(self) -> str:
        phases = [phase[0] if len(phase) == 1 else phase for phase in self.phases]
        text = f"producer={phases[0]!r}, consumer={phases[1]!r}" if len(phases) == 2 else f"chain={tuple(phases)!r}"
        stages = "" if self.stages is None or self.held else f"{self.stages}, "
        return f"BarrierRing({stages}{text}" + (', per="cta")' if self.held else ")")

    @property
    def held(self) -> bool:
        """Whether it is filled once a CTA."""
        return self.per == "cta"


_ROLES = "is a Role for each phase, or a tuple of the roles that play it at once"


def _several(argument: str, value: Any) -> Iterable[Any]:
    if not isinstance(value, Iterable):
        raise InputError(f"BarrierRing({argument})", value, _ROLES, "e.g. producer=load")
    return value
