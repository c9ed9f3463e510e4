"""The emitted PTX, executed, asks the hardware for exactly what the CPU backend, on the same bodies, asks it for.

Every warp, two lanes of it, every CTA of a cluster: indices, parities, arming bytes, boxes, coordinates, masks, descriptors,
groups, fences and syncs, in order. This is one program with two backends, compared event by event.
"""

import itertools
import re
from collections.abc import Sequence

import pytest

import tmapipe as tp
from tests.emit.dump import text_of
from tests.emit.kernels import ELSEWHERE, KERNELS, Built, built, swept
from tests.emit.lower import lower
from tests.oracle.ptx_execution import Execution
from tests.oracle.ptx_launch import Launch
from tests.sweeps import ALL
from tests.unit.fake_isa import Event, record
from tmapipe.tiles.dynamic import COUNTERS


def events_of(kernel: Built, launch: Launch, warp: int) -> list[Event]:
    """What the bodies ask for, of all lanes."""
    place = {name: getattr(launch, name) for name in ("cta_rank", "cluster_id", "clusters", "tables")}
    return record(kernel.schedule, kernel.plan, warp, launch.extents, **place)


def said(event: Event) -> Event:
    """An event without the words that a scheduler stores after the one which says that there is no tile: their numbers are
    those of no tile, and nobody reads them."""
    if event[0] == "store_words" and event[2] and event[2][0] == 0:
        return (*event[:2], event[2][:1], *event[3:])
    return event


def check_threads(kernel: Built, launch: Launch, warp: int, lanes: Sequence[int]) -> int:
    """Compares threads of one warp; returns their number of events."""
    events = events_of(kernel, launch, warp)
    words = [event[3] for event in events if event[0] == "read_words"]
    lane, *beside = lanes
    found = Execution(kernel.ptx, kernel.schedule, launch, warp, lane, words, beside).run_all()
    total = 0
    for lane in lanes:
        expected = lower(events, kernel.plan, launch, warp, lane)
        for n, (on_cpu, in_ptx) in enumerate(zip(expected, found[lane], strict=False)):
            assert said(in_ptx) == said(on_cpu), f"event {n} of warp {warp}, lane {lane}, {launch}"
        rest = found[lane][len(expected) :], expected[len(found[lane]) :]
        assert len(found[lane]) == len(expected), (warp, lane, launch, *rest)
        total += len(expected)
    return total


def check(kernel: Built, clusters: int = 3) -> int:
    """Compares the leader of every warp and another lane of each warpgroup's first two, in every CTA of one cluster; of a
    grid of as many clusters as it asks for, in some of them."""
    total, order = 0, kernel.schedule.tiles
    places = [(rank % clusters, rank) for rank in range(kernel.plan.cluster_size)]
    if isinstance(order, tp.tiles.GridTiles):
        (clusters,) = order.launch_numbers(kernel.schedule.cluster_count(kernel.extents), 1, 1, list)
        places = [(cluster, rank) for cluster in {0, 1, clusters // 2, clusters - 1} for _, rank in places]
    for cluster, rank in places:
        launch = Launch(kernel.extents, clusters, cluster, rank, kernel.tables)
        for warp in range(kernel.plan.warps):
            total += check_threads(kernel, launch, warp, (0, 1) if warp % 4 < 2 else (0,))
    return total


@pytest.mark.parametrize("name", swept(KERNELS))
def test_ptx_does_what_the_bodies_say(name):
    kernel = built(name)
    assert check(kernel) > 20 * kernel.plan.cluster_size


@pytest.mark.parametrize(
    "name",
    ["copy", "gemm dynamic 2x2", *ALL * ["pingpong dynamic 2x1", "streamk of small tiles", "add parts"]],
)
def test_unrolled_as_it_runs(name):
    check(built(name, unroll=True))


@pytest.mark.parametrize(("name", "arch"), ELSEWHERE)  # of the copies among them, test_facts has the facts
def test_other_architectures(name, arch):
    check(built(name, arch))


EARLIER = list(itertools.product(("sm_80", "sm_86", "sm_89"), (False, True)))


@pytest.mark.parametrize(("arch", "unroll"), EARLIER if ALL else [EARLIER[0], EARLIER[3]])
def test_before_sm_90(arch, unroll):
    """Waits are loops of test_wait, lane 0 is elected by a comparison, and nothing of sm_90 is left."""
    kernel = built("stores by threads", arch, unroll)
    check(kernel)
    text = text_of(kernel.compiled.ptx)  # without its name, which has those of its arguments
    assert f".target {arch}" in text and "mbarrier.test_wait.parity.shared.b64" in text
    assert kernel.compiled.resources.spill_bytes == 0
    for word in ("try_wait", "expect_tx", "griddepcontrol", "elect.sync", "cluster", "fence", "bulk", "setmaxnreg"):
        assert word not in text.partition("{")[2], word


@pytest.mark.parametrize("name, arch, word", [
    ("rows gathered", "sm_100a", "gather4"), ("rows gathered", "sm_120a", "gather4"),
    ("rows scattered", "sm_100a", "scatter4"),
    *ALL * [("rows gathered", "sm_103a", "gather4"), ("rows scattered", "sm_103a", "scatter4")],
])  # fmt: skip
def test_rows_by_number(name, arch, word):
    """Four rows an instruction, where there is one."""
    kernel = built(name, arch)
    check(kernel)
    assert f".tile::{word}." in kernel.compiled.ptx and word not in built(name).compiled.ptx


@pytest.mark.parametrize(
    "k", [0, 1, 64, 5 * 64], ids=lambda k: f"gemm 2x1-{k}"
)  # of which kernel: see tests/conftest.py
def test_short_loops(k):
    """0, 1 and up to stages + 1 k-tiles, with one output tile and with several."""
    kernel = built("gemm 2x1")
    for m, n in ((100, 200), (600, 600)):
        extents = {"a": (1, m, k), "b": (1, n, k), "d": (1, m, n)}
        for warp in (0, 4, 8):
            for rank in (0, 1):
                check_threads(kernel, Launch(extents, 2, 1, rank), warp, (0,))


@pytest.mark.parametrize("name", ["gemm 2x2"])
def test_lanes_of_a_remote_release(name):
    """Lane i arrives at CTA i; the other lanes at none."""
    kernel = built(name)
    for rank in range(4):
        check_threads(kernel, Launch(kernel.extents, 2, 1, rank), 4, (0, 1, 2, 3, 4, 31))


@pytest.mark.parametrize("name", ["Gemm, sums of rows and columns"])
def test_lanes_of_sums_of_rows(name):
    """Of four lanes that add up two rows, two store one sum each."""
    kernel = built(name)
    for warp in (4, 7, 8):
        check_threads(kernel, Launch(kernel.extents, 3, 2, 0), warp, (0, 1, 2, 3, 28, 29, 31))


@pytest.mark.parametrize("name, resets", [("gemm dynamic 2x2", 1), ("gemm by GPC 1x2", COUNTERS)])
def test_counters(name, resets):
    """The scheduler of one CTA a cluster adds to them, and that of one cluster sets them back to 0."""
    kernel = built(name)
    scheduler = kernel.plan.role("scheduler").first_warp
    found = []
    for cluster, rank in itertools.product(range(3), range(kernel.plan.cluster_size)):
        launch = Launch(kernel.extents, 3, cluster, rank)
        check_threads(kernel, launch, scheduler, (0, 1))
        place = {"cta_rank": rank, "cluster_id": cluster, "clusters": 3}
        events = record(kernel.schedule, kernel.plan, scheduler, launch.extents, **place)
        assert any(event[0] == "add" for event in events) == (rank == 0)
        found.append(sum(event[0] == "set" for event in events))
    assert sorted(found) == [0] * (len(found) - 1) + [resets]


# What the comparison is worth: each of these one-number changes of the PTX must be noticed.
CHANGES = {
    "init count": (r"(mov\.b32 \t%r\d+, )24;", r"\g<1>23;"),
    "stages": (r"(setp\.eq\.b32 \t%p\d+, %r\d+, )6;", r"\g<1>7;"),
    "bytes": (r"(mov\.b32 \t%r\d+, )32768;", r"\g<1>32752;"),
    "slot": (r"(cp\.async\.bulk\.tensor[^;]*\[%r\d+\+)1024\]", r"\g<1>2048]"),
    "k-tile": (r"(wgmma\.wait_group\.sync\.aligned \t)1;", r"\g<1>2;"),
    "registers": (r"(setmaxnreg\.inc\.sync\.aligned\.u32 \t)232;", r"\g<1>240;"),
    "fence": (r"fence\.proxy\.async\.shared::cta;", ""),
    "peer": (r"(mapa\.shared::cluster\.u32 \t%r\d+, %r\d+, )%r\d+;", r"\g<1>0;"),
    "multicast": (r"(cp\.async\.bulk\.tensor[^;]*\}\], \[%r\d+\], )%rs\d+", r"\g<1>1"),
    "read wait": (r"(cp\.async\.bulk\.wait_group\.read \t)1;", r"\g<1>0;"),
    "final wait": (r"cp\.async\.bulk\.wait_group\.read \t0;", ""),
    "meeting": (r"barrier\.cluster\.arrive\.relaxed;", "barrier.cluster.arrive;"),
}


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: f"gemm 2x2-{change}")
def test_a_changed_number_is_noticed(change):
    kernel = built("gemm 2x2")
    pattern, replacement = CHANGES[change]
    text, count = re.subn(pattern, replacement, kernel.compiled.ptx)
    assert count, f"nothing in the PTX matches {pattern}"
    changed = Built(kernel.schedule, kernel.plan, kernel.compiled, type(kernel.ptx)(text, kernel.plan), kernel.extents)
    with pytest.raises(AssertionError):
        for rank in (0, 3):
            for warp in (0, 3, 4, 11):  # of which 3 initializes the barriers
                check_threads(changed, Launch(kernel.extents, 3, 2, rank), warp, (0, 1))
