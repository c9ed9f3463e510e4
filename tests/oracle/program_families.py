"""Families of small programs that are right: pipelines of a few warps, written call by call."""

from __future__ import annotations

import random
from collections.abc import Callable

import attrs

from tests.oracle.small_program import SLOT_BYTES, Call, SmallProgram

__all__ = ["COPIED", "FAMILIES", "set_up"]

Calls = list[Call]


def set_up(program: SmallProgram) -> SmallProgram:
    """*program* with its mbarriers initialized by warp 0 of each CTA, and visible."""
    cluster: Calls = [("cluster arrive",), ("cluster wait",)] if program.ctas > 1 else [("sync",)]
    init: Calls = [("init", bar) for bar in range(len(program.counts))]
    calls = tuple(
        (*(init + [("fence init",)] if i % program.warps == 0 else ()), *cluster, *warp)
        for i, warp in enumerate(program.calls)
    )
    return attrs.evolve(program, calls=calls)


def _made(counts: list[int], slots: int, warps: list[Calls], text: str, **options: object) -> SmallProgram:
    calls = tuple(map(tuple, warps))
    return set_up(SmallProgram(tuple(counts), slots, calls, text=text, **options))  # type: ignore[arg-type]


def _turns(rng: random.Random, stages: int) -> int:
    return rng.choice((0, 1, stages, stages + 1, 2 * stages, 2 * stages + 1))


def copy_by_threads(rng: random.Random) -> SmallProgram:
    """One warp loads, one or two read."""
    stages, readers, two = rng.randint(1, 3), rng.randint(1, 2), rng.random() < 0.3
    lanes = rng.choice((1, 32))
    loose = rng.random() < 0.2
    load: Calls = []
    read: list[Calls] = [[] for _ in range(readers)]
    for turn in range(_turns(rng, stages)):
        s, parity = turn % stages, turn // stages & 1
        load.append(("wait", stages + s, parity ^ 1))
        nbytes = SLOT_BYTES * (1 + two)
        load += [("expect tx", s, nbytes), ("arrive", s)] if loose else [("arrive tx", s, nbytes)]
        load += [("load", s, s)] + ([("load", stages + s, s)] if two else [])
        for calls in read:
            calls += [("wait", s, parity), ("read", s)] + ([("read", stages + s)] if two else [])
            calls += [("fence",), ("warp sync",), ("arrive", stages + s, lanes)]
    counts = [1] * stages + [readers * lanes] * stages
    return _made(counts, stages * (1 + two), [load, *read], f"copy by {readers}, {stages} stages")


def copy_by_stores(rng: random.Random) -> SmallProgram:
    """One warp loads, one stores from the slots."""
    stages = rng.randint(1, 3)
    pending = rng.randint(0, stages - 1)
    turns = _turns(rng, stages)
    load: Calls = []
    store: Calls = []
    for turn in range(turns):
        s, parity = turn % stages, turn // stages & 1
        load += [("wait", stages + s, parity ^ 1), ("arrive tx", s, SLOT_BYTES), ("load", s, s)]
        store += [("wait", s, parity), ("store", s), ("commit",), ("bulk wait", pending, True)]
        if turn >= pending:
            store.append(("arrive", stages + (turn - pending) % stages))
    store.append(("bulk wait", 0, False))
    return _made([1] * (2 * stages), stages, [load, store], f"copy by stores, {stages} stages, {pending} pending")


def transform(rng: random.Random) -> SmallProgram:
    """load -> change in place -> store."""
    stages = rng.randint(1, 2)
    load: Calls = []
    change: Calls = []
    store: Calls = []
    for turn in range(_turns(rng, stages)):
        s, parity = turn % stages, turn // stages & 1
        load += [("wait", 2 * stages + s, parity ^ 1), ("arrive tx", s, SLOT_BYTES), ("load", s, s)]
        change += [("wait", s, parity), ("read", s), ("write", s), ("fence",), ("warp sync",), ("arrive", stages + s)]
        store += [("wait", stages + s, parity), ("store", s), ("commit",), ("bulk wait", 0, True)]
        store += [("arrive", 2 * stages + s)]
    return _made([1] * (3 * stages), stages, [load, change, store], f"transform, {stages} stages")


def by_threads(rng: random.Random) -> SmallProgram:
    """Threads write, others read."""
    stages, readers = rng.randint(1, 2), rng.randint(1, 2)
    write: Calls = []
    read: list[Calls] = [[] for _ in range(readers)]
    for turn in range(_turns(rng, stages)):
        s, parity = turn % stages, turn // stages & 1
        write += [("wait", stages + s, parity ^ 1), ("write", s), ("warp sync",), ("arrive", s)]
        for calls in read:
            calls += [("wait", s, parity), ("read", s), ("warp sync",), ("arrive", stages + s)]
    return _made(
        [1] * stages + [readers] * stages, stages, [write, *read], f"threads, {stages} stages, {readers} readers"
    )


def buffer_stored(rng: random.Random) -> SmallProgram:
    """Two warps write their parts of an output buffer, one of them stores it."""
    buffers = rng.randint(1, 2)
    warps: list[Calls] = [[], []]
    for turn in range(rng.randint(1, 3)):
        slot = turn % buffers
        warps[0].append(("bulk wait", buffers - 1, True))
        for part, calls in enumerate(warps):
            calls += [("bar sync", 1, 64), ("write", slot, 2, part), ("fence",), ("bar sync", 1, 64)]
        warps[0] += [("store", slot), ("commit",)]
    warps[0].append(("bulk wait", 0, rng.random() < 0.5))
    return _made([], buffers, warps, f"output buffer, {buffers}")


def multiply(rng: random.Random) -> SmallProgram:
    """One warp loads, a warpgroup multiplies and releases one slot later, or at once."""
    stages, lag = rng.randint(1, 2), rng.randint(0, 1)
    turns = rng.choice((0, 1, stages, stages + 1))
    lag = min(lag, stages - 1)
    load: Calls = []
    math: Calls = [("acc",)]
    for turn in range(turns):
        s, parity = turn % stages, turn // stages & 1
        load += [("wait", stages + s, parity ^ 1), ("arrive tx", s, SLOT_BYTES), ("load", s, s)]
        math += [("wait", s, parity), ("mma fence",), ("mma", s), ("mma commit",), ("mma wait", lag)]
        if turn >= lag:
            math.append(("arrive", stages + (turn - lag) % stages))
    math += [("mma wait", 0)]
    if lag and turns:
        math.append(("arrive", stages + (turns - 1) % stages))
    math.append(("acc read",))
    warps = [list(math) for _ in range(4)] + [load]
    return _made([1] * stages + [4] * stages, stages, warps, f"wgmma, {stages} stages, lag {lag}", mma=True)


def multicast(rng: random.Random) -> SmallProgram:
    """Two CTAs load halves of each slot for both; readers release at both; a tail keeps CTAs from leaving early."""
    stages, tail = rng.randint(1, 2), rng.choice(("waits", "cluster"))
    turns = rng.choice((0, 1, stages, stages + 1, 2 * stages))
    warps: list[Calls] = []
    for rank in range(2):
        load: Calls = []
        read: Calls = []
        for turn in range(turns):
            s, parity = turn % stages, turn // stages & 1
            load += [("wait", stages + s, parity ^ 1), ("arrive tx", s, SLOT_BYTES), ("load", s, s, 3, rank)]
            read += [("wait", s, parity), ("read", s), ("fence",), ("warp sync",), ("arrive at", stages + s, 3)]
        if tail == "waits":
            for turn in range(turns, turns + stages):
                load.append(("wait", stages + turn % stages, (turn // stages & 1) ^ 1))
        else:
            scope = rng.choice(("cluster", "relaxed"))
            load += [("cluster arrive", scope), ("cluster wait",)]
            read += [("cluster arrive", scope), ("cluster wait",)]
        warps += [load, read]
    counts = [1] * stages + [2] * stages
    return _made(counts, stages, warps, f"multicast, {stages} stages, tail {tail}", ctas=2)


def turnstile(rng: random.Random) -> SmallProgram:
    """Two warps go in turn, on one slot."""
    teams: list[Calls] = [[], []]
    for turn in range(rng.randint(1, 3)):
        for team, calls in enumerate(teams):
            parity = turn & 1
            calls += [("wait", team, parity ^ (team == 0)), ("write", 0), ("warp sync",), ("arrive", 1 - team)]
    return _made([1, 1], 1, teams, "turnstile")


def two_producers(rng: random.Random) -> SmallProgram:
    """Two warps load into one slot's two parts, armed by each."""
    stages = rng.randint(1, 2)
    loads: list[Calls] = [[], []]
    read: Calls = []
    for turn in range(_turns(rng, stages)):
        s, parity = turn % stages, turn // stages & 1
        for which, calls in enumerate(loads):
            calls += [("wait", stages + s, parity ^ 1), ("arrive tx", s, SLOT_BYTES), ("load", 2 * s + which, s)]
        read += [("wait", s, parity), ("read", 2 * s), ("read", 2 * s + 1), ("fence",), ("warp sync",)]
        read.append(("arrive", stages + s))
    return _made([2] * stages + [1] * stages, 2 * stages, [*loads, read], f"two producers, {stages} stages")


def two_rings(rng: random.Random) -> SmallProgram:
    """load -> read one slot, write another -> store. The slots of the two rings are different."""
    load: Calls = []
    change: Calls = []
    store: Calls = []
    ins, outs = rng.randint(1, 2), rng.randint(1, 2)
    full, free, ready, empty = 0, ins, 2 * ins, 2 * ins + outs
    for turn in range(rng.choice((1, 2, 3, 4))):
        s, parity = turn % ins, turn // ins & 1
        t, lap = turn % outs, turn // outs & 1
        load += [("wait", free + s, parity ^ 1), ("arrive tx", full + s, SLOT_BYTES), ("load", s, full + s)]
        change += [("wait", full + s, parity), ("read", s), ("fence",), ("warp sync",), ("arrive", free + s)]
        change += [("wait", empty + t, lap ^ 1), ("write", ins + t), ("fence",), ("warp sync",), ("arrive", ready + t)]
        store += [
            ("wait", ready + t, lap),
            ("store", ins + t),
            ("commit",),
            ("bulk wait", 0, True),
            ("arrive", empty + t),
        ]
    return _made([1] * (2 * ins + 2 * outs), ins + outs, [load, change, store], f"two rings, {ins} and {outs} stages")


def multiply_and_store(rng: random.Random) -> SmallProgram:
    """A warpgroup multiplies, and stores the result from a buffer of its own, which may lie in the bytes of a slot."""
    stages, turns = 1, rng.randint(1, 2)
    aliased = rng.random() < 0.3
    load: Calls = []
    math: list[Calls] = [[] for _ in range(4)]
    for turn in range(turns):
        parity = turn & 1
        load += [("wait", 1, parity ^ 1), ("arrive tx", 0, SLOT_BYTES), ("load", 0, 0)]
        for warp, calls in enumerate(math):
            calls += [("acc",), ("wait", 0, parity), ("mma fence",), ("mma", 0), ("mma commit",), ("mma wait", 0)]
            calls += [] if aliased else [("arrive", 1)]
            calls += [("acc read",)] + ([("bulk wait", 0, True)] if warp == 0 else [])
            calls += [("bar sync", 1, 128), ("write", 1, 4, warp), ("fence",), ("bar sync", 1, 128)]
            calls += [("store", 1), ("commit",)] if warp == 0 else []
            if aliased:  # the slot is free again when the store has read what lies in its bytes
                calls += [("bulk wait", 0, True)] if warp == 0 else []
                calls += [("arrive", 1)]
    math[0].append(("bulk wait", 0, True))
    overlap = SLOT_BYTES // 2 if aliased else 0
    text = f"wgmma and store{', aliased' if aliased else ''}"
    return _made([1, 4], stages + 1, [*math, load], text, mma=True, overlap=overlap)


def multiply_multicast(rng: random.Random) -> SmallProgram:
    """Two CTAs share the slots that their warpgroups multiply; releases to peers only count."""
    turns = rng.randint(0, 2)
    warps: list[Calls] = []
    for rank in range(2):
        load: Calls = []
        math: Calls = [("acc",)]
        for turn in range(turns):
            parity = turn & 1
            load += [("wait", 1, parity ^ 1), ("arrive tx", 0, SLOT_BYTES), ("load", 0, 0, 3, rank)]
            math += [("wait", 0, parity), ("mma fence",), ("mma", 0), ("mma commit",), ("mma wait", 0)]
            math += [("arrive at", 1, 3, "relaxed")]
        load.append(("wait", 1, (turns & 1) ^ 1))
        warps += [*(list(math) for _ in range(4)), load]
    return _made([1, 8], 1, warps, "wgmma, multicast", ctas=2, mma=True)


def buffer_beside_multicast(rng: random.Random) -> SmallProgram:
    """Two CTAs share loads that nobody's threads touch, so releases to peers only count; two warps of each CTA fill a buffer
    of their own, which one of them stores."""
    turns = rng.randint(1, 2)
    warps: list[Calls] = []
    for rank in range(2):
        load: Calls = []
        work: list[Calls] = [[], []]
        for turn in range(turns):
            load += [("wait", 1, turn & 1 ^ 1), ("arrive tx", 0, SLOT_BYTES), ("load", 0, 0, 3, rank)]
            for part, calls in enumerate(work):
                calls += [("bulk wait", 0, True)] if part == 0 else []
                calls += [("wait", 0, turn & 1), ("bar sync", 1, 64), ("write", 1, 2, part), ("fence",)]
                calls += [("bar sync", 1, 64), *((("store", 1), ("commit",)) if part == 0 else ())]
                calls += [("arrive at", 1, 3, "relaxed")]
        work[0].append(("bulk wait", 0, True))
        load.append(("wait", 1, (turns & 1) ^ 1))
        warps += [*work, load]
    return _made([1, 4], 2, warps, "buffer beside multicast", ctas=2)


def copied(rng: random.Random) -> SmallProgram:
    """One or two warps copy, one reads: by threads, by stores, or by stores of another warp, after a fence of either."""
    stages, copiers, how = rng.randint(1, 2), rng.randint(1, 2), rng.randrange(4)
    beside = rng.random() < 0.3  # a TMA load on the same mbarrier
    warps: list[Calls] = [[] for _ in range(copiers + 1 + (how > 1))]
    store: Calls = []
    free = stages * (1 + (how > 1))
    for turn in range(_turns(rng, stages)):
        s, parity = turn % stages, turn // stages & 1
        for share, calls in enumerate(warps[:copiers]):
            calls.append(("wait", free + s, parity ^ 1))
            if beside and not share:
                calls += [("arrive tx", s, SLOT_BYTES), ("load", stages + s, s)]
            calls.append(("copy", s, s, share, copiers))
        last = warps[-1]
        if how > 1:
            fence: Calls = [("fence",)] if how == 2 else []
            warps[copiers] += [("wait", s, parity), *fence, ("arrive", stages + s)]
            last.append(("wait", stages + s, parity))
        else:
            last.append(("wait", s, parity))
        if how == 0:
            last += [("read", s), ("warp sync",), ("arrive", free + s)]
        else:
            store = [] if how == 2 else [("fence",)]
            last += [*store, ("store", s), ("commit",), ("bulk wait", 0, True), ("arrive", free + s)]
        if beside:
            last += [("read", stages + s), ("fence",), ("warp sync",)]
            last.append(last.pop(-4))  # the arrival comes last
    counts = [32 * copiers + beside] * stages + [1] * stages * (1 + (how > 1))
    return _made(counts, stages * (1 + beside), warps, f"copied by {copiers}, {stages} stages, way {how}")


COPIED: tuple[Callable[[random.Random], SmallProgram], ...] = (copied,)  # of programs that came later
FAMILIES: tuple[Callable[[random.Random], SmallProgram], ...] = (
    copy_by_threads,
    copy_by_stores,
    transform,
    by_threads,
    buffer_stored,
    multiply,
    multicast,
    turnstile,
    two_producers,
    two_rings,
    multiply_and_store,
    multiply_multicast,
    buffer_beside_multicast,
)
