"""From declarations to a `Plan`: the one place where counts, bytes, offsets, warps and registers are derived."""

from __future__ import annotations

import math
from typing import Any

import attrs

from tmapipe import stage as stages_
from tmapipe.arch import Arch, arch_named
from tmapipe.barrier import BarrierRing, Slot
from tmapipe.cluster import check_cluster, peer_pattern
from tmapipe.dtypes import DType, bf16
from tmapipe.errors import InputError
from tmapipe.plan import (
    Barrier,
    Buffer,
    Load,
    Matmul,
    NamedBarrier,
    Plan,
    Ring,
    RoleWarps,
    Store,
)
from tmapipe.role import Role
from tmapipe.stage import SharedStage, TmaLoadStage
from tmapipe.store_pipeline import TmaStoreStage
from tmapipe.turnstile import Turnstile
from tmapipe.wgmma import Wgmma

__all__ = ["Declarations", "make_plan"]

MAX_NAMED_BARRIERS = 16  # a CTA; id 0 is bar.sync 0 (PTX ISA)
MAX_BOX = 256  # elements along one extent of a TMA box (CUDA driver API, cuTensorMapEncodeTiled)
MAX_SLOTS = 12  # rings that fill shared memory stop here: more stages than this hide no more latency
LOAD_REGISTERS = {2: 40, 3: 40, 4: 32}  # warpgroups in the CTA -> registers a thread of those that only move data


@attrs.frozen
class Declarations:
    """A schedule's declared parts, by kind, in the order of declaration."""

    name: str
    roles: dict[str, Role]
    rings: dict[str, BarrierRing]
    loads: dict[str, TmaLoadStage]
    shared: dict[str, SharedStage]
    matmuls: dict[str, Wgmma]
    stores: dict[str, TmaStoreStage]
    turnstiles: dict[str, Turnstile]
    cluster: dict[str, int]

    def stages_of(self, ring: BarrierRing) -> dict[str, TmaLoadStage | SharedStage]:
        both: dict[str, TmaLoadStage | SharedStage] = {**self.loads, **self.shared}
        return {name: stage for name, stage in both.items() if stage.ring.name == ring.name}


def make_plan(declared: Declarations, dtypes: dict[str, DType], arch: str) -> Plan:
    """Derives every number. dtypes: element type of each bound tensor, by stage name (bf16 where neither the stage nor
    the tensor says). Raises `InputError` for declarations that no correct kernel could be built for."""
    target = arch_named(arch)
    check_cluster(declared.cluster)
    _check_names(declared)
    types = _resolve_types(declared, dtypes)
    roles, warps = _place_roles(declared)
    matmul_roles = _check_matmuls(declared, types, target)
    registers, launch = _share_registers(declared, roles, warps, target)

    auto = [ring for ring in declared.rings.values() if ring.stages is None]
    if len(auto) > 1:
        raise InputError(
            "BarrierRing(stages)", [r.name for r in auto], "can be left out for one ring only", "give the others a number"
        )
    candidates = range(MAX_SLOTS, 0, -1) if auto else [0]
    for count in candidates:
        layout = _Layout(declared, types, roles, matmul_roles, auto_stages=count)
        if layout.bytes <= target.smem:
            break
    else:
        count = 1
    if layout.bytes > target.smem:
        parts = ", ".join(f"{b.name} {b.stages} x {b.slot_bytes}" for b in layout.buffers)
        raise InputError(
            "shared memory",
            layout.bytes,
            f"{target.name} has {target.smem} bytes a CTA; the plan has {parts} and {len(layout.barriers)} barriers",
            "use fewer stages or a smaller tile",
        )
    return Plan(
        name=declared.name,
        arch=target.name,
        cluster=dict(declared.cluster),
        roles=tuple(roles.values()),
        barriers=tuple(layout.barriers),
        named_barriers=tuple(layout.named_barriers),
        buffers=tuple(layout.buffers),
        rings=tuple(layout.rings),
        loads=tuple(layout.loads),
        stores=tuple(layout.stores),
        matmuls=tuple(layout.matmuls),
        arguments=(*declared.loads, *declared.stores),
        warps=warps,
        smem_bytes=layout.bytes,
        launch_registers=launch,
        registers=registers,
    )


# ---- element types, names ----------------------------------------------------------------------------------------------


def _check_names(declared: Declarations) -> None:
    reserved = set(dir(Slot)) | {"index", "end", "open", "tile_count", "finish"}
    for name in (*declared.loads, *declared.shared, *declared.stores):
        if name in reserved:
            raise InputError("stage name", name, "is taken by the slot's own attributes", "rename the stage")


def _resolve_types(declared: Declarations, dtypes: dict[str, DType]) -> dict[str, DType]:
    types: dict[str, DType] = {}
    for name, part in {**declared.loads, **declared.shared, **declared.stores}.items():
        given = dtypes.get(name)
        if part.dtype is not None and given is not None and given != part.dtype:
            raise InputError(name, given.name, f"is declared with element type {part.dtype}", "convert the tensor")
        types[name] = part.dtype or given or bf16
    for name, store in declared.stores.items():
        if isinstance(store.source, TmaLoadStage):
            loaded = types[store.source.name]
            if name in dtypes and dtypes[name] != loaded:
                raise InputError(name, dtypes[name].name, f"is stored from slots of {loaded}", f"use a tensor of {loaded}")
            types[name] = loaded
    return types


# ---- roles, registers --------------------------------------------------------------------------------------------------


def _place_roles(declared: Declarations) -> tuple[dict[str, RoleWarps], int]:
    """Roles of single warps first, side by side; roles of whole warpgroups after them, from a multiple of 4 on."""
    small = [r for r in declared.roles.values() if not r.by_warpgroup]
    large = [r for r in declared.roles.values() if r.by_warpgroup]
    placed: dict[str, RoleWarps] = {}
    warp = 0
    for role in small:
        placed[role.name] = RoleWarps(role.name, warp, role.warps, role.registers, role.teams)
        warp += role.warps
    if large or any(role.registers for role in small):
        warp = -(-warp // 4) * 4
    for role in large:
        placed[role.name] = RoleWarps(role.name, warp, role.warps, role.registers, role.teams)
        warp += role.warps
    if warp > 32:
        raise InputError("roles", f"{warp} warps", "a CTA has at most 32 warps (1024 threads)", "use fewer")
    return placed, warp


def _share_registers(
    declared: Declarations, roles: dict[str, RoleWarps], warps: int, target: Arch
) -> tuple[dict[int, int], int]:
    """Registers a thread: at launch (what the register file divides into) and, by warpgroup, after setmaxnreg.

    setmaxnreg moves registers within what the CTA was launched with, so the sum over the warpgroups must not exceed
    launch registers x warpgroups.
    """
    launch = min(255, target.registers // (warps * 32) // 8 * 8)
    wanted = any(role.registers for role in declared.roles.values()) or declared.matmuls
    if not wanted or warps % 4 or warps < 8:
        for role in declared.roles.values():
            if role.registers:
                raise InputError(
                    f"Role({role.name}).registers", role.registers, "needs two or more whole warpgroups", "leave it out"
                )
        return {}, launch
    groups = warps // 4
    budget = min(launch, target.registers // (warps * 32) // 8 * 8) * groups
    given: dict[int, int] = {}
    heavy: set[int] = set()
    for role in roles.values():
        for group in range(role.first_warp // 4, (role.first_warp + role.warps - 1) // 4 + 1):
            declared_role = declared.roles[role.name]
            if declared_role.by_warpgroup:
                heavy.add(group)
            if role.registers is not None:
                if given.setdefault(group, role.registers) != role.registers:
                    raise InputError(
                        f"Role({role.name}).registers",
                        role.registers,
                        f"shares warpgroup {group} with a role that asked for {given[group]}; setmaxnreg sets all 4 warps",
                        "give both the same number",
                    )
    for group in range(groups):
        if group not in given and group not in heavy:
            given[group] = LOAD_REGISTERS.get(groups, 24)
    rest = [group for group in range(groups) if group not in given]
    left = budget - sum(given.values())
    for group in rest:
        given[group] = min(240, left // len(rest) // 8 * 8)
    if sum(given.values()) > budget or any(count < 24 for count in given.values()):
        raise InputError(
            "Role(registers)",
            dict(sorted(given.items())),
            f"{sum(given.values())} registers a thread over {groups} warpgroups, but the CTA is launched with {launch} x "
            f"{groups} = {budget}",
            "ask for fewer in some role",
        )
    return dict(sorted(given.items())), launch


# ---- wgmma -------------------------------------------------------------------------------------------------------------


def _check_matmuls(declared: Declarations, types: dict[str, DType], target: Arch) -> dict[str, Role]:
    """The role that executes each matmul. Raises `InputError` for shapes, types or roles that wgmma does not take."""
    found: dict[str, Role] = {}
    for name, mma in declared.matmuls.items():
        if not target.wgmma:
            raise InputError(f"Wgmma({name})", target.name, "wgmma exists on sm_90a only", "plan for sm_90a")
        phase = mma.a.ring.phases[-1]
        groups = [role for role in phase if declared.roles[role.name].by_warpgroup]
        if len(groups) != 1:
            raise InputError(
                f"Wgmma({name})", phase, "needs one role of warpgroups in the ring's last phase", "Role(warpgroups=2)"
            )
        role = declared.roles[groups[0].name]
        (m, k), (n, kb) = mma.a.tile, mma.b.tile
        a, b = types[mma.a.name], types[mma.b.name]
        warpgroups = role.warps // 4 // role.teams
        if k != kb:
            raise InputError(f"{mma.b.name}.tile", mma.b.tile, f"its k extent differs from {mma.a.name}'s {k}", "use one k")
        if a != b or a.name not in ("bf16", "fp16"):
            raise InputError(
                f"Wgmma({name})", f"{a} x {b}", "takes two operands of one type, bf16 or fp16", "convert the tensors"
            )
        if m % (64 * warpgroups):
            raise InputError(
                f"{mma.a.name}.tile[0]", m, f"wgmma takes 64 rows, so a multiple of 64 x {warpgroups} warpgroups", "e.g. 128"
            )
        if n % 8 or n > 256:
            raise InputError(f"{mma.b.name}.tile[0]", n, "wgmma takes n a multiple of 8 up to 256", "e.g. 128 or 256")
        if k * a.bytes % 32:
            raise InputError(f"{mma.a.name}.tile[1]", k, "wgmma takes 32 bytes of k an instruction", "e.g. 64")
        accumulators = m * n // (128 * warpgroups)
        if accumulators > 208:
            raise InputError(
                f"Wgmma({name}) tile",
                (m, n),
                f"needs {accumulators} accumulator registers a thread over {warpgroups} warpgroups; 208 leave room to work",
                "use a smaller tile or more warpgroups",
            )
        found[name] = role
    return found


# ---- shared memory, barriers, transfers --------------------------------------------------------------------------------


class _Layout:
    """Shared memory from offset 0: all mbarriers (8 bytes each), then the buffers at their alignment."""

    def __init__(
        self,
        declared: Declarations,
        types: dict[str, DType],
        roles: dict[str, RoleWarps],
        matmul_roles: dict[str, Role],
        auto_stages: int,
    ):
        self.declared, self.types, self.roles, self.matmul_roles = declared, types, roles, matmul_roles
        self.barriers: list[Barrier] = []
        self.named_barriers: list[NamedBarrier] = []
        self.buffers: list[Buffer] = []
        self.rings: list[Ring] = []
        self.loads: list[Load] = []
        self.stores: list[Store] = []
        self.matmuls: list[Matmul] = []
        self.bytes = 0
        self.slots = {name: ring.stages or auto_stages for name, ring in declared.rings.items()}
        for ring in declared.rings.values():
            self._barriers(ring)
        for name, turnstile in declared.turnstiles.items():
            self._turnstile(name, roles[turnstile.role.name])
        self.of: dict[str, Buffer] = {}
        for name, part in {**declared.loads, **declared.shared}.items():
            self.of[name] = self._buffer(name, self.slots[part.ring.name], part.tile, types[name], self._swizzle(name, part))
        for name, load in declared.loads.items():
            self._load(name, load)
        for name, mma in declared.matmuls.items():
            self._matmul(name, mma)
        for name, store in declared.stores.items():
            self._store(name, store)

    def _take(self, nbytes: int, alignment: int) -> int:
        offset = -(-self.bytes // alignment) * alignment
        self.bytes = offset + nbytes
        return offset

    def _barriers(self, ring: BarrierRing) -> None:
        inside = self.declared.stages_of(ring)
        cluster = self.declared.cluster
        groups = {
            tuple(axis for axis in load.multicast.axes if cluster.get(axis, 1) > 1): None
            for load in inside.values()
            if isinstance(load, TmaLoadStage) and load.multicast is not None and load.multicast.size(cluster) > 1
        }
        union = 0
        for axes in groups:
            union |= peer_pattern(cluster, axes)
        peers = max(1, union.bit_count())
        armed: dict[str, int] = {}
        for name, part in inside.items():
            if isinstance(part, TmaLoadStage):
                role = part.loader.name
                armed[role] = armed.get(role, 0) + math.prod(part.tile) * self.types[name].bytes
        writers = {part.writer.name for part in inside.values() if isinstance(part, SharedStage)}
        for role in armed:
            if self.roles[role].warps != 1:
                raise InputError(
                    f"Role({role})", f"{self.roles[role].warps} warps", "a role that loads by TMA has one warp", "Role(warps=1)"
                )
        phases = tuple(tuple(role.name for role in phase) for phase in ring.phases)
        signals = tuple(
            role for p, phase in enumerate(phases) for role in phase if p or role not in armed or role in writers
        )
        made = []
        slots = self.slots[ring.name]
        for p, phase in enumerate(phases):
            last = p == len(phases) - 1
            terms = [f"1 expect-tx ({role})" for role in phase if role in armed]
            terms += [f"{self.roles[role].team_warps} warps ({role})" for role in phase if role in signals]
            count = sum(role in armed for role in phase) + sum(self.roles[r].team_warps for r in phase if r in signals)
            formula = " + ".join(terms)
            if last and peers > 1:
                count, formula = count * peers, f"({formula}) x {peers} CTAs"
            label = {0: "full", len(phases) - 1: "free"}.get(p, f"ready{p}")
            offset = self._take(8 * slots, 8)
            made.append(Barrier(f"{ring.name}.{label}", offset, slots, count, formula))
        self.barriers += made
        lag, readers = self._readers(ring)
        for role, held in lag.items():
            if held >= slots:
                raise InputError(
                    f"BarrierRing({ring.name}).stages",
                    slots,
                    f"role {role} holds back {held} slots while it reads the next, so {held + 1} or more are needed",
                    "use more stages or fewer reads in flight",
                )
        self.rings.append(
            Ring(ring.name, slots, phases, tuple(made), armed, signals, lag, readers, tuple(groups), peers)
        )

    def _turnstile(self, name: str, role: RoleWarps) -> None:
        offset = self._take(8 * role.teams, 8)
        self.barriers.append(
            Barrier(f"{name}.turn", offset, role.teams, role.team_warps, f"{role.team_warps} warps (the team before)")
        )

    def _readers(self, ring: BarrierRing) -> tuple[dict[str, int], dict[str, tuple[str, ...]]]:
        lag: dict[str, int] = {}
        readers: dict[str, list[str]] = {}
        for name, mma in self.declared.matmuls.items():
            if mma.a.ring.name == ring.name:
                role = self.matmul_roles[name].name
                readers.setdefault(role, []).append("wgmma")
                lag[role] = max(lag.get(role, mma.in_flight), mma.in_flight)
        for store in self.declared.stores.values():
            if isinstance(store.source, TmaLoadStage) and store.source.ring.name == ring.name:
                role = self._storing_role(store)
                kinds = readers.setdefault(role, [])
                if "tma" not in kinds:
                    kinds.append("tma")
                lag[role] = max(lag.get(role, store.stages), store.stages)
        return lag, {role: tuple(kinds) for role, kinds in readers.items()}

    def _storing_role(self, store: TmaStoreStage) -> str:
        if store.role is not None:
            return store.role.name
        if isinstance(store.source, TmaLoadStage):
            last = store.source.ring.phases[-1]
            if len(last) != 1 or self.roles[last[0].name].warps != 1:
                raise InputError(
                    f"TmaStoreStage({store.name}).role", last, "one role of one warp stores from a slot", "Role(warps=1)"
                )
            return last[0].name
        assert isinstance(store.source, Wgmma)
        return self.matmul_roles[store.source.name].name

    def _swizzle(self, name: str, part: TmaLoadStage | SharedStage) -> int:
        """By default the widest span that divides a row, for slots that wgmma reads; none for others."""
        readers = [mma for mma in self.declared.matmuls.values() if part in (mma.a, mma.b)]
        row = part.tile[-1] * self.types[name].bytes
        if part.swizzle is not None:
            if part.swizzle and row % part.swizzle:
                raise InputError(
                    f"{name}.swizzle", part.swizzle, f"must divide a row of the tile ({row} bytes)", "leave it out"
                )
            return part.swizzle
        if not readers:
            return 0
        return _widest_swizzle(name, row)

    def _buffer(self, name: str, slots: int, tile: tuple[int, ...], dtype: DType, swizzle: int) -> Buffer:
        row = tile[-1] * dtype.bytes
        if row % 16:
            raise InputError(f"{name}.tile", tile, f"a row is {row} bytes, but TMA moves multiples of 16", "widen the tile")
        alignment = 1024 if swizzle else 128
        slot = math.prod(tile) * dtype.bytes
        if slots > 1 and slot % alignment:
            raise InputError(
                f"{name}.tile", tile, f"a slot is {slot} bytes, but slots start at multiples of {alignment}", "use a larger tile"
            )
        buffer = Buffer(name, self._take(slots * slot, alignment), slots, tile, dtype, swizzle)
        self.buffers.append(buffer)
        return buffer

    def _load(self, name: str, load: TmaLoadStage) -> None:
        cluster = self.declared.cluster
        axes = tuple(a for a in (load.multicast.axes if load.multicast else ()) if cluster.get(a, 1) > 1)
        peers = math.prod(cluster[a] for a in axes)
        if peers > 1:
            shared = [axis for axis in axes if axis in load.dims]
            if shared:
                raise InputError(
                    f"{name}.multicast", axes, f"CTAs along {', '.join(shared)} want different tiles of {name}", "drop that axis"
                )
            unit = 8 if self.of[name].swizzle else 1
            if load.tile[0] % (peers * unit):
                raise InputError(
                    f"{name}.tile[0]",
                    load.tile[0],
                    f"{peers} multicast peers each load an equal part, in steps of {unit} rows",
                    f"use a multiple of {peers * unit}",
                )
        tile = (1,) * (len(load.dims) - len(load.tile)) + load.tile
        made = Load(
            name, name, self.of[name], load.dims, tile, peers, axes, peer_pattern(cluster, axes), load.l2_hint
        )
        _check_box(name, made.box)
        self.loads.append(made)

    def _matmul(self, name: str, mma: Wgmma) -> None:
        role = self.roles[self.matmul_roles[name].name]
        shape = (mma.a.tile[0], mma.b.tile[0], mma.a.tile[1])
        self.matmuls.append(
            Matmul(
                name,
                self.of[mma.a.name],
                self.of[mma.b.name],
                shape,
                role.team_warps // 4,
                role.first_warp,
                role.teams,
            )
        )

    def _store(self, name: str, store: TmaStoreStage) -> None:
        dtype = self.types[name]
        if isinstance(store.source, TmaLoadStage):
            buffer, tile = self.of[store.source.name], store.tile
        else:
            role = self.roles[self._storing_role(store)]
            if isinstance(store.source, Wgmma):
                m, n = store.tile
                columns = store.columns or _default_columns(n, dtype)
                if columns > n or columns % 8 or (store.reduce and n % columns):
                    rule = f"is a multiple of 8 up to {n}" + (" that divides it, for a reduction" if store.reduce else "")
                    raise InputError(f"{name}.columns", columns, rule, "leave it out")
                groups = role.warps // 4
                tile = (64, columns)
                slots = groups * store.stages
                barrier = (128, groups)
            else:
                tile, slots, barrier = store.tile, store.stages, (role.threads, 1)
            row = tile[-1] * dtype.bytes
            accumulators = isinstance(store.source, Wgmma)
            swizzle = store.swizzle if store.swizzle is not None else (_widest_swizzle(name, row) if accumulators else 0)
            if swizzle and row % swizzle:
                raise InputError(f"{name}.swizzle", swizzle, f"must divide a row of {row} bytes", "leave it out")
            buffer = self._buffer(name, slots, tile, dtype, swizzle)
            if accumulators or role.warps > 1:
                first = 1 + sum(b.instances for b in self.named_barriers)
                if first + barrier[1] > MAX_NAMED_BARRIERS:
                    raise InputError("named barriers", first + barrier[1], "a CTA has 16, id 0 its own", "use fewer stores")
                self.named_barriers.append(NamedBarrier(f"{name}.sync", first, barrier[0], barrier[1]))
        full = (1,) * (len(store.dims) - len(tile)) + tile
        made = Store(name, name, buffer, store.dims, full, store.reduce)
        _check_box(name, made.box)
        self.stores.append(made)


def _check_box(name: str, box: tuple[int, ...]) -> None:
    for extent in box:
        if extent > MAX_BOX:
            raise InputError(
                f"{name}.tile", box, f"a TMA box has at most {MAX_BOX} elements along an extent", "use a smaller tile"
            )


def _widest_swizzle(name: str, row: int) -> int:
    for span in sorted(stages_.SWIZZLES, reverse=True):
        if span and row % span == 0:
            return span
    raise InputError(f"{name}.tile", f"rows of {row} bytes", "must be a multiple of 32 bytes", "widen the tile's rows")


def _default_columns(n: int, dtype: DType) -> int:
    """As many columns as fill a swizzle span of 128 bytes, or 64 or 32 if the tile is narrower."""
    for span in (128, 64, 32):
        if span // dtype.bytes <= n:
            return span // dtype.bytes
    return n
