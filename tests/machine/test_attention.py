"""The schedule `Attention` on the model, in each of its forms, and what it refuses."""

import math

import pytest
import torch

import tmapipe as tp
from tests.sweeps import ALL, sample
from tests.unit.errors import refused
from tmapipe.schedules import Attention, Score, SplitAttention, WindowAttention


def expected(q, k, v, causal=None, window=None, score=None, mask=None, sinks=None):
    """(o, lse) in fp64. mask: [b, h, m, s] or what broadcasts to it."""
    k, v = (x.double().repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    scores = q.double() @ k.mT / math.sqrt(q.shape[-1])
    m, s = scores.shape[-2:]
    i, j = torch.arange(m)[:, None], torch.arange(s)
    if score is not None:
        scores = score(scores, i, j)
    last = i + (s - m if causal == "end" else 0)
    hidden = torch.zeros((m, s), dtype=torch.bool) if causal is None else j > last
    if window is not None:
        hidden = hidden | (j <= last - window)
    scores = scores.masked_fill(hidden, float("-inf"))
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else scores + mask.double()
    lse = scores.logsumexp(-1)
    if sinks is not None:
        lse = torch.logaddexp(lse, sinks.double()[:, None])
    return torch.nan_to_num(torch.exp(scores - lse.clamp(min=-1e30)[..., None])) @ v, lse


def problem(heads, groups, m, s, d, dtype=torch.bfloat16, batch=1):
    """q, k and v, of which q lies as [batch, tokens, heads, d]."""
    source = torch.Generator().manual_seed(m * s + d)
    q = torch.randn(batch, m, heads, d, generator=source).to(dtype).transpose(1, 2)
    k, v = (torch.randn(batch, groups, s, d, generator=source).to(dtype) for _ in range(2))
    return q, k, v


def check(schedule, shape, **form):
    q, k, v = problem(*shape, schedule.d)
    found = schedule(q, k, v)
    o, lse = found if schedule.with_lse else (found, None)
    wanted, of_powers = expected(q, k, v, **form)
    assert o.stride() == q.stride()
    torch.testing.assert_close(o.double(), wanted, atol=1e-2, rtol=1e-2)
    if lse is not None:
        torch.testing.assert_close(lse.double(), of_powers, atol=1e-5, rtol=1e-5)


def capped(tanh):
    return lambda x, i, j: 20 * tanh(x / 20) - 0.01 * abs(i - j)


SHAPES = [(2, 1, 300, 300), (1, 1, 70, 200), (1, 1, 200, 70), (2, 2, 1, 150), (1, 1, 1, 1)]


@pytest.mark.parametrize("shape", sample(SHAPES, 3))
@pytest.mark.parametrize("causal", [None, "start", "end"])
@pytest.mark.parametrize("d", [64, 128])
def test_any_lengths(d, causal, shape):
    check(Attention(d, causal=causal, lse=True), shape, causal=causal)


@pytest.mark.parametrize("window, shape", [(50, (1, 1, 300, 500)), (50, (1, 1, 500, 300)), (300, (1, 1, 700, 700))])
@pytest.mark.parametrize("causal", ["start", "end"])
def test_windows(causal, window, shape):
    check(Attention(64, causal=causal, window=window, lse=True), shape, causal=causal, window=window)


@pytest.mark.parametrize("shape", sample([(2, 1, 450, 450), (1, 1, 300, 457), (1, 1, 457, 300), (1, 1, 70, 200)], 3))
@pytest.mark.parametrize(
    "causal, window", sample([("end", 256), ("start", 130), ("end", 20), ("start", 1), ("end", 900)], 2)
)
def test_windows_of_warpgroups(causal, window, shape):
    """Tiles of two and three warpgroups, whose first keys lie before the tensor's or whose last ones behind."""
    check(WindowAttention(window, causal=causal, lse=True), shape, causal=causal, window=window)
    score = {"score": capped(torch.tanh), "sinks": torch.randn(shape[0])}
    q, k, v = problem(*shape, 64)
    wanted, _ = expected(q, k, v, causal=causal, window=window, **score)
    for bound in (None, 30):
        scores = Score(capped(tp.math.tanh), sinks=True, bound=bound)
        made = WindowAttention(window, causal=causal, queries=128, score=scores)
        torch.testing.assert_close(made(q, k, v, score["sinks"]).double(), wanted, atol=1e-2, rtol=1e-2)


@pytest.mark.parametrize("shape, lse", [((4, 1, 100, 300), True), ((8, 2, 40, 100), False), ((6, 2, 40, 20), True)])
def test_packed_heads(shape, lse):
    """Those of a group, perhaps fewer than a tile has; and logarithms, which a tensor of another order takes."""
    check(Attention(128, causal="end", tile=(32, 4, 128), lse=lse), shape, causal="end")
    if lse:
        q, k, v = problem(*shape, 128)
        out = torch.empty(1, shape[2], shape[0]).transpose(1, 2)
        _, found = Attention(128, causal="end", tile=(32, 4, 128), lse=True)(q, k, v, lse=out)
        assert found is out
        torch.testing.assert_close(found.double(), expected(q, k, v, "end")[1], atol=1e-5, rtol=1e-5)


def test_scores():
    check(
        Attention(128, causal="start", score=capped(tp.math.tanh)),
        (2, 1, 150, 150),
        causal="start",
        score=capped(torch.tanh),
    )


@pytest.mark.parametrize("d, causal, shape", [(64, "end", (2, 1, 70, 40)), (128, None, (1, 1, 20, 300))])
def test_bounded_scores(d, causal, shape):
    """Without highest scores, but of fp16, whose powers would be no numbers."""
    made = Attention(d, causal=causal, lse=True, score=Score(capped(tp.math.tanh), bound=25))
    check(made, shape, causal=causal, score=capped(torch.tanh))
    q, k, v = (x.half() * 9 for x in problem(*shape, d))
    plain = Attention(d, causal=causal, lse=True, score=capped(tp.math.tanh))
    assert all(torch.equal(x, y) for x, y in zip(made(q, k, v), plain(q, k, v), strict=True))


@pytest.mark.parametrize("d, width", sample([(192, 128), (256, 256), (64, 128), (80, 64), (192, 192)], 2))
def test_wide_heads_and_values_of_another_width(d, width):
    q, k, _ = problem(2, 1, 70, 130, d)
    v = torch.randn(1, 1, 130, width).bfloat16()
    attention = Attention.of(q, k, v, causal="end", lse=True)
    assert (attention.d, attention.width) == (d, width)
    found, _ = attention(q, k, v)
    assert found.stride()[1:] == (width, 2 * width, 1)
    torch.testing.assert_close(found.double(), expected(q, k, v, "end")[0], atol=1e-2, rtol=1e-2)


@pytest.mark.parametrize("d, shape, parts", [(64, (8, 1, 1, 600), 2), ((32, 16), (4, 2, 3, 700), 9)])
def test_parts_of_keys(d, shape, parts):
    """The last part may have fewer blocks, and there are no more parts than blocks."""
    h, g, m, s = shape
    attention = SplitAttention(parts, d, scale=0.3)
    q, k, v = problem(h, g, m, s, attention.d, batch=2)
    v = v[..., : attention.width]
    out = torch.full((2, m, h, attention.width), float("nan")).bfloat16().transpose(1, 2)
    found = attention(q, k, v, out=out)
    assert found is out
    wanted = expected(q * 0.3 * math.sqrt(attention.d), k, v)[0]
    torch.testing.assert_close(found.double(), wanted, atol=1e-2, rtol=1e-2)


def mask_of(dims, b, h, m, s, boolean):
    """(a mask of these dimensions, the same as it broadcasts)"""
    extents, source = {"b": b, "h": h, "m": m, "s": s}, torch.Generator().manual_seed(len(dims))
    drawn = torch.randn([extents[dim] for dim in dims.split()], generator=source)
    mask = drawn > 0 if boolean else drawn.bfloat16()
    if "m" in dims:
        mask[..., 1, :] = False if boolean else float("-inf")  # a query that sees no key
    return mask, mask.reshape([extents[dim] if dim in dims else 1 for dim in "bhms"])


def test_bounded_scores_with_a_mask():
    """Keys that are not seen keep no bound."""
    q, k, v = problem(2, 1, 100, 144, 64)
    mask, whole = mask_of("h m s", 1, 2, 100, 144, False)
    mask[:, 50:, 7:90] = float("-inf")
    made = Attention(64, causal="end", lse=True, score=Score(mask="h m s", bound=20))
    found, wanted = made(q, k, v, mask), expected(q, k, v, causal="end", mask=whole)
    torch.testing.assert_close(tuple(x.double() for x in found), wanted, atol=1e-2, rtol=1e-2)


MASKS = [
    ("b h m s", False, {"causal": "start", "score": True}, (2, 1, 130, 160, 64, torch.bfloat16, 2)),
    ("m s", True, {}, (1, 1, 70, 144, 128)),
    ("h m s", False, {"causal": "end"}, (2, 1, 150, 400, 128, torch.bfloat16, 2)),
    ("b s", False, {"tile": (16, 4, 128), "causal": "end"}, (4, 1, 20, 144, 64)),
    ("h s", True, {"d": 64}, (2, 2, 20, 144, 64)),
]


@pytest.mark.parametrize("dims, boolean, form, shape", sample(MASKS, 2))
def test_masks(dims, boolean, form, shape):
    q, k, v = problem(*shape)
    score = capped(tp.math.tanh) if "score" in form else None
    mask, whole = mask_of(dims, q.shape[0], *shape[:1], *shape[2:4], boolean)
    made = Attention(**{"d": shape[4], **form, "score": Score(score, mask=dims)})
    wanted, _ = expected(q, k, v, form.get("causal"), score=score and capped(torch.tanh), mask=whole)
    torch.testing.assert_close(made(q, k, v, mask).double(), wanted, atol=1e-2, rtol=1e-2)


@pytest.mark.parametrize("tile, heads", [(None, 2), *ALL * [((16, 4, 128), 8)]])
def test_sinks(tile, heads):
    q, k, v = problem(heads, 2, 5, 40, 64)
    q, sinks = q * 3, torch.tensor([-5.0, 3.0, 0.0, 90.0, 1.0, 2.0, -90.0, 4.0])[:heads]
    made = Attention(64, causal="start", score=Score(sinks=True), lse=tile is None, tile=tile)
    found = made(q, k, v, sinks)
    wanted, of_powers = expected(q, k, v, "start", sinks=sinks)
    torch.testing.assert_close((found[0] if tile is None else found).double(), wanted, atol=1e-2, rtol=1e-2)
    if tile is None:
        torch.testing.assert_close(found[1].double(), of_powers, atol=1e-5, rtol=1e-5)


SPLIT = [
    ({"causal": "end", "window": 150, "sinks": True, "mask": "b s", "lse": True}, (6, 2, 3, 380, 64)),
    ({"causal": "start", "lse": True}, (3, 1, 30, 20, 64)),
    ({"causal": "end", "lse": True}, (2, 1, 70, 40, 64)),  # queries that see no key, parts without keys
    ({"score": True}, (4, 2, 2, 140, 64)),
    ({"causal": "end", "lse": True, "rows": 128}, (4, 2, 40, 90, 128)),  # heads of a group in one tile
    ({"causal": "end", "lse": True}, (8, 2, 11, 500, 64)),  # of which kernels take views
]


@pytest.mark.parametrize("form, shape", sample(SPLIT, 2))
def test_parts_of_some_keys(form, shape):
    h, g, m, s, d = shape
    q, k, v = problem(*shape)
    score = capped(tp.math.tanh) if "score" in form else None
    sinks = torch.arange(h) / 2 if "sinks" in form else None
    mask, whole = mask_of("b s", 1, h, m, s, True) if "mask" in form else (None, None)
    given = [x for x in (mask, sinks) if x is not None]
    options = {name: form[name] for name in ("causal", "window", "lse", "rows") if name in form}
    scores = Score(score, mask="b s" if "mask" in form else None, sinks="sinks" in form)
    wanted, of_powers = expected(
        q, k, v, form.get("causal"), form.get("window"), score and capped(torch.tanh), whole, sinks
    )
    for parts in (3, 1):  # a single part takes one kernel
        found = SplitAttention(parts, d, heads=h // g, score=scores, **options)(q, k, v, *given)
        o, lse = found if "lse" in form else (found, None)
        torch.testing.assert_close(o.double(), wanted, atol=1e-2, rtol=1e-2)
        if lse is not None:
            torch.testing.assert_close(lse.double(), of_powers, atol=1e-5, rtol=1e-5)


def test_how_many_parts():
    def of(h, g, m, s, batch=1, **options):
        q, k = torch.empty(batch, h, m, 128, device="meta"), torch.empty(batch, g, s, 128, device="meta")
        return getattr(Attention.of(q, k, **options), "parts", 1)

    assert of(64, 8, 1, 8192) == of(64, 8, 1, 8192, causal="end") == 8 and of(64, 8, 1, 8192, 14) == 1
    assert of(64, 8, 1, 8192, 20) == 3
    assert of(64, 8, 2, 8192, causal="end", lse=True) == of(64, 8, 1, 8192, score=Score(sinks=True, mask="b s")) == 8
    assert of(64, 8, 1, 65536, causal="end", window=4096) == 4
    assert (
        of(64, 8, 1, 8192, causal="start") == of(64, 8, 1, 8192, score=Score(mask="h s")) == of(64, 64, 900, 8192) == 1
    )
    assert of(64, 8, 1, 1000) == of(64, 8, 1, 8192, tile=(8, 8, 128)) == of(64, 8, 1, 8192, causal="end", window=5) == 1


@pytest.mark.parametrize("scale", [1.0, -1.0])
def test_fp16_and_a_scale(scale):
    q, k, v = problem(1, 1, 80, 90, 64, torch.float16)
    found = Attention(64, scale=scale)(q / 8, k, v)
    torch.testing.assert_close(found.double(), expected(q * scale, k, v)[0], atol=2e-3, rtol=2e-3)


@pytest.mark.parametrize(
    "options, said",
    [
        ({"d": 100}, "Attention(d) = 100"),
        ({"d": 272}, "Attention(d) = 272"),
        ({"d": (64, 0)}, "Attention(d) = (64, 0)"),
        ({"causal": True}, "Attention(causal) = True"),
        ({"window": 5}, "Attention(window) = 5"),
        ({"causal": "end", "window": 0}, "Attention(window) = 0"),
        ({"tile": (100, 1, 128)}, "Attention(tile)"),
        ({"tile": (128, 128)}, "Attention(tile)"),
        ({"tile": (128, 1, 0)}, "Attention(tile)"),
        ({"tile": (None, 1, 128)}, "Attention(tile)"),
        ({"d": (64, 64, 64)}, "Attention(d)"),
        ({"window": 2.5, "causal": "end"}, "Attention(window)"),
        ({"score": 3}, "Attention(score) = 3"),
        ({"score": Score(mask="m s"), "tile": (8, 8, 128)}, "Attention(mask) = 'm s'"),
    ],
)
def test_refused(options, said):
    with pytest.raises(tp.InputError) as raised:
        Attention(**options)
    assert said in str(raised.value)


def test_refused_scores():
    capping = capped(tp.math.tanh)
    bounds = [{"bound": 30}, {"function": capping, "bound": 61}, {"mask": "s", "bound": 0}]
    others = ({"mask": "s m"}, "mask"), ({"sinks": 1}, "sinks"), ({"function": 2}, "function")
    for options, said in (*others, *((each, "bound") for each in bounds)):
        with pytest.raises(tp.InputError, match=rf"Score\({said}\)"):
            Score(**options)


def test_refused_parts():
    for parts, d in ((0, 64), (1.5, 64), (2, 100)):
        with pytest.raises(tp.InputError, match="Attention"):
            SplitAttention(parts, d)
    q, k, v = problem(2, 1, 3, 10, 64)
    assert SplitAttention.of(q[:, :, :1], k, causal="end").causal is None
    with pytest.raises(tp.InputError, match=r"q\.shape\[1\] = 2.*say heads=2"):
        SplitAttention(2, 64, causal="end")(q, k, v)
    with pytest.raises(tp.InputError, match=r"Attention\(mask\) = 'h s'"):
        SplitAttention(2, score=Score(mask="h s"))


def test_refused_tensors():
    q, k, v = problem(3, 2, 10, 10, 64)
    with pytest.raises(tp.InputError, match="multiple of 2 heads"):
        Attention(64)(q, k, v)
    with pytest.raises(tp.InputError, match=r"q\.shape"):
        Attention(64)(q[0], k, v)
    with pytest.raises(tp.InputError, match=r"WindowAttention\(mask\)"):
        WindowAttention(9, score=Score(mask="b s"))
    with pytest.raises(tp.InputError, match=r"mask\.shape = \(10,\): has the dimensions m s"):
        Attention(64, score=Score(mask="m s"))(q[:, :2], k, v, torch.zeros(10))
    with pytest.raises(tp.InputError, match=r"sinks\.shape\[0\] = 3: is 2, the number of heads"):
        Attention(64, score=Score(sinks=True))(q[:, :2], k, v, torch.zeros(3))


def test_of_tensors():
    """Few queries of several heads share tiles; many keys come in wider blocks."""

    def schedule(heads, groups, m, s, d=128, **options):
        q, k = torch.empty(1, heads, m, d, device="meta"), torch.empty(1, groups, s, d, device="meta")
        return Attention.of(q, k, **options)

    assert schedule(8, 1, 1, 1500).packed == 8 and schedule(8, 1, 1, 1500).rows == 64
    alone = schedule(300, 60, 1, 1500)  # five heads, which tiles of 64 rows cannot have
    assert isinstance(alone, SplitAttention) and alone.parts == 1 and alone.tiles.stages == 2
    assert not isinstance(schedule(8, 8, 1, 1500, lse=True), SplitAttention)
    function = Score(lambda x, i, j: tp.math.tanh(x), bound=1), Score(lambda x, i, j: x - j, mask="m s")
    for score in (*function, Score(mask="h m s", bound=9)):
        made = schedule(80, 8, 1000, 1000, score=score)
        assert (made.rows, made.keys_a_block) == (192, 80)
    free, masked = (schedule(80, 8, 1000, 1000, score=x) for x in (lambda x, i, j: x - j, Score(mask="h m s")))
    assert free.rows == 128  # faster, where highest scores are needed
    assert (masked.rows, masked.keys_a_block, masked.masks.stages, masked.values.stages) == (128, 128, 2, 1)
    orders = [Attention(score=Score(mask=dims)) for dims in ("h m s", "b h m s", "m s", "h s")]
    assert [(made.over, made.tiles.raster.rows) for made in orders] == [("h b m", 8), *[("b h m", 1)] * 3]
    assert [schedule(80, 80, m, m, 96).rows for m in (50, 100, 3000)] == [64, 128, 192]
    assert (schedule(21, 21, 16384, 16384, 96, causal="end").rows, schedule(8, 8, 9000, 9000, 96).keys_a_block) == (
        192,
        112,
    )
    window, whole = (schedule(8, 8, 9000, 9000, causal="end", window=w).tiles for w in (512, None))
    assert (window.stages, window.raster.rows, whole.stages, whole.raster.rows) == (2, 8, 0, 4)
    few, other = (schedule(8, 8, 9000, s, 64, causal="start", window=512) for s in (9000, 9001))
    assert isinstance(few, WindowAttention) and (few.causal, other.causal, few.tiles.stages) == ("end", "start", 2)
    grouped = [schedule(64, 8, m, 9000, 64, causal="end", window=512) for m in (9000, 150, 200)]
    assert [type(made) for made in grouped] == [WindowAttention, WindowAttention, Attention]
    for unlike in ({"window": 600}, {"tile": (192, 1, 128)}, {"score": Score(mask="b s")}, {"d": 128}):
        made = schedule(8, 8, 9000, 9000, **{"d": 64, "causal": "end", "window": 9, **unlike})
        assert type(made) is Attention
    assert schedule(64, 64, 5000, 16384).keys_a_block == 176
    assert [schedule(8, 8, 300, 300, d, tile=(128, 1, None)).keys_a_block for d in (128, 192)] == [128, 96]
    # Where all queries see as many keys, also causal ones.
    assert [schedule(64, 64, 5000, s, causal="end").keys_a_block for s in (13000, 14000)] == [128, 176]
    assert [schedule(80, 80, 1000, 1000, 64, causal=causal).rows for causal in (None, "end")] == [192, 128]
    bands = [
        schedule(64, 64, m, m, d, causal="end").tiles.raster.rows for d in (64, 128) for m in (1000, 5000, 10000, 70000)
    ]
    assert bands == [32, 16, 16, 16, 32, 8, 4, 1]
    # Of 21 heads, bands of 4 would leave one.
    assert schedule(21, 21, 16384, 16384, 96, causal="end").tiles.raster.rows == 7
    q, k, v = problem(8, 1, 3, 200, 64)
    torch.testing.assert_close(Attention.of(q, k)(q, k, v).double(), expected(q, k, v)[0], atol=1e-2, rtol=1e-2)
    o, lse = Attention.of(q, k, lse=True)(q, k, v)
    torch.testing.assert_close((o.double(), lse.double()), expected(q, k, v), atol=1e-2, rtol=1e-2)


class Summed(tp.Schedule):
    """y[m] = the sum of x[m, n] over n, of which each thread adds up its part."""

    load, work = tp.Role(warps=1), tp.Role(warps=4)
    ring = tp.BarrierRing(2, producer=load, consumer=work)
    x = tp.TmaLoadStage("m n", tile=(8, 64), ring=ring, dtype="fp32")
    y = tp.ThreadStoreStage(dims="m", tile=(8,), role=work, vector=4, dtype="fp32")

    @load.jit
    def fill(self, k, tile):
        for i in range(k.steps("x", "n")):
            with k.ring.produce() as slot:
                slot.x.load(tile, n=i)

    @work.jit
    def add(self, k, tile):
        with k.ring.consume() as slot:
            parts = tp.math.row_sum_parts(slot.x.read())
        for _ in range(k.steps("x", "n") - 1):
            with k.ring.consume() as slot:
                parts = self.sum(parts, slot.x.read())
        k.y.store(tile, tp.math.row_sum(parts))

    def sum(self, parts, values):
        return parts + tp.math.row_sum_parts(values)


def test_sums_in_parts():
    x = torch.randn(20, 300)
    torch.testing.assert_close(Summed()(x), x.sum(1))


@pytest.mark.parametrize(
    "wrong, said",
    [
        (lambda parts, values: parts + tp.math.row_sum_parts(values + parts), "in parts"),
        (lambda parts, values: tp.math.row_sum_parts(tp.math.row_sum(values)), "whole tile"),
        (lambda parts, values: tp.math.row_max(parts), "in parts"),
    ],
)
def test_parts_are_of_no_elements(wrong, said):
    class Wrong(Summed):
        def sum(self, parts, values):
            return wrong(parts, values)

    with pytest.raises(tp.errors.ScopeError, match=said):
        Wrong()(torch.randn(8, 128))


def test_what_comes_after_a_product_waits_for_it():
    class Wrong(Attention):
        def _block(self, k, tile, out, own, state, at, mask):
            with k.keys.consume() as slot:
                k.qk.start(own.q, slot.k).wait()
            with k.values.consume() as slot:
                out.start(state[0], slot.v)
                out.after(state[2])

    with pytest.raises(tp.errors.ScopeError, match="before a matmul started on it was awaited"):
        Wrong(64)(*problem(1, 1, 10, 300, 64))


def test_operands_take_no_arithmetic():
    class Wrong(Attention):
        def _block(self, k, tile, out, own, state, at, mask):
            return super()._block(k, tile, out, own, (state[0] * 2, *state[1:]), at, mask)

    with pytest.raises(tp.errors.ScopeError, match="packed"):
        Wrong(64)(*problem(1, 1, 10, 300, 64))


@pytest.mark.parametrize(
    "function", [print, lambda x, i, j: 0.5, lambda x, i, j: i], ids=["none", "a number", "a row's"]
)
def test_a_function_of_scores_gives_a_score_each(function, capsys):
    q = torch.ones(1, 1, 8, 64, dtype=torch.float16)
    with pytest.raises(
        tp.errors.ScopeError, match=r"function of scores returned .*, not a score for each query and key"
    ):
        Attention((64, 64), score=function)(q, q, q)


@pytest.mark.parametrize("dtype", [torch.int8, torch.int32], ids=str)
def test_masks_of_integers_are_refused(dtype):
    """They may be meant to be added, as floats are, or to hide keys, as those of bool do."""
    q = torch.zeros(1, 1, 64, 64, dtype=torch.bfloat16)
    mask = torch.zeros(64, dtype=dtype)
    for kind in (Attention, SplitAttention):
        attention = kind(64, score=Score(mask="s"))
        refused(attention, q, q, q, mask, argument="mask.dtype", rule="is bool, or floats")
