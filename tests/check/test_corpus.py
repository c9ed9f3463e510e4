"""Real bugs of public trackers: the checker rejects each, for the right reason, and passes its fixed twin."""

from __future__ import annotations

import re

import pytest

import tmapipe as tp
from tests.check.corpus import arrival_counts, budgets, byte_counts, peers, proxy_fences, slot_reuse, turns_and_tails
from tests.check.corpus.parts import Case, HandRing, Parts, Program, program
from tests.machine.slots import read_slot
from tests.oracle.one_run import check_program
from tests.oracle.tirx_rings import MULTICAST, RUNS, ours

MODULES = (arrival_counts, byte_counts, proxy_fences, slot_reuse, peers, turns_and_tails, budgets)
CASES = [case for module in MODULES for case in module.CASES]
BAD = [pytest.param(case, bad, id=f"{case.name}-{i}") for case in CASES for i, bad in enumerate(case.bad)]
FIXED = [pytest.param(case, good, id=f"{case.name}-{i}") for case in CASES for i, good in enumerate(case.fixed)]


def check(program: Program, name: str):
    return check_program(program.plan, program.entry, program.shapes, program.clusters, name=name)


def test_every_row_of_the_table_is_here():
    assert len({case.name for case in CASES}) == 29


@pytest.mark.parametrize(("case", "bad"), BAD)
def test_bug_is_found(case: Case, bad: Program):
    report = check(bad, case.name)
    assert report.kinds() & case.wanted, f"none of {sorted(k.name for k in case.wanted)} in:\n{report}"
    texts = [str(finding) for finding in report.errors if finding.kind in case.wanted]
    for pattern in case.says:
        assert any(re.search(pattern, text) for text in texts), f"nothing says {pattern!r} in:\n{report}"


@pytest.mark.parametrize(("case", "good"), FIXED)
def test_fixed_twin_passes(case: Case, good: Program):
    report = check(good, case.name)
    assert report.ok, str(report)
    assert case.notes <= {finding.kind for finding in report.notes}, str(report)


def by_hand(slip: str) -> Program:
    """A ring without an object that declares it: the report has the barriers alone to go by."""
    parts = Parts()
    parts.role("load", 1)
    use = parts.role("use", 2 if slip == "one of two warps releases" else 1)
    ring = HandRing(parts, 2, free=2 if slip in ("one of two warps releases", "a count of two") else 1)

    def load(isa):
        for turn in range(6):
            if slip != "no wait for a free slot":
                ring.wait_free(isa, turn)
            if slip != "nothing is armed":
                ring.arm(isa, turn)
            if slip != "nothing is loaded":
                ring.load(isa, turn)

    def read(isa):
        for turn in range(6):
            if slip != "no wait for the load":
                ring.wait_full(isa, turn)
            read_slot(isa, ring.slot(turn), use)
            isa.fence_proxy_async()
            isa.warp_sync()
            if (slip, isa.warp) != ("one of two warps releases", 2) and (slip, turn) != ("one release is left out", 3):
                ring.release(isa, turn)

    return program(parts.plan(), {"load": load, "use": read}, 6)


@pytest.mark.parametrize(
    ("slip", "fix"),
    [
        ("no wait for a free slot", "wait for the end of the phase before"),
        ("no wait for the load", r"free\[0\] has completed 3 phases, and load has waited for 0: let use wait"),
        ("nothing is armed", r"full\[0\] got 512 bytes that nobody armed"),
        ("nothing is loaded", "512 bytes armed that no load delivers: start the loads"),
        (
            "one of two warps releases",
            r"free\[0\] counts 2 arrivals and gets 1 a phase: initialize it with 1, or let more",
        ),
        ("a count of two", r"free\[0\] counts 2 arrivals and gets 1 a phase: initialize it with 1, or let more arrive"),
        (
            "one release is left out",
            r"phase 1 of free\[1\] got 0 of 1 arrivals: let use arrive at it as often as load waits",
        ),
    ],
)
def test_fixes_without_a_declared_ring(slip, fix):
    (first, *_) = check(by_hand(slip), slip).errors
    assert re.search(fix, first.fix) and first.where, first


def test_nothing_but_a_slip_is_wrong_in_it():
    assert check(by_hand(""), "right").ok


@pytest.mark.parametrize(("cluster", "runs"), [(1, RUNS), (2, MULTICAST)])
def test_rings_that_other_checkers_have_seen(cluster, runs):
    """As in the table of docs/internals/appendix-checker.md."""
    safe = [(6, 0), (32, 0), (12, 7)]
    wanted = {1: "STORE_SOURCE_REUSED", 4: "TX_MISMATCH", 5: "RACE", 6: "PROXY", 9: "EXITED_PEER", 10: "EARLY_ARRIVAL"}
    for tiles, slip in runs:
        verdict = ours(tiles, slip, cluster)()
        assert verdict == "safe" if (tiles, slip) in safe else wanted.get(slip, "DEADLOCK") in verdict, (slip, verdict)


# ---- the library's objects cannot say these ---------------------------------------------------------------------------


def test_cutlass_3658_masks_follow_from_declared_axes():
    """A multicast group names axes of the cluster; there is no way to name a CTA."""

    class Elsewhere(tp.schedules.Copy):
        load, store = tp.schedules.Copy.load, tp.schedules.Copy.store
        cluster = {"m": 2}  # noqa: RUF012

        def __init__(self):
            super().__init__()
            self.x = tp.TmaLoadStage("m n", tile=(8, 64), ring=self.ring, multicast=tp.MulticastGroup("z"))
            self.y = tp.TmaStoreStage(source=self.x)

    with pytest.raises(tp.InputError, match=r"x\.multicast.*z"):
        Elsewhere().plan()


def test_cutlass_2007_registers_that_do_not_add_up():
    class Greedy(tp.schedules.Gemm):
        math = tp.Role(warpgroups=2, registers=256)

    with pytest.raises(tp.InputError, match="registers a thread over"):
        Greedy().plan()


def test_flashinfer_4533_ids_of_named_barriers_are_handed_out():
    """They differ, and more of them than there are is an error of the plan."""

    class Many(tp.Schedule):
        load, math = tp.Role(warps=1), tp.Role(warps=2)

        def __init__(self, stores: int):
            self.ring = tp.BarrierRing(2, producer=self.load, consumer=self.math)
            self.x = tp.TmaLoadStage(tile=(8, 64), ring=self.ring)
            for i in range(stores):
                setattr(self, f"y{i}", tp.TmaStoreStage(tile=(8, 64), role=self.math))

    ids = [barrier.id for barrier in Many(15).plan().named_barriers]
    assert sorted(ids) == list(range(1, 16))
    with pytest.raises(tp.InputError, match="named barriers"):
        Many(16).plan()
