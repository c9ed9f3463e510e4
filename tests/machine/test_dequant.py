"""DequantGemm on the model: weights of 8 and 4 bits, scales by column and by groups, zero points, few rows, parts of k."""

import functools

import ml_dtypes
import numpy as np
import pytest
import torch

import tmapipe as tp
from tests.unit.errors import refused
from tmapipe import tuning
from tmapipe.schedules import DequantGemm, DequantGemv
from tmapipe.tiles.dynamic import GridTiles
from tmapipe.tiles.persistent import Grouped
from tmapipe.tuning.dequant import built_dequant, ranked_dequant

ROWS, COLUMNS, K = 37, 136, 384
choose_dequant = functools.partial(tuning.choose_dequant, look=1)  # by the model, on a GPU too
LEAST = {"int8": -128, "int4": -8, "uint4": 0}
COUNT = {"int8": 256, "int4": 16, "uint4": 16}


def problem(kind, group, zeros, seed=3):
    """a, b as the schedule takes it, scale, zero or None, and the product in fp32."""
    rng = np.random.default_rng(seed)
    a = torch.from_numpy(rng.standard_normal((ROWS, K), np.float32)).to(torch.bfloat16)
    if kind.startswith("fp8"):
        b = torch.from_numpy(rng.standard_normal((COLUMNS, K), np.float32)).to(torch.float8_e4m3fn)
        wide = b.float()
    else:
        values = torch.from_numpy(rng.integers(LEAST[kind], LEAST[kind] + COUNT[kind], (COLUMNS, K)))
        b = values.to(torch.int8) if kind == "int8" else DequantGemm(kind).pack_int4(values)
        wide = values.float()
    shape = (K // group, COLUMNS) if group else (COLUMNS,)
    scale, zero = (torch.from_numpy(rng.random(shape, np.float32)) for _ in range(2))
    each = (lambda x: x.T.repeat_interleave(group, 1)) if group else (lambda x: x[:, None])
    if zeros:
        wide = wide - each(zero)
    if group:
        wide = wide * each(scale)
    product = a.float() @ wide.to(torch.bfloat16).float().T
    return a, b, scale, zero if zeros else None, product if group else product * scale


@pytest.mark.parametrize(
    "kind, group, zeros, tile",
    [
        ("int8", None, False, (40, 64, 64)),
        ("int8", 32, True, (16, 128, 32)),
        ("int4", 192, True, (8, 64, 64)),
        ("uint4", None, True, (40, 192, 64)),
        ("fp8_e4m3", 64, False, (40, 64, 64)),
        ("int4", 32, True, (16, 256, 64)),
        ("int8", None, False, (144, 64, 32)),
        ("int4", 64, False, (144, 64, 32)),
        ("uint4", None, False, (136, 64, 64)),
    ],
)
def test_weights_of_each_kind(kind, group, zeros, tile):
    a, b, scale, zero, product = problem(kind, group, zeros)
    gemm = DequantGemm(kind, tile, (1, 1), 3, group=group, zeros=zeros)
    d = gemm(a, b, scale, *(() if zero is None else (zero,)))
    assert d.dtype == torch.bfloat16 and d.shape == product.shape
    torch.testing.assert_close(d.float(), product, rtol=1e-2, atol=1e-2 * float(product.abs().max()))


@pytest.mark.parametrize("kind, group, zeros", [("int8", None, False), ("int4", 64, True)])
def test_parts_of_k_of_which_one_is_empty(kind, group, zeros):
    a, b, scale, zero, product = problem(kind, group, zeros)
    tiles, epilogue = tp.tiles.SplitKTiles(2), tp.math.relu
    gemm = DequantGemm(kind, (40, 64, 64), (1, 1), 2, group=group, zeros=zeros, tiles=tiles, epilogue=epilogue)
    found = gemm(a=a, b=b, scale=scale, **({"zero": zero} if zeros else {}))
    torch.testing.assert_close(found.float(), product.relu(), rtol=1e-2, atol=1e-2 * float(product.abs().max()))


GEMV = [
    ("int8", None, False, (8, 16, 64), 4, None),
    ("fp8_e4m3", None, False, (8, 32, 64), 4, tp.math.relu),
    ("int8", 32, True, (12, 32, 64), 2, None),
    ("uint4", 64, False, (4, 16, 128), 4, tp.math.relu),
]


@pytest.mark.parametrize("kind, group, zeros, tile, parts, epilogue", GEMV)
def test_warps_of_a_cta_share_k(kind, group, zeros, tile, parts, epilogue):
    a, b, scale, zero, product = problem(kind, group, zeros)
    gemv = DequantGemv(kind, tile, parts, 2, 3, group=group, zeros=zeros, epilogue=epilogue)
    given, m = [b, scale, *([zero] if zeros else [])], tile[0] + 1
    want = product[:m] if epilogue is None else product[:m].relu()
    d = gemv(a[:m], *given)
    assert d.dtype == torch.bfloat16
    torch.testing.assert_close(d.float(), want, rtol=1e-2, atol=1e-2 * float(product.abs().max()))
    as_arrays = [each.numpy() for each in given] if kind.endswith("int4") else given
    if kind.endswith("int4"):
        found = gemv(a[:m].float().numpy().astype(ml_dtypes.bfloat16), *as_arrays)
        assert (found.astype(np.float32) == d.float().numpy()).all()


@pytest.mark.parametrize("group", [None, 128])
def test_gemv_of_nothing(group):
    gemv, scale = (
        DequantGemv("int8", group=group, epilogue=lambda acc: acc + 3),
        torch.ones(2, 40) if group else torch.ones(40),
    )
    a, b = torch.ones(3, 256, dtype=torch.bfloat16), torch.ones(40, 256, dtype=torch.int8)
    assert gemv(a[:0], b, scale).shape == (0, 40)
    assert (gemv(a[:, :0], b[:, :0], scale[:0] if group else scale) == 3).all()


def test_tensors_and_parts_of_gemv_that_do_not_fit_are_refused():
    a, b, scale, _, _ = problem("int8", 64, False)
    gemv = DequantGemv("int8", (8, 16, 128), group=64)
    refused(gemv, a[:, :192], b, scale, argument="a.shape", rule="multiple of 128")
    refused(gemv, a[:, :128], b[:, :192], scale, argument="b.shape", rule="multiple of 128")
    refused(gemv, a[:, :128], b[:, :128], scale[:3], argument="scale.shape", rule="multiple of 2")
    refused(DequantGemv("int8", (8, 16, 64), group=32), a, b, scale[:2], argument="scale", rule="")
    refused(DequantGemv, "int8", (8, 16, 128), 3, argument="parts", rule="multiple of 64")
    refused(DequantGemv, "int8", (8, 24, 128), 8, argument="parts", rule="n 16 or 32")
    refused(DequantGemv, "int8", (8, 16, 256), argument="tile[2]", rule="128 or 64 bytes")
    refused(DequantGemv, "int8", group=48, argument="group", rule="divides the 128")
    refused(DequantGemv, "int8", group=8, argument="group", rule="at least 16")
    refused(DequantGemv, "int8", zeros=True, argument="zeros", rule="with groups")
    bias = tp.epilogue.Epilogue(lambda acc, bias: acc + bias, operands={"bias": tp.epilogue.PerColumn()})
    refused(DequantGemv, "int8", epilogue=bias, argument="epilogue", rule="function of the sums")


def test_rows_that_are_read_as_columns_are_shared_evenly():
    uneven = DequantGemv("int8", (4, 16, 64))
    uneven.tile = (8, 12, 64)  # the GPU read other numbers than the model
    refused(uneven.program, argument="tile", rule="share unevenly")


def test_rows_for_mma_lie_in_spans_of_128_bytes():
    plain = DequantGemv("int8", (4, 16, 64))
    plain.a = tp.TmaLoadStage("k m e", tile=(4, 4, 64), ring=plain.ring, swizzle=64)
    refused(plain.program, argument="k.weight.products", rule="swizzled by 128 bytes")


def test_operands_from_registers_need_registers_of_their_own():
    class OneAtATime(DequantGemm):
        def _add_all(self, k, acc, steps):
            for _ in range(steps):
                self._add(k, acc)

    found = OneAtATime("int8", (16, 64, 64), (1, 1), 2).check()
    assert not found.ok and "wgmma" in str(found) and "not waited for" in str(found)


class Unconverted(DequantGemm):
    def _add_ahead(self, k, acc, weights):
        with k.narrow.consume() as few, k.ring.consume() as slot:
            acc.add(acc.raw(few.b, "int8"), slot.a)
        return weights


class Otherwise(DequantGemm):
    def _read(self, k, acc, few):
        return acc.raw(few.b, "int8"), "int8/64"


class OtherRegisters(DequantGemm):
    def _add_all(self, k, acc, steps):
        with k.narrow.consume() as few:
            weights = acc.widened(*self._read(k, acc, few))
        for _ in range(steps - 1):
            weights = self._add_ahead(k, acc, weights)
        with k.ring.consume() as slot:
            acc.add(weights, slot.a)


@pytest.mark.parametrize("stages", [2, 3, 4])
@pytest.mark.parametrize("m", [16, 144])
def test_few_slots_are_enough(m, stages):
    found = DequantGemm("int8", (m, 64, 64), (1, 1), stages).check()
    assert found.ok and found.trips == "every trip count"


WRONG = {
    Unconverted: "takes a result of acc.widened",
    Otherwise: "takes what acc.raw\\(\\) read of int8/64, not .*operand of int8",
    OtherRegisters: "operand mma a0.* before the loop at .*operand mma a1.* after an iteration",
}


@pytest.mark.parametrize("kind", WRONG, ids=lambda kind: kind.__name__)
def test_weights_that_are_read_ahead(kind):
    with pytest.raises(tp.errors.ScopeError, match=WRONG[kind]):
        kind("int8", (136, 64, 64), (1, 1), 4).check()


def test_a_form_is_chosen():
    few = choose_dequant((9, 2048, 13312), "int4", group=128)
    assert isinstance(few, DequantGemv) and few.d.tile[0] in (10, 12) and not few.tiles.in_parts
    assert not isinstance(choose_dequant((9, 2048, 13312), "int4", group=96), DequantGemv)  # which no part has
    assert not isinstance(choose_dequant((9, 256, 8192), "int8", epilogue=tp.math.relu), DequantGemv)
    many = choose_dequant((5937, 4736, 8320), "fp8_e4m3")
    assert many.a.tile[0] >= 192 and many.cluster["n"] == 2 and not many.tiles.in_parts
    assert choose_dequant((40, 64, 4096), "int8").tiles.in_parts
    together = choose_dequant(
        (8, 13440, 1152), "uint4", group=128, zeros=True
    )  # more CTAs than multiprocessors, all at once
    assert together.tiles == GridTiles(Grouped(1), 2) and together.plan().smem_bytes < 227 << 9
    beside = choose_dequant((8, 10880, 1152), "uint4", group=128, epilogue=lambda acc: acc * 2)
    assert not isinstance(beside.tiles, GridTiles)  # whose operands might want room
    assert choose_dequant((70, 2816, 2560), "int8").a.tile[0] == 24
    assert choose_dequant((40, 640, 640), "int4", group=160).weight.shape[1] == 32
    refused(choose_dequant, (40, 64), argument="shape", rule="three positive")
    refused(choose_dequant, (40, 64, 64), "int8", group=33, argument="group", rule="multiple of")


@pytest.mark.parametrize("shape, group, ctas", [((1, 10368, 13696), 32, 4), ((16, 4096, 4096), 128, 2)])
def test_chosen_forms_of_few_rows_have_enough_registers(shape, group, ctas):
    forms, made = (
        ranked_dequant(shape, "int4", group, True),
        functools.partial(DequantGemm, "int4", group=group, zeros=True),
    )
    for form in (forms[0], next(form for form in forms if form[0][1] % 64 == 0)):
        chosen = built_dequant(form, made)
        assert form == forms[0] or form[3] == ctas
        assert chosen.compile({"a": "bf16"}).resources.spill_bytes == 0


@pytest.mark.parametrize("shape, group", [((61, 1664, 5376), 256), ((60, 2112, 10496), 128)])
def test_chosen_forms_have_room_for_their_slots(shape, group):
    assert choose_dequant(shape, "int8", group=group, zeros=True).plan().smem_bytes <= 227 << 10


@pytest.mark.parametrize("kind, group", [("int8", 128), ("int4", 64)])
def test_long_slots_of_many_rows_fit(kind, group):
    made = functools.partial(DequantGemm, kind, group=group, zeros=True)
    forms = [form for form in ranked_dequant((4096, 4096, 4096), kind, group, True) if form[0][2] == 128]
    different = {(form[0], form[2] > 1): form for form in forms}
    assert {tile[1] for tile, _ in different} == {64, 128}
    for form in different.values():
        plan = built_dequant(form, made).plan()
        assert plan.buffer("a").stages == plan.buffer("b").stages == form[4] >= 4


def test_long_slots_leave_room_for_operands_of_an_epilogue():
    assert choose_dequant((724, 1536, 3584), "int8").weight.shape == (64, 128)
    assert choose_dequant((724, 1536, 3584), "int8", epilogue=tp.math.relu).weight.shape[1] == 64


def test_four_bits_are_packed_as_threads_take_them():
    values = np.random.default_rng(1).integers(-8, 8, (3, 64))
    packed = DequantGemm("int4").pack_int4(values)
    assert packed.dtype == np.int8 and packed.shape == (3, 32)
    words = packed.view(np.uint32).reshape(3, 2, 4)  # a thread's, of 32 elements
    for eight, pair in np.ndindex(4, 2):
        found = words >> np.uint32(4 * eight + 16 * pair) & np.uint32(15)
        assert found.tolist() == (values.reshape(3, 2, 4, 4, 2)[:, :, eight, :, pair] & 15).tolist()
    assert DequantGemm("int4").pack_int4(torch.from_numpy(values)).tolist() == packed.tolist()
    assert DequantGemm("uint4").pack_int4(values & 15).tolist() == packed.tolist()


def test_bits_of_integers():
    values = np.array([0x4B400000, 0x4B400000 - 5, 0x3F800000], np.int32)
    from tmapipe.model.elements import apply

    assert apply("from_bits", [values]).tolist() == [12582912.0, 12582907.0, 1.0]


def test_what_is_refused():
    refused(DequantGemm, "int3", argument="weights", rule="is one of int8")
    refused(DequantGemm, "int8", (64, 128, 48), argument="tile[2]", rule="multiple of 32")
    refused(DequantGemm, "int8", (64, 96, 64), argument="tile[1]", rule="64 for each")
    refused(DequantGemm, "int8", group=96, argument="group", rule="multiple of the 64")
    refused(DequantGemm, "int8", zeros=1, argument="zeros", rule="True or False")
    refused(DequantGemm, "int8", tiles=tp.tiles.StreamKTiles(shares=2), argument="tiles", rule="or SplitKTiles")
    bias = tp.epilogue.Epilogue(lambda acc, scale: acc + scale, operands={"scale": tp.epilogue.PerColumn()})
    refused(DequantGemm, "int8", epilogue=bias, argument="scale", rule="has already")
    refused(DequantGemm("int4").pack_int4, np.zeros((4, 40), np.int8), argument="pack_int4", rule="multiple of 32")
    refused(DequantGemm("int8").pack_int4, np.zeros((4, 32), np.int8), argument="weights", rule="which are packed")
    of_neither = [np.full((4, 32), -9), np.full((4, 32), 16), np.full((4, 32), 1.5), np.arange(-1, 31).reshape(1, 32)]
    for kind, one, rule in (("int4", 8, "from -8 to 7"), ("uint4", -1, "from 0 to 15")):
        for wrong in (*of_neither, np.eye(4, 32, dtype=np.int8) * one):
            for values in (wrong, torch.from_numpy(wrong)):
                refused(DequantGemm(kind).pack_int4, values, argument="pack_int4(values)", rule=rule)


def test_sums_of_the_output():
    rng = np.random.default_rng(0)
    a = rng.integers(-3, 4, (70, 64)).astype(ml_dtypes.bfloat16)
    b, scale = rng.integers(-8, 8, (136, 64)).astype(np.int8), np.ones(136, np.float32)
    kinds = {"rows": tp.epilogue.RowSum(), "columns": tp.epilogue.ColumnSum()}
    fused = tp.epilogue.Epilogue(lambda acc: {"d": acc, "rows": acc, "columns": acc}, outputs=kinds, dtype="fp32")
    d, rows, columns = DequantGemm("int8", (64, 128, 64), (1, 1), epilogue=fused)(a, b, scale)
    right = a.astype(np.float32) @ b.astype(np.float32).T
    assert (d == right).all() and (rows == right.sum(1)).all() and (columns == right.sum(0)).all()


class Converted(tp.Schedule):
    """d[n, m] = products of weights of *kind* in tiles of *shape*, *dtype*, with numbers for so many parts of k."""

    load, math = tp.Role(warps=1), tp.Role(warpgroups=1)

    def __init__(self, kind, shape=(64, 64), dtype="int8", zeros=0, scales=0):
        self.kind, self.counts = kind, (zeros, scales)
        self.ring = tp.BarrierRing(2, producer=self.load, consumer=self.math)
        self.a = tp.TmaLoadStage("m k", tile=(64, 64), ring=self.ring)
        self.b = tp.TmaLoadStage("n j", tile=shape, ring=self.ring, dtype=dtype)
        self.weight = tp.RegisterTile(self.math, (64, 64), dims="n k")
        self.mma = tp.Wgmma(self.weight, self.a, in_flight=1)
        self.d = tp.ThreadStoreStage("n m", tile=(64, 64), role=self.math, vector=4)

    @load.jit
    def fill(self, k, tile):
        with k.ring.produce() as slot:
            slot.a.load(tile, k=0)
            slot.b.load(tile, j=0)

    @math.jit
    def multiply(self, k, tile):
        with k.mma.accumulate() as acc, k.ring.consume() as slot:
            number = tp.math.row_max(k.full("weight", 1.0))
            acc.add(acc.widened(slot.b, self.kind, *((number,) * count for count in self.counts)), slot.a)
        k.d.store(tile, acc.values())


@pytest.mark.parametrize(
    "options, argument, rule",
    [
        (("int3",), "kind", "is one of int8"),
        (("fp8_e4m3/64", (64, 64), "fp8_e4m3"), "kind", "is one of int8"),
        (("int8", (64, 64), "fp8_e4m3"), "part", "64 elements of int8"),
        (("fp8_e4m3",), "part", "64 elements of fp8_e4m3"),
        (("int4",), "part", "32 elements of int8"),
        (("int8", (32, 64)), "part", "64 rows of weights"),
        (("int8", (64, 64), "int8", 0, 3), "zero, scale", "multiple of 16 weights"),
        (("int8", (64, 64), "int8", 0, 8), "zero, scale", "multiple of 16 weights"),
        (("int4", (64, 32), "int8", 0, 4), "zero, scale", "multiple of 32 weights"),
        (("int8", (64, 64), "int8", 1, 2), "zero, scale", "as many for zero as for scale"),
    ],
)
def test_weights_that_a_slot_does_not_have(options, argument, rule):
    """Bytes that are taken for another type, or numbers for parts that lanes share, would give other products on a GPU."""
    refused(Converted(*options).program, argument=argument, rule=rule)
    assert "widened" in Converted("int8", zeros=4, scales=4).program()
