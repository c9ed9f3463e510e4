"""The emitted PTX, executed with data, computes what the model computes from the same program.

A wrong unpacking of words has the right addresses and events, and the model never sees it. `tests.oracle.ptx_run` as a plugin
judges all launches of other tests.
"""

import math
import re

import pytest
import torch

import tmapipe as tp
from tests.emit.kernels import KERNELS, built
from tests.oracle.ptx_memory import Wrong
from tests.oracle.ptx_run import Differs, judged

S = tp.schedules


def some(*shape, dtype=torch.bfloat16):
    return torch.randint(-100, 100, shape, generator=torch.Generator().manual_seed(0)).to(dtype)


def copied(x, start=0):
    """To rows that begin *start* elements after the start of wider ones."""
    whole = torch.full((*x.shape[:-1], x.shape[-1] + start + 3), 77).to(x.dtype)
    S.Copy()(x, out=whole[..., start : start + x.shape[-1]])


def masked():
    """A mask of 16 bits, whose slots are read by ``ldmatrix``."""
    x, mask = some(1, 1, 100, 64, dtype=torch.float16) / 100, some(20, 104, dtype=torch.float16) / 50
    S.Attention(64, tile=(64, 1, 96), score=S.Score(mask="m s"))(x[:, :, :20], x, x, mask[:, :100])


def rotated(shape, angles, form, pairs=False):
    """Rows that follow one another, by a table of fp32."""
    x, table = some(*shape) / 10, torch.rand(angles, generator=torch.Generator().manual_seed(1))
    tables = [each.expand(*shape[:-1], -1) for each in (table, table + 1)]
    S.Rotary(pairs).by_rows(x, tables, torch.empty_like(x), S.rotary.RotaryForm(*form))()


def few_rows(kind, tile, k, dtype=torch.bfloat16, **options):
    """Weights of few bits, of fewer columns than the tile has."""
    rows, groups = tile[0] - 1, [k // options["group"]] if options else []
    b = some(20, k // 2 if kind == "int4" else k, dtype=torch.int8)
    b = b.to(torch.float8_e4m3fn) if kind == "fp8_e4m3" else b
    numbers = [
        torch.rand(*groups, 20, generator=torch.Generator().manual_seed(i)) for i in range(1 + len(options) // 2)
    ]
    S.DequantGemv(kind, tile, stages=2, **options)(some(rows, k, dtype=dtype) / 100, b, *numbers)


CALLS = {
    "few rows, weights of 8 bits": lambda: few_rows("int8", (4, 16, 128), 640),
    "few rows, 8 bits in groups": lambda: few_rows("int8", (10, 16, 64), 320, torch.float16, group=16, zeros=True),
    "few rows, fp8 in groups": lambda: few_rows("fp8_e4m3", (8, 16, 64), 256, torch.float16, group=64),
    "few rows, 4 bits in groups": lambda: few_rows("int4", (10, 32, 256), 768, group=64, zeros=True),
    "odd halves": lambda: rotated((2, 11, 1, 30), (11, 1, 15), (8, 16, 1, 1, 2)),
    "halves in vectors": lambda: rotated((1, 5, 4, 24), (5, 1, 12), (8, 16, 1, 4, 2, 2)),
    "odd pairs, some heads": lambda: rotated((1, 3, 16, 22), (3, 1, 11), (8, 12, 1, 1, 2), True),
    "mask of halves": masked,
    "by the engine": lambda: S.Copy((8, 64))(some(21, 136)[:, 8:]),
    "runs of bytes": lambda: copied(some(37, dtype=torch.int8)[1:], 2),
    "runs of halves": lambda: copied(some(68)[3:]),
    "rows of bytes": lambda: copied(some(3, 5, 21, dtype=torch.int8)[:, 1:, 3:], 1),
    "every second of 64 bits": lambda: S.Copy()(some(3, 33, dtype=torch.int64)[:, ::2]),
    "elements of halves": lambda: S.Copy()(some(5, 3, 21)[:, 1:, 2:]),
    "to another type": lambda: S.Copy()(torch.randn(3, 67)[:, 1:], out=torch.empty(3, 66).half()),
    "transpose": lambda: S.Transpose()(some(9, 35)),
}


#: Kernels that other tests compile too. The extents here replace the extents of those tests.
COMPILED = {
    "softmax": {"m": 3},
    "rotary of whole rows": {"b": 1},
    "rotary of whole rows, pairs": {"b": 1},
    "cumsum": {"m": 2},
    "gemm along n with operands": {"l": 1, "m": 72, "n": 72, "k": 72},
    "gemm with operands in narrow pieces": {"l": 1, "m": 72, "n": 40, "k": 72},
    "gemm m64 n72, row and column sums": {"l": 1, "m": 52, "n": 104, "k": 72},
    "gemm 128x24, row and column sums": {"l": 1, "m": 100, "n": 40, "k": 72},
    "add rows": {"l": 1, "n": 40},
    "gemm, sums of an operand": {"m": 72, "n": 72, "k": 72},
    "matmuls, from registers": {"l": 1, "m": 72, "n": 40, "k": 72},
    "attention": {"h": 1, "m": 20, "s": 72},
}


def judge(name, **options):
    if name in CALLS:
        with judged(**options) as found:
            CALLS[name]()
        return found
    kernel, sizes = built(name), {**KERNELS[name].extents, **COMPILED[name]}
    generator = torch.Generator().manual_seed(0)
    tensors = {
        load.argument: torch.randn([sizes[dim] for dim in load.dims], generator=generator).to(
            getattr(torch, load.buffer.dtype.in_memory.torch)
        )
        for load in kernel.plan.loads
    }
    with judged(text=kernel.compiled.ptx, **options) as found:
        kernel.schedule(**tensors)
    return found


@pytest.mark.parametrize("name", [*CALLS, *COMPILED])
def test_numbers(name):
    found = judge(name)
    assert found.launches and not found.left_out


#: (call, pattern, replacement): one slip of the text each, at all places that match.
CHANGES = {
    "offset of a read": ("runs of halves", r"(ld\.shared\.b16 \t%rs2, \[%r\d+\+)136", r"\g<1>138"),
    "order of parts": ("runs of halves", r"\{(%rs1), (%rs2)\}", r"{\2, \1}"),
    "number of parts": (
        "runs of halves",
        r"(st\.global\.)v2\.b16 \t(\[%rd3\]), \{(%rs1), %rs2\}",
        r"\g<1>b16 \t\2, \3",
    ),
    "shift": ("runs of halves", r"(shl\.b32 \t%r\d+, %r\d+, )1;", r"\g<1>2;"),
    "edge": ("runs of halves", r"setp\.(ge|gt)(\.s32 \t%p\d+, %r10)", r"setp.lt\2"),
    "bytes": ("runs of halves", r"384;", "400;"),
    "parity": ("runs of halves", r"(try_wait\S+ P1, \[%r\d+\], )0", r"\g<1>1"),
    "selector": ("runs of bytes", r"0x5410U", "0x1054U"),
    "sign": ("runs of bytes", r"0xaaa2U", "0x9991U"),
    "end of data": ("elements of halves", r"setp\.lt\.u32 inside", "setp.gt.u32 inside"),
    "gap": ("elements of halves", r"(mul\.hi\.u32 \t%r\d+, %r\d+, )-?\d+;", r"\g<1>1000;"),
    "pitch of a table": ("odd halves", r"(mul\.lo\.s32 \t%r\d+, %r\d+, )15;", r"\g<1>16;"),
    "second half": ("odd halves", r"(ld\.shared\.b16 \t%rs\d+, \[%r\d+\+)158\]", r"\g<1>160]"),
    "halves of a pair": ("to another type", r"(cvt\.rn\.f16x2\.f32 \t%r\d+), (%r\d+), (%r\d+)", r"\1, \3, \2"),
    "place": ("transpose", r"(st\.global\.b16 \t\[%rd\d+)\]", r"\g<1>+2]"),
    "lanes": ("softmax", r"(shfl\.sync\.bfly\.b32 \t%r\d+, %r\d+, )16,", r"\g<1>8,"),
    "sum": ("softmax", r"add\.f32", "sub.f32"),
    "unit of a row": ("mask of halves", r"(xor\.b32 +\t?%r\d+, %r\d+, )32;", r"\g<1>16;"),
    "segment": ("cumsum", r"(shfl\.sync\.up\.b32 far\|some, %r\d+, 4, )\d+", r"\g<1>31"),
}


@pytest.mark.parametrize("name", [f"{call}-{what}" for what, (call, *_) in CHANGES.items()])
def test_a_slip_is_noticed(name):
    call, _, what = name.partition("-")
    _, pattern, replacement = CHANGES[what]
    changed = []

    def change(text):
        text, count = re.subn(pattern, replacement, text)
        changed.append(count)
        return text

    with pytest.raises((Differs, Wrong)):
        judge(call, change=change)
    assert any(changed), f"nothing in the PTX matches {pattern}"


@pytest.mark.parametrize("name", ["exp", "exp2", "log", "log2", "sqrt", "rsqrt", "sigmoid", "tanh", "erf"])
def test_subnormal_numbers(name):
    """They are zeros to the instructions that a GPU approximates by (``.ftz``), and to the model: the emitted PTX agrees. Of
    a number of Python's, a body computes the constant itself."""
    function = getattr(tp.math, name)
    numbers = [1e-40, -1e-40, 1e-45, -87.4, -126.5, -149.0, 1.1754944e-38, 0.0]
    x = torch.tensor(numbers).repeat(8)[None]

    with judged() as launches:
        found = S.Elementwise(function)(x)[0, :8]
    assert launches.launches == 1
    subnormal = found[(found != 0) & (found.abs() < 2.0**-126)]
    assert not len(subnormal) or name in ("tanh", "erf")
    if name in ("log", "log2"):
        assert found[:3].tolist() == [-math.inf] * 3
        assert function(1e-40) > -200
