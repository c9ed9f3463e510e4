"""The loads and stores of a plan: their roles, the box of one instruction, and the counts of their mbarriers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tmapipe.barrier import BarrierRing
from tmapipe.base import Along, peer_pattern, tma_rules
from tmapipe.base.arithmetic import ceil_div
from tmapipe.base.tma_rules import ALIGNMENT
from tmapipe.errors import InputError, require
from tmapipe.parts import RegisterTile, Scratch, Wgmma
from tmapipe.plan.declarations import Declarations
from tmapipe.plan.model import WARP, Load, RoleWarps, Store
from tmapipe.plan.rings import Buffer, Ring
from tmapipe.plan.thread_layout import vectors_of
from tmapipe.stage import SWIZZLES, DescriptorStage, LoadStage, SlotStage, as_matrix
from tmapipe.store_pipeline import StoreStage

if TYPE_CHECKING:
    from tmapipe.plan import Layout


# ---- arrivals --------------------------------------------------------------------------------------------------------
#
# Who fills and reads the slots of a ring, and so what its mbarriers count.


def ring_of(layout: Layout, name: str, ring: BarrierRing) -> Ring:
    """The ring called *name*, with its mbarriers in *layout*.

    Raises:
        InputError: A role of several warps loads by TMA or sends to peers, or its slots are fewer than a role holds back.
    """
    roles, name_of, cluster = layout.roles, layout.declared.name_of, layout.declared.cluster
    inside = layout.declared.stages_of(name)
    armed: dict[str, int] = {}
    loads: dict[str, tuple[str, ...]] = {}
    copies: dict[str, int] = {}
    writers: set[str] = set()
    sharing: set[str] = set()  # writers whose tiles other CTAs read
    groups = tuple(dict.fromkeys(axes for part in inside.values() if (axes := group_of(part, cluster))))
    for stage, part in inside.items():
        role = name_of(part.filler)
        if (part.filled_by == "engine" or part.source is not None) and roles[role].warps != 1:
            rule = "a role that loads by TMA, or copies to peers, has one warp"
            raise InputError(f"Role({role})", f"{roles[role].warps} warps", rule, "Role(warps=1)")
        if part.writer is not None:
            writers.add(name_of(part.writer))
            sharing |= {name_of(part.writer)} if group_of(part, cluster) else set()
        if part.filled_by == "warps":
            continue
        loads[role] = (*loads.get(role, ()), stage)
        if part.filled_by == "threads":
            copies[role] = copies.get(role, 0) + 1
        else:
            times = math.prod(each.ctas for each in group_of(part, cluster)) if part.reduce else 1
            armed[role] = armed.get(role, 0) + times * math.prod(part.tile) * layout.types[stage].bytes
    reached = 0
    for axes in groups:
        reached |= peer_pattern(axes)
    peers, slots, local = max(1, reached.bit_count()), layout.slots[name], tuple(map(name_of, ring.local))
    phases = tuple(tuple(map(name_of, phase)) for phase in ring.phases)
    signalling = phases[:-1] if ring.held else phases
    far = tuple(p for p, phase in enumerate(phases) if sharing & set(phase))
    signals = tuple(
        role for p, phase in enumerate(signalling) for role in phase if p or role not in loads or role in writers
    )
    barriers = []
    for p, phase in enumerate(signalling):
        last = p == len(phases) - 1
        times, to_all = (peers, f" x {peers} CTAs") if p in far and not last else (1, "")
        taking = {role: roles[role].warps if ring.held else roles[role].team_warps for role in phase}
        terms = [(roles[r].team_warps, f"{roles[r].team_warps} expect-tx ({r})") for r in phase if r in armed]
        near = [r for r in phase if r in local and last and peers > 1]
        terms += [
            (times * taking[r], f"{taking[r]} warps ({r}){to_all}") for r in phase if r in signals and r not in near
        ]
        lanes = {role: WARP * taking[role] * copies[role] for role in phase if role in copies and not p}
        terms += [(count, f"{count} lanes of copies ({role})") for role, count in lanes.items()]
        count, formula = sum(count for count, _ in terms), " + ".join(text for _, text in terms)
        if last and peers > 1:
            count, formula = count * peers, f"({formula}) x {peers} CTAs"
            count += sum(taking[r] for r in near)
            formula += "".join(f" + {taking[r]} warps ({r})" for r in near)
        label = {0: "full", len(phases) - 1: "free"}.get(p, f"ready{p}")
        barriers.append(layout.space.barrier(f"{name}.{label}", slots, count, formula))
    lag, readers, fenced = readers_of(name, layout.declared, layout.matmul_roles, layout.storing_roles)
    if ring.held:
        lag, readers = {}, {}
    for role, held in lag.items():
        rule = f"role {role} holds back {held} slots while it reads the next, so {held + 1} or more are needed"
        require(held < slots, f"BarrierRing({name}).stages", slots, rule, "use more stages or fewer reads in flight")
    lying = [(name_of(part.writer), name_of(part.over)) for part in inside.values() if part.over and part.writer]
    gone: dict[str, tuple[str, ...]] = {}
    over: tuple[str, ...] = ()
    for phase in phases:
        gone |= {role: over for role in phase if over}
        over += tuple(below for writer, below in lying if writer in phase)
    how = (armed, signals, lag, readers, groups, peers, loads, ring.held, gone, fenced, far, local)
    return Ring(name, slots, phases, tuple(barriers), *how)


def group_of(part: SlotStage | Scratch, cluster: Mapping[str, int]) -> tuple[Along, ...]:
    """The axes of the cluster along which CTAs write into each other's slots of this part, or read them."""
    return () if part.sharing is None else part.sharing.along(cluster)


def readers_of(
    ring: str, declared: Declarations, matmul_roles: dict[str, str], storing_roles: dict[str, str]
) -> tuple[dict[str, int], dict[str, tuple[str, ...]], tuple[str, ...]]:
    """`lag`, `readers` and `fenced` of the `Ring` called *ring*: who reads its slots by wgmma, or by the TMA engine.

    Args:
        matmul_roles: Matmul -> the role that executes it.
        storing_roles: Store -> the role that executes it.
    """
    reads: list[tuple[str, SlotStage, str, int]] = []
    for name, mma in declared.matmuls.items():
        reads += [(matmul_roles[name], stage, "wgmma", mma.in_flight) for stage in mma.stages]
    for name, store in declared.stores.items():
        if store.slot is not None:
            reads.append((storing_roles[name], store.slot, "tma", store.stages))
    lag: dict[str, int] = {}
    readers: dict[str, tuple[str, ...]] = {}
    fenced: dict[str, None] = {}
    for role, stage, how, in_flight in reads:
        if declared.name_of(stage.ring) == ring:
            lag[role] = max(lag.get(role, 0), in_flight)
            readers[role] = tuple(dict.fromkeys((*readers.get(role, ()), how)))
            if stage.filled_by == "threads":
                fenced[role] = None
    return lag, readers, tuple(fenced)


# ---- transfers -------------------------------------------------------------------------------------------------------
#
# The loads and stores of a plan: their roles, their buffers, and the box of one instruction.


def load_of(layout: Layout, name: str, load: LoadStage) -> Load:
    """The load called *name*, into its slots in *layout*.

    Raises:
        InputError: Peers cannot share the tile, or the engine or threads cannot load it.
    """
    declared, buffer = layout.declared, layout.of[name]
    axes = group_of(load, declared.cluster)
    peers = 1 if load.multicast is not None and load.multicast.whole else math.prod(each.ctas for each in axes)
    if axes:
        shared = [each.axis for each in axes if each.axis in load.dims]
        rule = f"CTAs along {', '.join(shared)} want different tiles of {name}"
        require(not shared, f"{name}.multicast", load.multicast, rule, "drop that axis")
        unit = 8 if buffer.swizzle else 1
        if load.tile[0] % peers or load.matrix[0] % (peers * unit):
            rule = f"{peers} multicast peers each load an equal part, in steps of {unit} rows"
            fix = f"use a multiple of {peers * unit}, or MulticastGroup(..., whole=True)"
            raise InputError(f"{name}.tile[0]", load.tile[0], rule, fix)
    if load.result is not None:
        _check_result(name, load, load.result)
    through = [each for each, part in declared.stages.items() if isinstance(part, DescriptorStage) and part.of is load]
    rule = f"has {', '.join(through)}, but a load stage can have only one DescriptorStage"
    require(len(through) <= 1, "DescriptorStage(of)", load, rule, "declare a load stage for each")
    over = [each for each, store in declared.stores.items() if (load.input or load) in store.overwrites]
    for each in over:
        _check_in_place(declared, each, load, len(over))
    core = len(load.tile if load.windows is None else load.dims)
    how = _as_declared(load, "outside", "strides", "windows")
    how |= {"peers": peers, "axes": axes, "pattern": peer_pattern(axes)}
    how |= {"through": layout.of[through[0]] if through else None, "overwritten": over[0] if over else ""}
    made = Load(name, declared.tensor_of(name), buffer, tile=load.extents, core=core, **how)
    if load.tensor_map:
        _check_moved(name, made)
        _check_described(name, made)
    elif 0 < load.vector < buffer.dtype.bytes:
        rule = f"must be at least an element of {buffer.dtype.bytes} bytes"
        raise InputError(f"{name}.vector", load.vector, rule, f"e.g. vector={buffer.dtype.bytes}")
    return made


def _as_declared(part: LoadStage | StoreStage, *names: str) -> dict[str, Any]:
    """The fields *names* of a stage, and the fields that loads and stores share, which a transfer takes unchanged."""
    return {name: getattr(part, name) for name in ("dims", "parts", "vector", "tensor_map", "l2_hint", *names)}


def _check_described(name: str, load: Load) -> None:
    """Raises `InputError` unless a descriptor can express where the elements of a tile lie, and what the slot holds outside of
    the tensor."""
    dtype = load.buffer.dtype
    if load.outside == "nan" and not tma_rules.TYPES[tma_rules.type_of(dtype)].floating:
        rule = "must be a type of floating point of 16 or 32 bits"
        raise InputError(f"{name}.nan_outside()", dtype.name, rule, "leave nan_outside() out, for zeros")
    if load.windows is not None:
        if load.box[0] * load.peers != load.buffer.tile[0]:
            rule = f"must have at most {tma_rules.MAX_BOX} channels, or a multiple of a swizzle span"
            raise InputError(f"{name}.tile", load.buffer.tile, rule, "load fewer channels at a time")
        return
    spans = [n * step for n, step in zip(load.box, load.steps[-len(load.box) :], strict=True)]
    if max(spans) > tma_rules.MAX_BOX:
        rule = f"spans {' x '.join(map(str, spans))} elements, and a box at most {tma_rules.MAX_BOX} along an extent"
        raise InputError(f"{name}.tile", load.tile, rule, "load smaller tiles, or with smaller strides")


def _check_result(name: str, load: LoadStage, store: StoreStage) -> None:
    """Raises `InputError` unless a stage loads exactly the tiles that a CTA stores."""
    alike = load.dims == store.dims and load.tile == store.tile
    plain = load.tensor_map and load.outside == "zeros" and not (load.windows or load.multicast or load.strides)
    once = not (store.reduce or store.folded or store.parts > 1 or store.transposed)
    rule = "must be stored whole, not reduced, and loaded in the same tiles by a plain TmaLoadStage"
    require(alike and plain and once, f"{name}.of_result", store, rule, "give both the same dims and tile")


def _check_in_place(declared: Declarations, name: str, load: LoadStage, outputs: int) -> None:
    """Raises `InputError` unless an output may be the tensor of a load: a CTA must store exactly the tiles that it loads."""
    store = declared.stores[name]
    alike = load.dims == store.dims and load.extents == store.extents and load.result is None
    plain = load.parts == 1 and not (load.windows or load.multicast or load.strides)
    once = not (store.reduce or store.folded or store.parts > 1 or store.transposed)
    if not (alike and plain and once) or outputs > 1 or _clipped(declared, name, store):
        rule = "must be stored whole, not reduced, over a load of the same dims and tile, without multicast or parts"
        raise InputError(f"{name}.in_place", load, rule, "give both the same dims and tile")


def storing_roles(declared: Declarations, roles: dict[str, RoleWarps], matmul_roles: dict[str, str]) -> dict[str, str]:
    """The role that executes each store, both by name. Raises `InputError` unless a slot is stored by a role of one warp, in
    the ring's last phase."""
    storing: dict[str, str] = {}
    for name, store in declared.stores.items():
        if store.slot is not None:
            if store.slot.ring.held:
                rule = "cannot be stored from its slot, since the slot's ring is filled once and held"
                raise InputError(f"{name}.source", store.source, rule, "let a role read it and store it, with role=")
            several = (store.role,) if store.role is not None else store.slot.ring.phases[-1]
            last = [declared.name_of(role) for role in several]
            if len(last) != 1 or roles[last[0]].warps != 1:
                rule = "must be one role of one warp, to store from a slot"
                raise InputError(f"TmaStoreStage({name}).role", last, rule, "Role(warps=1)")
        if store.storing is not None:
            storing[name] = declared.name_of(store.storing)
        else:
            assert store.source is not None
            storing[name] = matmul_roles[declared.name_of(store.source)]
    return storing


def store_of(layout: Layout, name: str, store: StoreStage) -> Store:
    """The store called *name*, with its buffers and named barriers in *layout*.

    Raises:
        InputError: The role cannot store such a tile or such a type.
    """
    dtype, clipped = layout.types[name], _clipped(layout.declared, name, store)
    in_turn = any(store in turnstile.stores for turnstile in layout.declared.turnstiles.values())
    tile = store.tile
    whole: tuple[int, ...] = ()
    if store.vector:
        if store.vector < dtype.bytes or tile[-1] * dtype.bytes % store.vector:
            rule = f"must be at least an element of {dtype.bytes} bytes, and divide rows of {tile[-1]} elements"
            raise InputError(f"{name}.vector", store.vector, rule, f"e.g. vector={dtype.bytes}")
        buffer = Buffer(name, 0, 0, as_matrix(tile), dtype)
        if store.parts_tile is not None:  # in which a warpgroup's threads exchange what they store
            owners = layout.roles[layout.storing_roles[name]].warps // 4
            buffer = layout.buffer(name, owners, store.parts_tile, owners=owners)
    elif store.slot is not None:
        buffer = layout.of[layout.declared.name_of(store.slot)]
    elif store.sums is None:
        buffer = _buffer_of_values(layout, name, store)
    else:
        buffer = _buffer_of_sums(layout, name, store, in_turn)
        tile = buffer.tile
        if len(store.tile) > 2:
            whole, tile = store.span, _box_of_rows(name, store, tile)
    extents = (1,) * (len(store.dims) - len(tile)) + tile
    how = _as_declared(store, "reduce", "transposed", "wide")
    how |= {"folded": tuple(store.folded.values()), "clipped": clipped, "shared": in_turn, "whole": whole}
    made = Store(name, name, buffer, tile=extents, core=len(tile), **how)
    if made.tensor_map:
        _check_moved(name, made)
    return made


def _buffer_of_values(layout: Layout, name: str, store: StoreStage) -> Buffer:
    """The buffer that the threads of a role fill together."""
    role, tile = layout.roles[layout.storing_roles[name]], as_matrix(store.tile)
    rule = "must have one team if threads store what they compute, since teams are at different tiles"
    require(role.teams <= 1, f"{name}.role", role.name, rule, "use two roles, or store a Wgmma's sums")
    if len(tile) > 1:  # of one extent, it may hold one number a row
        vectors_of(name, tile, role)
    if role.warps > 1:
        layout.sync(name, role.threads)
    return layout.buffer(name, store.stages, tile)


def _buffer_of_sums(layout: Layout, name: str, store: StoreStage, in_turn: bool) -> Buffer:
    """The buffers that warpgroups fill from accumulators: one for each warpgroup; if teams store *in_turn*, they
    share them."""
    role, dtype = layout.roles[layout.storing_roles[name]], layout.types[name]
    tile = (64, _columns(layout, name, store))
    if store.transposed:
        if store.reduce or len(store.tile) > 2:
            rule = "needs accumulators that are not transposed, since the store has a reduction or three dims"
            raise InputError(f"{name}.dims", store.dims, rule, "use dims in the matmul's order")
        tile = tile[::-1]
    row = tile[-1] * dtype.bytes
    swizzle = widest_swizzle(f"{name}.tile", row) if row % 32 == 0 else 0
    owners = (role.team_warps if in_turn else role.warps) // 4
    layout.sync(name, 128, role.warps // 4)
    return layout.buffer(name, owners * store.stages, tile, swizzle, owners)


def _clipped(declared: Declarations, name: str, store: StoreStage) -> bool:
    """Whether tiles have bounds of their own along its dimensions."""
    along = [dim for dim in store.dims if dim in declared.bounded]
    if along and not (isinstance(store.source, Wgmma) and len(store.dims) == 2 and along == [store.dims[0]]):
        rule = f"has {along[0]}, along which tiles have bounds of their own; that needs accumulators and two dims"
        raise InputError(f"{name}.dims", store.dims, rule, f'store a Wgmma\'s sums to "{along[0]} n"')
    return bool(along)


def _box_of_rows(name: str, store: StoreStage, tile: tuple[int, ...]) -> tuple[int, ...]:
    """The part of an output tile that one buffer of *tile* holds, if the accumulators' rows are rows of several dimensions,
    and so each buffer's rows, too."""
    assert store.sums is not None
    *outer, columns = store.tile
    box: list[int] = []
    rows = tile[0]
    for extent in reversed(outer):
        taken = min(extent, rows)
        if rows % taken or extent % taken:
            break
        box.insert(0, taken)
        rows //= taken
    if len(box) < len(outer) or rows > 1 or (math.prod(outer), columns) != tuple(store.sums.shape[:2]):
        rule = f"must have rows and columns of {store.sums.shape[:2]} accumulators; every {tile[0]} rows make a box"
        raise InputError(f"{name}.tile", store.tile, rule, "e.g. tile=(8, 16, n) for 128 rows")
    return (*box, tile[1])


def _columns(layout: Layout, name: str, store: StoreStage) -> int:
    """How many columns a buffer for accumulators has."""
    n, dtype = store.tile[-2 if store.transposed else -1], layout.types[name]
    unit = max(8, ALIGNMENT // dtype.bytes)  # transposed, 16 rows of 64 bytes fill the 1024 of a swizzle's pattern
    start = f"TMA starts at multiples of {ALIGNMENT} bytes along a row"
    rule = f"has a multiple of {unit} columns if {dtype} is stored: {start}"
    require(n % unit == 0, f"{name}.tile", store.tile, rule, f"use {ceil_div(n, unit) * unit} columns")
    if isinstance(store.source, RegisterTile):  # its role holds it in one piece
        if store.columns not in (None, n):
            raise InputError(f"{name}.columns", store.columns, f"must be {n}, all of a RegisterTile's", "leave it out")
        return n
    spans = (span // dtype.bytes for span in (128, 64, 32))
    default = next((columns for columns in spans if columns <= n), n)  # a piece's row fills a swizzle span
    columns = store.columns or (even_columns(n, 128 // dtype.bytes, unit) if store.transposed else default)
    if columns > n or columns % unit or (store.reduce and n % columns):
        rule = f"must be a multiple of {unit} up to {n}" + (", and divide it, for a reduction" if store.reduce else "")
        raise InputError(f"{name}.columns", columns, rule, "leave it out")
    return columns


def even_columns(n: int, most: int, unit: int = 8) -> int:
    """How many columns a piece of *n* columns has if accumulators are transposed, so that columns become rows of a buffer. All
    pieces are equally wide, and there are as few pieces as *most* columns allow: 136 columns are stored as three times 48, not
    as three times 64, of which 56 would be stored twice."""
    return ceil_div(n, unit * ceil_div(n, most)) * unit


def _check_moved(name: str, move: Load | Store) -> None:
    """Raises `InputError` unless the engine can move slots in the boxes of *move*, and the parts of a slot one by one."""
    buffer, parts, box = move.buffer, move.parts, move.box
    if parts > 1:
        rows, nbytes = buffer.tile[0] // parts, buffer.slot_bytes // parts
        if isinstance(move, Load) and move.axes:
            rule = "must be 1, since peers load shares of the tile"
            raise InputError(f"{name}.in_parts", parts, rule, "drop the multicast")
        if nbytes % 128 or (buffer.swizzle and rows % 8):
            unit = "128 bytes" + (", and of 8 rows where they are swizzled" if buffer.swizzle else "")
            rule = f"makes parts of {rows} rows, {nbytes} bytes; they start at multiples of {unit}"
            raise InputError(f"{name}.in_parts", parts, rule, "use fewer parts, longer rows, or swizzle=0")
    windows = isinstance(move, Load) and move.windows is not None
    tma_rules.check_box(f"{name}.tile", box, tma_rules.MAX_PIXELS if windows else tma_rules.MAX_BOX)
    nbytes = math.prod(box) * buffer.dtype.bytes
    rule = (
        f"is moved in boxes of {' x '.join(map(str, box))} elements, {nbytes} bytes: not from multiples of 128 bytes on"
    )
    fix = f"use rows of at most {tma_rules.MAX_BOX} elements or of whole 128 bytes, or for a vector a BulkLoadStage"
    require(nbytes >= buffer.slot_bytes or nbytes % 128 == 0, f"{name}.tile", buffer.tile, rule, fix)


def widest_swizzle(argument: str, row: int) -> int:
    """The widest swizzle span (bytes) that divides a row of *row* bytes. Raises `InputError` if none does."""
    for span in sorted(SWIZZLES, reverse=True):
        if span and row % span == 0:
            return span
    raise InputError(argument, f"rows of {row} bytes", "must be a multiple of 32 bytes", "widen the rows")


# ---- pieces ----------------------------------------------------------------------------------------------------------


def pieces(rows: int, columns: int, groups: int, width: int) -> list[tuple[int, int]]:
    """The pieces in which an output tile leaves the accumulators: (row block, first column) of each, in the order of stores.

    A piece has 64 rows of each warpgroup and *width* columns. If the last piece would reach over the tile, it starts earlier,
    and repeats some columns of the piece before.

    Args:
        rows: How many rows the tile has.
        columns: How many columns the tile has.
        groups: How many warpgroups share a row block. Each has 64 rows of it.
        width: How many columns a piece has.
    """
    firsts = [min(first, columns - width) for first in range(0, columns, width)]
    return [(block, first) for block in range(rows // (64 * groups)) for first in firsts]


def strip_start(store: Store, start: tuple[Any, ...], strip: Any, first: Any) -> tuple[Any, ...]:
    """The first element of a piece in the output.

    Args:
        store: The store of the output.
        start: The tile's first element in the output.
        strip: Which 64 rows of the tile the piece has.
        first: The piece's first column in the tile.
    """
    *outer, n = start
    if store.transposed:
        *outer, m = outer
        return (*outer, m + first, n + strip * 64)
    if not store.whole:
        *outer, m = outer
        return (*outer, m + strip * 64, n + first)
    for i in reversed(range(len(outer))):  # its number, counted along the dimensions of the rows, the last one fastest
        count = store.whole[i] // store.tile[i]
        if count > 1:
            outer[i] = outer[i] + strip % count * store.tile[i]
            strip = strip // count
    return (*outer, n + first)
