"""The reader of PTX by itself, on text written by hand."""

import pytest

from tests.emit.kernels import built
from tests.oracle.ptx import Facts, Ptx
from tmapipe.base.arithmetic import bf16
from tmapipe.plan.model import Plan
from tmapipe.plan.rings import Barrier, Buffer

PLAN = Plan(
    name="hand", arch="sm_90a", cluster={}, roles=(), named_barriers=(), rings=(), loads=(), stores=(), matmuls=(),
    barriers=(Barrier("r.full", 0, 4, 1), Barrier("r.free", 32, 4, 2)),
    buffers=(Buffer("x", 128, 4, (8, 64), bf16), Buffer("y", 4224, 1, (8, 64), bf16)),
    arguments=(), warps=4, smem_bytes=5248, launch_registers=128, registers={},
)  # fmt: skip

START = """
    mov.u32 %r1, %tid.x;
    shr.u32 %r2, %r1, 5;
    shfl.sync.idx.b32 %r3, %r2, 0, 31, -1;
    mov.u32 %r4, %laneid;
    mov.b32 %r5, __dynamic_shmem__0;
    ld.param.b32 %r6, [kernel_param_0+4];
    shl.b32 %r7, %r6, 3;
    add.s32 %r8, %r5, %r7;
"""


def facts(body, warp=None, lane=0):
    return Ptx(f".visible .entry kernel(\n)\n{{\n{START}{body}\n    ret;\n}}\n", PLAN).facts(warp, lane)


def test_addresses_name_barriers_and_stages():
    found = facts("""
    mov.b32 %r10, 3;
    mbarrier.init.shared.b64 [%r5+16], %r10;
    mbarrier.arrive.expect_tx.shared.b64 %rd1, [%r8], 1024;
    mbarrier.arrive.shared.b64 %rd2, [%r8+32], 1;
    """)
    assert found.inits == {("r.full", 2): 3}
    assert found.armed == {("r.full", 1024): 1} and found.arrivals == {"r.free": 1}
    assert not found.unknown


@pytest.mark.parametrize(
    "address",
    [
        "add.s32 %r10, %r8, 32;",
        "add.s32 %r9, %r7, 32; add.s32 %r10, %r9, %r5;",
        "mad.lo.s32 %r9, %r6, 8, %r5; add.s32 %r10, %r9, 32;",
        "shl.b32 %r9, %r6, 3; or.b32 %r11, %r9, 0; add.s32 %r12, %r11, %r5; sub.s32 %r10, %r12, -32;",
        "cvt.u64.u32 %rd1, %r8; cvta.shared.u64 %rd2, %rd1; cvt.u32.u64 %r9, %rd2; add.s32 %r10, %r9, 32;",
    ],
)
def test_ways_to_write_an_address(address):
    found = facts(f"{address}\n    mbarrier.try_wait.parity.shared.b64 %p1, [%r10], %r6, 1000;")
    assert found.waits == {"r.free": 1}, found.unknown


@pytest.mark.parametrize("address", ["[%r8+24]", "[%r8+64]", "[%r6]", "[%r8+4]", "[%r5+64]"])
def test_what_is_no_barrier_is_reported(address):
    """Into the middle of an array, past the arrays, not in shared memory, between two barriers, past them."""
    found = facts(f"mbarrier.try_wait.parity.shared.b64 %p1, {address}, %r6, 1000;")
    assert found.waits == {} and len(found.unknown) == 1


def test_branches_on_the_warp_and_the_elected_lane():
    body = """
    setp.ne.b32 %p1, %r3, 2;
    @%p1 bra $L1;
    elect.sync %r9|%p2, -1;
    not.pred %p3, %p2;
    @%p3 bra $L1;
    cp.async.bulk.commit_group;
$L1:
    setp.ne.b32 %p4, %r4, 0;
    setp.lt.s32 %p5, %r6, 0;
    or.pred %p6, %p4, %p5;
    @%p6 bra $L2;
    mbarrier.arrive.shared.b64 %rd1, [%r8], 1;
$L2:
    @%p4 fence.proxy.async.shared::cta;
    """
    assert [facts(body, warp).group_commits for warp in range(4)] == [0, 0, 1, 0]
    assert facts(body, 2, lane=1).group_commits == 0
    assert facts(body, 1, lane=0).arrivals == {"r.full": 1} and facts(body, 1, lane=3).arrivals == {}
    assert facts(body, 1, lane=0).proxy_fences == 0 and facts(body, 1, lane=3).proxy_fences == 1
    whole = facts(body)
    assert (whole.group_commits, whole.proxy_fences, whole.arrivals.total()) == (1, 1, 1)


def test_loops_end_and_count_once():
    body = """
    mov.b32 %r20, 0;
$L1:
    shl.b32 %r21, %r20, 3;
    add.s32 %r22, %r5, %r21;
    mbarrier.try_wait.parity.shared.b64 %p1, [%r22+32], %r6, 1000;
    add.s32 %r20, %r20, 1;
    setp.ne.b32 %p2, %r20, %r6;
    @%p2 bra $L1;
    """
    assert facts(body).waits == {"r.free": 1}


def test_inline_assembly_keeps_its_labels_to_itself():
    wait = """
    // begin inline asm
    {
    .reg .pred P1;
    LAB_WAIT:
    mbarrier.try_wait.parity.shared.b64 P1, [%r8], %r6, 10000000;
    @P1 bra.uni DONE;
    bra.uni LAB_WAIT;
    DONE:
    }
    // end inline asm
    """
    assert facts(wait + wait + "cp.async.bulk.wait_group.read 2;") == facts_of(
        waits={"r.full": 2}, group_waits={(2, "read"): 1}
    )


def facts_of(**given):
    found = Facts()
    for name, value in given.items():
        getattr(found, name).update(value)
    return found


def test_remote_arrivals_are_followed_through_mapa():
    found = facts("""
    add.s32 %r10, %r8, 32;
    mapa.shared::cluster.u32 %r11, %r10, %r4;
    mbarrier.arrive.shared::cluster.b64 _, [%r11], 1;
    mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r11], 1;
    mbarrier.arrive.shared::cluster.b64 _, [%r10], 1;
    """)
    assert found.remote_arrivals == {"r.free": 2} and found.scopes == {"cta": 1, "cluster": 1}
    assert len(found.unknown) == 1  # the last one: no mapa made its address


def test_transfers():
    found = facts("""
    shl.b32 %r10, %r6, 10;
    add.s32 %r11, %r5, %r10;
    cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes [%r11+128], [%rd1, {%r1, %r2}], [%r8];
    cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%rd1, {%r1, %r2}], [%r5+4224];
    cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group [%rd1, {%r1, %r2}], [%r5+4224];
    cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%rd1, {%r1, %r2}], [%r5+6000];
    """)
    assert found.loads == {("x", "r.full", False): 1} and found.stores == {"y": 1} and found.reduces == {"y": 1}
    assert len(found.unknown) == 1


def test_local_memory_is_seen():
    assert facts("st.local.b32 [%rd9], %r6;\n    ld.local.b32 %r30, [%rd9];").local == 2


@pytest.mark.parametrize("name", ["vector"])  # so that the process has it which compiles it: tests/conftest.py
def test_unrolling_multiplies_what_the_reader_counts(name):
    """Why kernels are built with unroll=False before they are counted."""
    once, unrolled = built(name).ptx.facts(), built(name, unroll=True).ptx.facts()
    assert once.waits == {"ring.free": 1, "ring.full": 1}
    assert unrolled.waits["ring.full"] > 1
    assert once.inits == unrolled.inits
