"""The matmuls of a plan: which role executes each, and what wgmma takes."""

from __future__ import annotations

from tmapipe.dtypes import DType, bf16, fp8_e4m3, fp8_e5m2, fp16, fp32, int8, tf32
from tmapipe.errors import InputError
from tmapipe.matmul import Wgmma
from tmapipe.plan.arch import Arch
from tmapipe.plan.declarations import Declarations
from tmapipe.plan.distributed import MatmulRegisters, registers_of, widest
from tmapipe.role import Role
from tmapipe.stage import SharedStage, TmaLoadStage

__all__ = ["check_matmuls"]

FEW_SUMS = 8  # a thread, as was seen for tiles of every 64 to 256 rows and 8 to 32 columns


def check_matmuls(declared: Declarations, types: dict[str, DType], target: Arch, launch: int) -> dict[str, str]:
    """The role that executes each matmul. Raises `InputError` for shapes, types or roles that wgmma does not take.

    Args:
        launch: Registers a thread at launch.
    """
    found: dict[str, str] = {}
    for name, mma in declared.matmuls.items():
        if not target.wgmma:
            raise InputError(f"Wgmma({name})", target.name, "wgmma exists on sm_90a only", "plan for sm_90a")
        role, (m, k), (n, kb) = _role_of(declared, name, mma), *mma.extents
        of_a, of_b = declared.name_of(mma.a), declared.name_of(mma.b)
        b = types[of_b]
        a = b if isinstance(mma.a, Wgmma) else types[of_a]
        if isinstance(mma.a, Wgmma) and b not in (bf16, fp16):
            rule = "takes a from registers, where sums lie as wgmma wants them, of 16-bit types alone"
            raise InputError(f"Wgmma({name})", f"{of_a} x {b}", rule, "use bf16 or fp16, or a through a SharedStage")
        warpgroups = role.warps // 4 // role.teams
        if k != kb:
            raise InputError(f"{of_b}.tile", mma.b.tile, f"its k extent differs from {of_a}'s {k}", "use one k")
        if not (a == b and a in (bf16, fp16, tf32, int8)) and not {a, b} <= {fp8_e4m3, fp8_e5m2}:
            rule = "takes two operands of one type, bf16, fp16, tf32 or int8, or two of fp8_e4m3 and fp8_e5m2"
            to_tf32 = 'give both stages dtype="tf32" (a Gemm\'s a and b: Operand(dtype="tf32"))'
            fix = to_tf32 if {a, b} == {fp32} else "convert the tensors"
            raise InputError(f"Wgmma({name})", f"{a} x {b}", rule, fix)
        if any(mma.transposed) and a.bytes != 2:
            rule = "takes operands of 8 and 32 bits contiguous along k only (PTX ISA, wgmma.mma_async: imm-trans)"
            raise InputError(f"Wgmma({name})", f"{a} x {b}", rule, "transpose them in memory, or use bf16")
        if mma.promote and a.integer:
            rule = "is for sums in fp32; those of int8 are exact"
            raise InputError(f"Wgmma({name}, promote)", True, rule, "leave it out")
        if m % (64 * warpgroups):
            rule = f"wgmma takes 64 rows, so a multiple of 64 x {warpgroups} warpgroups"
            raise InputError(f"{of_a}.tile[{int(mma.transposed[0])}]", m, rule, f"e.g. {64 * warpgroups}")
        if n % 8 or n > 256:
            rule = "wgmma takes n a multiple of 8 up to 256"
            raise InputError(f"{of_b}.tile[{int(mma.transposed[1])}]", n, rule, "e.g. 128 or 256")
        if a.integer and n % 16 and n not in (8, 24):
            rule = "of int8, wgmma takes n a multiple of 16, 8 or 24 (PTX ISA, wgmma shapes)"
            raise InputError(f"{of_b}.tile[0]", n, rule, "e.g. 128 or 256")
        if k * a.bytes % 32:
            rule = "wgmma takes 32 bytes of k an instruction"
            raise InputError(f"{of_a}.tile[{1 - int(mma.transposed[0])}]", k, rule, "e.g. 64")
        _check_width(name, mma, m // (64 * warpgroups), launch)
        registers = _registers(mma, role)
        if mma.promote and registers.sums <= FEW_SUMS:
            rule = f"has {registers.sums} sums a thread, and of so few that are promoted ptxas serializes the wgmmas (C7511)"
            raise InputError(f"Wgmma({name}) tile", mma.shape[:2], rule, "use a larger tile, or no promotion")
        _check_accumulators(name, mma, sum(registers), role)
        found[name] = declared.name_of(role)
    _check_together(declared, found)
    return found


def _role_of(declared: Declarations, name: str, mma: Wgmma) -> Role:
    """The role that executes a matmul. Raises `InputError` unless it is clear which."""
    found = _after(mma.b)
    if isinstance(mma.a, Wgmma):
        other = _role_of(declared, declared.name_of(mma.a), mma.a)
        found = [role for role in found if role is other]
    else:
        found = [role for role in found if role in _after(mma.a)]
    if len(found) > 1:
        found = [role for role in found if all(role in stage.ring.phases[-1] for stage in mma.stages)]
    if len(found) != 1:
        rings = dict.fromkeys(declared.name_of(stage.ring) for stage in mma.stages)
        roles = [
            declared.name_of(role) for ring in rings for phase in declared.rings[ring].phases[1:] for role in phase
        ]
        rule = f"needs one role of warpgroups that reads the slots of {' and '.join(rings)}, after whoever fills them"
        raise InputError(f"Wgmma({name})", list(dict.fromkeys(roles)), rule, "Role(warpgroups=2)")
    return found[0]


def _after(stage: TmaLoadStage | SharedStage) -> list[Role]:
    """Roles of warpgroups in the phases after the one that fills a stage's slots."""
    phases = stage.ring.phases
    filled = next(i for i, phase in enumerate(phases) if stage.filler in phase)
    return [role for phase in phases[filled + 1 :] for role in phase if role.by_warpgroup]


def _check_width(name: str, mma: Wgmma, blocks: int, launch: int) -> None:
    """Raises `InputError` for a tile so wide that it would take two instructions, where it cannot be cut."""
    n, most = mma.shape[1], widest(launch)
    if n <= most:
        return
    rule = f"n is at most {most} with {launch} registers a thread at launch: wider tiles take two instructions, "
    fix = "use fewer warpgroups in all, or a narrower tile"
    if mma.transposed[1]:
        rule = rule + "between which rows of b, contiguous along n, are not cut"
        raise InputError(f"Wgmma({name}) tile", mma.shape[:2], rule, fix)
    if blocks > 1 or n > 2 * most:
        raise InputError(f"Wgmma({name}) tile", mma.shape[:2], rule + "of one block of 64 rows a warpgroup", fix)


def _check_together(declared: Declarations, roles: dict[str, str]) -> None:
    """Raises `InputError` if the accumulators of one role, such as a gate and what it gates, leave too few of a thread's
    registers for an epilogue of several. *roles*: matmul -> role."""
    for role_name in dict.fromkeys(roles.values()):
        names = [name for name in roles if roles[name] == role_name]
        role = declared.roles[role_name]
        matmuls = [declared.matmuls[name] for name in names]
        room = {4: 192, 8: 184}.get(role.warps, 112)  # more spills, as the compiler was seen to report
        if any(isinstance(mma.a, Wgmma) for mma in matmuls):  # whose sums become a, where both are counted
            room = _room(role)
        needs = [_registers(mma, role) for mma in matmuls]
        slots = max(need.slot for need in needs)
        if slots and all(mma.shape[0] <= 16 * role.warps // role.teams for mma in matmuls):
            room += 8  # of the sums of a slot, the epilogue has the registers
        needed = sum(need.sums + need.a for need in needs) + slots
        if len(names) > 1 and needed > room:
            several, shapes = " and ".join(f"Wgmma({name})" for name in names), [mma.shape[:2] for mma in matmuls]
            rule = f"need {needed} accumulator registers a thread together; {room} leave room for work with several"
            raise InputError(several, shapes, rule, "use a smaller tile or more warpgroups")


def _registers(mma: Wgmma, role: Role) -> MatmulRegisters:
    return registers_of(mma.shape, role.warps // 4 // role.teams, mma.promote, isinstance(mma.a, Wgmma))


def _check_accumulators(name: str, mma: Wgmma, needed: int, role: Role) -> None:
    """Raises `InputError` if the accumulators leave too few of a thread's registers: of 232 (one or two warpgroups) or 160
    (three) it needs some 32 for all else. With fewer the compiler lets wgmmas wait for each other."""
    room = _room(role)
    if needed > room:
        twice = f", twice {needed // 2} since sums are promoted" if mma.promote else ""
        rule = f"needs {needed} accumulator registers a thread{twice}; "
        rule += f"{room} leave room to work with {role.warps // 4} warpgroups"
        raise InputError(f"Wgmma({name}) tile", mma.shape[:2], rule, "use a smaller tile or more warpgroups")


def _room(role: Role) -> int:
    """Registers that the accumulators of one matmul may take."""
    return 200 if role.warps <= 8 else 128
