"""Where roles run: which warps, which branches of the kernel, and how many registers a thread each warpgroup gets."""

from __future__ import annotations

from tmapipe.errors import InputError
from tmapipe.integers import ceil_div
from tmapipe.plan.arch import Arch
from tmapipe.plan.declarations import Declarations
from tmapipe.plan.model import Plan, RoleWarps

__all__ = ["branches_of", "launch_registers", "place_roles", "share_registers", "without_role"]

LOAD_REGISTERS = {2: 40, 3: 40, 4: 32}  # warpgroups in the CTA -> registers a thread of those that only move data


def place_roles(declared: Declarations) -> tuple[dict[str, RoleWarps], int]:
    """Roles of single warps first, side by side; roles of whole warpgroups after them, from a multiple of 4 on."""
    small = {name: role for name, role in declared.roles.items() if not role.by_warpgroup}
    large = {name: role for name, role in declared.roles.items() if role.by_warpgroup}
    placed: dict[str, RoleWarps] = {}
    warp = 0
    for name, role in small.items():
        placed[name] = RoleWarps(name, warp, role.warps, role.registers, role.teams)
        warp += role.warps
    if large or any(role.registers for role in small.values()):
        warp = -(-warp // 4) * 4
    for name, role in large.items():
        placed[name] = RoleWarps(name, warp, role.warps, role.registers, role.teams)
        warp += role.warps
    if warp > 32:
        raise InputError("roles", f"{warp} warps", "a CTA has at most 32 warps (1024 threads)", "use fewer")
    return placed, warp


def launch_registers(warps: int, target: Arch) -> int:
    """Registers a thread that a CTA of so many warps is launched with: what the register file divides into.

    Every fourth warp has its registers in the same quarter of it.
    """
    return min(255, target.registers // (ceil_div(warps, 4) * 4 * 32) // 8 * 8)


def share_registers(
    declared: Declarations, roles: dict[str, RoleWarps], warps: int, target: Arch
) -> tuple[dict[int, int], int]:
    """Registers a thread: at launch (what the register file divides into) and, by warpgroup, after setmaxnreg.

    setmaxnreg moves registers within what the CTA was launched with, so the sum over the warpgroups must not exceed
    launch registers x warpgroups.
    """
    launch = launch_registers(warps, target)
    wanted = any(role.registers for role in declared.roles.values()) or declared.matmuls
    if not wanted or warps % 4 or warps < 8:
        for name, role in declared.roles.items():
            if role.registers:
                rule = "needs two or more whole warpgroups"
                raise InputError(f"Role({name}).registers", role.registers, rule, "leave it out")
        return {}, launch
    groups = warps // 4
    budget = launch // 8 * 8 * groups
    given: dict[int, int] = {}
    heavy: set[int] = set()
    for placed in roles.values():
        for group in range(placed.first_warp // 4, (placed.first_warp + placed.warps - 1) // 4 + 1):
            if declared.roles[placed.name].by_warpgroup:
                heavy.add(group)
            if placed.registers is not None:
                if given.setdefault(group, placed.registers) != placed.registers:
                    rule = f"shares warpgroup {group} with a role that asked for {given[group]}; setmaxnreg sets all 4 warps"
                    fix = "give both the same number"
                    raise InputError(f"Role({placed.name}).registers", placed.registers, rule, fix)
    for group in range(groups):
        if group not in given and group not in heavy:
            given[group] = LOAD_REGISTERS.get(groups, 24)
    rest = [group for group in range(groups) if group not in given]
    left = budget - sum(given.values())
    for group in rest:
        given[group] = min(240, left // len(rest) // 8 * 8)
    if sum(given.values()) > budget or any(count < 24 for count in given.values()):
        rule = (
            f"{sum(given.values())} registers a thread over {groups} warpgroups, but the CTA is launched with {launch} x "
            f"{groups} = {budget}"
        )
        raise InputError("Role(registers)", dict(sorted(given.items())), rule, "ask for fewer in some role")
    return dict(sorted(given.items())), launch


def branches_of(plan: Plan) -> list[tuple[int, int, int | None, list[RoleWarps]]]:
    """(first warp, warps, registers, roles) of each branch of the kernel.

    Warpgroups that run the same roles share a branch: setmaxnreg stands at its top, and their code exists once.
    """
    if not plan.registers:
        return [(role.first_warp, role.warps, None, [role]) for role in plan.roles]
    branches: list[tuple[int, int, int | None, list[RoleWarps]]] = []
    for group in range(plan.warps // 4):
        roles = [r for r in plan.roles if r.first_warp < 4 * group + 4 and r.first_warp + r.warps > 4 * group]
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
