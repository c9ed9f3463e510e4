"""Where roles run: which warps, which branches of the kernel, and how many registers a thread each warpgroup gets."""

from __future__ import annotations

from collections.abc import Iterable

from tmapipe.errors import InputError
from tmapipe.integers import ceil_div
from tmapipe.plan.arch import Arch
from tmapipe.plan.declarations import Declarations
from tmapipe.plan.model import Plan, RoleWarps

__all__ = ["branches_of", "launch_registers", "place_roles", "share_registers", "without_role"]

LOAD_REGISTERS = {2: 40, 3: 40, 4: 32}  # warpgroups in the CTA -> registers a thread of those that only move data


def place_roles(declared: Declarations) -> tuple[dict[str, RoleWarps], int]:
    """Roles of single warps first, side by side; roles of whole warpgroups after them, from a multiple of 4 on."""
    placed: dict[str, RoleWarps] = {}
    warp = 0
    for name, role in sorted(declared.roles.items(), key=lambda item: item[1].by_warpgroup):
        if role.by_warpgroup:
            warp = ceil_div(warp, 4) * 4
        placed[name] = RoleWarps(name, warp, role.warps, role.registers, role.teams)
        warp += role.warps
    if any(role.registers for role in declared.roles.values()):
        warp = ceil_div(warp, 4) * 4
    if warp > 32:
        raise InputError("roles", f"{warp} warps", "a CTA has at most 32 warps (1024 threads)", "use fewer")
    return placed, warp


def launch_registers(warps: int, target: Arch) -> int:
    """Registers a thread that a CTA of so many warps is launched with: what the register file divides into.

    Every fourth warp has its registers in the same quarter of it.
    """
    return min(255, target.registers // (ceil_div(warps, 4) * 4 * 32) // 8 * 8)


def share_registers(declared: Declarations, roles: dict[str, RoleWarps], warps: int, launch: int) -> dict[int, int]:
    """Registers a thread by warpgroup, after setmaxnreg; empty without it.

    setmaxnreg moves registers within what the CTA was launched with, so the sum over the warpgroups must not exceed
    *launch* registers x warpgroups.
    """
    asked = {name: role.registers for name, role in declared.roles.items() if role.registers}
    if warps % 4 or warps < 8:
        for name, count in asked.items():
            raise InputError(f"Role({name}).registers", count, "needs two or more whole warpgroups", "leave it out")
        return {}
    if not asked and not declared.matmuls:
        return {}
    groups = warps // 4
    budget = launch // 8 * 8 * groups
    given: dict[int, int] = {}
    for group in range(groups):
        inside = _of_group(group, roles.values())
        for role in inside:
            if role.registers and given.setdefault(group, role.registers) != role.registers:
                rule = f"shares warpgroup {group}, of which setmaxnreg sets all 4 warps, with a role of {given[group]}"
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
        return [(role.first_warp, role.warps, None, [role]) for role in plan.roles]
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
