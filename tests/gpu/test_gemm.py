"""The GEMM on the device: random shapes and options, poisoned outputs, repeated runs that are bit-identical."""

import random

import pytest
import torch
from cutlass.utils import HardwareInfo

import tmapipe as tp
from tmapipe.gpu.kernels import gpcs

DTYPES = [torch.bfloat16, torch.float16]
TILES = [(128, 256, 64), (128, 128, 64), (128, 64, 64), (64, 128, 64), (128, 192, 64), (128, 128, 128), (256, 128, 64)]
CLUSTERS = [(1, 1), (2, 1), (1, 2), (2, 2), (4, 1)]
ORDERS = [
    tp.tiles.PersistentTiles(tp.tiles.Grouped(1)),
    tp.tiles.PersistentTiles(tp.tiles.Grouped(3)),
    tp.tiles.PersistentTiles(tp.tiles.Snake(8)),
    tp.tiles.PersistentTiles(tp.tiles.Hilbert(4)),
    tp.tiles.DynamicTiles(),
    tp.tiles.DynamicTiles(tp.tiles.Hilbert(2), stages=1),
    tp.tiles.GpcTiles(),
    tp.tiles.GpcTiles(tp.tiles.Snake(3)),
]
TOLERANCE = {torch.bfloat16: 4e-3, torch.float16: 5e-4, torch.float32: 1e-5}  # rounding of the output type


def check(d, a, b):
    """Every element written, and each random row and column right against float64."""
    assert not torch.isnan(d).any(), "elements that were never written"
    reference = a.double() @ b.double().transpose(-1, -2)
    error = ((d.double() - reference).norm() / reference.norm()).item()
    assert error < TOLERANCE[d.dtype], error


def problem(rng, batch=False):
    m, n, k = rng.randint(1, 700), 8 * rng.randint(1, 90), 8 * rng.randint(1, 120)
    dtype = rng.choice(DTYPES)
    lead = (rng.randint(1, 4),) if batch else ()
    a = torch.randn(*lead, m, k, device="cuda", dtype=dtype)
    b = torch.randn(*lead, n, k, device="cuda", dtype=dtype)
    out = torch.full((*lead, m, n), float("nan"), device="cuda", dtype=rng.choice([dtype, torch.float32]))
    return a, b, out


@pytest.mark.parametrize("seed", range(40))
def test_random_problems(seed):
    rng = random.Random(seed)
    torch.manual_seed(seed)
    tile = rng.choice(TILES)
    gemm = tp.schedules.Gemm(
        tile=tile,
        cluster=rng.choice(CLUSTERS),
        stages=rng.choice([None, 2, 3]),
        tiles=rng.choice(ORDERS),
        epilogue=tp.epilogue.Epilogue(stages=rng.choice([1, 2])),
    )
    for _ in range(3):
        a, b, out = problem(rng, batch=rng.random() < 0.3)
        gemm(a, b, out=out)
        check(out, a, b)
        first = out.clone()
        for _ in range(3):
            out.fill_(float("nan"))
            gemm(a, b, out=out)
            assert torch.equal(out, first)


def test_many_tiles_a_cta():
    torch.manual_seed(0)
    a = torch.randn(4104, 1000, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(5000, 1000, device="cuda", dtype=torch.bfloat16)
    for cluster in CLUSTERS:
        out = torch.full((4104, 5000), float("nan"), device="cuda", dtype=torch.bfloat16)
        tp.schedules.Gemm(cluster=cluster)(a, b, out=out)
        check(out, a, b)


@pytest.mark.parametrize("order", [tp.tiles.PersistentTiles(), tp.tiles.DynamicTiles(), tp.tiles.GpcTiles()])
def test_launches_that_overlap(order):
    """A chain of products, each of which needs the one before, and an old buffer that is written again."""
    torch.manual_seed(0)
    a = torch.randn(1024, 1024, device="cuda", dtype=torch.bfloat16) / 32
    found = []
    for gemm, alone in ((tp.schedules.Gemm(), True), (tp.schedules.Gemm(tiles=order), False)):
        x, y = a.clone(), torch.empty_like(a)
        for _ in range(30):
            for read, written in ((x, y), (y, x)):
                gemm(read, a, out=written)
                if alone:
                    torch.cuda.synchronize()
        found.append(x)
    assert torch.equal(*found) and found[0].isfinite().all()


@pytest.mark.parametrize("kind", [tp.schedules.Gemm, tp.schedules.PingPong])
@pytest.mark.parametrize("cluster", CLUSTERS)
@pytest.mark.parametrize("order", [tp.tiles.DynamicTiles(), tp.tiles.GpcTiles()])
def test_queued_orders(kind, cluster, order):
    """The bits of the static order, again and again: each launch leaves the counters as they were; on two streams at once."""
    torch.manual_seed(0)
    a = torch.randn(2056, 520, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(3000, 520, device="cuda", dtype=torch.bfloat16)
    expected = kind((128, 128, 64), cluster)(a, b)
    queued = kind((128, 128, 64), cluster, tiles=order)
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    found = []
    for i in range(40):
        with torch.cuda.stream(streams[i % 2]):
            found.append(queued(a, b, out=torch.full_like(expected, float("nan"))))
    torch.cuda.synchronize()
    assert all(torch.equal(d, expected) for d in found)


@pytest.mark.parametrize(
    "parts",
    [
        [range(132)],
        [range(first, first + 22) for first in range(0, 132, 22)],  # across the device's own
        [range(4), range(4, 132)],
        [range(72), range(72, 144)],  # more multiprocessors than there are
        [],
    ],
)
def test_any_placement(parts, monkeypatch):
    """Whatever the host takes for a GPC, each place goes to one cluster."""
    monkeypatch.setattr("tmapipe.gpu.launch.gpcs", lambda device: tuple(map(tuple, parts)))
    torch.manual_seed(0)
    a = torch.randn(2056, 520, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(3000, 520, device="cuda", dtype=torch.bfloat16)
    gemm = tp.schedules.Gemm((128, 128, 64), (1, 2), tiles=tp.tiles.GpcTiles())
    expected = tp.schedules.Gemm((128, 128, 64), (1, 2))(a, b)
    for _ in range(10):
        assert torch.equal(gemm(a, b, out=torch.full_like(expected, float("nan"))), expected)


@pytest.mark.parametrize("make", [tp.schedules.Gemm, tp.schedules.PingPong])
@pytest.mark.parametrize("m", [1, 8, 16, 24, 72, 200])
def test_anything_outside(m, make):
    """Rows beyond the edge may hold anything: the same bits as with zeros, also of tiles wholly outside, and nothing outside
    of the output is written."""
    torch.manual_seed(m)
    a = torch.randn(m, 1032, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(904, 1032, device="cuda", dtype=torch.bfloat16)
    for tile, cluster in (
        ((64, 128, 64), (1, 1)),
        ((64, 64, 128), (2, 1)),
        ((128, 176, 64), (1, 2)),
        ((128, 64, 32), (2, 2)),
    ):
        wanted = make(tile, cluster)(a, b)
        room = torch.full((m + 64, 904), 7.0, device="cuda", dtype=torch.bfloat16)
        anything = tp.Operand(outside="anything")
        make(tile, cluster, a=anything, b=anything)(a, b, out=room[:m])
        assert torch.equal(room[:m], wanted) and bool((room[m:] == 7).all())


@pytest.mark.parametrize("m, n, k, dtype, majors", [
    (9, 1000, 72, torch.bfloat16, ("k", "k")),
    (304, 904, 1032, torch.float16, ("m", "k")),
    (2056, 264, 520, torch.bfloat16, ("k", "n")),
])  # fmt: skip
def test_rows_of_accumulators_along_n(m, n, k, dtype, majors):
    """Stored transposed, of 16 and of 32 bits: the right values, and nothing outside of the output is written."""
    torch.manual_seed(m)
    along = tp.mainloop.Cooperative(along="n")
    a, b = (torch.randn(rows, k, device="cuda", dtype=dtype) for rows in (m, n))
    wanted = a.double() @ b.double().T
    a, b = (x if major == "k" else x.T.contiguous().T for x, major in zip((a, b), majors, strict=True))
    operands = {name: tp.Operand(major) for name, major in zip("ab", majors, strict=True)}
    for make in (
        tp.schedules.Gemm((144 if majors[0] == "k" else 128, 192, 64), (1, 2), mainloop=along, **operands),
        tp.schedules.PingPong((128, 128, 64), (1, 1), along="n", **operands),
        tp.schedules.SplitK(3, (64, 192, 64), (1, 2), mainloop=along, **operands),
    ):
        room = torch.full((m + 64, n), 7.0, device="cuda", dtype=dtype)
        make(a, b, out=room[:m])
        assert float((room[:m].double() - wanted).norm() / wanted.norm()) < 5e-3
        assert bool((room[m:] == 7).all())


@pytest.mark.parametrize("tile, cluster", [
    ((8, 64, 64), (1, 1)),
    ((24, 64, 128), (2, 1)),
    ((72, 128, 64), (1, 2)),
    ((144, 128, 64), (1, 2)),
])  # fmt: skip
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_operands_of_accumulators_along_n(tile, cluster, dtype):
    """Many tiles a CTA. dtype: of the operands and the output."""
    torch.manual_seed(0)
    m, n = (2056, 2904) if tile[0] < 64 else (5000, 6008)
    a, b = (torch.randn(rows, 136, device="cuda", dtype=torch.bfloat16) for rows in (m, n))
    c, bias, scale = (torch.randn(shape, device="cuda", dtype=dtype) for shape in ((m, n), n, m))
    kinds = {"c": tp.epilogue.Matrix(), "bias": tp.epilogue.PerColumn(), "scale": tp.epilogue.PerRow()}
    epilogue = tp.epilogue.Epilogue(lambda acc, c, bias, scale: acc * scale + c + bias, operands=kinds, stages=2)
    gemm = tp.schedules.Gemm(tile, cluster, mainloop=tp.mainloop.Cooperative(along="n"), epilogue=epilogue)
    room = torch.full((m + 64, n), 7.0, device="cuda", dtype=dtype)
    gemm(a, b, c=c, bias=bias, scale=scale, out=room[:m])
    wanted = a.double() @ b.double().T * scale.double()[:, None] + c + bias
    assert float((room[:m].double() - wanted).abs().max() / wanted.abs().max()) < 5e-3
    assert bool((room[m:] == 7).all())


@pytest.mark.parametrize("m, n", [(480, 32), (728, 72), (496, 208), (8, 1000), (1, 8)])
def test_parts_of_small_outputs(m, n):
    """Each is added in tiles of another size; nothing outside of the output is written."""
    torch.manual_seed(0)
    a, b = (torch.randn(rows, 1288, device="cuda", dtype=torch.bfloat16) for rows in (m, n))
    room = torch.full((m + 64, n), 7.0, device="cuda", dtype=torch.bfloat16)
    tp.schedules.SplitK(7, (64, 64, 64), (1, 1))(a, b, out=room[:m])
    wanted = a.double() @ b.double().T
    assert float((room[:m].double() - wanted).norm() / wanted.norm()) < 5e-3
    assert bool((room[m:] == 7).all())


@pytest.mark.parametrize("make, columns", [
    (lambda **options: tp.schedules.Gemm((192, 176, 64), (1, 2), **options), 32),
    (lambda **options: tp.schedules.PingPong((128, 144, 64), (1, 2), **options), 16),
    (lambda **options: tp.schedules.Gemm((144, 128, 64), mainloop=tp.mainloop.Cooperative(along="n"), **options), 24),
])  # fmt: skip
def test_epilogues_in_narrow_pieces(make, columns):
    torch.manual_seed(0)
    m, n = 2056, 2904
    a, b = (torch.randn(rows, 264, device="cuda", dtype=torch.bfloat16) for rows in (m, n))
    c, bias = (torch.randn(shape, device="cuda", dtype=torch.bfloat16) for shape in ((m, n), n))
    kinds = {"c": tp.epilogue.Matrix(), "bias": tp.epilogue.PerColumn()}
    epilogue = tp.epilogue.Epilogue(lambda acc, c, bias: acc + c + bias, operands=kinds, stages=1, columns=columns)
    wanted = a.double() @ b.double().T + c + bias
    found = make(epilogue=epilogue)(a, b, c=c, bias=bias).double()
    assert float((found - wanted).abs().max() / wanted.abs().max()) < 5e-3


@pytest.mark.parametrize("tile, cluster, along", [
    ((8, 64, 64), (1, 1), "n"),
    ((16, 64, 128), (2, 1), "n"),
    ((40, 64, 128), (2, 1), "n"),
    ((72, 64, 64), (1, 3), "n"),
    ((64, 24, 64), (1, 1), "m"),
    ((64, 40, 256), (1, 2), "m"),
    ((128, 120, 64), (1, 8), "m"),
    ((192, 136, 64), (1, 2), "m"),
])  # fmt: skip
def test_narrow_tiles_and_clusters_of_three_and_eight(tile, cluster, along):
    """Nothing outside of the output is written."""
    torch.manual_seed(0)
    a, b = (torch.randn(rows, 1032, device="cuda", dtype=torch.bfloat16) for rows in (300, 1000))
    gemm = tp.schedules.Gemm(tile, cluster, mainloop=tp.mainloop.Cooperative(along=along))
    room = torch.full((364, 1000), 7.0, device="cuda", dtype=torch.bfloat16)
    gemm(a, b, out=room[:300])
    wanted = a.double() @ b.double().T
    assert float((room[:300].double() - wanted).norm() / wanted.norm()) < 5e-3
    assert bool((room[300:] == 7).all())


@pytest.mark.parametrize("make, columns", [
    (lambda **options: tp.schedules.Gemm((128, 248, 64), (2, 1), **options), 248),
    (lambda **options: tp.schedules.Gemm((192, 232, 64), (1, 1), **options), 232),
    (lambda **options: tp.schedules.PingPong((128, 136, 64), (2, 1), in_turn=False, **options), 136),
    (lambda **options: tp.schedules.PingPong((128, 184, 64), (1, 2), **options), 184),
    (lambda **options: tp.schedules.PingPong((128, 128, 64), (2, 1), **options), 128),
])  # fmt: skip
def test_rows_of_a_tile_in_one_box(make, columns):
    """Nothing beside the output is written, whose rows begin within sectors."""
    torch.manual_seed(0)
    a, b = (torch.randint(-4, 5, (rows, 200), device="cuda").bfloat16() for rows in (1000, 1384))
    room = torch.full((1064, 1400), 7.0, device="cuda", dtype=torch.bfloat16)
    gemm = make(epilogue=tp.epilogue.Epilogue(stages=1, columns=columns))
    gemm(a, b, out=room[:1000, 8:1392])
    assert torch.equal(room[:1000, 8:1392], (a.float() @ b.float().T).bfloat16())
    room[:1000, 8:1392] = 7
    assert bool((room == 7).all())


@pytest.mark.parametrize("hint", ["evict_first", "evict_last"])
def test_l2_hints_of_stores(hint):
    torch.manual_seed(0)
    a, b = (torch.randn(rows, 520, device="cuda", dtype=torch.bfloat16) for rows in (300, 1000))
    out = torch.full((300, 1000), float("nan"), device="cuda", dtype=torch.bfloat16)
    tp.schedules.PingPong(epilogue=tp.epilogue.Epilogue(l2_hint=hint))(a, b, out)
    check(out, a, b)


@pytest.mark.parametrize("n", [208, 240, 256])
def test_wide_tiles_of_three_warpgroups(n):
    """Of which a slot takes two instructions side by side: the same bits as with tiles of one."""
    torch.manual_seed(0)
    a = torch.randn(1032, 1032, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(1000, 1032, device="cuda", dtype=torch.bfloat16)
    expected = tp.schedules.Gemm((128, 128, 64), (1, 2))(a, b)
    for cluster, order in (
        ((1, 2), tp.tiles.PersistentTiles()),
        ((1, 2), tp.tiles.GpcTiles()),
        ((2, 1), tp.tiles.PersistentTiles()),
    ):
        gemm = tp.schedules.Gemm((192, n, 64), cluster, tiles=order, epilogue=tp.epilogue.Epilogue(stages=1))
        assert torch.equal(gemm(a, b, out=torch.full_like(expected, float("nan"))), expected)


def test_gpcs_of_the_device():
    """Each multiprocessor lies in one, both of a pair in the same, and the places kept are as many as clusters fit."""
    parts = gpcs(torch.cuda.current_device())
    count = torch.cuda.get_device_properties(0).multi_processor_count
    assert sorted(number for part in parts for number in part) == list(range(count))
    assert all(len({number // 2 for number in part}) * 2 == len(part) for part in parts)
    assert sum(len(part) // 2 for part in parts) == HardwareInfo(0).get_max_active_clusters(2)
    assert max(map(len, parts)) >= 16


def test_no_element_outside_the_output_is_touched():
    a = torch.randn(130, 64, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(72, 64, device="cuda", dtype=torch.bfloat16)
    wide = torch.full((140, 128), 7.0, device="cuda", dtype=torch.bfloat16)
    tp.schedules.Gemm()(a, b, out=wide[2:132, 16:88])
    check(wide[2:132, 16:88].clone(), a, b)
    wide[2:132, 16:88] = 7.0
    assert (wide == 7.0).all()


def test_nan_and_inf_pass_through():
    a = torch.randn(128, 64, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(256, 64, device="cuda", dtype=torch.bfloat16)
    a[3, 5], b[7, 9] = float("nan"), float("inf")
    out = tp.schedules.Gemm()(a, b)
    assert torch.isnan(out[3]).all()
    assert (torch.isinf(out[:, 7]) | torch.isnan(out[:, 7])).all()
    assert torch.isfinite(out[4:, 8:]).all()


def test_views_strides_and_empty_tensors():
    a = torch.randn(300, 512, device="cuda", dtype=torch.bfloat16)[:, 64:320]
    b = torch.randn(200, 256, device="cuda", dtype=torch.bfloat16)
    check(tp.schedules.Gemm()(a, b), a, b)
    empty = tp.schedules.Gemm()(a[:0], b)
    assert empty.shape == (0, 200)
    zero = tp.schedules.Gemm()(a[:, :0], b[:, :0])
    assert zero.shape == (300, 200) and (zero == 0).all()


def test_another_stream():
    a = torch.randn(1024, 1024, device="cuda", dtype=torch.bfloat16)
    gemm = tp.schedules.Gemm()
    expected = gemm(a, a)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        found = gemm(a, a)
    stream.synchronize()
    assert torch.equal(found, expected)


@pytest.mark.parametrize("make", [tp.schedules.Gemm, tp.schedules.PingPong])
def test_nothing_of_a_tile_is_left_in_the_next(make):
    """Accumulators are not set to zero for each tile: its first wgmma overwrites them."""
    a = torch.randn(4096, 256, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(8192, 256, device="cuda", dtype=torch.bfloat16)
    a[:1024, 0] = float("nan")
    out = make((128, 128, 64))(a, b)
    assert torch.isnan(out[:1024]).all()
    check(out[1024:], a[1024:], b)


def test_parts_without_k_are_zero():
    """Three k-tiles in eight parts: the last five have none, and come after tiles of NaN and of numbers."""
    a = torch.randn(2048, 192, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(2048, 192, device="cuda", dtype=torch.bfloat16)
    a[0, 0] = float("nan")
    out = tp.schedules.SplitK(8)(a, b)
    assert torch.isnan(out[0]).all()
    check(out[1:], a[1:], b)


@pytest.mark.parametrize(
    ("sizes", "options"),
    [
        ((), {}),
        (((128, 256, 64), (2, 1)), {"mainloop": tp.mainloop.Cooperative()}),
        (
            ((64, 128, 64), (2, 1)),
            {"tiles": tp.tiles.DynamicTiles(tp.tiles.Triangle(3)), "mainloop": tp.mainloop.Cooperative()},
        ),
        (
            ((256, 128, 64), (1, 2)),
            {"tiles": tp.tiles.GpcTiles(tp.tiles.Triangle(8)), "mainloop": tp.mainloop.Cooperative()},
        ),
    ],
)
@pytest.mark.parametrize("shape", [(296, 200), (2, 520, 64), (4104, 512)])
def test_symmetric(sizes, options, shape):
    """Symmetric to the bit, and nothing beside the output is written."""
    gemm = tp.schedules.SymmetricGemm(*sizes, **options)
    x = torch.randn(shape, device="cuda", dtype=torch.bfloat16)
    wide = torch.full((*shape[:-1], shape[-2] + 8), 7.0, device="cuda", dtype=torch.bfloat16)
    d = wide[..., : shape[-2]]
    for _ in range(2):
        d.fill_(float("nan"))
        gemm(x, out=d)
        check(d, x, x)
        assert torch.equal(d, d.mT) and (wide[..., shape[-2] :] == 7).all()
