"""TensorMap beside the driver, beside what CuTe DSL encodes for the library's kernels, and in a kernel written in PTX."""

import ctypes

import cutlass
import cutlass.cute as cute
import pytest
import torch
from cuda.bindings import driver
from cutlass._mlir import ir
from cutlass._mlir.dialects import cute_nvgpu
from cutlass.cute.runtime import make_fake_stream, make_fake_tensor
from hypothesis import given, settings
from hypothesis import strategies as st

import tmapipe as tp
from tests.unit.test_tensor_map import IM2COL_RULES, RULES, im2col, maps, tiled
from tmapipe.base.tma_rules import TYPES
from tmapipe.gpu import cute_type, make_atom, to_core_first

# ---- the driver ----------------------------------------------------------------------------------------------------------

NEWER = ("16u", "128 atom")  # types and swizzles that the driver refuses on sm_90


def test_the_driver_takes_what_passes_the_rules():
    torch.zeros(1, device="cuda")
    taken = 0
    for make, cases in ((tiled, RULES), (im2col, IM2COL_RULES)):
        for *_, right in cases:
            if not any(str(right.get(name, "")).startswith(NEWER) for name in ("dtype", "swizzle")):
                assert len(make(**right).encode()) == 128, right
                taken += 1
    assert taken > 40


def test_what_the_rules_say_beyond_the_documentation():
    """Boxes larger than shared memory are refused."""
    torch.zeros(1, device="cuda")
    none, small = driver.CUtensorMapInterleave(0), driver.cuuint32_t
    count = driver.cuuint64_t
    kind, zero = driver.CUtensorMapDataType(0), (driver.CUtensorMapSwizzle(0), driver.CUtensorMapL2promotion(0))
    for rows, refused in ((227, False), (240, True)):
        error, _ = driver.cuTensorMapEncodeTiled(
            kind, 3, 0, [count(256)] * 3, [count(256), count(65536)], [small(256), small(rows), small(4)], [small(1)] * 3,
            none, *zero, driver.CUtensorMapFloatOOBfill(0),
        )  # fmt: skip
        assert bool(error) == refused


class Memory:
    """A tensor at an address where nothing is: the driver does not look."""

    def __init__(self, shape, strides, typestr, address):
        self.__cuda_array_interface__ = {
            "shape": shape,
            "strides": strides,
            "typestr": typestr,
            "data": (address, False),
        }


@settings(max_examples=400, derandomize=True)
@given(maps(), st.data())
def test_the_driver_takes_random_maps_that_pass(found, data):
    size = TYPES[found["name"]].bits // 8
    typestr = {1: "|u1", 2: "<f2", 4: "<f4", 8: "<f8"}[size]
    memory = Memory(found["shape"], (*found["strides"], size), typestr, found["address"])
    options = {key: found[key] for key in ("steps", "interleave", "swizzle", "fill")}
    try:
        made = tp.TensorMap(memory, found["box"], dtype=found["name"], **options)
    except tp.InputError:
        return
    assert len(made.encode()) == 128


# ---- CuTe DSL ------------------------------------------------------------------------------------------------------------


TRAIT = "_trait"  # where CuTe DSL keeps an atom's value


class Descriptors:
    """A kernel that writes down the descriptors of a plan's loads and stores, 16 words each."""

    def __init__(self, plan):
        self.plan = plan

    @cute.jit
    def host(self, tensors: list, out, stream):
        given = dict(zip(self.plan.arguments, tensors, strict=True))
        atoms = [make_atom(part, to_core_first(given[part.argument], part))[0] for part in self.plan.described]
        self.device(atoms, out).launch(grid=(1, 1, 1), block=(1, 1, 1), stream=stream)

    @cute.kernel
    def device(self, atoms: list, out):
        for i, atom in enumerate(atoms):
            kind = ir.Type.parse("!cute.ptr<i64, generic, align<64>>")
            where = cute_nvgpu.get_tma_desc_addr(kind, cute_nvgpu.atom_make_exec_tma(getattr(atom, TRAIT).value))
            words = cute.make_tensor(cute.recast_ptr(where, dtype=cutlass.Int64), cute.make_layout(16))
            for word in cutlass.range_constexpr(16):
                out[16 * i + word] = words[word]

    def of(self, tensors):
        fakes = []
        for name in self.plan.arguments:
            part, rank = next(p for p in self.plan.transfers if p.name == name), tensors[name].ndim
            step = 16 // part.buffer.dtype.bytes
            shape = tuple(cute.sym_int() for _ in range(rank))
            stride = (*(cute.sym_int64(divisibility=step) for _ in range(rank - 1)), 1)
            fakes.append(make_fake_tensor(cute_type(part.buffer.dtype), shape, stride=stride, assumed_align=16))
        out = make_fake_tensor(cutlass.Int64, (16 * len(self.plan.described),), stride=(1,), assumed_align=128)
        stream = make_fake_stream(use_tvm_ffi_env_stream=True)
        run = cute.compile(self.host, fakes, out, stream, options="--gpu-arch sm_90a --enable-tvm-ffi")
        words = torch.zeros(16 * len(self.plan.described), dtype=torch.int64, device="cuda")
        run([tensors[name] for name in self.plan.arguments], words)
        return words.view(-1, 16).cpu().numpy()


#: Bits of the second word that CuTe DSL 4.8.1 sets and the driver (13.0) does not.
ITS_OWN = 1 << 1 | 1 << 21
#: How CuTe DSL calls element types, where the driver has another one for the library's.
AS_WORDS = {"int32": "uint32"}


def cases():
    def made(*shapes, dtype=torch.bfloat16):
        return [torch.zeros(shape, device="cuda").to(dtype) for shape in shapes]

    for dtype in (torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.int8):
        yield str(dtype), lambda d=dtype: (tp.schedules.Gemm(), made((300, 512), (520, 512), dtype=d))
    yield "batch", lambda: (tp.schedules.Gemm(), made((3, 300, 512), (3, 520, 512)))
    how = tp.Operand(dtype="tf32")
    yield "tf32", lambda: (tp.schedules.Gemm(a=how, b=how), made((300, 512), (520, 512), dtype=torch.float32))
    yield "copy", lambda: (tp.schedules.Copy((32, 64)), made(*[(300, 1000)] * 2, dtype=torch.int32))
    yield "transposed", lambda: (tp.schedules.Gemm(b=tp.Operand("n")), [*made((300, 512)), made((512, 520))[0].t()])


@pytest.mark.parametrize("name, make", list(cases()))
def test_the_same_as_cute_dsl_encodes(name, make):
    """The 64 bytes that CuTe DSL fills, but for two bits of its own. It leaves the other 64 as they were in memory."""
    schedule, tensors = make()
    bound = schedule.bind(*tensors)
    plan = schedule.plan(bound.dtypes)
    found = Descriptors(plan).of(bound.tensors)
    for part, theirs in zip(plan.described, found, strict=True):
        tensor, buffer = bound.tensors[part.argument], part.buffer
        box = (1,) * (tensor.ndim - len(part.box)) + part.box
        dtype = buffer.dtype.name if not buffer.dtype.name.startswith(("fp8", "int8")) else "uint8"
        ours = tp.TensorMap(
            tensor, box, dtype=AS_WORDS.get(dtype, dtype), swizzle=buffer.swizzle, l2_promotion=128
        ).encode()
        words = [int.from_bytes(ours[i : i + 8], "little") for i in range(0, 64, 8)]
        words[1] |= ITS_OWN
        assert [hex(int(word) & (1 << 64) - 1) for word in theirs[:8]] == list(map(hex, words)), part.name


# ---- a kernel from elsewhere -------------------------------------------------------------------------------------------

PTX = b"""
.version 8.0
.target sm_90
.address_size 64
.extern .shared .align 128 .b8 slot[];
.visible .entry tile(.param .align 64 .b8 map[128], .param .u64 out, .param .u32 column, .param .u32 row, .param .u32 nbytes)
{
    .reg .b32 %r<12>;
    .reg .b64 %d<8>;
    .reg .pred %p<3>;
    .shared .align 8 .b64 bar;
    mov.u32 %r0, %tid.x;
    setp.ne.u32 %p0, %r0, 0;
    mov.u32 %r1, bar;
    mov.u32 %r2, slot;
    ld.param.u32 %r3, [column];
    ld.param.u32 %r4, [row];
    ld.param.u32 %r5, [nbytes];
    mov.b64 %d0, map;
    cvta.param.u64 %d1, %d0;
    @%p0 bra WAIT;
    mbarrier.init.shared.b64 [%r1], 1;
    fence.proxy.async.shared::cta;
    mbarrier.arrive.expect_tx.shared.b64 %d2, [%r1], %r5;
    cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%r2], [%d1, {%r3, %r4}], [%r1];
WAIT:
    bar.sync 0;
AGAIN:
    mbarrier.try_wait.parity.shared.b64 %p1, [%r1], 0;
    @!%p1 bra AGAIN;
    ld.param.u64 %d3, [out];
    cvta.to.global.u64 %d3, %d3;
    mov.u32 %r6, %r0;
COPY:
    setp.ge.u32 %p2, %r6, %r5;
    @%p2 bra DONE;
    add.u32 %r7, %r2, %r6;
    ld.shared.u8 %r8, [%r7];
    cvt.u64.u32 %d4, %r6;
    add.u64 %d5, %d3, %d4;
    st.global.u8 [%d5], %r8;
    add.u32 %r6, %r6, 32;
    bra COPY;
DONE:
    ret;
}
"""


def load(made, column, row, elements, dtype):
    """What a kernel in PTX loads through *made*: so many elements, as a vector."""
    error, module = driver.cuModuleLoadData(PTX + b"\0")
    assert not error
    error, function = driver.cuModuleGetFunction(module, b"tile")
    assert not error
    out = torch.zeros(elements, dtype=dtype, device="cuda")
    nbytes = elements * dtype.itemsize
    memory = (ctypes.c_char * 192)()
    aligned = -(-ctypes.addressof(memory) // 64) * 64
    ctypes.memmove(aligned, made.encode(), 128)
    values = [ctypes.c_uint64(out.data_ptr()), ctypes.c_int32(column), ctypes.c_int32(row), ctypes.c_uint32(nbytes)]
    parameters = (ctypes.c_void_p * 5)(aligned, *map(ctypes.addressof, values))
    stream = torch.cuda.current_stream().cuda_stream
    (error,) = driver.cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, nbytes, stream, ctypes.addressof(parameters), 0)
    assert not error
    torch.cuda.synchronize()
    return out


@pytest.mark.parametrize("fill", ["zeros", "nan"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.uint8, torch.float64])
def test_in_a_kernel_of_ptx(dtype, fill):
    if fill == "nan" and dtype == torch.uint8:
        return
    x = torch.randn(100, 96, device="cuda").mul(50).abs().to(dtype)
    found = load(tp.TensorMap(x, (16, 32), fill=fill), 80, 92, 512, dtype).view(16, 32)
    assert torch.equal(found[:8, :16], x[92:, 80:])
    outside = torch.cat([found[8:].flatten(), found[:8, 16:].flatten()])
    assert outside.float().isnan().all() if fill == "nan" else not outside.any()


def test_steps_take_every_other_row():
    x = torch.randn(100, 96, device="cuda")
    found = load(tp.TensorMap(x, (32, 16), steps=(2, 1)), 8, 10, 16 * 16, torch.float32).view(16, 16)
    assert torch.equal(found, x[10:42:2, 8:24])


def test_rounded_to_tf32():
    x = torch.randn(100, 96, device="cuda")
    found = load(tp.TensorMap(x, (16, 32), dtype="tf32"), 0, 0, 512, torch.float32).view(16, 32)
    bits = found.view(torch.int32)
    assert not (bits & 0x1FFF).any() and ((found - x[:16, :32]).abs() <= 2**-10 * x[:16, :32].abs()).all()
