"""A schedule's declared parts by kind and name, when two schedules are equal, and where the roles run."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Generic, TypeVar

import attrs

from tmapipe.barrier import BarrierRing, Role, Turnstile, mark_of
from tmapipe.base import check_cluster
from tmapipe.base.arithmetic import Dim, ceil_div
from tmapipe.errors import InputError, changed, require
from tmapipe.parts import RegisterTile, Scratch, SharedStage, Table, Wgmma
from tmapipe.plan.model import Plan, RoleWarps
from tmapipe.plan.rings import Arch
from tmapipe.stage import LoadStage, SlotStage, TokenStage
from tmapipe.store_pipeline import StoreStage

# ---- declarations ----------------------------------------------------------------------------------------------------
#
# A schedule's declared parts, by kind and name, and how they refer to each other.
#
# Names belong to the schedule, not to the parts: the name of a part is the name of the attribute to which it was
# assigned. So one object can be a part of several schedules. A subclass or an instance can assign another part to the
# attribute. The new part replaces the old part for all parts that refer to the old one. An example: a base class
# declares a role of two warpgroups, and a ring with this role. A subclass assigns a role of three warpgroups to the same
# attribute. Then the ring has the new role, and the new role runs the old role's body.


Part = Role | BarrierRing | SlotStage | TokenStage | Scratch | Wgmma | RegisterTile | StoreStage | Turnstile | Table
PARTS = (
    Role, BarrierRing, LoadStage, SlotStage, TokenStage, Scratch, Wgmma, RegisterTile, StoreStage, Turnstile, Table,
)  # fmt: skip
Body = Callable[..., None]
K = TypeVar("K")


class _Kind(Generic[K]):
    """The parts of one class by name, in the order of declaration."""

    def __init__(self, kind: type[K]):
        self.kind = kind

    def __get__(self, declared: Declarations, owner: type) -> dict[str, K]:
        return {name: part for name, part in declared.parts.items() if isinstance(part, self.kind)}


@attrs.frozen(eq=False)
class Declarations:
    """A schedule's declared parts, by name and by kind, in the order of `PARTS` and then of declaration.

    Args:
        name: The schedule's name.
        cluster: The axes of the cluster, and how many CTAs lie along each.
        parts: All parts, by name.
        bodies: The method that each role runs, unbound.
        befores: The method that each role runs before its first tile.
        names: The name of each part. A part that has been replaced has the name of its replacement.
        queue: (slots, words of 4 bytes in a slot) of the ring of tiles, if a scheduler hands tiles out at run time.
        bounded: Dimensions along which output tiles have their own bounds.
        relations: Dimensions whose extents are fixed or follow from other extents.
    """

    name: str
    cluster: Mapping[str, int]
    parts: dict[str, Part]
    bodies: dict[str, Body]
    befores: dict[str, Body]
    names: dict[Part, str]
    queue: tuple[int, int] | None = None
    bounded: tuple[str, ...] = ()
    relations: tuple[Dim, ...] = ()

    roles = _Kind(Role)
    rings = _Kind(BarrierRing)
    loads = _Kind(LoadStage)
    shared = _Kind(SharedStage)
    stages = _Kind(SlotStage)  # everything that lies in slots of rings: loads first
    tokens = _Kind(TokenStage)
    scratches = _Kind(Scratch)
    matmuls = _Kind(Wgmma)
    register_tiles = _Kind(RegisterTile)
    stores = _Kind(StoreStage)
    turnstiles = _Kind(Turnstile)
    tables = _Kind(Table)

    def name_of(self, part: Part) -> str:
        """The name of *part*. Raises `InputError` if the schedule does not declare it."""
        if part not in self.names:
            raise _missing(self.name, type(part).__name__, part)
        return self.names[part]

    @functools.cached_property
    def arguments(self) -> tuple[str, ...]:
        """The parts that tensors are passed for, in the order of a call."""
        return (*self.inputs, *self.tables, *self.stores)

    @property
    def inputs(self) -> dict[str, LoadStage]:
        """The loads that have their own tensors. (Other loads load results of the kernel, or from tensors of these loads.)"""
        return {name: load for name, load in self.loads.items() if load.result is None and load.input is None}

    def tensor_of(self, name: str) -> str:
        """The argument that the load called *name* loads from."""
        other = self.loads[name].result or self.loads[name].input
        return name if other is None else self.name_of(other)

    @property
    def in_place(self) -> tuple[tuple[str, str], ...]:
        """(output, input) of each two that may be one tensor."""
        stores = self.stores.items()
        return tuple((name, self.name_of(load)) for name, store in stores for load in store.overwrites)

    def stages_of(self, ring: str) -> dict[str, SlotStage]:
        """The stages in the slots of the ring called *ring*."""
        return {name: stage for name, stage in self.stages.items() if self.name_of(stage.ring) == ring}


def check_names(attribute: str, names: Any, known: tuple[str, ...]) -> None:
    """Raises `InputError` unless *names*, the value of an attribute, is a tuple of some that are *known*."""
    if not isinstance(names, tuple) or not all(isinstance(name, str) for name in names):
        raise InputError(attribute, names, "is a tuple of names of stages", 'e.g. ("a",)')
    for name in names:
        rule = f"names no tensor of a call; these are {', '.join(known) or 'none'}"
        require(name in known, attribute, name, rule, "rename it, or leave it out")


def check_roles(attribute: str, roles: Any) -> None:
    """Raises `InputError` unless *roles*, the value of an attribute, has roles by name."""
    if not isinstance(roles, Mapping) or not all(isinstance(role, Role) for role in roles.values()):
        raise InputError(attribute, roles, "is a dictionary of roles by name", "leave it out")


def declare(schedule: object, cluster: Mapping[str, int], earlier: tuple[tuple[str, Part], ...] = ()) -> Declarations:
    """The declared parts of *schedule*: attributes of its classes, base classes first, and then of the instance.

    Args:
        schedule: The instance.
        cluster: The axes of the cluster, and how many CTAs lie along each.
        earlier: Parts that the instance had under these names earlier, or could have had. Other parts may refer to them.

    Raises:
        InputError: A part refers to a part that is not declared, a part has two names, a role has two bodies, a body has no
            role, or a method hides a body.
    """
    kind = type(schedule)
    classes = [item for cls in reversed(kind.__mro__) for item in vars(cls).items()]
    parts: dict[str, Part] = {}
    had: dict[Part, str] = {}
    for name, value in (*classes, *vars(schedule).items()):
        if isinstance(value, PARTS):
            parts[name] = value
            had[value] = name
        else:
            parts.pop(name, None)  # None, for one, in the place of a part that a base class has
    had = {**{part: name for name, part in earlier}, **had}
    names = {part: name for part, name in had.items() if _kind(parts.get(name)) is _kind(part)}
    of: dict[Part, str] = {}
    for name, part in parts.items():
        if of.setdefault(part, name) != name:
            rule = f"is declared as {of[part]} already, and a part has one name"
            fix = "declare a second one, or set one of the two to None"
            raise InputError(f"{kind.__name__}.{name}", part, rule, fix)
    names.update(of)
    replaced = _Replaced(kind.__name__, parts, names)
    parts = {name: replaced.now(p) for each in PARTS for name, p in parts.items() if isinstance(p, each)}
    check_cluster(cluster)
    return Declarations(kind.__name__, dict(cluster), parts, *_bodies(kind, names, had), names)


class _Replaced:
    """Copies of parts of *schedule*. A copy refers to the parts that now have the names of the parts it was declared with."""

    def __init__(self, schedule: str, parts: dict[str, Part], names: dict[Part, str]):
        self.schedule, self.parts, self.names = schedule, parts, names
        self.made: dict[Part, Part] = {}

    def now(self, part: Part) -> Part:
        """The part that replaces *part*: a copy that refers to replacements; *part* itself if nothing was replaced."""
        name = self.names[part]
        part = self.parts[name]
        if part not in self.made:
            fields = {field: self._value(value, f"{name}.{field}") for field, value in fields_of(part)}
            fields = {field: value for field, value in fields.items() if value != getattr(part, field)}
            self.made[part] = made = changed(part, **fields) if fields else part
            if fields:
                attrs.validate(made)
                self.names[made] = name
        return self.made[part]

    def _value(self, value: Any, argument: str) -> Any:
        if isinstance(value, tuple):
            made = tuple(self._value(item, argument) for item in value)
            return value._make(made) if hasattr(value, "_make") else made
        if isinstance(value, PARTS) and value not in self.names:
            raise _missing(self.schedule, argument, value)
        return self.now(value) if isinstance(value, PARTS) else value


def _missing(schedule: str, argument: str, part: Part) -> InputError:
    rule = f"is a {type(part).__name__} that {schedule} does not declare"
    return InputError(argument, part, rule, "assign it to an attribute of the schedule")


def _kind(part: object) -> type | None:
    return next((kind for kind in PARTS if isinstance(part, kind)), None)


def fields_of(part: Part) -> list[tuple[str, Any]]:
    """The values with which *part* was declared, by name: its fields, and attributes that a subclass has set."""
    fields = [(field.name, getattr(part, field.name)) for field in attrs.fields(type(part))]
    return [*fields, *getattr(part, "__dict__", {}).items()]


def _bodies(kind: type, names: Mapping[Part, str], had: Collection[Part]) -> tuple[dict[str, Body], dict[str, Body]]:
    """(the body of each role, its method before the first tile) by the role's name, from the most derived class that has one.

    Args:
        names: The names of the schedule's parts.
        had: Parts that the schedule has, or had earlier, or that base classes have. A body is left out if its role is among
            these, but is no part any more.
    """
    bodies: tuple[dict[str, Body], dict[str, Body]] = ({}, {})
    for cls in kind.__mro__:
        own: dict[str, str] = {}
        for name, method in vars(cls).items():
            mark = mark_of(method)
            if mark is None or (mark[0] in had and mark[0] not in names):
                continue
            role, before = mark
            rule = f"is the body of a role that {kind.__name__} does not declare, so that nothing would run it"
            fix = "assign the role to an attribute of the schedule"
            require(role in names, f"{cls.__name__}.{name}", role, rule, fix)
            called = f"{names[role]}.before" if before else names[role]
            if called in own:
                rule = f"is the second body of role {called}, beside {own[called]}"
                raise InputError(f"{cls.__name__}.{name}", method, rule, "keep one, or declare a role for each")
            own[called] = name
            if names[role] not in bodies[before]:
                _check_visible(kind, name, method, called)
                bodies[before][names[role]] = method
    return bodies


def _check_visible(kind: type, name: str, method: Body, role: str) -> None:
    """Raises `InputError` if another method of this name hides a body."""
    cls = next(cls for cls in kind.__mro__ if name in vars(cls))
    other = vars(cls)[name]
    rule = f"hides the body of role {role}, which {method.__qualname__} is"
    fix = f"decorate it with @{role}.jit, or give it another name"
    require(other is method, f"{cls.__name__}.{name}", other, rule, fix)


# ---- equality --------------------------------------------------------------------------------------------------------
#
# Equality of schedules: two are equal if everything that a plan, or a body, can read of them is equal.


def same(one: Declarations, other: Declarations, of_one: Mapping[str, Any], of_other: Mapping[str, Any]) -> bool:
    """Whether two schedules of one type have the same declarations and the same other attributes.

    Parts are the same if their fields are the same; a field that is another part counts by its name. Values that define no
    equality are the same if they have the same type and attributes. A function is the same only as itself.

    Args:
        one: Declared parts of the first schedule.
        other: Declared parts of the second schedule.
        of_one: Attributes of the first schedule that are no parts, by name.
        of_other: Attributes of the second schedule that are no parts, by name.
    """
    parts = [{name: (type(part), dict(fields_of(part))) for name, part in of.parts.items()} for of in (one, other)]
    return _Comparison(one, other).same((parts[0], of_one), (parts[1], of_other))


def key_of(declared: Declarations) -> tuple[Any, ...]:
    """A hashable value, equal for equal schedules."""
    parts = ((name, type(part), getattr(part, "tile", None)) for name, part in declared.parts.items())
    return declared.name, *parts


class _Comparison:
    def __init__(self, one: Declarations, other: Declarations):
        self.one, self.other = one, other
        self.assumed: set[tuple[int, int]] = set()  # pairs that are being compared

    def same(self, one: Any, other: Any) -> bool:
        if one is other:
            return True
        if isinstance(one, PARTS) and isinstance(other, PARTS):
            name = self.one.names.get(one)
            return name is not None and name == self.other.names.get(other)
        if type(one) is not type(other):
            return False
        if isinstance(one, Mapping):
            return list(one) == list(other) and all(map(self.same, one.values(), other.values()))
        if isinstance(one, (tuple, list)):
            return len(one) == len(other) and all(map(self.same, one, other))
        if any("__eq__" in vars(cls) for cls in type(one).__mro__[:-1]):  # but for object's
            return _equal(one, other)
        if callable(one) or not hasattr(one, "__dict__"):
            return False
        if (id(one), id(other)) in self.assumed:
            return True
        self.assumed.add((id(one), id(other)))
        return self.same(_attributes(one), _attributes(other))


def _equal(one: Any, other: Any) -> bool:
    try:
        return bool(one == other)
    except (RuntimeError, TypeError, ValueError):  # arrays, for one, have no single answer
        return False


def _attributes(value: Any) -> dict[str, Any]:
    """The attributes of *value*, except attributes that it has computed from the others."""
    kind = type(value)
    return {n: v for n, v in vars(value).items() if not isinstance(getattr(kind, n, None), functools.cached_property)}


# ---- placement -------------------------------------------------------------------------------------------------------
#
# Where roles run: which warps, which branches of the kernel, and how many registers a thread each warpgroup gets.


#: Warpgroups in the CTA -> registers a thread of the warpgroups that only move data.
LOAD_REGISTERS = {2: 40, 3: 40, 4: 32}


def place_roles(declared: Declarations, shared: bool = False) -> tuple[dict[str, RoleWarps], int]:
    """Roles of single warps first, side by side; roles of whole warpgroups after them, from a multiple of 4 on. Where a
    multiprocessor is *shared* by several CTAs that multiply, the other way: no warps are left out, and none sets registers."""
    placed: dict[str, RoleWarps] = {}
    warp = 0
    for name, role in sorted(declared.roles.items(), key=lambda item: item[1].by_warpgroup != shared):
        if role.by_warpgroup:
            warp = ceil_div(warp, 4) * 4
        placed[name] = RoleWarps(name, warp, role.warps, role.registers, role.teams, role.early, role.dependents)
        warp += role.warps
    if any(role.registers for role in declared.roles.values()):
        warp = ceil_div(warp, 4) * 4
    require(warp <= 32, "roles", f"{warp} warps", "a CTA has at most 32 warps (1024 threads)", "use fewer")
    return placed, warp


def launch_registers(warps: int, target: Arch, ctas: int = 1) -> int:
    """How many registers a thread has at launch, if a CTA has *warps* warps and *ctas* CTAs share a multiprocessor. The
    register file is divided evenly.

    Every fourth warp has its registers in the same quarter of the register file.
    """
    return min(255, target.registers // (ceil_div(warps * ctas, 4) * 4 * 32) // 8 * 8)


def share_registers(
    declared: Declarations, roles: dict[str, RoleWarps], warps: int, launch: int, shared: bool = False
) -> dict[int, int]:
    """How many registers a thread of each warpgroup has after setmaxnreg. Empty without setmaxnreg, and if a multiprocessor is
    *shared*.

    setmaxnreg moves registers among the warpgroups of a CTA, so their sum must not exceed *launch* registers x warpgroups.
    """
    asked = {name: role.registers for name, role in declared.roles.items() if role.registers}
    if warps % 4 or warps < 8:
        for name, count in asked.items():
            raise InputError(f"Role({name}).registers", count, "needs two or more whole warpgroups", "leave it out")
        return {}
    if not asked and (shared or not declared.matmuls):
        return {}
    groups = warps // 4
    budget = launch // 8 * 8 * groups
    given: dict[int, int] = {}
    for group in range(groups):
        inside = _of_group(group, roles.values())
        for role in inside:
            if role.registers and given.setdefault(group, role.registers) != role.registers:
                rule = f"must be {given[group]}, as for another role in warpgroup {group}: setmaxnreg sets all 4 warps"
                raise InputError(f"Role({role.name}).registers", role.registers, rule, "give both the same number")
        if group not in given and not any(declared.roles[role.name].by_warpgroup for role in inside):
            given[group] = LOAD_REGISTERS.get(groups, 24)
    rest = [group for group in range(groups) if group not in given]
    left = budget - sum(given.values())
    given |= {group: min(240, left // len(rest) // 8 * 8) for group in rest}
    total = sum(given.values())
    if total > budget or min(given.values()) < 24:
        rule = f"are {total} registers a thread over {groups} warpgroups, of {launch} x {groups} = {budget} at launch"
        raise InputError("Role(registers)", dict(sorted(given.items())), rule, "ask for fewer in some role")
    return dict(sorted(given.items()))


def _of_group(group: int, roles: Iterable[RoleWarps]) -> list[RoleWarps]:
    """Those of *roles* that run on some warp of a warpgroup."""
    return [role for role in roles if role.first_warp < 4 * group + 4 and role.first_warp + role.warps > 4 * group]


def branches_of(plan: Plan) -> list[tuple[int, int, int | None, list[RoleWarps]]]:
    """(first warp, warps, registers, roles) of each branch of the kernel.

    Warpgroups that run the same roles share a branch: setmaxnreg stands at its top, and their code exists once.
    """
    if not plan.registers:
        roles = sorted(plan.roles, key=lambda role: role.warps > 1)  # what loads stands first: code is fetched in order
        return [(role.first_warp, role.warps, None, [role]) for role in roles]
    branches: list[tuple[int, int, int | None, list[RoleWarps]]] = []
    for group in range(plan.warps // 4):
        roles = _of_group(group, plan.roles)
        if branches and roles and branches[-1][3] == roles and branches[-1][2] == plan.registers[group]:
            first, count, registers, _ = branches[-1]
            branches[-1] = (first, count + 4, registers, roles)
        else:
            branches.append((4 * group, 4, plan.registers[group], roles))
    return branches


def without_role(plan: Plan) -> list[tuple[int, int]]:
    """(first warp, warps) of the warps that only fill up a warpgroup."""
    roles = sorted(plan.roles, key=lambda role: role.first_warp)
    ends = [0, *(role.first_warp + role.warps for role in roles)]
    starts = [*(role.first_warp for role in roles), plan.warps]
    return [(end, start - end) for end, start in zip(ends, starts, strict=True) if start > end]
