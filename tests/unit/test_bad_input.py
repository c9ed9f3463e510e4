"""Declarations that no correct kernel could be built for: refused with the argument, its value, the rule and a fix."""

import functools

import numpy as np
import pytest
import torch

import tmapipe as tp
from tests.unit.errors import refused
from tmapipe.base.arithmetic import as_dtype
from tmapipe.plan import make_plan
from tmapipe.plan.rings import arch_named

S = tp.schedules


def ring(stages=2):
    return tp.BarrierRing(stages, producer=tp.Role(warps=1), consumer=tp.Role(warps=1))


def schedule(**parts):
    """A schedule of these parts, as class attributes."""
    return type("Made", (tp.Schedule,), parts)()


def copy_of(
    stages=2, *, load=None, use=None, tile=(32, 64), pending=1, cluster=None, arch="sm_90a", store=True, **options
):
    """A copy whose parts can be given."""
    load, use = load or tp.Role(warps=1), use or tp.Role(warps=1)
    a_ring = tp.BarrierRing(stages, producer=load, consumer=use)
    x = tp.TmaLoadStage(tile=tile, ring=a_ring, **options)
    parts = {"load": load, "use": use, "ring": a_ring, "x": x, "cluster": cluster or {}, "arch": arch}
    if store:
        parts["y"] = tp.TmaStoreStage(source=x, stages=pending)
    return schedule(**parts)


def matmul_of(a_tile=(128, 64), b_tile=(128, 64), *, stages=2, math=None, in_flight=1, **options):
    """A GEMM whose parts can be given."""
    load, math = tp.Role(warps=1), math or tp.Role(warpgroups=2)
    a_ring = tp.BarrierRing(stages, producer=load, consumer=math)
    a = tp.TmaLoadStage("m k", tile=a_tile, ring=a_ring)
    b = tp.TmaLoadStage("n k", tile=b_tile, ring=a_ring)
    mma = tp.Wgmma(a, b, in_flight=in_flight)
    d = tp.TmaStoreStage("m n", source=mma, **options)
    return schedule(load=load, math=math, ring=a_ring, a=a, b=b, mma=mma, d=d)


# ---- rings, roles, turnstiles -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("stages", [0, -1, 2.0, "4"])
def test_ring_stages(stages):
    refused(ring, stages, argument="BarrierRing(stages)", value=stages, rule="positive integer or None")


def test_ring_phases():
    one, two = tp.Role(warps=1), tp.Role(warps=1)
    for given in ({}, {"producer": one}, {"consumer": one}, {"producer": one, "consumer": two, "chain": (one, two)}):
        refused(
            tp.BarrierRing,
            2,
            argument="producer, consumer, chain",
            rule="either producer and consumer, or chain",
            **given,
        )
    refused(tp.BarrierRing, 2, chain=(one,), argument="BarrierRing(chain)", rule="two phases")
    refused(tp.BarrierRing, 2, chain=(one, ()), argument="BarrierRing(chain)", rule="one role each")
    refused(tp.BarrierRing, 2, chain=(one, two, one), argument="BarrierRing(chain)", rule="one phase of a ring")
    refused(tp.BarrierRing, 2, producer=one, consumer=(two, one), argument="BarrierRing(chain)", rule="one phase")
    for local in (one, (two, one), (3,)):
        refused(tp.BarrierRing, 2, producer=one, consumer=two, local=local, argument="local", rule="the last phase")
    refused(tp.BarrierRing, 2, producer=one, consumer=two, local=3, argument="BarrierRing(local)", rule="a tuple")


def test_roles():
    refused(tp.Role, argument="Role(warps, warpgroups)", value=(None, None), rule="exactly one")
    refused(tp.Role, warps=1, warpgroups=1, argument="Role(warps, warpgroups)", value=(1, 1), rule="exactly one")
    for count in (0, -4, 1.5, "1"):
        refused(tp.Role, warps=count, argument="Role(warps", value=count, rule="positive integer")
        refused(tp.Role, warpgroups=count, argument="warpgroups", value=count, rule="positive integer")
    for registers in (0, 16, 23, 100, 257, 264):
        refused(tp.Role, warps=4, registers=registers, argument="Role(registers)", value=registers, rule="24 to 256")
    for teams in (0, 3, -1, 1.0):
        refused(tp.Role, warpgroups=2, teams=teams, argument="Role(teams)", value=teams, rule="must divide the 2")


def test_turnstiles():
    for alone in (tp.Role(warpgroups=1), tp.Role(warps=8)):
        refused(tp.Turnstile, alone, argument="Turnstile(role)", value=alone, rule="two or more teams, or warpgroups")
    refused(tp.Turnstile, "math", argument="Turnstile(role)", value="math", rule="two or more teams")


# ---- stages -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tile", [(), (0, 64), (-8,), (1.5, 64), (8,) * 6, 64, "64", None])
def test_tiles(tile):
    rule = "one to five positive extents"
    refused(tp.TmaLoadStage, tile=tile, ring=ring(), argument="TmaLoadStage(tile)", value=tile, rule=rule)
    if tile is not None:
        refused(
            tp.TmaStoreStage, tile=tile, role=tp.Role(warps=1), argument="TmaStoreStage(tile)", value=tile, rule=rule
        )
    refused(
        tp.SharedStage, tile=tile, ring=ring(), writer=None, dtype="bf16",
        argument="SharedStage(tile)", value=tile, rule=rule,
    )  # fmt: skip


@pytest.mark.parametrize("dims", ["", "m", "m m", "a b c d e f", "m 2", "m k-1"])
def test_dims(dims):
    refused(
        tp.TmaLoadStage, dims, tile=(8, 64), ring=ring(),
        argument="TmaLoadStage(dims)", value=dims, rule="up to 5 different names, 2 or more",
    )  # fmt: skip
    refused(
        tp.TmaStoreStage, dims, tile=(8, 64), role=tp.Role(warps=1),
        argument="TmaStoreStage(dims)", value=dims, rule="up to 5 different names, 2 or more",
    )  # fmt: skip


def test_load_options():
    def load(**options):
        return lambda **given: tp.TmaLoadStage(**{"tile": (8, 64), "ring": ring(), **options, **given})

    for wrong in (None, "ring", tp.Role(warps=1)):
        refused(load(ring=wrong), argument="TmaLoadStage(ring)", value=wrong, rule="the BarrierRing")
    for swizzle in (16, 48, 256, "128"):
        refused(load(swizzle=swizzle), argument="TmaLoadStage(swizzle)", value=swizzle, rule="0, 32, 64 or 128")
    refused(load(multicast="n"), argument="TmaLoadStage(multicast)", value="n", rule="is a MulticastGroup")
    refused(load(tile=(64,))().anything_outside, argument="TmaLoadStage(tile)", rule="has rows")
    assert load()().outside == "zeros" and load()().anything_outside().outside == "anything"
    refused(load(l2_hint="evict"), argument="TmaLoadStage(l2_hint)", value="evict", rule="evict_first, evict_last")
    stranger = tp.Role(warps=1)
    refused(load(loader=stranger), argument="TmaLoadStage(loader)", value=stranger, rule="ring's first phase")
    two = tp.BarrierRing(2, producer=(tp.Role(warps=1), tp.Role(warps=1)), consumer=tp.Role(warps=1))
    refused(load(ring=two), argument="TmaLoadStage(loader)", value=None, rule="which of the producing roles")
    refused(load(dtype="float8"), argument="dtype", value="float8", rule="must be one of bf16")


def test_shared_stage_writer():
    stranger = tp.Role(warps=1)
    refused(
        tp.SharedStage, tile=(8, 64), ring=ring(), writer=stranger, dtype="bf16",
        argument="SharedStage(writer)", value=stranger, rule="one of the ring's roles",
    )  # fmt: skip


def test_wgmma_operands():
    one = ring()
    a = tp.TmaLoadStage(tile=(64, 64), ring=one)
    row = tp.TmaLoadStage(tile=(64,), ring=one)
    refused(tp.Wgmma, row, a, argument="Wgmma(a)", value=row, rule="two or more extents")
    refused(tp.Wgmma, a, "b", argument="Wgmma(b)", value="b", rule="two or more extents")
    for promote in (1, None, "yes", np.zeros(2)):
        refused(tp.Wgmma, a, a, promote=promote, argument="Wgmma(promote)", rule="True or False")
    for groups in (-1, 1.0):
        refused(tp.Wgmma, a, a, in_flight=groups, argument="Wgmma(in_flight)", value=groups, rule="0 or more")
    x, y = (tp.TmaLoadStage(dims, tile=(64, 64), ring=one) for dims in ("m k", "k m"))
    for other in (x, y):
        refused(tp.Wgmma, x, other, argument="Wgmma(a, b)", rule="have both m and k in common")
    for wrong in ("n", 3):
        refused(tp.Wgmma, x, other, k=wrong, argument="Wgmma(k)", value=wrong, rule=r"in common \(m, k\)")
    assert tp.Wgmma(x, x, k="k").transposed == (False, False)
    assert tp.Wgmma(x, x, k="m").transposed == (True, True)
    assert tp.Wgmma(x, y, k="k").transposed == (False, True)


def test_stores():
    for wrong in ("math", 3, ring()):
        refused(
            tp.TmaStoreStage, tile=(8, 64), role=wrong, argument="TmaStoreStage(role)", value=wrong, rule="the Role"
        )
    x = tp.TmaLoadStage(tile=(8, 64), ring=ring(), dtype="bf16")
    refused(tp.TmaStoreStage, source="x", argument="TmaStoreStage(source)", value="x", rule="a SharedStage, a Wgmma")
    refused(tp.TmaStoreStage, tile=(8, 64), argument="TmaStoreStage(tile, role)", rule="without a source")
    for wrong in ({"tile": (8, 32)}, {"columns": 8}, {"dtype": "fp32"}):
        refused(tp.TmaStoreStage, source=x, argument="tile, columns, dtype", rule="follow from the slot", **wrong)
    refused(tp.TmaStoreStage, source=x, stages=-1, argument="stages", value=-1, rule="at least 0")
    role = tp.Role(warps=1)
    refused(tp.TmaStoreStage, tile=(8, 64), role=role, stages=0, argument="stages", value=0, rule="at least 1")
    refused(tp.TmaStoreStage, source=x, reduce="mean", argument="reduce", value="mean", rule="None or one of add")


# ---- what only the plan shows -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["sm_70", "sm_90", "sm_80a", "", "hopper", None, ["sm_90a"], 90])
def test_architecture(name):
    refused(arch_named, name, argument="arch", value=name, rule="sm_80, sm_86, sm_89, sm_90a, sm_100a")
    if name:
        refused(S.Copy().plan, arch=name, argument="arch", value=name, rule="is one of")


@pytest.mark.parametrize("arch", ["sm_100a", "sm_103a", "sm_120a"])
def test_wgmma_on_another_architecture(arch):
    refused(S.Gemm().plan, arch=arch, argument="Wgmma(mma)", value=arch, rule="sm_90a only")


def test_element_types():
    for wrong in ("float128", "uint64", "bool", "", 3, None, float):
        refused(as_dtype, wrong, argument="dtype", value=wrong, rule="must be one of")
    refused(S.Gemm().plan, {"a": "fp32", "b": "fp32"}, argument="Wgmma(mma)", value="fp32 x fp32", rule="bf16, fp16")
    refused(S.Gemm().plan, {"a": "bf16", "b": "fp16"}, argument="Wgmma(mma)", rule="of one type")
    refused(
        S.Gemm(epilogue=tp.epilogue.Epilogue(dtype="fp32")).plan,
        {"d": "bf16"},
        argument="d",
        value="bf16",
        rule="declared with element type fp32",
    )
    refused(copy_of().plan, {"x": "bf16", "y": "fp16"}, argument="y", value="fp16", rule="stored from slots of bf16")


def test_tile_not_divisible_as_wgmma_needs():
    math = tp.Role(warpgroups=2)
    refused(matmul_of((96, 64), math=math).plan, argument="a.tile[0]", value=96, rule="64 rows")
    refused(matmul_of((64, 64)).plan, argument="a.tile[0]", value=64, rule="64 x 2 warpgroups")
    refused(matmul_of(b_tile=(100, 64)).plan, argument="b.tile[0]", value=100, rule="multiple of 8 up to 256")
    refused(matmul_of(b_tile=(264, 64)).plan, argument="b.tile[0]", value=264, rule="multiple of 8 up to 256")
    refused(matmul_of((128, 24), (128, 24)).plan, argument="a.tile[1]", value=24, rule="32 bytes of k")
    refused(matmul_of((128, 64), (128, 32)).plan, argument="b.tile", value=(128, 32), rule="k extent differs")
    refused(S.Gemm((100, 128, 64)).plan, argument="a.tile[0]", value=100, rule="64 rows")


def test_operands_contiguous_along_m_or_n():
    refused(lambda: S.Gemm(a=tp.Operand("n")), argument="Operand(major)", value="n", rule='"k" or "m"')
    fp8 = {"a": "fp8_e4m3", "b": "fp8_e4m3", "d": "bf16"}
    transposed = S.Gemm((128, 128, 128), b=tp.Operand("n"))
    refused(lambda: transposed.plan(fp8), argument="Wgmma(mma)", value="fp8_e4m3 x fp8_e4m3", rule="along k only")
    a, b = np.zeros((128, 64), np.float16), np.zeros((64, 64), np.float16)
    refused(lambda: S.Gemm(a=tp.Operand("m"))(a, b), argument="a.stride", rule="last dimension must be contiguous")
    error = refused(lambda: S.Gemm()(a.T.copy().T, b), argument="a.stride", rule="last dimension must be contiguous")
    assert "tp.Operand" in error.fix
    refused(lambda: S.Gemm(a=tp.Operand("m"))(a[:, ::2], b[:, ::2]), argument="a.stride", rule="must be contiguous")
    ragged = np.zeros((64, 130), np.float16)[:, :128].T  # 260 bytes from one k to the next
    refused(lambda: S.Gemm(a=tp.Operand("m"))(ragged, b), argument="a.stride", rule="no positive multiple of 16")
    refused(lambda: S.Gemm(a=tp.Operand("m"))(a[0], b), argument="a", value=(64,), rule="has the dimensions l k m")
    refused(lambda: S.GatedGemm(b=tp.Operand("m")), argument="Operand(major)", value="m", rule='of b is "k" or "n"')
    refused(
        lambda: S.Gemm((64, 64, 16), (1, 4), a=tp.Operand("m")).plan(), argument="a.tile[0]", value=16, rule="multicast"
    )


def test_operands_need_epilogues_in_turn():
    epilogue = tp.epilogue.Epilogue(lambda acc, c: acc + c, operands={"c": tp.epilogue.Matrix()})
    refused(lambda: S.PingPong(in_turn=False, epilogue=epilogue), argument="in_turn", value=False, rule="operands")


def test_tiles_with_bounds_are_of_accumulators_in_two_dimensions():
    order = tp.tiles.GroupedTiles(rows=128)
    three = S.GroupedGemm()
    three.d = tp.TmaStoreStage("l m n", source=three.mma)
    refused(three.plan, argument="d.dims", value=("l", "m", "n"), rule="bounds of their own")
    copy = copy_of()
    copy.tiles = order
    refused(copy.plan, argument="y.dims", value=("m", "n"), rule="bounds of their own")


def test_groups():
    refused(lambda: tp.Table("l m n"), argument="Table(dims)", rule="one dimension, or of two")
    for kind in (S.Gemm, S.GatedGemm, S.GroupedGemm):
        refused(lambda kind=kind: kind((128, 256)), argument="tile", value=(128, 256), rule="(m, n, k)")
    refused(lambda: S.GroupedGemm(a=tp.Operand("n")), argument="Operand(major)", rule='"k" or "m"')


def test_what_is_outside_of_operands():
    refused(lambda: S.Gemm(a=tp.Operand(outside="some")), argument="outside", value="some", rule="one of zeros")
    refused(lambda: S.Gemm(b=tp.Operand(l2_hint="evict")), argument="l2_hint", value="evict", rule="one of evict_first")
    hinted = functools.partial(tp.epilogue.Epilogue, l2_hint="evict_first")
    refused(lambda: tp.epilogue.Epilogue(l2_hint="evict"), argument="l2_hint", value="evict", rule="one of evict_first")
    refused(
        lambda: S.SplitK(2, epilogue=hinted()), argument="Epilogue(l2_hint)", value="evict_first", rule="whole tiles"
    )
    copied = S.Copy((64, 128)).y
    refused(copied.with_l2_hint, "evict", argument="with_l2_hint", value="evict", rule="through a descriptor")
    assert not hasattr(tp.ThreadStoreStage("m n", tile=(64, 64), role=tp.Role(warps=4)), "with_l2_hint")
    for major in "mn":
        wrong = functools.partial(tp.Operand, major, outside="anything")
        refused(wrong, argument="outside", value="anything", rule="its rows are added up")


def test_accumulators_that_do_not_fit():
    one = tp.Role(warpgroups=1)
    refused(
        matmul_of((128, 64), (256, 64), math=one).plan, argument="Wgmma(mma)", value=(128, 256), rule="needs 256 acc"
    )
    refused(S.PingPong((128, 256, 64)).plan, argument="Wgmma(mma)", rule="200 leave room")
    transposed = S.Gemm((192, 256, 64), (1, 1), b=tp.Operand("n")).plan
    refused(transposed, argument="Wgmma(mma)", value=(192, 256), rule="at most 200 with 128 registers")


def test_wgmma_needs_warpgroups():
    refused(matmul_of(math=tp.Role(warps=8)).plan, argument="Wgmma(mma)", rule="one role of warpgroups")


def test_shared_memory_over_budget():
    error = refused(S.Gemm(stages=5).plan, argument="shared memory", rule="sm_90a has 232448 bytes a CTA")
    assert "a 5 x 16384" in error.rule and "d 4 x 8192" in error.rule
    refused(S.Copy((64, 128), 4).plan, arch="sm_120a", argument="shared memory", rule="sm_120a has 101376")
    refused(S.Copy((256, 256), None).plan, argument="shared memory", rule="the plan has x 3 x 262144")  # 2 pending + 1
    S.Copy((64, 128), 3).plan(arch="sm_120a")


def test_registers_over_budget():
    greedy = copy_of(load=tp.Role(warps=1, registers=152), use=tp.Role(warpgroups=2, registers=240), store=False)
    refused(
        greedy.plan, argument="Role(registers)", value={0: 152, 1: 240, 2: 240}, rule="632 registers.*168 x 3 = 504"
    )
    starved = copy_of(load=tp.Role(warps=1, registers=256), use=tp.Role(warpgroups=7), store=False)
    starved.plan()
    alone = copy_of(load=tp.Role(warps=1, registers=40), use=tp.Role(warps=1))
    refused(alone.plan, argument="Role(load).registers", value=40, rule="two or more whole warpgroups")


def test_registers_of_roles_that_share_a_warpgroup():
    both = copy_of(load=tp.Role(warps=1, registers=40), use=tp.Role(warps=1, registers=48), store=False)
    both.heavy = tp.Role(warpgroups=2)
    refused(both.plan, argument="Role(use).registers", value=48, rule="another role in warpgroup 0")


def test_threads_over_budget():
    refused(copy_of(use=tp.Role(warpgroups=8), store=False).plan, argument="roles", value="36 warps", rule="at most 32")


def test_clusters():
    refused(S.Gemm, cluster=(8, 4), argument="cluster", rule="8 x 4 = 32 CTAs, but a cluster has at most 16")
    refused(S.Gemm, cluster=(0, 1), argument="cluster['m']", value=0, rule="positive integer")
    refused(copy_of(cluster={"m": 16}).plan, arch="sm_120a", argument="cluster", rule="at most 8")
    refused(copy_of(cluster={"k": 2}).plan, argument="cluster['k']", value="k", rule="no dimension of the output")


def test_multicast():
    own = copy_of(cluster={"m": 2}, multicast=tp.MulticastGroup("m"))
    refused(own.plan, argument="x.multicast", value=tp.MulticastGroup("m"), rule="want different tiles of x")
    other = copy_of(cluster={"m": 2}, multicast=tp.MulticastGroup("z"))
    refused(other.plan, argument="x.multicast", value="z", rule="no dimension of the output")
    uneven = S.Gemm((128, 136, 64), (2, 1))
    assert uneven.plan() and uneven.b.multicast.whole and not S.Gemm((128, 144, 64), (2, 1)).b.multicast.whole
    refused(
        S.Conv(tp.Windows((3, 3)), (128, 136, 64), (2, 1)).plan,
        argument="b.tile[0]",
        value=136,
        rule="2 multicast peers .* steps of 8 rows",
    )


def test_boxes_and_rows():
    refused(copy_of(tile=(512, 16)).plan, argument="x.tile", value=(512, 16), rule="at most 256 elements")
    refused(copy_of(tile=(16, 60)).plan, argument="x.tile", value=(16, 60), rule="a row is 120 bytes.*multiples of 16")
    swizzled = copy_of(tile=(8, 16), swizzle=32)
    refused(swizzled.plan, argument="x.tile", value=(8, 16), rule="swizzled slots start at multiples of 1024")
    refused(copy_of(tile=(8, 264)).plan, argument="x.tile", value=(8, 264), rule="boxes of 1 x 132 elements, 264 bytes")


def test_swizzles():
    refused(copy_of(tile=(8, 48), swizzle=128).plan, argument="x.swizzle", value=128, rule="divide a row of the tile")
    refused(copy_of(tile=(512,), swizzle=128).plan, argument="x.swizzle", value=128, rule="repeats every 8 rows")
    refused(
        copy_of(1, tile=(12, 64), swizzle=128, pending=0).plan, argument="x.swizzle", value=128, rule="every 8 rows"
    )


@pytest.mark.parametrize("columns", [12, 136, 4])
def test_store_columns(columns):
    refused(matmul_of(columns=columns).plan, argument="d.columns", value=columns, rule="multiple of 8 up to 128")


@pytest.mark.parametrize("columns, swizzle", [(8, 0), (24, 0), (16, 32), (32, 64), (64, 128)])
def test_store_columns_that_fill_no_swizzle_span_are_not_swizzled(columns, swizzle):
    assert matmul_of(columns=columns).plan().buffer("d").swizzle == swizzle


def test_reduction_columns_divide():
    refused(matmul_of(columns=48, reduce="add").plan, argument="d.columns", value=48, rule="for a reduction")
    matmul_of(columns=48).plan()


def test_threads_share_tiles_evenly():
    """At plan time what the role's threads write; what they read from a slot as soon as a body does, in every backend."""
    refused(S.AddParts(tile=(1, 192)).plan, argument="d.tile", value=(1, 192), rule="192 elements.* the 128 threads")
    S.AddParts(tile=(2, 128)).plan()
    use = tp.Role(warps=3)
    a_ring = tp.BarrierRing(2, producer=tp.Role(warps=1), consumer=use)
    scratch = tp.SharedStage(tile=(4, 64), ring=a_ring, writer=use, dtype="fp32")
    x = tp.TmaLoadStage(tile=(4, 64), ring=a_ring)
    parts = {"load": a_ring.phases[0][0], "use": use, "ring": a_ring, "x": x}
    refused(schedule(**parts, scratch=scratch).plan, argument="scratch.tile", value=(4, 64), rule="the 96 threads")

    class Read(tp.Schedule):
        load, use = tp.Role(warps=1), tp.Role(warps=3)
        ring = tp.BarrierRing(2, producer=load, consumer=use)
        x = tp.TmaLoadStage(tile=(4, 64), ring=ring)

        @load.jit
        def fill(self, k, tile):
            with k.ring.produce() as slot:
                slot.x.load(tile)

        @use.jit
        def drain(self, k, tile):
            with k.ring.consume() as slot:
                slot.x.read()

    refused(Read().check, argument="x.tile", value=(4, 64), rule="256 elements, which the 96 threads of role use")


def test_slots_held_back():
    refused(
        copy_of(1, pending=1).plan, argument="BarrierRing(ring).stages", value=1, rule="holds back 1 slots.*2 or more"
    )
    refused(copy_of(2, pending=3).plan, argument="BarrierRing(ring).stages", value=2, rule="4 or more")
    refused(matmul_of(stages=2, in_flight=2).plan, argument="stages", value=2, rule="role math holds back 2")


def test_roles_that_load_and_store_have_one_warp():
    refused(copy_of(load=tp.Role(warps=2)).plan, argument="Role(load)", value="2 warps", rule="one warp")
    refused(copy_of(use=tp.Role(warps=2)).plan, argument="TmaStoreStage(y).role", rule="one role of one warp")


def test_only_one_ring_takes_the_rest():
    roles = [tp.Role(warps=1) for _ in range(2)]
    rings = [tp.BarrierRing(producer=roles[0], consumer=roles[1]) for _ in range(2)]
    stages = [tp.TmaLoadStage(tile=(8, 64), ring=each) for each in rings]
    made = schedule(load=roles[0], use=roles[1], r=rings[0], s=rings[1], x=stages[0], w=stages[1])
    refused(made.plan, argument="BarrierRing(stages)", value=["r", "s"], rule="one ring only")


def test_named_barriers_run_out():
    role = tp.Role(warpgroups=1)
    parts = {f"d{n}": tp.TmaStoreStage("m n", tile=(8, 64), role=role) for n in range(16)}
    load = tp.Role(warps=1)
    a_ring = tp.BarrierRing(2, producer=load, consumer=role)
    x = tp.TmaLoadStage("m n", tile=(8, 64), ring=a_ring)
    refused(schedule(load=load, role=role, ring=a_ring, x=x, **parts).plan, argument="named barriers", rule="16, id 0")


@pytest.mark.parametrize("name", ["index", "end", "open", "retired", "touched_by_threads"])
def test_names_that_slots_have(name):
    load, use = tp.Role(warps=1), tp.Role(warps=1)
    a_ring = tp.BarrierRing(2, producer=load, consumer=use)
    parts = {"load": load, "use": use, "ring": a_ring, name: tp.TmaLoadStage(tile=(8, 64), ring=a_ring)}
    refused(schedule(**parts).plan, argument="stage name", value=name, rule="an attribute that every slot has")


@pytest.mark.parametrize("name", ["plan", "steps", "ends"])
@pytest.mark.parametrize("part", ["ring", "y", "held"])
def test_names_that_bodies_have(part, name):
    load, use = tp.Role(warps=1), tp.Role(warpgroups=1)
    a_ring = tp.BarrierRing(2, producer=load, consumer=use)
    x = tp.TmaLoadStage(tile=(8, 64), ring=a_ring)
    held = tp.RegisterTile(use, (64, 64))
    parts = {"load": load, "use": use, "ring": a_ring, "x": x, "held": held, "y": tp.TmaStoreStage(source=held)}
    parts[name] = parts.pop(part)
    made = tp.Schedule()
    for called, each in parts.items():
        made.__dict__[called] = each
    refused(lambda: make_plan(made.declared, {}, "sm_90a"), argument="name", value=name, rule="an attribute of k")


def test_schedule_without_tensors():
    refused(schedule(load=tp.Role(warps=1)).plan, argument="Schedule", value="Made", rule="no load and no store")


def test_shelf_arguments():
    refused(S.Gemm, (128, 256), argument="tile", value=(128, 256), rule=r"\(m, n, k\)")
    for parts in (0, -1, 1.5):
        refused(S.SplitK, parts, argument="SplitKTiles(parts)", value=parts, rule="positive number")


@pytest.mark.parametrize("types", [("fp8_e4m3", "bf16"), ("bf16", "fp16"), ("int8", "bf16"), ("fp32", "fp32")])
def test_operands_that_wgmma_does_not_take(types):
    with pytest.raises(tp.InputError, match="two operands of one type"):
        tp.schedules.Gemm((128, 128, 64)).plan(dict(zip("ab", types, strict=True)))


def test_tf32_and_int8():
    fp32, int8 = {"a": "fp32", "b": "fp32"}, {"a": "int8", "b": "int8"}
    error = refused(S.Gemm((128, 128, 32)).plan, fp32, argument="Wgmma(mma)", value="fp32 x fp32", rule="tf32")
    assert 'Operand(dtype="tf32")' in error.fix
    tf32 = S.Gemm((128, 128, 32), a=tp.Operand(dtype="tf32"), b=tp.Operand(dtype="tf32"))
    assert tf32.plan(fp32).matmul("mma").k_instructions == 4
    refused(tf32.plan, {"a": "bf16"}, argument="a", value="bf16", rule="element type tf32")
    transposed = S.Gemm((128, 128, 32), a=tp.Operand(dtype="tf32"), b=tp.Operand("n", dtype="tf32"))
    refused(transposed.plan, argument="Wgmma(mma)", value="tf32 x tf32", rule="along k")
    refused(
        S.Gemm(epilogue=tp.epilogue.Epilogue(dtype="tf32")).plan,
        argument="d",
        value="tf32",
        rule="sums of bf16 products",
    )
    one, two = tp.Role(warps=1), tp.Role(warps=1)
    shared = {"tile": (8, 64), "ring": tp.BarrierRing(2, producer=one, consumer=two), "writer": one, "dtype": "tf32"}
    refused(tp.SharedStage, argument="SharedStage(dtype)", value=tp.dtypes.tf32, rule="TMA loads", **shared)

    deep = (128, 128, 128)
    assert S.Gemm(deep).plan({**int8, "d": "int32"}).matmul("mma").k_instructions == 4
    for kind in ("int8", "fp8_e4m3"):
        refused(S.Gemm(deep).plan, {**int8, "d": kind}, argument="d", value=kind, rule="sums of int8 products")
    refused(S.Gemm().plan, {"d": "int32"}, argument="d", value="int32", rule="sums of bf16 products")
    refused(S.Gemm(deep, mainloop=tp.mainloop.Cooperative(promote=True)).plan, int8, argument="promote", rule="exact")
    refused(S.Gemm((128, 72, 128)).plan, int8, argument="b.tile[0]", value=72, rule="multiple of 16")
    a = np.zeros((64, 64), np.int8)
    scaled = S.Gemm((64, 64, 64), (1, 1), epilogue=lambda acc: 2 * acc)
    refused(lambda: scaled(a, a), argument="d", value="int32", rule="works in fp32")
    refused(lambda: S.SplitK(2, deep)(a, a), argument="d", value="int32", rule="added in fp32")


def test_promoted_sums_take_twice_the_registers():
    fp8 = {"a": "fp8_e4m3", "b": "fp8_e4m3", "d": "bf16"}
    assert (
        tp.schedules.Gemm((128, 192, 128), mainloop=tp.mainloop.Cooperative(promote=True)).plan(fp8).matmuls[0].promote
    )
    with pytest.raises(tp.InputError, match="256 accumulator registers a thread, twice 128"):
        tp.schedules.Gemm((128, 256, 128), mainloop=tp.mainloop.Cooperative(promote=True)).plan(fp8)
    with pytest.raises(tp.InputError, match="128 leave room to work with 3 warpgroups"):
        tp.schedules.Gemm((192, 192, 128), mainloop=tp.mainloop.Cooperative(promote=True)).plan(fp8)
    for tile in ((128, 16, 128), (256, 8, 128)):
        narrow = S.Gemm(tile, (1, 1), mainloop=tp.mainloop.Cooperative(promote=True))
        refused(narrow.plan, fp8, argument="Wgmma(mma) tile", value=tile[:2], rule="8 sums a thread")
    assert S.Gemm((128, 24, 128), (1, 1), mainloop=tp.mainloop.Cooperative(promote=True)).plan(fp8).matmuls
    c = tp.epilogue.Epilogue(
        lambda acc, c: acc + c, operands={"c": tp.epilogue.Matrix()}
    )  # of 96 registers' sums, not 192
    assert S.Gemm((128, 192, 128), mainloop=tp.mainloop.Cooperative(promote=True), epilogue=c).plan(fp8).matmuls
    with pytest.raises(tp.InputError, match="in_flight"):
        gemm = tp.schedules.Gemm((128, 128, 64))
        tp.Wgmma(gemm.a, gemm.b, in_flight=1, promote=True)


@pytest.mark.parametrize(
    "tile, widest", [((64, 200, 64), 192), ((128, 192, 64), 184), ((256, 96, 64), 88), ((192, 120, 64), 112)]
)
def test_two_accumulators_share_the_registers(tile, widest):
    """What is wider spills, as the compiler reports; what is as wide as allowed does not."""
    both = "Wgmma(gate_mma) and Wgmma(up_mma)"
    wide = [(tile[0], tile[1])] * 2
    refused(
        S.GatedGemm(tile, (1, 1), epilogue=tp.epilogue.Epilogue(stages=1)).plan,
        argument=both,
        value=wide,
        rule="registers a thread together",
    )
    assert S.GatedGemm((tile[0], widest, 64), (1, 1), epilogue=tp.epilogue.Epilogue(stages=1)).plan().matmuls


@pytest.mark.parametrize("tile", [(64, 128), (128, 128), (192, 80), (256, 56)])
def test_promoted_sums_of_a_slot_are_those_of_one_matmul_at_a_time(tile):
    """Of two matmuls each has sums of its own; both have one place for those of a slot, which an epilogue may use again."""
    fp8 = dict.fromkeys(("a", "gate", "up"), "fp8_e4m3") | {"d": "bf16"}
    promoted = {"mainloop": tp.mainloop.Cooperative(promote=True)}
    (gate, up) = S.GatedGemm((*tile, 128), (1, 1), **promoted).plan(fp8).matmuls
    assert gate.registers == up.registers == (tile[0] * tile[1] // 128 // gate.warpgroups, 0, gate.registers.sums)
    wider = S.GatedGemm((tile[0], tile[1] + 8, 128), (1, 1), **promoted)
    needed = 3 * tile[0] * (tile[1] + 8) // 128 // gate.warpgroups
    refused(wider.plan, fp8, argument="Wgmma(gate_mma) and Wgmma(up_mma)", rule=f"need {needed} accumulator registers")


def test_a_table_on_the_cpu_that_falls():
    x, w = np.ones((30, 64), np.float16), np.ones((2, 64, 64), np.float16)
    ends = np.array([20, 10], np.int32)
    for table in (ends, ends.astype(np.int64), torch.from_numpy(ends), torch.from_numpy(ends).long()):
        given = [torch.from_numpy(each) if isinstance(table, torch.Tensor) else each for each in (x, w)]
        refused(
            S.GroupedGemm((64, 64, 64)),
            *given,
            table,
            argument="offsets[1]",
            value="10, after 20",
            rule="ascending=True",
        )


def test_an_output_of_an_unknown_extent():
    load, use = tp.Role(warps=1), tp.Role(warps=1)
    own = tp.BarrierRing(2, producer=load, consumer=use)
    x = tp.TmaLoadStage("m n", tile=(32, 64), ring=own)

    class Made(tp.Schedule):
        y = tp.TmaStoreStage("p n", source=x)

        @load.jit
        def fill(self, k, tile):
            with k.own.produce() as slot:
                slot.x.load(tile, m=tile.p)

        @use.jit
        def drain(self, k, tile):
            with k.own.consume() as slot:
                slot.y.store(tile)

    Made.load, Made.use, Made.own, Made.x = load, use, own, x
    error = refused(Made(), np.zeros((64, 64), np.float16), argument="y", rule="along p follows from no input")
    assert error.fix == "pass y=, or say what it follows from: relations = (Dim('p', of=...),)"
