"""Choosing a schedule: candidates, estimates, the cache, and the tuner's picking, all without a GPU."""

import itertools
import math
import sys
import types

import attrs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sweeps import ALL, sample
from tests.unit.errors import refused
from tmapipe import InputError, Windows, schedules
from tmapipe.base.arithmetic import fp16
from tmapipe.bind.tensors import bind
from tmapipe.epilogue import ColumnSum, Epilogue, Matrix, Output, PerColumn, PerRow, RowSum, Scalar
from tmapipe.errors import MissingGpuError
from tmapipe.math import gelu
from tmapipe.tiles import GpcTiles
from tmapipe.tuning import Candidate, Problem, candidates, choose, choose_conv, estimate, ranked, tune, tuner
from tmapipe.tuning import problem as epilogues
from tmapipe.tuning.candidates import MACS
from tmapipe.tuning.cost import Constants
from tmapipe.tuning.problem import H200

sizes = st.integers(1, 20000)
widths = st.integers(1, 2500).map(lambda n: 8 * n)  # whose rows are whole units of 16 bytes
APART = {"aligned": (16, 16, 16)}  # rows of a and b of any length, that begin where TMA needs it
few = settings(max_examples=100 if ALL else 5)


@few
@given(sizes, widths, sizes, st.integers(1, 8))
def test_every_problem_has_a_choice_that_can_be_built(m, n, k, batch):
    problem = Problem(m, n, k, batch=batch, **APART)
    (best, us), *_ = ranked(problem, most=1)
    assert us > 0 and best.build(problem).plan(best.dtypes(problem)).smem_bytes <= 227 * 1024


@pytest.mark.parametrize(
    ("problem", "name"),
    [
        (Problem(8, 8, 12), "a"),
        (Problem(8, 8, 12, aligned=(16, 8, 16)), "b"),
        (Problem(8, 12, 8), "d"),
        (Problem(8, 12, 8, aligned=(16, 16, 16)), "d"),  # whose last unit would be overwritten
        (Problem(12, 8, 8, majors=("m", "k")), "a"),
        (Problem.of(np.zeros((8, 64), np.float16)[:, ::2], np.zeros((8, 32), np.float16)), "a"),
    ],
    ids=str,
)
def test_rows_that_tma_does_not_take_are_refused_before_anything_compiles(problem, name, monkeypatch):
    monkeypatch.setattr(tuner, "need_gpu", lambda: None)
    monkeypatch.setattr(tuner, "device_of", lambda device: H200)
    for look in (choose, ranked, tune):
        refused(look, problem, argument=f"rows of {name}", rule="begin at multiples of 16 bytes")


def test_majors_by_the_strides():
    a, w = np.zeros((300, 512), np.float16), np.zeros((512, 768), np.float16)
    assert Problem.of(a, np.zeros((768, 512), np.float16)).majors == ("k", "k")
    problem = Problem.of(a, w.T)
    assert (
        problem.majors == ("k", "n") and "n-major" in str(problem) and problem != Problem(300, 768, 512, "fp16", "fp16")
    )
    assert Problem.of(w.T, w.T).majors == ("m", "n")
    chosen = choose(problem)
    along_n = chosen.mainloop.along == "n"
    assert chosen.transposed == ("b",) and chosen.mma.transposed == ((True, False) if along_n else (False, True))
    assert chosen.plan({"a": "fp16", "b": "fp16", "d": "fp16"}).buffer("b").swizzle == 128
    assert Problem.of(a[:, :1], w.T[:, :1]).majors == ("k", "k")  # one column is contiguous whatever its stride


def test_tf32_and_int8():
    a, b = np.zeros((300, 512), np.float32), np.zeros((768, 512), np.float32)
    with pytest.raises(InputError, match="tf32=True"):
        choose(Problem.of(a, b))
    problem = Problem.of(a, b, tf32=True)
    assert (problem.dtype.name, problem.out.name) == ("tf32", "fp32")
    assert choose(problem).plan({"a": "fp32", "b": "fp32", "d": "fp32"}).buffer("a").dtype.name == "tf32"
    problem = Problem.of(a.astype(np.int8), b.astype(np.int8))
    assert (problem.dtype.name, problem.out.name) == ("int8", "int32")
    assert not any(c.schedule == "SplitK" for c in candidates(problem, H200)) and choose(problem).mma
    with pytest.raises(InputError, match="operands of fp32"):
        Problem.of(a.astype(np.int8), b.astype(np.int8), tf32=True)


@few
@given(sizes, widths, sizes)
def test_ranked_by_estimate_and_no_less_than_the_floor(m, n, k):
    problem = Problem(m, n, k, **APART)
    found = ranked(problem, most=4)
    times = [us for _, us in found]
    assert times == sorted(times)
    constants = Constants()
    peak = H200.multiprocessors * MACS * constants.clock * (1 + constants.boost) * 1e9
    assert times[0] * 1e-6 >= problem.flops / 2 / peak * constants.merged  # none is faster than the tensor cores


@few
@given(sizes, sizes, st.integers(1000, 20000))
def test_more_work_never_takes_less_time(m, n, k):
    for candidate in list(candidates(Problem(m, n, k), H200))[::17]:
        if candidate.parts == 1:
            assert estimate(Problem(m, n, k), candidate, H200) <= estimate(Problem(m, n, 2 * k), candidate, H200)


def test_what_is_chosen_follows_the_shape():
    assert choose(Problem(8192, 8192, 8192)).mma.a.tile[0] >= 128
    assert isinstance(choose(Problem(8192, 8192, 512)), schedules.PingPong)
    assert isinstance(choose(Problem(512, 512, 65536)), schedules.SplitK)
    assert choose(Problem(64, 8192, 8192)).mma.a.tile[0] == 64


def test_an_odd_pitch_makes_tiles_slow_whose_ctas_load_many_rows():
    """3256 x 2208 x 4888 takes 117.8 us on clusters of 1 x 2, 102.4 on 2 x 1; with a k of 4864 no more on the one (run 17)."""

    def slower(k):
        wide, high = (
            estimate(Problem(3256, 2208, k), Candidate("Gemm", (128, 224), c), H200) for c in ((1, 2), (2, 1))
        )
        return wide / high

    assert slower(4888) > 1.03 > 1.01 > slower(4864)
    assert ranked(Problem(3256, 2208, 4888), most=1)[0][0].cluster == (2, 1)


def test_parts_of_k_are_loaded_by_large_clusters_where_the_pitch_is_odd():
    (best, _), *_ = ranked(Problem(496, 208, 14472), most=1)
    assert best.in_parts and best.ctas >= 4


FUSED = Epilogue(lambda acc, bias: gelu(acc + bias), operands={"bias": PerColumn()})


def test_an_epilogue_is_chosen_for_too():
    """One that computes is best hidden under another tile's mainloop; of parts of k, it is the second kernel's."""
    chosen = choose(Problem(4096, 4096, 4096), epilogue=FUSED)
    assert isinstance(chosen, schedules.PingPong) and isinstance(chosen.tiles, GpcTiles)
    assert isinstance(choose(Problem(4096, 4096, 4096)), schedules.Gemm)
    assert isinstance(choose(Problem(512, 512, 65536), epilogue=FUSED), schedules.SplitK)
    short = Problem(8192, 8192, 256)
    pingpong = Candidate("PingPong", (128, 128), (1, 2), (("in_turn", False),))
    assert pingpong.build(short, FUSED).mainloop.in_turn and not pingpong.build(short).mainloop.in_turn
    in_parts = Candidate("SplitK", (128, 128), (1, 1), (("parts", 2),))
    with pytest.raises(InputError, match="parts of k of a batch"):
        in_parts.build(Problem(512, 512, 512, batch=2), FUSED)
    assert in_parts.build(Problem(512, 512, 512, batch=2), Epilogue(gelu))
    for function in (lambda acc: acc, None):
        with pytest.raises(InputError, match="epilogue"):
            choose(Problem(4096, 4096, 4096), epilogue=Epilogue(function, operands={"bias": PerColumn()}))


def test_the_choice_computes_its_epilogue():
    rng = np.random.default_rng(0)
    a, b, bias = (rng.standard_normal(shape).astype(np.float16) for shape in ((40, 128), (72, 128), (72,)))
    problem = Problem.of(a, b, "float32")
    in_parts = Candidate("SplitK", (64, 64), (1, 1), (("parts", 2),)).build(problem, FUSED)
    for made in (choose(problem, epilogue=FUSED), in_parts):
        d = made(a, b, bias=bias)
        np.testing.assert_allclose(d, gelu(a.astype("f4") @ b.astype("f4").T + bias), rtol=1e-3, atol=1e-3)
        assert d.dtype == np.float32


def test_a_matrix_takes_no_slot_of_the_operands_if_one_buffer_or_narrower_pieces_do_not():
    residual = Epilogue(lambda acc, c: acc + c, operands={"c": Matrix()})
    problem = Problem(4096, 4096, 4096)
    for tile, form, stages, columns in (
        ((192, 176), (("store_stages", 1),), 1, 32), ((64, 160), (), 1, 64), ((64, 64), (), 2, 64)
    ):  # fmt: skip
        candidate = Candidate("Gemm", tile, (1, 2), form)
        made, plain = candidate.build(problem, residual), candidate.build(problem)
        slots = [each.plan(candidate.dtypes(problem, each.epilogue)).ring("ring").stages for each in (made, plain)]
        assert slots[0] == slots[1] and (made.d.stages, made.operands.width) == (stages, columns)


def test_parts_of_k_end_as_the_problem_says():
    """In the problem's type, by one second kernel for all that end alike."""
    problem, tile = Problem(64, 64, 512, "fp16", "fp32"), ((64, 64), (1, 1), (("parts", 2),))
    a = np.ones((64, 512), np.float16)
    assert Candidate("SplitK", *tile).build(problem)(a, a).dtype == np.float32
    first, second = (Candidate("SplitK", *tile).build(problem, FUSED) for _ in range(2))
    third = Candidate("SplitK", *tile).build(problem, Epilogue(gelu))
    of_each = [made.parts_of_k.finish((64, 64)) for made in (first, second, third)]
    assert of_each[0] is of_each[1] is not of_each[2]


def test_a_convolution_is_chosen_for():
    """Tiles of as many pixels and channels as measured to be the fastest for 64 images of 28 x 28 and 128 channels
    (conv2d.json); the result is the convolution's."""

    def of(images, side, channels, filters, windows, epilogue=None):
        x = rng.standard_normal((images, side, side, channels)).astype(np.float16)
        f = rng.standard_normal((filters, *windows.size, channels)).astype(np.float16)
        return x, f, choose_conv(x, f, windows, epilogue=epilogue)

    rng, around = np.random.default_rng(0), Windows((3, 3), padding=1)
    assert of(64, 28, 128, 128, around)[2].mma.shape == (128, 128, 64)
    x, f, chosen = of(2, 6, 8, 24, around, lambda acc: -acc)
    wide = np.pad(x.astype("f4"), ((0, 0), (1, 1), (1, 1), (0, 0)))
    right = -sum(wide[:, r : r + 6, s : s + 6] @ f[:, r, s].astype("f4").T for r in range(3) for s in range(3))
    np.testing.assert_allclose(chosen(x, f).astype("f4"), right, rtol=1e-2, atol=2e-2)
    for wrong in ((x[0], f, around), (x, f[:, :2], around), (x, f, Windows((9, 9)))):
        with pytest.raises(InputError, match="shape"):
            choose_conv(*wrong)


def test_candidates_are_distinct_and_of_the_shelf():
    found = list(candidates(Problem(4096, 4096, 4096), H200))
    assert len(found) == len(set(found)) > 50
    assert {c.schedule for c in found} == {"Gemm", "PingPong"}
    assert len({str(c) for c in found}) == len(found)


def test_tiles_over_the_edge_may_hold_anything_there():
    """Where the engine would fill 64 rows or more with zeros for the CTAs of a cluster, in an output of few waves."""

    def outside(candidate_tile, cluster, *sizes, **options):
        problem = Problem(*sizes, **options)
        found = [c for c in candidates(problem, H200) if (c.tile, c.cluster) == (candidate_tile, cluster)]
        (said,) = {dict(c.options).get("outside") for c in found if c.schedule == "Gemm" and c.accumulators == c.tile}
        return said

    assert outside((128, 128), (1, 2), 384, 5504, 5504) == ("zeros", "anything")  # 43 tiles: one more CTA
    assert outside((128, 128), (1, 1), 384, 5504, 5504) is None
    assert outside((128, 208), (1, 2), 280, 27344, 27456) == ("anything", "anything")
    assert outside((128, 256), (2, 1), 180, 512, 4096) is None  # which is hidden under the multiplication
    assert outside((64, 64), (1, 1), 264, 16, 4224) == ("zeros", "anything")  # all tiles have rows that are not there
    assert outside((64, 64), (1, 1), 200, 200, 4096) is None  # boxes would take longer
    assert outside((128, 128), (1, 2), 384, 5504, 5504, majors=("k", "n")) is None
    assert not any(
        "anything" in str(c) for c in candidates(Problem(100000, 5504, 512), H200)
    )  # no last wave to speak of


def test_rows_that_share_what_memory_delivers_have_no_hints():
    """Slots read it twice; of an operand that is contiguous along m, rows are along m."""

    def hints(*sizes, **options):
        return {dict(c.options).get("l2_hints") for c in candidates(Problem(*sizes, **options), H200)}

    assert hints(48, 32544, 15672) == {None} and hints(128, 128, 27208) == {None}
    assert hints(48, 4096, 15680) > {("evict_last", "evict_first")}
    assert ("evict_first", "evict_first") in hints(128, 128, 27200)
    assert hints(72, 128, 27200, majors=("m", "k")) >= {(None, "evict_first")}


def test_hints_are_for_what_l2_has_room_for():
    """An operand much larger than L2 has none; an output that L2 does not keep makes way for the operands, if k is short."""

    def words(word, *sizes):
        return {dict(c.options).get(word) for c in candidates(Problem(*sizes), H200) if not c.in_parts}

    assert words("l2_hints", 128, 31360, 20352) == {None}
    assert ("evict_last", "evict_first") in words("l2_hints", 128, 8192, 8192)
    assert words("store_hint", 7312, 60032, 104) == {"evict_first"}
    assert words("store_hint", 7312, 60032, 4096) == words("store_hint", 731, 6003, 104) == {None}
    made = Candidate("Gemm", (128, 256), (2, 1), (("store_hint", "evict_first"),)).build(Problem(7312, 60032, 104))
    assert made.d.l2_hint == "evict_first"


def test_a_tile_that_is_no_multiple_of_its_peers_is_loaded_by_one_of_them():
    made = Candidate("Gemm", (40, 64), (2, 2), (("along", "n"), ("stages", 2))).build(Problem(200, 304, 96))
    assert (
        made.a.multicast.whole and not made.b.multicast.whole and made.check({"a": "bf16", "b": "bf16", "d": "bf16"}).ok
    )
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((rows, 96)).astype(np.float16) for rows in (200, 304))
    right = a.astype("f4") @ b.astype("f4").T
    np.testing.assert_allclose(
        Candidate("Gemm", (40, 64), (2, 2), (("along", "n"),)).build(Problem.of(a, b))(a, b),
        right,
        rtol=1e-2,
        atol=1e-2,
    )
    assert any(c.tile == (136, 128) and c.cluster == (2, 4) for c in candidates(Problem(272, 7288, 488), H200))


def test_parts_of_k_of_a_batch():
    """20 tiles of 64 x 64 for 132 multiprocessors, and a long k."""
    problem = Problem(320, 72, 47832, batch=2)
    (best, _), *_ = ranked(problem, most=1)
    assert best.in_parts and best.ranks(problem) == {"a": 3, "b": 3, "d": 3}


def test_few_tiles_of_a_long_k_are_computed_by_clusters_that_share_k():
    for sizes in ((64, 64, 10048), (104, 64, 1816), (48, 336, 2736), (64, 1664, 15808)):
        problem = Problem(*sizes)
        (best, _), *_ = ranked(problem, most=1)
        assert best.schedule == "ClusterSplitK" and best.sharing > 1, problem
        assert best.ctas <= 8 and best.build(problem).parts == best.sharing
    a, b = (np.random.default_rng(0).standard_normal((n, 1504)).astype(np.float16) for n in (40, 72))
    problem = Problem.of(a, b, "float32")
    shared = [c for c in candidates(problem, H200) if c.sharing == 2]
    for parts in (1, 2):
        candidate = next(c for c in shared if c.parts == parts)
        d = candidate.build(problem)(a, b, out=np.empty((40, 72), np.float32))
        np.testing.assert_allclose(d, a.astype("f4") @ b.astype("f4").T, rtol=1e-4, atol=1e-4)
    (best, _), *_ = ranked(Problem(128, 40, 47168), most=1)
    assert best.sharing == 8 and best.parts > 1 and best.ranks(problem)["d"] == 3


def test_small_tiles_may_have_deep_slots():
    problem = Problem(264, 64, 47872)
    found = [c for c in candidates(problem, H200) if c.spans > 1]
    assert {c.spans for c in found} == {2, 4}
    assert {c.schedule for c in found} == {"Gemm", "SplitK", "ClusterSplitK"}
    assert all(c.slots >= 4 for c in found if c.schedule == "Gemm")
    deep = next(c for c in found if c.schedule == "Gemm" and c.spans == 2)
    assert deep.build(problem).a.tile[-1] == 128
    flat = attrs.evolve(deep, options=tuple(pair for pair in deep.options if pair[0] != "spans"))
    assert estimate(problem, deep, H200) < estimate(problem, flat, H200)
    assert not any(c.spans > 1 for c in candidates(Problem(264, 64, 256), H200) if c.sharing == 1)


def test_looks_are_at_other_tiles_first():
    """Not at the same tile as a ping-pong too, as long as there are others."""
    problem = Problem(3, 48080, 37872, majors=("k", "n"))
    few = tuner.unsure(problem, H200, 4)
    assert few[0] == ranked(problem, most=1)[0][0]
    assert few[0].tile[1] * few[0].cluster[1] >= 1024  # rows of b as long as they can be
    assert len({(each.tile, each.sharing, each.parts) for each in few}) == 4
    only = tuner.unsure(Problem(4960, 80, 3144, majors=("m", "n")), H200, 4)
    assert {each.schedule for each in only} == {"Gemm", "PingPong"} and len(only) == 4


@pytest.mark.parametrize("m,tile", [(368, (96, 192)), (376, (192, 128))])
def test_three_short_spans_where_rows_begin_at_sectors(m, tile):
    """Rows of 752 bytes begin within sectors of 32 bytes."""
    (best, _), *_ = ranked(Problem(m, 5736, 2816, majors=("m", "n")), H200, 1)
    assert best.tile == tile


def test_small_products_share_multiprocessors():
    """One tile a CTA, with room for all of them; of these, the best by estimate is among those that are looked at."""
    for m, n, k in ((64, 64, 64), (96, 40, 256)):
        problem = Problem(m, n, k, batch=1000)
        few = [each for each in candidates(problem, H200) if each.share > 1]
        assert few
        for each in few:
            made = each.build(problem)
            assert made.tiles.ctas == each.share and not made.plan(each.dtypes(problem)).registers
        estimates = [estimate(problem, each, H200) for each in few]
        best = few[estimates.index(min(estimates))]
        assert best in tuner.unsure(problem, H200, 4)
    for problem in (Problem(64, 64, 64), Problem(256, 64, 64, batch=1000), Problem(64, 64, 512, batch=1000)):
        assert not [each for each in candidates(problem, H200) if each.share > 1]


def test_a_small_product_computes():
    a, b = (np.random.default_rng(i).standard_normal((3, 60, 72)).astype(np.float16) for i in (0, 1))
    problem = Problem(60, 60, 72, fp16, fp16, batch=3)
    made = Candidate("Gemm", (64, 64), (1, 1), (("stages", 1), ("store_stages", 1), ("share", 6))).build(problem)
    np.testing.assert_allclose(
        made(a[:, :56], b[:, :56]), a[:, :56] @ b[:, :56].transpose(0, 2, 1), atol=0.1, rtol=0.01
    )


def test_choosing_may_look_at_candidates_of_like_estimates(monkeypatch):
    problem, asked = Problem(4096, 4096, 4096), []

    def measured(problem, few, **options):
        asked.append(few)
        return tuner.Tuned(schedules.Gemm(), few[-1], 1.0)

    monkeypatch.setattr(tuner, "compared", measured)
    assert isinstance(choose(problem, look=3), schedules.Gemm)
    ((first, *others),) = asked
    assert first == ranked(problem, most=1)[0][0] and len(others) == 2
    assert len({(each.schedule, each.tile, each.accumulators) for each in asked[0]}) == 3, (
        "clusters alone are not looked at"
    )
    monkeypatch.setattr(sys.modules["tmapipe.tuning.tuner"], "UNSURE", 0.999)
    assert isinstance(choose(problem, look=3), schedules.Gemm) and len(asked) == 1, "sure: nothing is measured"
    for wrong in (0, -1, True, 2.0, "2"):
        refused(choose, problem, look=wrong, argument="choose(look)", value=wrong, rule="a number of candidates")


@pytest.mark.parametrize("name, looks", [(H200.name, 1), ("NVIDIA H100", 0), (None, 0)])
def test_on_its_own_gpu_choosing_looks_at_four(monkeypatch, name, looks):
    asked = []
    gpu = types.SimpleNamespace(is_available=lambda: name is not None, get_device_name=lambda: name)

    def measured(problem, few, **options):
        asked.append(few)
        return tuner.Tuned(schedules.Gemm(), few[-1], 1.0)

    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(cuda=gpu))
    monkeypatch.setattr(tuner, "compared", measured)
    choose(Problem(4096, 4096, 4096))
    assert [len(few) for few in asked] == [4] * looks
    choose(Problem(4096, 4096, 4096), look=1)
    assert len(asked) == looks
    kept = schedules.Gemm()
    monkeypatch.setattr(tuner, "recall", lambda problem, gpu, *_: tuner.Tuned(kept, asked[0][0], 1.0))
    assert (choose(Problem(4096, 4096, 4096)) is kept) == looks and len(asked) == looks, (
        "what is kept is not ranked again"
    )


def test_a_problem_knows_how_far_apart_rows_lie():
    wide = np.zeros((24, 72), np.float16)
    a, b, d = wide[:, :64], np.zeros((40, 64), np.float16), np.zeros((24, 48), np.float16)[:, 8:]
    problem = Problem.of(a, b, d)
    assert problem.aligned == (16, 128, 32) and problem.n == 40 and problem.out.name == "fp16"
    assert Problem.of(a[:, :], b).aligned == (16, 128, 16) and "16, 128 and 32 bytes" in str(problem)
    assert Problem.of(wide.T[:64], np.zeros((40, 24), np.float16)).majors == ("m", "k")
    refused(Problem.of, a, b, d[:, 1:], argument="out", rule="shape of the result")
    refused(Problem, 8, 8, 8, aligned=(3, 8, 8), argument="Problem(aligned)", rule="powers of 2")
    gemm = Candidate("Gemm", (128, 128), (1, 1))
    flat, apart = (Problem(4096, 4096, 4096, aligned=aligned) for aligned in (None, (16, 16, 16)))
    assert estimate(apart, gemm, H200) > estimate(flat, gemm, H200)
    assert estimate(flat, gemm, H200) == estimate(attrs.evolve(flat, aligned=flat.rows_at), gemm, H200)


def test_rows_of_d_that_begin_within_sectors():
    """By the part of the rows that do, and the ends of boxes: 1826 x 31944 x 136 is written at 1.3 TB/s, others at 1.7."""
    problem = Problem(1826, 31944, 136)
    none, half, every = (attrs.evolve(problem, aligned=(16, 16, *of_d)) for of_d in ((32,), (16,), (16, 32)))
    assert (every.rows_at, every.pitch, half.pitch, problem.pitch) == ((16, 16, 16), 32, 16, 16)
    gemm = Candidate("PingPong", (128, 192), (2, 1))
    first, second, third = (estimate(each, gemm, H200) for each in (none, half, every))
    assert second > 1.2 * first and third > 1.2 * second
    assert estimate(every, Candidate("PingPong", (128, 184), (2, 1), (("columns", 184),)), H200) < second


@pytest.mark.parametrize("aligned", [None, (16, 32, 64), (128, 16, 16), (128, 16, 16, 64)])
def test_candidates_are_measured_on_rows_that_lie_as_far_apart(aligned):
    pytest.importorskip("torch")
    problem = Problem(24, 40, 72, majors=("k", "n"), aligned=aligned)
    a, b, d = tuner.data_of(problem, "cpu")
    seen = Problem.of(a, b, d)  # which knows no address on a CPU
    assert (*seen.rows_at[:2], seen.pitch) == (*problem.rows_at[:2], problem.pitch)
    assert math.gcd(problem.pitch, d.storage_offset() * 2) == problem.rows_at[2] and (a.shape, b.shape, d.shape) == (
        (24, 72),
        (40, 72),
        (24, 40),
    )


def test_parts_of_k_for_few_rows_and_for_few_columns():
    """Tiles and clusters of the problem's own form: 128 x 128 on clusters of two rows would leave three quarters idle."""
    for m, n in ((64, 1664), (1504, 144)):
        best = next(each for each, _ in ranked(Problem(m, n, 15808), most=60) if each.sharing == 1)
        tile = [extent * ctas for extent, ctas in zip(best.tile, best.cluster, strict=True)]
        assert best.in_parts and tile[m > n] <= 2 * max(64, min(m, n)), best
    for candidate in candidates(Problem(552, 672, 15672), H200):
        if candidate.parts > 1:
            steps = -(-15672 // 64)
            assert -(-steps // -(-steps // candidate.parts)) == candidate.parts, "no part is empty"


@pytest.mark.parametrize("field", ["m", "n", "k", "batch"])
def test_extents_must_be_positive(field):
    with pytest.raises(InputError, match=field):
        Problem(**{"m": 8, "n": 8, "k": 8, field: 0})


def test_types_are_named():
    assert Problem(8, 8, 8, "float16").dtype == fp16
    with pytest.raises(InputError, match="dtype"):
        Problem(8, 8, 8, "float64")


def test_problems_that_nothing_is_chosen_for():
    refused(Problem, 8, 8, 8, majors=("z", "k"), argument="Problem(majors)", value=("z", "k"), rule='"k" or "m" of a')
    refused(Problem, 8, 8, 8, out="int8", argument="Problem(out)", rule="sums of bf16 products")
    refused(Problem, 8, 8, 8, "int8", "fp8_e4m3", argument="Problem(out)", rule="sums of int8 products")
    for wrong in (None, 3, "8x8x8"):
        refused(choose, wrong, argument="problem", value=wrong, rule="is a Problem")
        refused(Problem.of, wrong, wrong, argument="a", rule="torch tensor or a NumPy array")


def test_a_problem_is_read_off_its_operands():
    a, b = np.zeros((2, 24, 64), np.float16), np.zeros((2, 40, 64), np.float16)
    assert Problem.of(a, b) == Problem(24, 40, 64, fp16, fp16, 2)
    assert Problem.of(a[0], b[0], "float32") == Problem(24, 40, 64, fp16, "float32")
    for wrong in (b[0], b[:, :, :32], b[:1]):
        with pytest.raises(InputError, match="b "):
            Problem.of(a, wrong)


def test_the_choice_computes():
    a, b = (np.random.default_rng(0).standard_normal((n, 64)).astype(np.float16) for n in (40, 72))
    np.testing.assert_allclose(
        choose(Problem.of(a, b, "float32"))(a, b), a.astype("f4") @ b.astype("f4").T, rtol=1e-5, atol=1e-5
    )


MUCH = Epilogue(
    lambda acc, bias, c, alpha, scale: {
        "columns": acc,
        "d": gelu(acc * alpha + bias) + c,
        "aux": acc * scale,
        "squares": acc * acc,
    },
    operands={"bias": PerColumn(), "c": Matrix(), "alpha": Scalar(), "scale": PerRow("fp32")},
    outputs={"aux": Output(), "squares": RowSum(), "columns": ColumnSum()},
)


TYPES = (("bf16", "bf16"), ("fp16", "fp32"), ("fp8_e4m3", "bf16"), ("bf16", "fp8_e5m2"))
FUSIONS = {"plain": Epilogue(), "bias": FUSED, "much": MUCH}


@pytest.mark.parametrize("batch, types, fusion", sample(itertools.product([1, 2], TYPES, FUSIONS), 5))
def test_what_the_tuner_compares_with(fusion, types, batch):
    """On the model: candidates are right, others are not, and are compiled for the tensors that they are called with."""
    fused = FUSIONS[fusion]
    problem = Problem(72, 80, 96, *types, batch)
    candidate = Candidate("Gemm", (64, 64), (1, 1))
    schedule = candidate.build(problem, fused)
    a, b, into = tuner.data_of(problem, "cpu")
    given = epilogues.operands(problem, fused, "cpu")
    right = epilogues.expected(fused, tuner.product(a, b, fused), given)
    assert tuner.compare(lambda: schedule(a, b, out=into, **given), into, right) == ""
    twice = (2 * a.float()).to(a.dtype)
    assert "error of d" in tuner.compare(lambda: schedule(twice, b, out=into, **given), into, right)
    bound = bind(schedule, (a, b), given, into)
    assert {name: tensor.ndim for name, tensor in bound.tensors.items()} == candidate.ranks(problem, fused)
    plan = schedule.plan(candidate.dtypes(problem, fused))
    assert {part.argument: part.buffer.dtype for part in plan.transfers} == bound.dtypes


def test_tuning_needs_a_gpu():
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("a GPU is here")
    with pytest.raises(MissingGpuError, match="choose"):
        tune(Problem(8, 8, 8))


def test_rows_within_sectors_are_stored_in_one_box():
    """Of a short k, and of 16 bits: 42623 x 14584 x 176 takes 614 us, 1033 in boxes of 64 columns."""
    few = {candidate for candidate in candidates(Problem(1826, 31944, 136), H200) if "columns" in candidate.chosen}
    assert few and all(each.tile[1] % 16 == 8 and each.chosen["columns"] == each.tile[1] for each in few)
    assert any("columns" in each.chosen for each in tuner.unsure(Problem(1826, 31944, 136), H200, 4))
    for other in (Problem(1826, 31952, 136), Problem(1826, 31944, 2056), Problem(1826, 31944, 136, out="fp32")):
        assert not any("columns" in each.chosen for each in candidates(other, H200))
    fitting = (each for each in candidates(Problem(53634, 440, 80), H200) if "columns" in each.chosen)
    assert {each.tile for each in fitting} >= {(128, 152), (64, 232)}  # as few tiles as of 184 and of 248 columns
