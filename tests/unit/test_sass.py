"""What is read of kernels: loops of SASS, stamps of their phases, requests of L2."""

import numpy as np
import pytest

import tmapipe as tp
from benchmarks.cubin_tools import disassemble
from benchmarks.sass_loops import innermost, loops, parse
from examples.softmax import softmax_of
from tmapipe.gpu.build import Resources, build

LISTING = """
.text.kernel:
        /*0000*/                   MOV R1, c[0x0][0x28] ;
        /*0010*/               @P3 BRA `(.L_load) ;
.L_tile:
        /*0020*/                   IMAD.MOV.U32 R7, RZ, RZ, R3 ;
.L_k:
        /*0030*/                   SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR12], R8 ;
        /*0040*/              @!P0 BRA `(.L_retry) ;
.L_go:
        /*0050*/                   HGMMA.64x256x16.F32.BF16 R24, gdesc[UR16], R24 ;
        /*0060*/                   UMOV UR17, 0x40000040 ;
        /*0070*/                   HGMMA.64x256x16.F32.BF16 R24, gdesc[UR16], R24, gsb0 ;
        /*0080*/               @P1 BRA `(.L_k) ;
        /*0090*/                   UTMASTG.3D [UR20], [UR18], desc[URZ] ;
        /*00a0*/               @P2 BRA `(.L_tile) ;
        /*00b0*/                   EXIT ;
.L_load:
        /*00c0*/                   SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [R5+URZ], R4 ;
        /*00d0*/              @!P0 BRA `(.L_load) ;
        /*00e0*/               @P4 BRA `(.L_skip) ;
        /*00f0*/                   UTMALDG.3D [UR32], [UR24], desc[URZ] ;
        /*0100*/                   UTMALDG.3D.MULTICAST [UR8], [UR26], UR20, desc[URZ] ;
.L_skip:
        /*0110*/               @P1 BRA `(.L_load) ;
        /*0120*/                   EXIT ;
.L_retry:
        /*0130*/                   SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [R9+URZ], R8 ;
        /*0140*/              @!P0 BRA `(.L_retry) ;
        /*0150*/                   BRA `(.L_go) ;
.L_end:
        /*0160*/                   BRA `(.L_end);
"""


def test_loops_are_found_from_control_flow_and_retries_out_of_line_are_left_out():
    instructions, labels = parse(LISTING)
    assert len(instructions) == 23 and instructions[1].guard == "@P3" and instructions[1].target == ".L_load"
    found = loops(instructions, labels)
    math_loop = innermost(found, "[HQI]GMMA")
    # The retry's jump back to .L_go is no loop: .L_go does not dominate it. Nor is the loop over tiles the innermost.
    assert [i.opcode.split(".")[0] for i in math_loop.instructions] == ["SYNCS", "BRA", "HGMMA", "UMOV", "HGMMA", "BRA"]
    assert math_loop.count("HGMMA") == 2 and math_loop.opcodes()["BRA"] == 2
    # A wait that spins in line is counted once, and so is what only an elected warp does.
    load_loop = innermost(found, "UTMALDG")
    assert [i.opcode.split(".")[0] for i in load_loop.instructions] == [
        "SYNCS",
        "BRA",
        "BRA",
        "UTMALDG",
        "UTMALDG",
        "BRA",
    ]
    assert innermost(found, "LDGSTS") is None


def test_a_kernel_is_read_by_ktiles():
    sass = pytest.importorskip("benchmarks.sass")
    used = Resources(registers=168, spill_bytes=0, shared_bytes=0)
    kernel = sass.read(LISTING, used, gmmas=1, loads=2)
    assert kernel.ktiles == {"math": 2.0, "load": 1.0}
    assert kernel.size == 23
    sass.report({"ours": kernel})


def test_stamps_are_summed_up():
    from types import SimpleNamespace

    from benchmarks import stamps

    plan = tp.schedules.Gemm((64, 64, 64), (1, 1)).plan()
    full = plan.rings[0].barriers[0]
    nodes = [SimpleNamespace(method=name, args=(full,)) for name in ("mbarrier_arrive_expect_tx", "mbarrier_wait")]
    places = [SimpleNamespace(node=node, after=True) for node in nodes]
    warps, rows = [plan.role(name).first_warp for name in ("load", "math")], []
    for late in (0, 1000, 5000):
        for number, warp in enumerate(warps):
            clocks = np.array([100, 900]) + 100 * number
            ends = {"began": (5000 + late, 0), "ended": (6000 + late, 2000)}
            rows.append(SimpleNamespace(warp=warp, numbers=np.full(2, number), clocks=clocks, **ends))
    found = stamps.medians(plan, places, rows)
    assert found == {
        "start": 1, "first load": 1.05, "last load": 1.45, "first full slot": 1.1, "last full slot": 1.5, "end": 2, "GHz": 2,
    }  # fmt: skip


SOFTMAXES = {"softmax of 4096": softmax_of(4096, 1, 4, held=True), "softmax of 1024": softmax_of(1024, 4, 4, held=True)}
BOTH_FORMS = {"copy": tp.schedules.Copy((2, 256), 4), **SOFTMAXES}


@pytest.mark.parametrize("schedule", BOTH_FORMS.values(), ids=BOTH_FORMS)
def test_a_stamped_kernel_has_the_loops_of_the_plain_one(schedule):
    """In its form without stamps, to 2 % of the instructions of long loops. ptxas looks at both forms together: it made
    bits of the predicates of both softmaxes' masks, in chains of 72. The first one took 6 % longer on an H200."""
    found = []
    for instrument in ("", "stamps"):
        listing = disassemble(build(schedule, schedule.plan(), keep=True, instrument=instrument).cubin)
        found.append([loop.opcodes() for loop in loops(*parse(listing)) if len(loop.instructions) > 100])
    plain, stamped = found
    assert len(plain) == 2 and len(stamped) >= 4
    for ours, theirs in zip(stamped, plain, strict=False):
        assert ((ours - theirs) + (theirs - ours)).total() <= 0.02 * theirs.total(), (ours, theirs)


PRINTED = """==PROF== Connected to process 467
variant SplitK 128x128 1x2 parts 8
"ID","Kernel Name","gpu__time_duration.sum","lts__t_sectors_srcunit_tex.sum","l1tex__m_xbar2l1tex_read_bytes.sum",\
"lts__t_sectors_srcunit_ltcfabric.sum","dram__bytes_read.sum"
"","","ns","sector","byte","sector","byte"
"0","kernel_multiply","75,072","12,648,380","536,870,912","3,971,189","134,259,200"
"1","kernel_add","6,464","278,528","8,388,608","150,836","8,406,016"
""".replace("\\\n", "")  # as ncu printed it on an H200, less columns


def test_requests_are_summed_over_the_kernels():
    from benchmarks.l2_requests import counted

    found = counted(PRINTED)
    assert found["kernels"] == ["kernel_multiply", "kernel_add"]
    assert found["request_sectors"] == 12_648_380 + 278_528 and found["dram_read_bytes"] == 134_259_200 + 8_406_016
    assert abs(found["us_at_base_clock"] - 81.536) < 1e-9
    assert found["fraction"] == 32 * 12_926_908 / 545_259_520
    with pytest.raises(ValueError, match="no kernel"):
        counted("==ERROR== no permission")
