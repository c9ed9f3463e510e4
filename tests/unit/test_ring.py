"""Ring ends by themselves: index, parity, arming, release and tail of every phase, against their closed forms.

The n-th slot that an end enters (n = 0, 1, ...) of a ring of S slots is slot n % S. Its barrier completes once a lap, so the
wait for lap n // S uses parity (n // S) & 1; the first phase waits for the lap before, so the opposite one.
"""

import functools
import itertools

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.fake_isa import RecordingIsa
from tmapipe.base import along
from tmapipe.base.arithmetic import bf16
from tmapipe.errors import ScopeError
from tmapipe.isa.fragment import Fragment
from tmapipe.plan.model import Load, Plan, RoleWarps, Store
from tmapipe.plan.rings import Barrier, Buffer, Ring
from tmapipe.plan.thread_layout import vectors_of
from tmapipe.protocol.ring import RingEnd
from tmapipe.protocol.slots import PartInSlot, SlotPart
from tmapipe.protocol.stores import StoreOfSlot

NBYTES = 1024


def make_ring(stages, phases=(("load",), ("use",)), *, lag=None, readers=None, armed=None, groups=(), peers=1):
    """A ring whose barriers are named after the phase that signals them."""
    armed = {"load": NBYTES} if armed is None else armed
    names = ["+".join(phase) for phase in phases]
    barriers = tuple(Barrier(f"by {name}", 64 * n, stages, 1) for n, name in enumerate(names))
    signals = tuple(role for phase in phases for role in phase if role not in armed)
    return Ring("ring", stages, phases, barriers, armed, signals, lag or {}, readers or {}, groups, peers)


def make_plan(ring, cluster=None):
    roles = tuple(RoleWarps(role, n, 1) for n, role in enumerate(itertools.chain(*ring.phases)))
    buffer = Buffer("x", 1024, ring.stages, (8, 64), bf16)
    return Plan(
        name="hand", arch="sm_90a", cluster=cluster or {}, roles=roles, barriers=ring.barriers, named_barriers=(),
        buffers=(buffer,), rings=(ring,), loads=(Load("x", "x", buffer, ("m", "n"), (8, 64)),),
        stores=(Store("y", "y", buffer, ("m", "n"), (8, 64)),), matmuls=(), arguments=("x", "y"),
        warps=len(roles), smem_bytes=8192, launch_registers=128, registers={},
    )  # fmt: skip


def make_end(ring, role, cluster=None, cta_rank=0, async_proxy=True):
    plan = make_plan(ring, cluster)
    if not async_proxy:
        plan = attrs.evolve(plan, loads=(), stores=())
    isa = RecordingIsa(plan, cta_rank=cta_rank)
    loads = make_plan(ring).loads[0] if ring.phase_of(role) == 0 else None
    parts = {"x": functools.partial(PartInSlot, SlotPart(isa, role, plan.buffers[0], loads))}
    return RingEnd(isa, ring, role, parts), isa


def enter(end):
    return end.produce() if end.phase == 0 else end.consume()


def trips(stages):
    return sorted({0, 1, max(stages - 1, 0), stages, stages + 1, 2 * stages, 5 * stages + 2, 41})


STAGES = range(1, 9)
CHAINS = [
    (("load",), ("use",)),
    (("load",), ("transform",), ("store",)),
    (("load",), ("a",), ("b",), ("c",)),
    (("load",), ("a",), ("b",), ("c",), ("d",)),
    (("load",), ("math", "logger")),
    (("load",), ("a", "b"), ("c", "d")),
]


# ---- index and parity -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stages", STAGES)
@pytest.mark.parametrize("phases", CHAINS)
def test_index_and_parity(stages, phases):
    for count in trips(stages):
        ring = make_ring(stages, phases)
        for p, role in ((p, role) for p, phase in enumerate(phases) for role in phase):
            end, isa = make_end(ring, role)
            indices = []
            for _ in range(count):
                with enter(end) as slot:
                    indices.append(slot.index)
            awaited = ring.barriers[p - 1].name  # of the phase before; for the first, of the last
            opposite = 1 if p == 0 else 0
            assert indices == [n % stages for n in range(count)]
            assert isa.of("wait") == [("wait", awaited, n % stages, (n // stages) & 1 ^ opposite) for n in range(count)]


@pytest.mark.parametrize("stages", STAGES)
def test_loader_arms_each_slot_once_and_signals_nothing_else(stages):
    for count in trips(stages):
        end, isa = make_end(make_ring(stages), "load")
        for _ in range(count):
            with end.produce():
                pass
        end.finish()
        expected = [
            (
                ("wait", "by use", n % stages, (n // stages) & 1 ^ 1),
                ("arm", "by load", n % stages, NBYTES),
            )
            for n in range(count)
        ]
        assert isa.events == [event for pair in expected for event in pair]


@pytest.mark.parametrize("stages", STAGES)
@pytest.mark.parametrize("phases", CHAINS)
def test_later_phases_release_each_slot_once_in_order(stages, phases):
    for count in trips(stages):
        ring = make_ring(stages, phases)
        for p, role in ((p, role) for p, phase in enumerate(phases) for role in phase if p):
            end, isa = make_end(ring, role)
            for _ in range(count):
                with end.consume():
                    pass
            end.finish()
            assert isa.of("arrive") == [("arrive", ring.barriers[p].name, n % stages, 1) for n in range(count)]
            kinds = [event[0] for event in isa.events]
            assert kinds == ["wait", "arrive"] * count


def fragment(slot):
    """Values of the slot's tile."""
    isa, buffer, role = slot.end.isa, slot.x.ref.buffer, slot.end.role
    return Fragment(isa, vectors_of("x", buffer.tile, isa.plan.role(role)), "tile", "fp32", "v")


def test_producer_that_writes_by_threads_signals():
    ring = make_ring(2, armed={})
    end, isa = make_end(ring, "load")
    for _ in range(3):
        with end.produce() as slot:
            slot.x.write(fragment(slot))
    # Its write is fenced for the engine and ordered among the lanes before the one arrival.
    one = ["wait", "write", "proxy_fence", "warp_sync", "arrive"]
    assert [event[0] for event in isa.events] == one * 3
    assert isa.of("arm") == []


def test_events_are_the_scopes():
    """acquire and commit, wait and release do what the scopes do."""
    for role, first, second in (("load", "acquire", "commit"), ("use", "wait", "release")):
        scoped, one = make_end(make_ring(3), role)
        for _ in range(7):
            with enter(scoped):
                pass
        evented, other = make_end(make_ring(3), role)
        for _ in range(7):
            getattr(evented, second)(getattr(evented, first)())
        assert one.events == other.events


def test_two_slots_open_at_once():
    end, isa = make_end(make_ring(3), "use")
    with end.consume() as first:
        with end.consume() as second:
            assert (first.index, second.index) == (0, 1)
    assert [event[2] for event in isa.of("arrive")] == [1, 0]


@given(stages=st.integers(1, 8), steps=st.lists(st.integers(0, 20), max_size=12))
def test_skip_passes_over_slots(stages, steps):
    """Slots that another team takes: the place moves as if they had been entered, without an event."""
    for role in ("load", "use"):
        end, isa = make_end(make_ring(stages), role)
        n, expected = 0, []
        for step in steps:
            end.skip(step)
            n += step
            with enter(end):
                pass
            expected.append((n % stages, (n // stages) & 1 ^ (role == "load")))
            n += 1
        assert [event[2:] for event in isa.of("wait")] == expected


# ---- late release -----------------------------------------------------------------------------------------------------

READERS = [("wgmma",), ("tma",), ("wgmma", "tma")]
LATE = [(stages, lag) for lag in (1, 2, 3) for stages in range(lag + 1, 9)]


@pytest.mark.parametrize("stages,lag", LATE)
@pytest.mark.parametrize("readers", READERS)
def test_late_release(stages, lag, readers):
    """A slot is released `lag` slots later, when at most `lag` groups are still in flight: so its own has retired."""
    for count in trips(stages):
        end, isa = make_end(make_ring(stages, lag={"use": lag}, readers={"use": readers}), "use")
        for n in range(count):
            with end.consume():
                pass
            released = [event[2] for event in isa.of("arrive")]
            assert released == [i % stages for i in range(max(0, n + 1 - lag))]
            if n >= lag:
                left = isa.events[-1 - 2 * len(readers) :]
                commits = [{"wgmma": ("wgmma_commit",), "tma": ("commit",)}[reader] for reader in readers]
                waits = [{"wgmma": ("wgmma_wait", lag), "tma": ("wait_group", lag, True)}[reader] for reader in readers]
                assert left == [*commits, *waits, ("arrive", "by use", (n - lag) % stages, 1)]
        before = len(isa.events)
        end.drain()
        waits = [{"wgmma": ("wgmma_wait", 0), "tma": ("wait_group", 0, True)}[reader] for reader in readers]
        rest = [("arrive", "by use", n % stages, 1) for n in range(max(0, count - lag), count)]
        assert isa.events[before:] == [*waits, *rest]


@given(
    stages=st.integers(2, 8),
    data=st.data(),
    bursts=st.lists(st.integers(0, 12), max_size=5),
    readers=st.sampled_from(READERS),
)
def test_draining_between_bursts_releases_each_slot_once(stages, data, bursts, readers):
    """Drained after each output tile, finished at the end: as many releases as slots, in ring order."""
    lag = data.draw(st.integers(1, stages - 1))
    end, isa = make_end(make_ring(stages, lag={"use": lag}, readers={"use": readers}), "use")
    for burst in bursts:
        for _ in range(burst):
            with end.consume():
                pass
        end.drain()
        assert list(end.held) == [-1] * lag
    end.finish()
    assert [event[2] for event in isa.of("arrive")] == [n % stages for n in range(sum(bursts))]


def test_asynchronous_reader_without_lag_waits_for_itself():
    end, isa = make_end(make_ring(2, lag={"use": 0}, readers={"use": ("tma",)}), "use")
    with end.consume():
        pass
    assert isa.events == [
        ("wait", "by load", 0, 0),
        ("commit",),
        ("wait_group", 0, True),
        ("arrive", "by use", 0, 1),
    ]


# ---- peers and tail ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stages", STAGES)
def test_tail_waits_for_the_last_release_of_every_slot(stages):
    """Only where peers signal this CTA: the producer's next S waits, so that no arrival finds the CTA gone."""
    for count in trips(stages):
        ring = make_ring(stages, groups=(along({"m": 1, "n": 2}, "n"),), peers=2)
        end, isa = make_end(ring, "load", cluster={"m": 1, "n": 2})
        for _ in range(count):
            with end.produce():
                pass
        before = len(isa.events)
        end.finish()
        places = [(n % stages, (n // stages) & 1 ^ 1) for n in range(count, count + stages)]
        assert isa.events[before:] == [("wait", "by use", *place) for place in places]


@pytest.mark.parametrize("phases", CHAINS)
def test_no_tail_without_peers_or_in_later_phases(phases):
    for groups, peers in (((), 1), ((along({"m": 1, "n": 2}, "n"),), 2)):
        ring = make_ring(3, phases, groups=groups, peers=peers)
        for p, role in ((p, role) for p, phase in enumerate(phases) for role in phase):
            end, isa = make_end(ring, role, cluster={"m": 1, "n": 2})
            end.finish()
            assert bool(isa.events) == (p == 0 and peers > 1)


@pytest.mark.parametrize("phases", CHAINS)
def test_only_the_last_phase_signals_peers(phases):
    ring = make_ring(3, phases, groups=(along({"m": 2, "n": 2}, "n"),), peers=2)
    for p, role in ((p, role) for p, phase in enumerate(phases) for role in phase if p):
        end, isa = make_end(ring, role, cluster={"m": 2, "n": 2}, cta_rank=1)
        with end.consume():
            pass
        last = p == len(phases) - 1
        assert len(isa.of("arrive_cluster")) == int(last) and len(isa.of("arrive")) == int(not last)
        if last:
            assert isa.events[-1] == ("arrive_cluster", ring.barriers[-1].name, 0, 0b1010)  # ranks 1 and 3


def test_a_release_reaches_the_union_of_the_groups():
    """In a 2 x 2 cluster with both operands multicast, a CTA's slots are filled for by its row and its column."""
    square = {"m": 2, "n": 2}
    ring = make_ring(3, groups=(along(square, "n"), along(square, "m")), peers=3)
    for rank, mask in enumerate((0b0111, 0b1011, 0b1101, 0b1110)):
        end, isa = make_end(ring, "use", cluster=square, cta_rank=rank)
        with end.consume():
            pass
        assert isa.events[-1][-1] == mask


# ---- accesses by threads ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("async_proxy", [True, False])
@pytest.mark.parametrize("access", ["read", "write"])
def test_threads_accesses_are_ordered_before_the_release(access, async_proxy):
    """The proxy fence only where the async proxy touches these bytes in some other phase or lap."""
    end, isa = make_end(make_ring(2), "use", async_proxy=async_proxy)
    with end.consume() as slot:
        slot.x.read() if access == "read" else slot.x.write(fragment(slot))
    fence = ["proxy_fence"] if async_proxy else []
    assert [event[0] for event in isa.events] == ["wait", access, *fence, "warp_sync", "arrive"]


def test_a_slot_that_no_thread_touches_needs_no_fence():
    end, isa = make_end(make_ring(2), "use")
    with end.consume():
        pass
    assert [event[0] for event in isa.events] == ["wait", "arrive"]


def test_a_store_of_what_threads_wrote_is_fenced_first():
    ring = make_ring(2, lag={"use": 1}, readers={"use": ("tma",)})
    end, isa = make_end(ring, "use")
    plan = isa.plan
    end.parts["y"] = functools.partial(StoreOfSlot, isa, plan.stores[0], "use")
    with end.consume() as slot:
        slot.x.write(fragment(slot))
        slot.y.store(m=1, n=2)
    kinds = [event[0] for event in isa.events]
    assert kinds[:5] == ["wait", "write", "proxy_fence", "warp_sync", "store"]
    assert ("store", "y", 0, (8, 128)) in isa.events


def test_a_slot_that_is_passed_over_is_released_without_a_wait_for_reads():
    end, isa = make_end(make_ring(2, readers={"use": ("wgmma",)}), "use")
    for _ in range(3):
        end.pass_over()
    assert [event[0] for event in isa.events] == ["wait", "arrive"] * 3
    assert [event[1:3] for event in isa.events[-2:]] == [event[1:3] for event in isa.events[:2]]  # of the same slot


# ---- scopes -----------------------------------------------------------------------------------------------------------


def test_verbs_belong_to_phases():
    producer, _ = make_end(make_ring(2), "load")
    consumer, _ = make_end(make_ring(2), "use")
    for call in (producer.consume, producer.wait, producer.pass_over):
        with pytest.raises(ScopeError, match=r"consume\(\) on ring 'ring' in role 'load'.* Use produce\(\)"):
            call()
    for call in (consumer.produce, consumer.acquire):
        with pytest.raises(ScopeError, match=r"produce\(\) on ring 'ring' in role 'use'.* Use consume\(\)"):
            call()


def test_a_slot_is_dead_outside_its_block():
    end, isa = make_end(make_ring(2), "use")
    with end.consume() as slot:
        part = slot.x
    for use in (lambda: slot.x, part.read, lambda: part.write("v"), lambda: part.load(m=0, n=0)):
        with pytest.raises(ScopeError, match=r"outside its `with` block in role 'use'.*Move the use into the block"):
            use()
    with pytest.raises(ScopeError, match="outside"):
        end.release(slot)  # a second time
    assert len(isa.of("arrive")) == 1
    with pytest.raises(ScopeError, match="outside"):
        end.consume().x  # noqa: B018 - never entered


def test_unknown_stage_names_those_there_are():
    end, _ = make_end(make_ring(2), "use")
    with end.consume() as slot:
        with pytest.raises(ScopeError, match=r"ring 'ring' has no stage 'z'; its stages are x\."):
            slot.z  # noqa: B018


def test_only_the_loading_phase_loads():
    end, _ = make_end(make_ring(2), "use")
    with end.consume() as slot:
        with pytest.raises(ScopeError, match=r"load\(\) of 'x' in role 'use': only the role that loads it can"):
            slot.x.load(m=0, n=0)


def test_only_the_storing_role_stores():
    ring = make_ring(2, (("load",), ("use",), ("store",)))
    end, isa = make_end(ring, "use")
    end.parts["y"] = functools.partial(StoreOfSlot, isa, isa.plan.stores[0], "store")
    with end.consume() as slot:
        with pytest.raises(ScopeError, match=r"store\(\) of 'y' in role 'use': the ring's last role stores it"):
            slot.y.store(m=0, n=0)


def test_an_error_in_the_body_signals_nothing():
    """The error that the user made is what they see, not one about a scope that it left open."""
    end, isa = make_end(make_ring(2), "use")
    with pytest.raises(ZeroDivisionError):
        with end.consume() as slot:
            1 // 0  # noqa: B018
    assert isa.of("arrive") == [] and not slot.open
