"""What one lane asks of the hardware: events of `tests.unit.fake_isa` lowered to those of `tests.oracle.ptx_execution`."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from tests.oracle.ptx import LEADER
from tests.oracle.ptx_launch import Launch
from tests.unit.fake_isa import Event
from tmapipe.base.tma_rules import MAX_BOX
from tmapipe.model.elements import indices_of
from tmapipe.plan.model import Load, Plan, Store, Syncs
from tmapipe.plan.rings import Exchanged, Matmul, cut_by_hand
from tmapipe.plan.thread_layout import AccumulatorLayout

__all__ = ["lower"]


def lower(events: Iterable[Event], plan: Plan, launch: Launch, warp: int, lane: int = LEADER) -> list[Event]:
    """What one lane of the warp asks of the hardware, for the events of `RecordingIsa`."""
    return [lowered for event in events for lowered in _lower(event, plan, launch, warp, lane)]


def _lower(event: Event, plan: Plan, launch: Launch, warp: int, lane: int) -> list[Event]:
    kind, *rest = event
    leader = lane == LEADER
    if kind == "store_words":
        start = plan.buffer(rest[0]).offset + rest[1] * plan.buffer(rest[0]).pitch
        words = (*rest[2], *[0] * 8)[: plan.buffer(rest[0]).tile[0]]
        found = [(kind, start + 4 * i, words[i : i + 4], rest[3], rest[1], lane) for i in range(0, len(words), 4)]
        return found if lane < plan.cluster_size else []
    if kind == "send":  # four numbers a lane at a time
        name, stage, barrier, cta, share, shares = rest
        nbytes = plan.buffer(name).slot_bytes // shares
        start = plan.buffer(name).offset + stage * plan.buffer(name).pitch + share * nbytes
        places = range(start + 16 * lane, start + nbytes, 16 * 32)
        return [("store_words", place, (None,) * 4, barrier, stage, cta) for place in places]
    if kind == "send_partial":  # lane i to CTA i
        name, stage, barrier, mask, row, numbers = rest
        buffer = plan.buffer(name)
        width = buffer.tile[1]
        start = buffer.offset + stage * buffer.pitch + 4 * width * row
        words = (None,) * numbers + (0,) * (width - numbers)
        sent = [("store_words", start + 4 * i, words[i : i + 4], barrier, stage, lane) for i in range(0, width, 4)]
        return sent if mask >> lane & 1 else []
    if kind in (
        "prefetch", "read", "write", "write_columns", "join_row_sums", "write_column_sums", "promote",
        "read_words", "received", "scale",
    ):  # fmt: skip
        return []
    if kind in ("init", "arm", "expect", "commit", "add", "set"):
        return [event] if leader else []
    if kind == "arrive":
        return [(kind, *rest[:2])] if lane == 0 or rest[2] == 32 else []
    if kind == "arrive_cluster":
        return [("arrive_at", *rest[:2], lane)] if rest[2] >> lane & 1 else []
    if kind == "wait_group":
        return [event, ("warp_sync",)] if leader else [("warp_sync",)]
    if kind in ("named_sync", "named_arrive"):
        roles = rest[0].removesuffix(".threads").split("+")
        own = rest[0] in {barrier.name for barrier in plan.named_barriers}
        barrier = (
            next(b for b in plan.named_barriers if b.name == rest[0])
            if own
            else Syncs(plan).of([plan.role(role) for role in roles])
        )  # k.sync()
        return [(kind, barrier.id + rest[1], barrier.threads)]
    if kind == "load":
        return _boxes(plan.load(rest[0]), launch, *rest[1:]) if leader else []
    if kind == "set_descriptor":
        load, buffer, stage, first, rows = plan.load(rest[0]), plan.buffer(rest[1]), *rest[2:]
        slot, extents = buffer.offset + stage * buffer.pitch, launch.extents[load.argument]
        start = first * math.prod(extents[1:]) * load.buffer.dtype.bytes
        found = [
            ("replace", "global_address", slot, load.argument, start),
            ("replace", "global_dim", slot, len(extents) - 1, rows),
        ]
        own = found if lane == 0 else []
        return [*own, ("warp_sync",), ("hand over", slot, _place(plan, launch, buffer, stage))]
    if kind == "acquire_descriptor":
        return [("acquire", _place(plan, launch, plan.buffer(rest[0]), rest[1]))]
    if kind == "load_through":
        load, stage, at, barrier, through, mask, share = plan.load(rest[0]), *rest[1:]
        place = _place(plan, launch, load.through, through)
        boxes = _pieces(load, stage, at, share, load.peers) if leader else []
        return [("load through", place, offset, each, barrier, stage, mask) for offset, each in boxes]
    if kind == "prefetch_tile":
        load, at, share = plan.load(rest[0]), *rest[1:]
        return [(kind, load.argument, place) for _, place in _pieces(load, 0, at, share, load.peers)] if leader else []
    if kind == "prefetch_piece":
        return _prefetched(plan.load(rest[0]), launch, rest[1]) if leader else []
    if kind == "peer_copy":
        return [_to_peer(plan.exchange(rest[0]), *rest[1:])] if leader else []
    if kind == "copies":
        return _copies(plan.load(rest[0]), launch, lane, *rest[1:])
    if kind == "store_values":
        return _values(plan.store(rest[0]), launch, warp, lane, *rest[1:])
    if kind == "store":
        return _store_boxes(plan.store(rest[0]), *rest[1:]) if leader else []
    if kind == "gather":
        name, stage, rows, at, barrier, part = rest
        return [("load", *_rows(plan.load(name), stage, rows, at, part), barrier, stage, None)] if leader else []
    if kind == "scatter":
        return [("store", *_rows(plan.store(rest[0]), *rest[1:]))] if leader else []
    if kind == "bulk_store":
        return _piece(plan.store(rest[0]), launch, *rest[1:]) if leader else []
    if kind == "wgmma":
        return _wgmmas(plan.matmul(rest[0]), warp, *rest[1:])
    return [event]


def _pieces(
    part: Load | Store, stage: int, at: tuple[int, ...], share: int, peers: int, least: int = 0
) -> list[tuple[int, Any]]:
    """(offset in shared memory, coordinates) of each TMA instruction, one a box, or with *least* one of so many rows. A slot
    is laid out in column blocks of one swizzle span (or the whole row, without), each block row by row; coordinates run from
    the contiguous dimension outwards. Of what moves in parts, *share* is the part, which starts at *at* itself."""
    buffer, parts = part.buffer, part.parts
    *outer, inner = part.part[-part.core :]
    rows, width = math.prod(buffer.tile[:-1]), part.box[-1]
    span, by = width if buffer.swizzle else inner, [*part.box[:-1]]
    if least:
        by[0] = least
    start, before = buffer.offset + stage * buffer.pitch, share * rows // parts if parts > 1 else 0
    *batch, column = at
    batch, corner = batch[: len(batch) - len(outer)], batch[len(batch) - len(outer) :]
    batch = batch[len(part.folded) :] if isinstance(part, Store) else batch
    ranges = [range(0, extent, step) for extent, step in zip(outer, by, strict=True)]
    if outer and parts == 1:
        ranges[0] = range(share * outer[0] // peers, (share + 1) * outer[0] // peers, by[0])
    places = [(place, left) for place in itertools.product(*ranges) for left in range(0, inner, width)]
    encoded = isinstance(part, Load) and part.encoded  # by the library, contiguous dimension first
    if (
        cut_by_hand(inner, width, buffer.swizzle) > 1 and not encoded
    ):  # one piece of all rows after another, the first extent fastest
        places.sort(key=lambda place: (place[1], place[0][::-1]))
    found = []
    for place, left in places:
        row = before + functools.reduce(lambda number, i: number * outer[i] + place[i], range(len(outer)), 0)
        offset = (left // span * rows + row) * span + left % span
        steps = part.steps[-len(part.box) : -1] if isinstance(part, Load) else (1,) * len(place)
        across = [first + step * i for first, step, i in zip(corner, steps, place, strict=True)]
        if (
            inner <= MAX_BOX or buffer.swizzle or encoded
        ):  # else each row is a box: the descriptor has the tensor's order
            across.reverse()
        if not encoded and (inner <= MAX_BOX or buffer.swizzle):  # CuTe DSL has extents of 1 last
            moved = [first for first, extent in zip(across, reversed(outer), strict=True) if extent > 1]
            across = [*moved, *(first for first, extent in zip(corner, outer, strict=True) if extent == 1)]
        outer_first = batch[::-1] if encoded else batch
        found.append((start + offset * buffer.dtype.bytes, (column + left, *across, *outer_first)))
    return found


def _boxes(
    load: Load,
    launch: Launch,
    stage: int,
    at: tuple[int, ...],
    barrier: str,
    mask: int | None,
    share: int,
    offsets: tuple[int, ...] = (),
) -> list[Event]:
    if load.windows is not None:
        (rows, columns), buffer = load.box, load.buffer
        row, block = columns * buffer.dtype.bytes, buffer.tile[0] * columns * buffer.dtype.bytes
        start = buffer.offset + stage * buffer.pitch + share * rows * row
        found = []
        for i in range(buffer.tile[-1] // columns):
            place = (at[-1] + i * columns, *at[-2::-1])
            found.append(("load", load.argument, start + i * block, place, barrier, stage, mask, offsets[::-1]))
        return found
    extent = launch.extents[load.argument][-2] if load.edge_rows else None
    if extent is None or at[-2] + load.tile[-2] <= extent:
        pieces = _pieces(load, stage, at, share, load.peers)
    else:  # boxes of some rows, the tile's first again (or the tensor's) instead of those outside
        again = at[-2] if at[-2] < extent else 0
        pieces = [
            (offset, (place[0], place[1] if place[1] < extent else again, *place[2:]))
            for offset, place in _pieces(load, stage, at, share, load.peers, load.edge_rows)
        ]
    return [("load", load.argument, offset, place, barrier, stage, mask) for offset, place in pieces]


def _to_peer(peer: Exchanged, stage: int, to: int, barrier: str, part: int | None, into: int) -> Event:
    nbytes = peer.buffer.slot_bytes // (1 if part is None or peer.reduce else peer.peers)
    source = peer.source.offset + stage * peer.source.pitch + nbytes * (part or 0)
    target = peer.buffer.offset + stage * peer.buffer.pitch + nbytes * into
    return f"peer_{peer.reduce or 'copy'}", target, source, nbytes, barrier, stage, to


def _place(plan: Plan, launch: Launch, buffer: Any, stage: int) -> int:
    """Where the engine reads the descriptor in a slot, from the start of the memory for descriptors."""
    before = sum(each.stages for each in itertools.takewhile(lambda each: each.name != buffer.name, plan.made))
    cta = launch.cluster_id * plan.cluster_size + launch.cta_rank
    return 128 * (cta * sum(each.stages for each in plan.made) + before + stage)


def _copies(
    load: Load, launch: Launch, lane: int, stage: int, at: tuple[int, ...], barrier: str, share: int, shares: int
) -> list[Event]:
    """The lane's copies, one vector each, and its arrival. Where nothing is inside the tensor, the source is of no account."""
    extents, buffer, size = launch.extents[load.argument], load.buffer, load.buffer.dtype.bytes
    width, span, found = load.vector // size, buffer.swizzle, []
    tile = list(itertools.product(*map(range, load.tile[:-1]), range(0, load.tile[-1], width)))
    for i in range(32 * share + lane, len(tile), 32 * shares):
        place = [first + step for first, step in zip(at, tile[i], strict=True)]
        inside = all(0 <= x < extent for x, extent in zip(place, extents, strict=True))
        source = functools.reduce(lambda number, x: number * extents[x[0]] + x[1], enumerate(place), 0) * size
        nbytes = min(extents[-1] - place[-1], width) * size if inside else 0
        row, byte = divmod(i * load.vector, buffer.tile[-1] * size)
        offset = row * buffer.tile[-1] * size + byte
        if span:  # in blocks of 8 spans, their 16-byte units permuted by the number of the 128 bytes that they lie in
            line, unit = divmod((byte // span * buffer.tile[0] + row) * span + byte % span, 128)
            offset = 128 * line + (unit ^ 16 * (line % (span // 16)))
        target = buffer.offset + stage * buffer.pitch + offset
        found.append(("copy", load.argument, target, source if nbytes else None, load.vector, nbytes))
    return [*found, ("arrive_noinc", barrier, stage)]


def _values(
    store: Store, launch: Launch, warp: int, lane: int, at: tuple[int, ...], layout: Any, along: str
) -> list[Event]:
    """The lane's stores of its values of a tile, those that lie inside the tensor, some side by side at once; of numbers of
    rows, each by the first lane that has the row, and of columns likewise. Of "rows, shared out" each lane has its own."""
    extents, size, found = launch.extents[store.argument], store.buffer.dtype.bytes, []
    if along.startswith("rows"):
        assert store.vector == size
        of_warp, first = indices_of(layout, warp)[0], lane % layout.row_lanes == 0
        if along == "rows, shared out":  # of four lanes that have two rows, the first two have one sum each
            mine = of_warp[:, lane // 4 + 8 * (lane % 4), 0].tolist() if lane % 4 < 2 else []
        elif isinstance(layout, AccumulatorLayout):  # four lanes have each row, and each has two of 16
            mine = of_warp[:, [lane // 4, lane // 4 + 8], 0].ravel().tolist() if first else []
        else:  # lanes that share several rows share them out
            rows = list(dict.fromkeys(of_warp[lane::32, 0].tolist()))
            mine = (
                rows[lane % layout.row_lanes :: layout.row_lanes] if layout.warp(warp) % layout.row_warps == 0 else []
            )
        for row in mine:
            place = [first + int(i) for first, i in zip(at, np.unravel_index(row, store.tile), strict=True)]
            if all(0 <= x < extent for x, extent in zip(place, extents, strict=True)):
                number = functools.reduce(lambda n, x: n * extents[x[0]] + x[1], enumerate(place), 0)
                found.append(("store_values", store.argument, number * size, size))
        return found
    width = min(layout.width, store.vector // size)
    wide = min(layout.width, 16 // size) if store.wide else width
    rows, columns = (array[lane::32].ravel() for array in indices_of(layout, warp))
    if along == "columns":
        first = lane < layout.row_lanes and layout.warp(warp) < layout.row_warps
        columns = columns[: layout.column_slots] if first else columns[:0]
        rows = 0 * columns

    def offset_of(place: list[int]) -> int:
        return functools.reduce(lambda number, x: number * extents[x[0]] + x[1], enumerate(place), 0) * size

    def put(place: list[int], first: int, count: int) -> None:
        at_once = [*place[:-1], first]
        if all(0 <= x < extent for x, extent in zip(at_once, extents, strict=True)):
            found.append(("store_values", store.argument, offset_of(at_once), count * size))

    left = []
    for row, column in zip(rows[::wide], columns[::wide], strict=True):
        *outer, _ = np.unravel_index(row * store.tile[-1], store.tile)
        place = [int(first + i) for first, i in zip(at, (*outer, column), strict=True)]
        whole = place[-1] >= 0 and place[-1] + wide <= extents[-1]
        if wide == width or (whole and offset_of(place) % (wide * size) == 0):
            put(place, place[-1], wide)
        else:
            left.append(place)
    for place in left:  # after all that are stored as a whole
        for i in range(0, wide, width):
            put(place, place[-1] + i, width)
    return found


def _rows(part: Load | Store, stage: int, rows: tuple[int, ...], at: tuple[int, ...], which: int) -> tuple[Any, ...]:
    """Of gather4 and scatter4: the tensor, where the four rows lie in shared memory, the column and the rows."""
    buffer = part.buffer
    offset = buffer.offset + stage * buffer.pitch + 4 * which * buffer.tile[-1] * buffer.dtype.bytes
    return part.argument, offset, (at[-1], *rows)


def _piece(store: Store, launch: Launch, stage: int, at: tuple[int, ...]) -> list[Event]:
    buffer, (extent,) = store.buffer, launch.extents[store.argument]
    nbytes = min(buffer.tile[0], extent - at[0]) * buffer.dtype.bytes
    kind = f"reduce {store.reduce}" if store.reduce else "store"
    source = buffer.offset + stage * buffer.pitch
    return [(f"bulk {kind}", store.argument, source, at[0] * buffer.dtype.bytes, nbytes)] if nbytes > 0 else []


def _prefetched(load: Load, launch: Launch, at: tuple[int, ...]) -> list[Event]:
    """The piece's bytes in the tensor, whose rows follow each other; none of a piece outside of it."""
    extents, element = launch.extents[load.argument], 0
    if any(i >= extent for i, extent in zip(at, extents, strict=True)):
        return []
    for i, extent in zip(at, extents, strict=True):
        element = element * extent + i
    return [("prefetch_piece", load.argument, element * load.buffer.dtype.bytes, load.buffer.slot_bytes)]


def _store_boxes(store: Store, stage: int, at: tuple[int, ...], rows: int | None = None, part: int = 0) -> list[Event]:
    kind = f"reduce {store.reduce}" if store.reduce else "store"
    if rows is not None:  # of overlapping rows, see `tmapipe.gpu.clipped`
        at = at[0] + rows, store.buffer.tile[0] - rows, at[1]
    return [(kind, store.argument, offset, place) for offset, place in _pieces(store, stage, at, part, 1)]


def _wgmmas(matmul: Matmul, warp: int, a_stage: int | None, b_stage: int) -> list[Event]:
    """One instruction a 64-row block and 32 bytes of k, or two side by side along n."""
    m, group, per_32 = matmul.shape[0], AccumulatorLayout.of(matmul).group(warp), 32 // matmul.b.dtype.bytes
    columns = list(itertools.accumulate(matmul.n_instructions, initial=0))
    found: list[Event] = []
    for k in range(matmul.k_instructions):
        for (left, right), block in itertools.product(
            itertools.pairwise(columns), range(m // (64 * matmul.warpgroups))
        ):
            first = 64 * (block * matmul.warpgroups + group)
            a: Any = "registers"
            if matmul.a is not None:
                a = _operand(matmul.a, a_stage, first, 64, per_32 * k, matmul.transposed[0])
            b = _operand(matmul.b, b_stage, left, right - left, per_32 * k, matmul.transposed[1])
            found.append(("wgmma", f"m64n{right - left}k{per_32}", a, b, matmul.transposed))
    return found


def _operand(buffer: Any, stage: int, side: int, count: int, k: int, transposed: bool) -> tuple[int, int, int, int]:
    """The descriptor (as of `_descriptor`) of *count* rows from element [side, k] of an operand on, or from [k, side] of a
    transposed one. A slot lies in column blocks of one swizzle span, in which 8 of its rows take 8 spans: the stride offset.
    Along k an instruction stays within a block, and the leading offset (1 unit) is not looked at. Transposed, it takes as many
    blocks as its rows fill, a leading offset apart (0, and not looked at, if that is one). Nor is the stride offset looked at,
    0, where a tile has 8 rows."""
    row, column = (k, side) if transposed else (side, k)
    span, rows = buffer.swizzle, buffer.tile[0]
    byte = column * buffer.dtype.bytes
    start = buffer.offset + stage * buffer.pitch + (byte // span * rows + row) * span + byte % span
    leading = 16
    if transposed:
        leading = rows * span if count * buffer.dtype.bytes > span else 0
    return start, leading, 0 if not transposed and rows == 8 else 8 * span, span
