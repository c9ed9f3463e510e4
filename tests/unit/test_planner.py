"""What the planner derives, against the same numbers derived here in another way, for random declarations."""

import itertools
import math

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import tmapipe as tp
from tests.sweeps import examples
from tests.unit.errors import refused
from tests.unit.test_cluster import peers_of
from tmapipe.base.arithmetic import as_dtype
from tmapipe.plan import MAX_SLOTS
from tmapipe.plan.rings import arch_named

S = tp.schedules
ARCH = arch_named("sm_90a")

relaxed = settings(
    max_examples=examples(120), suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow]
)


@st.composite
def gemms(draw):
    """A GEMM of any tile, cluster and stages that the planner takes, with its plan."""
    kind = draw(st.sampled_from([S.Gemm, S.Gemm, S.PingPong]))
    tile = (
        draw(st.sampled_from([64, 128, 192, 256])),
        draw(st.integers(1, 32)) * 8,
        draw(st.sampled_from([16, 32, 48, 64, 96, 128])),
    )
    cluster = draw(st.sampled_from([(1, 1), (2, 1), (1, 2), (2, 2), (4, 1), (1, 4), (3, 1), (2, 4), (4, 4)]))
    stages = draw(st.sampled_from([None, None, 2, 3, 4, 7]))
    out = draw(st.sampled_from(["bf16", "fp32"]))
    try:
        gemm = kind(tile, cluster, stages, epilogue=tp.epilogue.Epilogue(stages=draw(st.integers(1, 3))))
        plan = gemm.plan({"d": out})
    except tp.InputError:
        assume(False)
    return gemm, plan


@st.composite
def copies(draw):
    """A chain of roles over slots of one or two tiles, with its plan."""
    dtype = draw(st.sampled_from(["bf16", "fp32", "fp8_e4m3", "int8"]))
    tile = (draw(st.integers(1, 64)), 16 * draw(st.integers(1, 20)))
    middle = draw(st.lists(st.integers(1, 6), max_size=3))
    stages = draw(st.sampled_from([None, 1, 2, 5]))
    two = draw(st.booleans())

    class Chain(tp.Schedule):
        load, store = tp.Role(warps=1), tp.Role(warps=1)

        def __init__(self):
            between = [tp.Role(warps=warps) for warps in middle]
            for n, role in enumerate(between):
                setattr(self, f"work{n}", role)
            self.ring = tp.BarrierRing(stages, chain=(self.load, *between, self.store))
            self.x = tp.TmaLoadStage(tile=tile, ring=self.ring)
            if two:
                self.w = tp.TmaLoadStage(tile=(8, 32), ring=self.ring)
            self.y = tp.TmaStoreStage(source=self.x, stages=0)

    schedule = Chain()
    try:
        plan = schedule.plan({"x": dtype, "w": "fp32", "y": dtype})
    except tp.InputError:
        assume(False)
    return schedule, plan


def check_memory(plan, arch=ARCH):
    """Nothing overlaps, everything lies at its alignment and inside what the CTA has."""
    taken = [(b.offset, b.offset + 8 * b.stages, 8, b.name) for b in plan.barriers]
    for buffer in plan.buffers:
        alignment = 1024 if buffer.swizzle else 128
        taken.append((buffer.offset, buffer.offset + buffer.stages * buffer.pitch, alignment, buffer.name))
        assert buffer.stages == 1 or buffer.pitch % alignment == 0
    taken.sort()
    for start, end, alignment, name in taken:
        assert start % alignment == 0, name
        assert 0 <= start < end <= plan.smem_bytes, name
    for (_, end, _, one), (start, _, _, other) in itertools.pairwise(taken):
        assert end <= start, (one, other)
    assert plan.smem_bytes <= arch.smem


def check_roles(plan):
    """Warps side by side, each of one role; warpgroup roles start at a warpgroup."""
    used = [warp for role in plan.roles for warp in range(role.first_warp, role.first_warp + role.warps)]
    assert len(used) == len(set(used)) and max(used) < plan.warps <= 32
    for role in plan.roles:
        assert role.warps % role.teams == 0


def check_registers(plan, arch=ARCH):
    """Every warpgroup has a count that setmaxnreg takes, and they fit what the CTA is launched with."""
    quarter = -(-plan.warps // 4) * 32  # threads whose registers lie in the same quarter of the register file
    assert plan.launch_registers * quarter <= arch.registers // 4 and plan.launch_registers <= 255
    if plan.registers:
        assert sorted(plan.registers) == list(range(plan.warps // 4)) and plan.warps % 4 == 0
        assert all(24 <= count <= 256 and count % 8 == 0 for count in plan.registers.values())
        allocated = -(-plan.launch_registers // 8) * 8  # the hardware allocates registers in units of 8 a thread
        assert sum(plan.registers.values()) <= allocated * len(plan.registers)


def check_boxes(plan):
    """Boxes tile a CTA's share of the slot exactly, within 256 elements and the swizzle's span."""
    for part in plan.transfers:
        buffer, peers = part.buffer, getattr(part, "peers", 1)
        share = list(buffer.tile)
        share[0] //= peers
        assert len(part.box) == len(share) and buffer.tile[0] % peers == 0
        for extent, box in zip(share, part.box, strict=True):
            assert 1 <= box <= 256 and extent % box == 0
        if buffer.swizzle:
            assert part.box[-1] * buffer.dtype.bytes <= buffer.swizzle
            assert share[0] % 8 == 0
        assert part.box[-1] * buffer.dtype.bytes % 16 == 0
        nbytes = math.prod(part.box) * buffer.dtype.bytes
        assert nbytes == buffer.slot_bytes or nbytes % 128 == 0  # where the next one starts


def check_rings(plan, multicast):
    """Arrivals: one for each loader's arming, and each signalling warp of one team; of the last phase, from every CTA whose
    slots this one's loads fill. Bytes: all that arrives in a slot."""
    for ring in plan.rings:
        reached = {rank for axes in multicast for rank in peers_of(0, plan.cluster, axes)} or {0}
        assert ring.peers == len(reached)
        for p, (phase, barrier) in enumerate(zip(ring.phases, ring.barriers, strict=True)):
            loaders = [role for role in phase if role in ring.armed]
            warps = sum(plan.role(role).team_warps for role in phase if role not in ring.armed)
            expected = (len(loaders) + warps) * (len(reached) if p == len(ring.phases) - 1 else 1)
            assert barrier.count == expected and barrier.stages == ring.stages
        loaded = [load for load in plan.loads if load.buffer.stages == ring.stages]
        assert sum(ring.armed.values()) == sum(math.prod(load.tile) * load.buffer.dtype.bytes for load in loaded)
        assert all(lag < ring.stages for lag in ring.lag.values())


@relaxed
@given(made=gemms())
def test_gemm_plans(made):
    gemm, plan = made
    check_memory(plan)
    check_roles(plan)
    check_registers(plan)
    check_boxes(plan)
    check_rings(plan, multicast=[("n",), ("m",)])
    (matmul,) = plan.matmuls
    m, n, k = matmul.shape
    assert (m, k) == gemm.a.tile and (n, k) == gemm.b.tile
    assert m % (64 * matmul.warpgroups) == 0
    assert matmul.k_instructions * 16 == k  # bf16: 16 elements of k an instruction
    assert m * n // (128 * matmul.warpgroups) <= 200
    math_role = plan.role("math")
    assert math_role.first_warp % 4 == 0 and math_role.warps == 4 * matmul.warpgroups * matmul.teams
    for load in plan.loads:
        # The widest span that divides a row: consecutive rows of one 8-row block then hit all banks.
        row = load.buffer.tile[-1] * load.buffer.dtype.bytes
        assert load.buffer.swizzle == max(span for span in (32, 64, 128) if row % span == 0)
    ids = [named.id + i for named in plan.named_barriers for i in range(named.instances)]
    assert len(ids) == len(set(ids)) and all(1 <= i <= 15 for i in ids)


@relaxed
@given(made=copies())
def test_chain_plans(made):
    schedule, plan = made
    check_memory(plan)
    check_roles(plan)
    check_registers(plan)
    check_boxes(plan)
    check_rings(plan, multicast=[])
    (ring,) = plan.rings
    assert [phase for (phase,) in ring.phases] == list(schedule.declared.roles)[:1] + [
        name for name in schedule.declared.roles if name.startswith("work")
    ] + ["store"]
    assert ring.signals == tuple(name for (name,) in ring.phases[1:])


@settings(max_examples=examples(40))
@given(k=st.sampled_from([16, 32, 64, 128]), n=st.integers(4, 32), store_stages=st.integers(1, 3))
def test_auto_stages_fill_shared_memory(k, n, store_stages):
    """One more slot would not fit, or there are as many as help."""
    tile = (128, 8 * n, k)
    try:
        plan = S.Gemm(tile, (1, 1), epilogue=tp.epilogue.Epilogue(stages=store_stages)).plan()
    except tp.InputError:
        assume(False)
    stages = plan.ring("ring").stages
    assert stages <= MAX_SLOTS
    if stages < MAX_SLOTS:
        refused(
            S.Gemm(tile, (1, 1), stages + 1, epilogue=tp.epilogue.Epilogue(stages=store_stages)).plan,
            argument="shared memory",
            rule="sm_90a has",
        )


def test_columns_of_outputs_of_one_byte():
    """A second tile of 72 columns of one byte would start at byte 72: an illegal instruction."""
    made = S.Gemm((64, 72, 64), (1, 1), epilogue=tp.epilogue.Epilogue(dtype="fp8_e4m3"))
    refused(made.plan, argument="d.tile", rule="multiple of 16 columns")
    S.Gemm((64, 80, 64), (1, 1), epilogue=tp.epilogue.Epilogue(dtype="fp8_e4m3")).plan()
    S.Gemm((64, 72, 64), (1, 1)).plan()


def test_auto_stages_shrink_on_a_smaller_architecture():
    stages = {arch: S.Copy((64, 128), None).plan(arch=arch).ring("ring").stages for arch in ("sm_100a", "sm_120a")}
    assert stages == {"sm_100a": 227 * 1024 // 32768, "sm_120a": 99 * 1024 // 32768}


# ---- single facts -----------------------------------------------------------------------------------------------------


def test_default_gemm():
    """The numbers of the issue's tuned kernel, each from first principles."""
    plan = S.Gemm().plan()
    assert plan.warps == 12 and plan.threads == 384  # one warp loads, in a warpgroup of its own; two multiply
    assert plan.launch_registers == 65536 // 384 // 8 * 8 == 168
    assert plan.registers == {0: 40, 1: 232, 2: 232}  # 40 + 232 + 232 = 504 = 3 x 168
    ring = plan.ring("ring")
    assert ring.stages == 4  # (128 x 64 + 256 x 64) x 2 = 48 KiB a slot, and 2 x 2 output buffers of 8 KiB
    assert ring.armed == {"load": 49152}
    assert plan.barrier("ring.full").count == 1
    assert plan.barrier("ring.free").count == 8 * 2  # 8 warps of 2 CTAs: b is multicast along m
    assert ring.lag == {"math": 1} and ring.readers == {"math": ("wgmma",)}
    a, b = plan.load("a"), plan.load("b")
    assert (a.peers, a.box) == (1, (128, 64)) and (b.peers, b.box, b.pattern) == (2, (128, 64), 0b11)
    assert plan.store("d").buffer.tile == (64, 64) and plan.store("d").buffer.stages == 4


def test_ping_pong_counts_one_team():
    """A slot is one team's alone, so one team's 4 warps release it, in each CTA that fills it."""
    plan = S.PingPong().plan()
    assert plan.barrier("ring.free").count == 4 * 2
    assert plan.barrier("order.turn").count == 4 and plan.barrier("order.turn").stages == 2
    assert plan.matmuls[0].warpgroups == 1 and plan.matmuls[0].teams == 2


@pytest.mark.parametrize("m,warpgroups", [(64, 1), (128, 2), (192, 3), (256, 2)])
def test_warpgroups_follow_the_rows(m, warpgroups):
    plan = S.Gemm((m, 64, 64), (1, 1)).plan()
    assert plan.matmuls[0].warpgroups == warpgroups and plan.warps == 4 + 4 * warpgroups


def test_multicast_along_an_axis_of_one_is_none():
    plan = S.Gemm(cluster=(1, 1)).plan()
    assert [load.peers for load in plan.loads] == [1, 1] and plan.ring("ring").peers == 1
    assert plan.ring("ring").groups == ()


def test_one_producer_two_consumers():
    class Two(tp.Schedule):
        load, work, log = tp.Role(warps=1), tp.Role(warps=3), tp.Role(warps=2)
        ring = tp.BarrierRing(3, producer=load, consumer=(work, log))
        x = tp.TmaLoadStage(tile=(32, 64), ring=ring)

    plan = Two().plan()
    assert plan.barrier("ring.free").count == 3 + 2
    assert plan.barrier("ring.free").formula == "3 warps (work) + 2 warps (log)"
    assert [(role.first_warp, role.warps) for role in plan.roles] == [(0, 1), (1, 3), (4, 2)]
    assert plan.registers == {}  # no role uses wgmma, none asks


def test_a_consumer_that_tells_its_own_cta_alone():
    class Shared(tp.Schedule):
        cluster = {"m": 2}  # noqa: RUF012
        load, work, log = tp.Role(warps=1), tp.Role(warps=3), tp.Role(warps=2)
        ring = tp.BarrierRing(3, producer=load, consumer=(work, log), local=log)
        x = tp.TmaLoadStage("m k", tile=(32, 64), ring=ring)
        y = tp.TmaLoadStage("n k", tile=(32, 64), ring=ring, multicast=tp.MulticastGroup("m"))

    plan = Shared().plan()
    assert plan.barrier("ring.free").count == 2 * 3 + 2
    assert plan.barrier("ring.free").formula == "(3 warps (work)) x 2 CTAs + 2 warps (log)"
    assert plan.rings[0].local == ("log",) and repr(Shared.ring).endswith("local=(Role(warps=2),))")


def test_a_producer_that_also_writes():
    """Loads complete by bytes, the writes of the same role by its warps."""

    class Both(tp.Schedule):
        load, use = tp.Role(warps=1), tp.Role(warps=2)
        ring = tp.BarrierRing(2, producer=load, consumer=use)
        x = tp.TmaLoadStage(tile=(32, 64), ring=ring)
        scale = tp.SharedStage(tile=(8, 16), ring=ring, writer=load, dtype="fp32")

    plan = Both().plan()
    assert plan.barrier("ring.full").count == 1 + 1 and plan.ring("ring").signals == ("load", "use")
    assert plan.ring("ring").armed == {"load": 32 * 64 * 2}  # the written part is no bytes of TMA


def test_two_loaders_of_one_phase():
    class Two(tp.Schedule):
        left, right, use = tp.Role(warps=1), tp.Role(warps=1), tp.Role(warps=2)
        ring = tp.BarrierRing(2, producer=(left, right), consumer=use)
        x = tp.TmaLoadStage(tile=(32, 64), ring=ring, loader=left)
        w = tp.TmaLoadStage(tile=(8, 64), ring=ring, loader=right)

    plan = Two().plan()
    assert plan.barrier("ring.full").count == 2
    assert plan.ring("ring").armed == {"left": 32 * 64 * 2, "right": 8 * 64 * 2}
    assert plan.ring("ring").loads == {"left": ("x",), "right": ("w",)}


def test_types_come_from_the_tensors_or_the_stage():
    assert S.Gemm().plan({"a": "fp16", "b": "fp16"}).buffer("d").dtype.name == "bf16"
    assert (
        S.Gemm(epilogue=tp.epilogue.Epilogue(dtype="fp32")).plan({"a": "fp16", "b": "fp16"}).buffer("d").dtype.name
        == "fp32"
    )
    copy = S.Copy()
    assert copy.plan().buffer("x").dtype == as_dtype("int32")


def test_plans_are_cached_by_type_and_forgotten_on_change():
    gemm = S.Gemm()
    one = gemm.plan()
    assert gemm.plan() is one and gemm.plan({"d": "fp32"}) is not one
    gemm.cluster = {"m": 1, "n": 1}
    assert gemm.plan() is not one and gemm.plan().cluster_size == 1


def test_registers_by_request():
    class Asked(tp.Schedule):
        load, use = tp.Role(warps=1, registers=24), tp.Role(warpgroups=2)
        ring = tp.BarrierRing(2, producer=load, consumer=use)
        x = tp.TmaLoadStage(tile=(32, 64), ring=ring)

    assert Asked().plan().registers == {0: 24, 1: 240, 2: 240}  # (3 x 168 - 24) / 2, at a multiple of 8


def test_subclass_replaces_a_part():
    class Deeper(S.Copy):
        load, store = S.Copy.load, S.Copy.store

        def __init__(self):
            super().__init__(stages=12)
            self.y = tp.TmaStoreStage(source=self.x, stages=3)

    assert Deeper().plan().ring("ring").lag == {"store": 3}
    assert S.Copy(stages=12).plan().ring("ring").lag == {"store": 2}
    assert S.Copy().plan().ring("ring").lag == {"store": 0} and isinstance(S.Copy().tiles, tp.tiles.GridTiles)


def test_boxes_at_the_edge():
    """Of 16 rows or 8, where a CTA's share of a swizzled tile is more of them; none where zeros are wanted."""

    def rows(tile, outside=("anything", "anything"), cluster=(1, 1)):
        return [
            load.edge_rows
            for load in S.Gemm(tile, cluster, a=tp.Operand(outside=outside[0]), b=tp.Operand(outside=outside[1]))
            .plan()
            .loads
        ]

    assert rows((64, 128, 64)) == [16, 16] and rows((64, 16, 64)) == [16, 8]
    assert rows((192, 176, 64), cluster=(2, 1)) == [16, 8] and rows((64, 32, 64), cluster=(2, 1)) == [16, 8]
    assert rows((64, 128, 64), ("anything", "zeros")) == [16, 0] and rows((64, 128, 64), ("zeros", "zeros")) == [0, 0]
