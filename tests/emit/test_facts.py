"""What the plan declares stands in the PTX: each instruction as often as the bodies say, at the thread that should run it.

The numbers are derived here from the plan, by hand, with the reason beside each. Loops are not unrolled in these kernels, so
that one instruction of a body is one of the PTX.
"""

import math
import re
from collections import Counter

import pytest

import tmapipe as tp
from examples.transpose import transpose_of
from tests.emit.kernels import COPIES, ELSEWHERE, GEMMS, KERNELS, build, built, swept
from tests.oracle.ptx import Facts
from tests.sweeps import ALL
from tmapipe.gpu import make_atom
from tmapipe.gpu.build import cluster_of
from tmapipe.isa import TABLE
from tmapipe.schedules.crossentropy import SoftmaxRows
from tmapipe.schedules.rowform import RowForm

LANES = (0, 5)  # the elected one, and one that no cluster of these kernels has a CTA for


def boxes(transfer, peers=1):
    """TMA instructions of one tile: this CTA's share of it in boxes."""
    return math.prod(transfer.buffer.tile) // peers // math.prod(transfer.box)


def set_up(plan, warp, lane):
    """The last warp without a role, or the last warp, initializes, its elected lane alone; all threads meet."""
    facts, busy = Facts(), {w for role in plan.roles for w in range(role.first_warp, role.first_warp + role.warps)}
    free = [w for w in range(plan.warps) if w not in busy]
    if plan.cluster_size > 1:
        facts.cluster_arrives["relaxed"] = facts.cluster_waits = 1
    else:
        facts.cta_syncs = 1
    if warp == [plan.warps - 1, *free][-1]:
        facts.prefetches, facts.init_fences = len(plan.described), 1
        if lane == 0:
            facts.inits = {(b.name, stage): b.count for b in plan.barriers for stage in range(b.stages)}
    if plan.registers:
        registers = plan.registers[warp // 4]
        facts.registers["inc" if registers > plan.launch_registers else "dec", registers] = 1
    return facts


def add_producer(facts, plan, lane):
    """Waits for a free slot, arms it, loads it; for the tail, once more for each slot if peers signal this CTA."""
    ring = plan.ring("ring")
    facts.waits["ring.free"] = 1 + (ring.stages if ring.peers > 1 else 0)
    if lane == 0:
        slot = sum(load.buffer.slot_bytes for load in plan.loads)  # every CTA gets whole tiles, by whomever
        facts.armed["ring.full", slot] = 1
        for load in plan.loads:
            columns = load.buffer.tile[-1] // load.box[-1]  # of boxes; at the edge they have other rows, in a loop
            at_edge = columns if load.edge_rows else 0
            facts.loads[load.name, "ring.full", bool(load.axes)] = boxes(load, load.peers) + at_edge


def compare(found, expected, where):
    assert not found.unknown, where
    assert found.nonzero() == expected.nonzero(), where


@pytest.mark.parametrize(
    ("name", "of_load", "of_store"),
    [
        ("copy of rows longer than a box", 0x14F0000000000000, 0x12F0000000000000),
        ("copy", 0, 0),
        ("rows, in bulk", 0x14F0000000000000, 0x12F0000000000000),
    ],
)
def test_l2_hints(name, of_load, of_store):
    """Each copy has its own stage's policy, by the constants of CUTLASS's TMA::CacheHintSm90. CuTe DSL writes 0 for none."""
    moves = [i for i in built(name).ptx.instructions if i.is_a("mov.b64") and i.operands[1].isdigit()]
    constants = {i.operands[0]: int(i.operands[1]) for i in moves}
    hinted = [i for i in built(name).ptx.instructions if i.has("L2::cache_hint")]
    found = {("store" if i.has("bulk_group") else "load", constants[i.operands[-1]]) for i in hinted}
    assert found == {("load", of_load), ("store", of_store)}


@pytest.mark.parametrize("name", [name for name in swept(COPIES) if name != "reduce"])
def test_copies(name):
    kernel = built(name)
    plan, (store,) = kernel.plan, kernel.plan.stores
    lag = plan.ring("ring").lag["store"]
    for lane in LANES:
        load = set_up(plan, 0, lane)
        add_producer(load, plan, lane)
        compare(kernel.ptx.facts(0, lane), load, ("load", lane))

        drain = set_up(plan, 1, lane)
        drain.waits["ring.full"] = 1
        # One wait_group.read a slot; one more for the slots held back at the end. A warp sync after each.
        waits = Counter({(lag, "read"): 1}) + Counter({(0, "read"): int(lag > 0)})
        drain.warp_syncs = waits.total()
        if lane == 0:
            drain.group_waits, drain.group_commits = waits, 1
            stores = drain.reduces if store.reduce else drain.stores
            stores[store.buffer.name] = boxes(store)
            drain.arrivals["ring.free"] = 1 + lag  # a slot's release, and those held back at the end
        compare(kernel.ptx.facts(1, lane), drain, ("store", lane))


# Those with operands, and with loads in pairs: test_events.
@pytest.mark.parametrize("name", [name for name in swept(GEMMS) if "operands" not in name])
def test_gemms(name):
    kernel = built(name)
    plan, (matmul,), (store,) = kernel.plan, kernel.plan.matmuls, kernel.plan.stores
    ring, math_role = plan.ring("ring"), plan.role("math")
    m, n, _ = matmul.shape
    rows = m // 64 // matmul.warpgroups  # 64-row blocks of one warpgroup
    pieces = rows * -(-n // store.columns)  # of its output, through the buffers
    buffers = store.buffer.stages // store.buffer.owners  # of one warpgroup, or of all in turn
    turns = [barrier.name for barrier in plan.barriers if barrier.name.endswith(".turn")]
    for warp in range(plan.warps):
        for lane in LANES:
            facts = set_up(plan, warp, lane)
            if warp == plan.role("load").first_warp:
                add_producer(facts, plan, lane)
            elif warp >= math_role.first_warp:
                facts.waits["ring.full"] = 1
                for part in matmul.n_instructions:
                    facts.matmuls[f"m64n{part}k{32 // matmul.a.dtype.bytes}"] += rows * matmul.k_instructions
                facts.wgmma_fences = facts.wgmma_commits = 1
                # One a slot, with one group in flight; none in flight after the loop, and (idle) after the last tile.
                # Where sums are promoted, all have been waited for already, and each slot is released at once.
                facts.wgmma_waits = Counter({0: 1} if matmul.promote else {1: 1, 0: 2})
                releases = 1 if matmul.promote else 2
                # A release a slot, of the one before; the last one after the loop. (At the end there is none left, as
                # LLVM finds out.) Lane i signals CTA i; in a cluster of one, the leader its own. Where the peers are not
                # the whole cluster, the mask depends on the CTA, so that the text alone excludes no lane.
                if ring.peers > 1:
                    if lane < plan.cluster_size or ring.peers < plan.cluster_size:
                        facts.remote_arrivals["ring.free"] = releases
                        # Counts only, at CTA scope. Cluster scope would add two memory barriers to each k-tile.
                        facts.scopes["cta"] = releases
                elif lane == 0:
                    facts.arrivals["ring.free"] = releases
                facts.proxy_fences = pieces
                group = (warp - math_role.first_warp) // 4
                # Before a buffer is written, and after; once more before another team has its turn.
                facts.named_syncs[1 + group, 128] = 2 * pieces + store.shared
                for turn in turns:
                    facts.waits[turn] = 1
                    if lane == 0:
                        facts.arrivals[turn] = 1
                if warp % 4 == 0:
                    facts.warp_syncs = pieces + 1 + store.shared  # after each wait_group
                    if lane == 0:
                        facts.group_waits = Counter({(buffers - 1, "read"): pieces})
                        facts.group_waits += Counter({(0, "read"): 1 + store.shared})
                        facts.group_commits = pieces
                        stores = facts.reduces if store.reduce else facts.stores
                        stores[store.buffer.name] = pieces * boxes(store)
            compare(kernel.ptx.facts(warp, lane), facts, (warp, lane))


@pytest.mark.parametrize(
    ("name", "types"),
    [("gemm 2x1", "f32.bf16.bf16"), ("gemm fp8 promoted", "f32.e4m3.e4m3"), ("gemm tf32", "f32.tf32.tf32"),
     ("gemm int8 scaled", "satfinite.s32.s8.s8"),
     *ALL * [("gemm 1x2 fp16", "f32.f16.f16"), ("gemm fp8", "f32.e4m3.e5m2")]],
)  # fmt: skip
def test_types_of_wgmma(name, types):
    opcodes = set(re.findall(r"wgmma\.mma_async\.sync\.aligned\.m\d+n\d+k\d+\.(\S+)", built(name).compiled.ptx))
    assert opcodes == {types}


def test_the_engine_rounds_to_tf32_as_it_loads(monkeypatch):
    """A tensor map's element type is not in the PTX: CuTe DSL's own record of it."""
    formats = {}

    def noting(part, tensor):
        info = make_atom(part, tensor)
        formats[part.name] = re.search(r"tma_format = (\w+)", str(info[0].type)).group(1)
        return info

    monkeypatch.setattr("tmapipe.gpu.build.make_atom", noting)
    build(KERNELS["gemm tf32"])
    assert formats == {"a": "TF32_RN", "b": "TF32_RN", "d": "F32_RN"}


@pytest.mark.parametrize("name", ["add parts"])  # so that the process has it which compiles it: tests/conftest.py
def test_add_parts(name):
    """Threads read the slots: each fences its reads against the next load, and the warp's leader releases the slot."""
    kernel = built(name)
    plan = kernel.plan
    for warp in range(plan.warps):
        for lane in LANES:
            facts = set_up(plan, warp, lane)
            if warp == 0:
                add_producer(facts, plan, lane)
            else:
                facts.waits["ring.full"] = 2  # the first part, and the loop over the others
                facts.proxy_fences = 3  # after both reads, and before the store
                facts.warp_syncs = 2
                facts.named_syncs[1, 128] = 2
                if lane == 0:
                    facts.arrivals["ring.free"] = 2
                if warp == 1:
                    facts.warp_syncs += 2
                    if lane == 0:
                        facts.group_waits = Counter({(1, "read"): 1, (0, "read"): 1})
                        facts.group_commits, facts.stores["d"] = 1, 1
            compare(kernel.ptx.facts(warp, lane), facts, (warp, lane))


@pytest.mark.parametrize("name", ["chain of three"])  # so that the process has it which compiles it: tests/conftest.py
def test_chain_of_three(name):
    """The middle phase is awaited by the last, and writes what the engine reads: a fence, then the release."""
    kernel = built(name)
    for warp in (1, 2):
        for lane in LANES:
            facts = set_up(kernel.plan, warp, lane)
            facts.waits["ring.full"] = 1
            facts.proxy_fences = facts.warp_syncs = 1
            if lane == 0:
                facts.arrivals["ring.ready1"] = 1
            compare(kernel.ptx.facts(warp, lane), facts, (warp, lane))
    last = kernel.ptx.facts(3)
    assert last.waits == {"ring.ready1": 1} and last.arrivals == {"ring.free": 2}
    assert {count for (name, _), count in kernel.ptx.facts().inits.items() if name == "ring.ready1"} == {2}


@pytest.mark.parametrize(
    "name", ["gemm 2x1", "pingpong 2x1", "GatedGemm", "grouped 1x2", "gemm by GPC 1x2", "streamk", "splitk"]
)
def test_a_select_for_each_sum_only_where_there_may_be_none(name):
    """A value of an accumulator is stored as it is, or as zero if its tile had no k-tiles, which costs as much as its
    conversion. Only the last part of a split k may have none."""
    assert ("selp.f32" in built(name).compiled.ptx) == (name == "splitk")


@pytest.mark.parametrize("name", swept(KERNELS))
def test_whole_kernel(name):
    """Nothing unplaced, no local memory, and what a launch needs to make the register counts real."""
    kernel = built(name)
    facts, used, plan = kernel.ptx.facts(), kernel.compiled.resources, kernel.plan
    assert not facts.unknown and facts.local == 0 and used.spill_bytes == 0
    assert ".local" not in kernel.compiled.ptx, "an array in local memory"
    assert facts.inits == {(b.name, stage): b.count for b in plan.barriers for stage in range(b.stages)}
    assert f".reqntid {plan.threads}, 1, 1" in kernel.compiled.ptx
    least = kernel.schedule.tiles.least_ctas()  # not none: or ptxas drops setmaxnreg (cutlass#3406)
    assert f".minnctapersm {least}" in kernel.compiled.ptx
    assert facts.init_fences == bool(plan.barriers or plan.described)
    if plan.registers:
        assert used.registers == plan.launch_registers
        roles = {
            g: [r.name for r in plan.roles if r.first_warp // 4 <= g <= (r.first_warp + r.warps - 1) // 4]
            for g in plan.registers
        }
        branches = {
            (count, *roles[group]) for group, count in plan.registers.items()
        }  # warpgroups of one code share it
        assert sum(facts.registers.values()) == len(branches)
    else:
        assert used.registers <= plan.launch_registers and not facts.registers


@pytest.mark.parametrize("unrolled", ["copy", "gemm dynamic 2x2", *ALL * ["pingpong dynamic 2x1", "add parts"]])
def test_nothing_in_local_memory_when_unrolled(unrolled):
    kernel = built(unrolled, unroll=True)
    assert kernel.compiled.resources.spill_bytes == 0 and kernel.ptx.facts().local == 0
    assert ".local" not in kernel.compiled.ptx


@pytest.mark.parametrize("tile", [(128, 128, 128), *ALL * [(256, 48, 128)]])
def test_two_promoted_accumulators_have_room(tile):
    gated = tp.schedules.GatedGemm(tile, (1, 1), mainloop=tp.mainloop.Cooperative(promote=True))
    assert gated.compile(dict.fromkeys(("a", "gate", "up"), "fp8_e4m3") | {"d": "bf16"}).resources.spill_bytes == 0


@pytest.mark.parametrize(("name", "arch"), [(name, arch) for name, arch in ELSEWHERE if name in COPIES])
def test_the_same_facts_on_other_architectures(name, arch):
    here, there = built(name), built(name, arch)
    assert f".target {arch}" in there.compiled.ptx
    assert there.compiled.resources.spill_bytes == 0
    for warp in (0, 1):
        for lane in LANES:
            assert there.ptx.facts(warp, lane).nonzero() == here.ptx.facts(warp, lane).nonzero()


#: CTAs that a CTA's slots are filled for, and columns of a tile.
CLUSTERS = {"gemm 1x1": (1, 256), "gemm 2x1": (2, 256), "gemm 1x2 fp16": (2, 64), "gemm 2x2": (3, 128)}


@pytest.mark.parametrize("name", swept(CLUSTERS))
def test_dependent_numbers_differ_between_clusters(name):
    """Arrivals at `free` are 8 warps x those CTAs; bytes do not depend on the cluster."""
    facts = built(name).ptx.facts()
    counts = {count for (barrier, _), count in facts.inits.items() if barrier == "ring.free"}
    ctas, columns = CLUSTERS[name]
    assert counts == {8 * ctas}
    assert facts.armed == {("ring.full", (128 + columns) * 64 * 2): 1}


ACCESSES = ("cp.async.bulk.tensor", "cp.async.ca", "cp.async.cg", "cp.reduce", "st.global")


@pytest.mark.parametrize("name", sorted(swept(KERNELS)))
def test_global_memory_is_touched_after_the_kernels_before(name):
    """Launched while they still run: every thread waits for their end, before any copy that it can start."""
    kernel = built(name)
    for warp in range(kernel.plan.warps):
        for lane in LANES:
            reached = kernel.ptx.reached(warp, lane)
            before = kernel.ptx.thread(warp, lane).reached_without("griddepcontrol.wait")
            assert len([what for what in reached if what.is_a("griddepcontrol.wait")]) == 1
            assert not any(what.is_a(*ACCESSES) for what in before)
            assert any(what.is_a("griddepcontrol.launch_dependents") for what in before)


#: The operations that a kernel shows; "grouped 1x2" shows all that are in none of the others' lists, and not `UNUSED`.
SHOWN = {
    "rows of b anywhere": {"DescriptorAcquire", "DescriptorRelease", "DescriptorWrite"},
    "copy with prefetches": {"BulkPrefetch", "TmaPrefetch"},
    "gemm by GPC 1x2": {"ReadSmid"},
    "copies beside loads": {"CpAsync"},
    "rotated in pairs of four CTAs": {"PeerCopy"},
    "inc into four peers": {"PeerReduce"},
    "read from peers": {"PeerRead"},
    "rows gathered": {"TmaGather"},
    "rows scattered": {"TmaScatter"},
}
UNUSED = {"MbarExpectTx", "FenceProxyAsyncGlobal", "RedAsync"}  # by these kernels; for the last one, see test_far


@pytest.mark.parametrize("name", ["grouped 1x2", *SHOWN])
def test_the_table_names_the_instructions_as_they_stand_in_ptx(name):
    """Each operation's PTX, its modifiers in any order."""
    operations = {op.__name__: declared.ptx for op, declared in TABLE.items() if declared.ptx}
    kernel = built(name, "sm_100a") if name in ("rows gathered", "rows scattered") else built(name)
    instructions = {(i.opcode, *i.operands) for i in kernel.ptx.instructions}
    words = [{*opcode.split("."), *operands} for opcode, *operands in instructions]
    found = {op for op, ptx in operations.items() if any(set(re.split("[. ]", ptx)) <= each for each in words)}
    assert SHOWN.get(name, operations.keys() - UNUSED - set().union(*SHOWN.values())) <= found
    assert not UNUSED & found


def test_ctas_that_share_a_multiprocessor():
    """The compiler is told to spare registers for them, which no warp then sets; where a role does, there are no others."""
    copy, gemm = tp.schedules.Copy((2, 256), stages=1, pending=0), tp.schedules.Gemm((64, 64, 64), (1, 1))
    for schedule, ctas in ((copy, 16), (gemm, 1)):
        schedule.tiles = tp.tiles.GridTiles(ctas=ctas)
        ptx = schedule.compile().ptx
        assert re.search(rf"\.minnctapersm\s+{ctas}\b", ptx)
    assert "setmaxnreg" in ptx
    few = tp.schedules.Gemm(
        (64, 64, 64), (1, 1), 2, epilogue=tp.epilogue.Epilogue(stages=1), tiles=tp.tiles.GridTiles(ctas=5)
    )
    kernel = few.compile()
    assert "setmaxnreg" not in kernel.ptx and kernel.plan.warps == 5 and kernel.plan.launch_registers == 72
    assert kernel.resources.registers <= 72 and kernel.resources.spill_bytes == 0


def test_a_cta_of_one_tile_has_no_loop():
    """Each role finds the tile by one division, and there is one load. So that begins early."""
    ptx = tp.schedules.Copy((1, 256)).compile().ptx
    assert len(re.findall(r"mul\.hi\.u32", ptx)) == 2
    assert len(re.findall(r"cp\.async\.bulk\.tensor\.2d\.shared", ptx)) == 1
    hinted = tp.schedules.Copy((1, 256), l2_hint="evict_last").compile().ptx
    assert str(0x14F0000000000000) in hinted and str(0x14F0000000000000) not in ptx


def test_one_cta_is_launched_as_a_cluster_only_for_st_async():
    one = tp.schedules.Copy((8, 256))
    assert cluster_of(one.plan()) is None and cluster_of(tp.schedules.Gemm((64, 64, 64), (2, 1)).plan()) == (2, 1, 1)
    for order in (tp.tiles.DynamicTiles(), *ALL * [tp.tiles.GpcTiles()]):
        queued = tp.schedules.Copy((8, 256))
        queued.tiles = order
        assert cluster_of(queued.plan()) == (1, 1, 1) and "st.async" in queued.compile().ptx
    assert not re.search(r"st\.async|multicast", one.compile().ptx)


def test_numbers_of_16_bits_are_transposed_by_ldmatrix():
    """Sixteen rows and columns at a time; others one by one."""
    for dtype, blocks in (("bf16", 4), *ALL * [("fp16", 4)], ("fp32", 0)):
        ptx = transpose_of(dtype, 64, 64).compile().ptx
        assert ptx.count("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16") == blocks
        assert ("ld.shared" in ptx) == (blocks == 0)


@pytest.mark.parametrize(
    "form, vectors, branches",
    [
        (RowForm(4000, 1, 4096, 4), 4, 1),  # the last vector's columns are compared
        (RowForm(1000, 8, 1024, 4), 8, 3),  # two rows a warp, of which each has a vector whose columns are compared
        (RowForm(60000, 1, 15360, 6, 4), 10, 1),
    ],
)
def test_a_branch_a_row_stores_its_vectors(form, vectors, branches):
    """Softmax of 91952 had one a vector, each with the row's address anew: 1239 instructions, now 1034."""
    ptx = SoftmaxRows(form).compile(dict.fromkeys("xy", "bf16")).ptx
    first, last = ptx.index("st.global.v4"), ptx.rindex("st.global.v4")
    assert ptx.count("st.global.v4") == vectors
    assert len(re.findall(r"^\s*(?:@!?%p\w+ )?bra", ptx[first:last], re.MULTILINE)) == branches
