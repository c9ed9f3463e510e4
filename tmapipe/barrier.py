"""Role, BarrierRing and Turnstile: warps that run one body, slots that roles hand on, and turns that teams take."""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import attrs

from tmapipe.errors import IS_BOOL, SYNTAX, InputError, ScopeError, is_count, is_small, must, optional, require, shown

# ---- role ------------------------------------------------------------------------------------------------------------


_MARK = "__tmapipe_role__"


def _is_settable(n: Any) -> bool:
    return is_count(n) and 24 <= n <= 256 and n % 8 == 0


def _are_names(names: Any) -> bool:
    return isinstance(names, tuple) and all(isinstance(name, str) for name in names)


@attrs.frozen(eq=False, init=False, repr=False)
class Role:
    """A part that warps of the CTA play: producer, consumer, storer, ...

    The role's body is a method of the schedule, decorated ``@role.jit``. The warps call it once for each output tile, as
    ``body(self, k, tile)``. They call a method decorated ``@role.before.jit`` once in each CTA, before the first tile, as
    ``method(self, k)``. A subclass that assigns another role to the same name keeps the body. A subclass that assigns None
    to the name drops the role and its body.

    Args:
        warps: How many warps run the body.
        warpgroups: The same number in warpgroups of 4 warps. wgmma and setmaxnreg work on whole warpgroups. Pass either
            warps or warpgroups.
        registers: Registers of a thread, which setmaxnreg sets where the body begins: 24 to 256, a multiple of 8. If it is
            left out, the library divides the register file among the roles where some role uses wgmma: roles of warps get
            the few that moving data takes, so one that computes there wants a number, or warpgroups. Elsewhere all get the
            same.
        teams: Into how many equal teams the warps are divided. The teams take output tiles in turn, and a tile and its slots
            belong to one team. A `Turnstile` says in which order teams go.
        early: Names of tensors that no earlier kernel can still be writing, such as weights. The body then starts before the
            earlier kernels of the stream have ended. It may load these tensors at once, and calls ``k.dependency_wait()``
            before it touches any other.
        dependents: Whether the body says when the next kernel of the stream may start, by ``k.launch_dependents()``. If no
            role of the schedule does, each CTA says so as it begins. A CTA that never says so says it as it ends.

    Raises:
        InputError: For any other value.
    """

    warps: int  #: of all teams together, also where the role was declared by warpgroups
    by_warpgroup: bool
    registers: int | None = attrs.field(
        validator=must(optional(_is_settable), "setmaxnreg takes 24 to 256 in steps of 8", "round to a multiple of 8")
    )
    teams: int = attrs.field()
    early: tuple[str, ...] = attrs.field(
        validator=must(_are_names, "are names of tensors", 'pass a tuple, such as ("b",)')
    )
    dependents: bool = attrs.field(validator=IS_BOOL)

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
            rule, fix = "takes exactly one of the two", "pass warps= or warpgroups="
            raise InputError("Role(warps, warpgroups)", (warps, warpgroups), rule, fix)
        count = warps if warps is not None else warpgroups
        require(is_count(count), "Role(warps or warpgroups)", count, "must be a positive integer", "use 1 or more")
        assert count is not None
        names: Any = (early,) if isinstance(early, str) else tuple(early) if isinstance(early, (tuple, list)) else early
        size = count if warps is not None else 4 * count
        self.__attrs_init__(size, warpgroups is not None, registers, teams, names, dependents)

    @teams.validator
    def _teams_divide(self, field: Any, teams: Any) -> None:
        count = self.warps // 4 if self.by_warpgroup else self.warps
        if not is_count(teams) or count % teams:
            what = "warpgroups" if self.by_warpgroup else "warps"
            raise InputError("Role(teams)", teams, f"must divide the {count} {what} of the role", "use 1 or 2")

    def __repr__(self) -> str:
        size = f"warpgroups={self.warps // 4}" if self.by_warpgroup else f"warps={self.warps}"
        registers = f", registers={self.registers}" if self.registers else ""
        teams = f", teams={self.teams}" if self.teams > 1 else ""
        early = f", early={self.early}" if self.early else ""
        dependents = ", dependents=True" if self.dependents else ""
        return f"Role({size}{registers}{teams}{early}{dependents})"

    def jit(self, body: Callable[..., None]) -> Callable[..., None]:
        """Registers *body*, a method of a schedule, as the body of this role.

        Raises:
            ScopeError: The body contains `break`, `continue`, `return` or `yield`, or is `async`.
            InputError: It is no function of ``(self, k, tile)``, it is the body of another role already, or its class has
                another body of the same name.
        """
        return _marked(self, False, body, sys._getframe(1).f_locals)

    @property
    def before(self) -> _Before:
        """``@role.before.jit`` registers a method that the role runs once in each CTA, before its first tile."""
        return _Before(self)


@attrs.frozen
class _Before:
    role: Role

    def jit(self, body: Callable[..., None]) -> Callable[..., None]:
        """Registers *body*, a method ``(self, k)`` of a schedule. Raises the same errors as `Role.jit`."""
        return _marked(self.role, True, body, sys._getframe(1).f_locals)


def mark_of(method: Any) -> tuple[Role, bool] | None:
    """(the role that runs *method*, whether the role runs it before its first tile); None if *method* is no body."""
    return getattr(method, _MARK, None)


def _marked(role: Role, before: bool, body: Callable[..., None], namespace: Any) -> Callable[..., None]:
    """*body*, marked as a body of *role*. namespace: the local names where it is defined, those of a class for a method."""
    if not inspect.isfunction(body):
        raise InputError("Role.jit(body)", body, "is a method of a schedule", "decorate a function with it")
    _refuse_early_exit(body)
    earlier = namespace.get(body.__name__) if "__qualname__" in namespace else None  # of a class
    if mark_of(earlier) is not None or mark_of(body) not in (None, (role, before)):
        rule = "is the body of a role already, and a role's body has a name of its own"
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
    """Raises `ScopeError` for a body that can end early: a `with` block that it leaves so would not signal its ring.

    A generator or a coroutine is refused too: a call of one does not run its code.
    """
    code = body.__code__
    if code.co_flags & (inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR):
        word = "yield" if code.co_flags & inspect.CO_GENERATOR else "async"
        where = f"{code.co_filename}:{code.co_firstlineno}"
        raise ScopeError(f"{where}: `{word}` in the body of a role, which runs from its beginning to its end.")
    try:
        source, first = inspect.getsourcelines(body)
        with SYNTAX:
            parsed = ast.parse(textwrap.dedent("".join(source))).body[0]
    except (OSError, TypeError, SyntaxError):  # no source, or the source of the statement that contains a lambda
        return
    for node in _own_nodes(parsed):
        if isinstance(node, (ast.Break, ast.Continue, ast.Return)):
            word = type(node).__name__.lower()
            where = f"{inspect.getsourcefile(body)}:{first + node.lineno - 1}"
            rule = "Use `if`/`else` so that every scope ends normally."
            raise ScopeError(f"{where}: `{word}` in the body of a role. {rule}")


def _own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes inside *node*, without the nodes of functions and classes that are defined there: a `return` in such a
    function does not leave the body."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield child
            yield from _own_nodes(child)


# ---- ring ------------------------------------------------------------------------------------------------------------
#
# A ring is a chain of phases. In ``load -> use`` the loader fills a slot and the user empties it. The chain
# ``load -> transform -> store`` has one role more. Each phase has one mbarrier for each slot, which completes when the phase
# is done with the slot:
#
# load    --full-->    transform    --ready-->    store
#   ^                                               |
#   +--------------------- free --------------------+
#
# A role waits for the mbarrier of the phase before its own, and signals the mbarrier of its own phase. The first role waits
# for the mbarrier of the last phase. The pipeline state of a role is the index of its next slot, and a parity that flips
# when the index wraps around. The first role starts with parity 1, since every slot is free at first. All other roles start
# with parity 0.


@attrs.frozen(eq=False, init=False, repr=False)
class BarrierRing:
    """Declares a ring of slots and the chain of roles that use them.

    The stages that name this ring say what lies in a slot. The library derives everything else: arrival counts from the
    roles' warps and the multicast peers, expect-tx bytes from the stages, parities, initialization and tail.

    A ring ``per="cta"`` is filled once in each CTA, before the CTA's first tile, and then held: its one slot is read at every
    tile. The roles fill the slot in methods `@role.before.jit`, and the last phase reads it as ``k.<ring>.<stage>``.

    Args:
        stages: How many slots the ring has; None: as many as shared memory holds.
        producer: The first of two phases: a role, or a tuple of roles that play this phase at once.
        consumer: The second of two phases: likewise a role or a tuple of roles.
        chain: Two or more phases, instead of producer and consumer: ``chain=(load, transform, store)``.
        per: "tile": output tiles use the slots in turn. "cta": the ring has one slot, which is filled once in each CTA.
        local: Roles of the last phase that read no tile which another CTA writes: they hand slots on in their CTA alone.

    Raises:
        InputError: For any other value.
    """

    stages: int | None = attrs.field(
        validator=must(optional(is_small), "must be a positive integer or None, below 2^31", "use 1 or more")
    )
    phases: tuple[tuple[Role, ...], ...] = attrs.field()
    per: str = attrs.field(
        default="tile", validator=must(lambda per: per in ("tile", "cta"), 'is "tile" or "cta"', "leave it out")
    )
    local: tuple[Role, ...] = attrs.field(default=())

    def __init__(
        self,
        stages: int | None = None,
        *,
        producer: Role | Iterable[Role] | None = None,
        consumer: Role | Iterable[Role] | None = None,
        chain: Iterable[Role | Iterable[Role]] | None = None,
        per: str = "tile",
        local: Role | Iterable[Role] = (),
    ):
        if (chain is None) == (producer is None or consumer is None):
            rule = "takes either producer and consumer, or chain"
            fix = "pass producer= and consumer=, or chain= alone"
            raise InputError("BarrierRing(producer, consumer, chain)", (producer, consumer, chain), rule, fix)
        if chain is None:
            phases = [("producer", producer), ("consumer", consumer)]
        else:
            phases = [("chain", phase) for phase in _several("chain", chain)]
        if isinstance(per, str) and per == "cta":
            if stages not in (None, 1):
                rule = 'is 1 where per="cta": there is one slot'
                raise InputError("BarrierRing(stages)", stages, rule, "leave it out")
            stages = 1
        *of_phases, near = (
            (p,) if isinstance(p, Role) else tuple(_several(name, p)) for name, p in (*phases, ("local", local))
        )
        self.__attrs_init__(stages, tuple(of_phases), per, near)

    @phases.validator
    def _roles_differ(self, field: Any, phases: tuple[tuple[Role, ...], ...]) -> None:
        if len(phases) < 2 or not all(phases):
            raise InputError("BarrierRing(chain)", phases, "needs at least two phases of one role each", "add a role")
        roles = [role for phase in phases for role in phase]
        for role in roles:
            require(isinstance(role, Role), "BarrierRing(chain)", role, _ROLES, "e.g. producer=load")
        rule = "has a role twice, but a role plays one phase of a ring"
        require(len(set(roles)) == len(roles), "BarrierRing(chain)", roles, rule, "use another role")

    @local.validator
    def _local_roles_end(self, field: Any, local: tuple[Role, ...]) -> None:
        rule = "is of roles of the last phase"
        ends = all(any(role is each for each in self.phases[-1]) for role in local)
        require(ends, "BarrierRing(local)", local, rule, "leave it out")

    def phase_of(self, role: Role) -> int | None:
        """The number of the phase that *role* plays, or None."""
        return next((p for p, roles in enumerate(self.phases) if any(each is role for each in roles)), None)

    def __repr__(self) -> str:
        phases = [phase[0] if len(phase) == 1 else phase for phase in self.phases]
        text = f"producer={phases[0]!r}, consumer={phases[1]!r}" if len(phases) == 2 else f"chain={tuple(phases)!r}"
        stages = "" if self.stages is None or self.held else f"{self.stages}, "
        text += f", local={self.local}" if self.local else ""
        return f"BarrierRing({stages}{text}" + (', per="cta")' if self.held else ")")

    @property
    def held(self) -> bool:
        """Whether the ring is filled once in each CTA, and its slot then held."""
        return self.per == "cta"


_ROLES = "is a Role for each phase, or a tuple of the roles that play one phase at once"


def _several(argument: str, value: Any) -> Iterable[Any]:
    require(isinstance(value, Iterable), f"BarrierRing({argument})", value, _ROLES, "e.g. producer=load")
    return value


# ---- turnstile -------------------------------------------------------------------------------------------------------
#
# In a ping-pong GEMM, two teams of one warpgroup each work on different output tiles. The teams take turns at the mainloop.
# While one team is in its mainloop, the other one is in its epilogue, so the tensor cores are always busy:
#
# team 0   | mainloop 0 |  epilogue 0  | mainloop 2 |  ...
# team 1                | mainloop 1   |  epilogue 1 | mainloop 3 | ...
#
# A role of one team has a turnstile for its warpgroups, which share tiles and slots. They take turns at starting their
# matmuls, so that the softmax of one warpgroup runs under the matmuls of the other.
#
# Teams have one mbarrier each. Its phase n completes when the team before has left its turn for the n-th time. The first
# turn of team 0 waits for nobody, so team 0 starts with parity 1 and the other teams with parity 0. Warpgroups have one
# named barrier each: the warpgroup that waits meets the warpgroup before it there.


def _takes_turns(role: Any) -> bool:
    return isinstance(role, Role) and (role.teams > 1 or (role.by_warpgroup and role.warps > 4))


@attrs.frozen(eq=False, repr=False)
class Turnstile:
    """Declares an order in which the teams of a role pass, or the warpgroups of a role of one team: one after another, again
    and again.

    In the role's body: ``with k.<turnstile>.turn():``. All teams, or warpgroups, enter it equally often.

    Args:
        role: A role of two or more teams, or of two or more warpgroups.
        stores: Stores of the teams' accumulators, if each store happens inside such a turn: then all teams use the same
            buffers.

    Raises:
        InputError: For any other value.
    """

    role: Role = attrs.field(
        validator=must(_takes_turns, "is a role of two or more teams, or warpgroups", "Role(warpgroups=2)")
    )
    stores: tuple[Any, ...] = attrs.field(default=())

    @stores.validator
    def _of_teams(self, field: Any, stores: Any) -> None:
        if not isinstance(stores, (tuple, list)):
            raise InputError("Turnstile(stores)", stores, "is a tuple of TmaStoreStage", "e.g. stores=(d,)")
        if stores and self.role.teams == 1:
            rule = "is for a role of several teams, which then have the same buffers"
            raise InputError("Turnstile(stores)", stores, rule, "leave it out: each warpgroup has buffers of its own")

    __repr__ = shown
