"""Copies of tensors of any rank, strides, alignment and element type. `tests/gpu` runs them too."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tmapipe as tp
from tests.sweeps import examples
from tmapipe.schedules import copy, places

BF16 = torch.bfloat16


def some(*shape, dtype=BF16):
    return torch.randint(-100, 100, shape, generator=torch.Generator().manual_seed(0)).to(dtype)


#: (makes a tensor, whether its elements are moved by the TMA engine to a contiguous one).
VIEWS = {
    "a slice of rank 3": (lambda: some(4, 40, 640)[:, 5:31, 64:576], True),
    "rank 5": (lambda: some(2, 4, 2, 70, 80)[:, 1:3, :, 2:66, 8:40], True),
    "rank 5, short rows": (lambda: some(3, 5, 6, 7, 80)[:, 1:3, :, 2:5, 8:40], False),
    "rank 5, odd": (lambda: some(3, 5, 6, 7, 81)[:, 1:3, :, 2:5, 8:41], False),
    "odd rows of rank 3": (lambda: some(31, 5, 60)[:, 1:4, 1:59], False),
    "odd bytes of rank 4": (lambda: some(3, 9, 7, 45, dtype=torch.int8)[:, 2:, :5, 3:], False),
    "odd rows": (lambda: some(7, 5001)[:, 1:5000], False),
    "an odd number": (lambda: some(7, 5001), False),
    "an odd start": (lambda: some(5001)[1:], False),
    "bytes": (lambda: some(20, 535, dtype=torch.int8)[:, 3:], False),
    "64 bits": (lambda: some(9, 33, dtype=torch.int64)[:, :31], False),
    "fewer columns": (lambda: some(40, 304)[:, :301], False),
    "permuted": (lambda: some(130, 8, 16).permute(1, 0, 2), True),
    "permuted, short rows": (lambda: some(6, 8, 16).permute(1, 0, 2), False),
    "every second column": (lambda: some(5, 131)[:, 1::2], False),
    "every second of 64 bits": (lambda: some(3, 33, dtype=torch.int64)[:, ::2], False),
    "transposed": (lambda: some(3, 31).t(), False),
    "bool": (lambda: some(5, 33) > 0, False),
    "one element": (lambda: some(1), False),
    "no dimension": (lambda: torch.tensor(3.0), False),
    "nothing": (lambda: some(0, 5), True),
}


def check(x):
    copy = tp.schedules.Copy()
    assert torch.equal(copy(x), x)
    if x.ndim:
        whole = torch.full((*x.shape[:-1], x.shape[-1] + 3), 77, device=x.device).to(x.dtype)
        kept = whole.clone()
        copy(x, out=whole[..., 1:-2])
        kept[..., 1:-2] = x
        assert torch.equal(whole, kept), "wrote outside the output"


def test_rows_of_several_dimensions_take_few_launches(monkeypatch):
    from tmapipe.schedules import CopyPlaces

    x, launches = some(31, 5, 7, 60)[:, 1:4, :6, 1:59], []
    monkeypatch.setattr(CopyPlaces, "__call__", lambda self, x, y: launches.append((self, tuple(y.shape))))
    tp.schedules.Copy()(x, out=torch.empty(31, 3, 6, 61, dtype=BF16)[..., 1:59])
    (first, shape), (last, rest) = launches  # rows begin alike at every second; the last one is left
    assert (shape, rest) == ((3, 6, 2, 15, 58), (3, 6, 1, 1, 58)) and first is last, "one kernel takes both"


@pytest.mark.parametrize("dtype", [BF16, torch.float32, torch.int64])
def test_a_vector_into_every_second_place(dtype):
    x, whole = some(33, dtype=dtype), torch.zeros(2, 66, dtype=dtype)
    tp.schedules.Copy()(x, out=whole[1, 1::2])
    assert torch.equal(whole[1, 1::2], x) and not whole[0].any() and not whole[1, ::2].any()


@pytest.mark.parametrize("name", VIEWS)
def test_copies(name):
    check(VIEWS[name][0]())


@pytest.mark.parametrize("name", [name for name, (_, engine) in VIEWS.items() if engine])
def test_what_the_engine_can_move_is_not_left_to_threads(name, monkeypatch):
    from tmapipe.schedules.copy import Copy

    x = VIEWS[name][0]()
    moved = []
    monkeypatch.setattr(Copy, "_move", lambda self, x, y: moved.append(x.nbytes) or y.copy_(x))
    Copy()(x)
    assert sum(moved) == x.nbytes


def test_tiles_of_long_rows_have_one(monkeypatch):
    monkeypatch.setattr(copy, "LONG", 600)
    check(some(2, 1028, dtype=torch.float32)[:, :1024])


@pytest.mark.parametrize("dtype, columns", [(BF16, 65), (torch.int8, 129), (torch.int64, 5)])
def test_odd_rows_that_lie_alike(dtype, columns):
    """They begin at multiples of 16 bytes in both tensors, and their ends are no such multiples."""
    x, whole = some(40, 144, dtype=dtype)[:, :columns], torch.zeros(40, 144, dtype=dtype)
    tp.schedules.Copy()(x, out=whole[:, :columns])
    assert torch.equal(whole[:, :columns], x) and not whole[:, columns:].any()


@st.composite
def views(draw, extents, dtype):
    """(memory, a tensor of *extents* in it): dimensions in any order, any start, rows with or without something between."""
    order = draw(st.permutations(range(len(extents))))
    pitches = [extents[dim] + draw(st.sampled_from([0, 0, 1, 3, 8])) for dim in order[1:]]
    if pitches and draw(st.booleans()):
        pitches[-1] = -(-pitches[-1] // 16) * 16  # so that rows begin alike
    start = draw(st.sampled_from([0, 0, 1, 3, 8]))
    steps = [math.prod(pitches[at:]) for at in range(len(order))]
    memory = some(start + extents[order[0]] * steps[0], dtype=dtype)
    return memory, memory.as_strided(extents, [steps[order.index(dim)] for dim in range(len(order))], start)


@settings(max_examples=examples(40), deadline=None)
@given(st.data())
def test_any_views(data):
    extents = data.draw(st.lists(st.sampled_from([1, 2, 3, 5, 17, 33, 64, 65, 130]), min_size=1, max_size=4))
    while math.prod(extents) > 20_000:
        extents.remove(max(extents))
    dtype = data.draw(st.sampled_from([BF16, torch.int8, torch.float32, torch.int64]))
    (_, x), (memory, y) = (data.draw(views(extents, dtype)) for _ in range(2))
    memory.fill_(77)
    expected = memory.clone()
    expected.as_strided(y.shape, y.stride(), y.storage_offset()).copy_(x)
    tp.schedules.Copy()(x, out=y)
    assert torch.equal(memory, expected)


def kernels_of(x, monkeypatch):
    """What `CopyRuns` copies a tensor by, after which the copy is as the tensor."""
    monkeypatch.setattr(copy, "_elements", lambda x, y: [])
    made, init = [], copy.CopyRuns.__init__
    monkeypatch.setattr(copy.CopyRuns, "__init__", lambda self, *key: made.append(self) or init(self, *key))
    check(x)
    return made


def test_runs_of_one_tile_load_what_they_have(monkeypatch):
    """Each run has 140 elements, a gap of 25, and 140 more. Up to 7 lie before."""
    made = kernels_of(some(50, 20, 165)[:, 1:3, 25:], monkeypatch)[0]
    assert made.tile >= 280 and made.relations[0].size == 280
    gaps = (made.tile - 1) // 140
    assert made.x.tile[0] < made.tile + 7 + 25 * gaps + 64, "the slot has the gaps of one tile, and ends with a line"


def test_tiles_of_runs_have_about_as_many_elements(monkeypatch):
    x = some(9, 2, 5288, dtype=torch.float32)[:, :, :5280]
    made = kernels_of(x[:, :1], monkeypatch)[0]
    tiles = -(-5280 // made.tile)
    assert tiles == -(-5280 // 1024) and tiles * made.tile < 5280 + 4 * 128 < tiles * 1024


@pytest.mark.parametrize("rows, dtype, ctas", [(11254, BF16, 12), (45000, BF16, 4), (11254, torch.int8, 6)])
def test_short_copies_of_runs_with_gaps_have_a_tile_a_cta(rows, dtype, ctas):
    """Twice as many CTAs, each with 32 registers a thread, which are too few for tiles of bytes."""
    x = torch.empty(4, rows + 3, 105, dtype=dtype)[:, :rows, :75]
    key, *_ = copy.runs_of(x, torch.empty(x.shape, dtype=dtype))
    tiles = copy.CopyRuns(*key).tiles
    assert tiles.ctas == ctas and (tiles.each == 1) == (ctas == 12)


ALL, ONE = slice(None), slice(2, 3)


@pytest.mark.parametrize(
    "whole, part, dtype, to, first",
    [
        ((40000, 2, 8, 137), (ALL, ALL, slice(1, 3), slice(1, 99)), torch.float32, BF16, "rows"),  # long gaps
        ((5000, 4, 34, 81), (ALL, ALL, slice(1, 21), slice(7, 76)), BF16, torch.float32, "alone"),  # short gaps
        ((9000, 8, 81), (ALL, ONE, slice(1, 70)), torch.float32, BF16, "rows"),  # far apart
        ((9000, 8, 81), (ALL, ONE, slice(1, 70)), torch.float32, torch.float32, "elements"),
        ((5000, 4, 34, 81), (ALL, ALL, slice(1, 21), slice(7, 76)), BF16, BF16, "elements"),
        ((9000, 4, 340, 81), (ALL, ALL, slice(1, 21), slice(7, 76)), torch.int8, torch.int8, "runs"),  # many bytes
        ((20000, 35, 80), (ALL, ONE, ALL), torch.int8, torch.int8, "elements"),  # boxes of 128 bytes for 80
        ((90000, 35, 64), (ALL, ONE, ALL), torch.int8, torch.int8, "engine"),
        ((4_000_001,), (slice(1, None),), BF16, BF16, "alone"),
        ((900, 720), (ALL, slice(700)), torch.float32, torch.float32, "elements"),  # little
        ((4000, 720), (ALL, slice(700)), torch.float32, torch.float32, "engine"),
    ],
)
def test_the_first_way_is_by_the_model(whole, part, dtype, to, first, monkeypatch):
    taken = []
    monkeypatch.setattr(tp.calling, "looked", lambda name, few, *how: taken.append(few) or few[0])
    monkeypatch.setattr(copy.Copy, "_by", lambda self, way, x, y: taken.append(way))
    x = torch.empty(whole, dtype=dtype)[part]
    tp.schedules.Copy()(x, out=torch.empty(x.shape, dtype=to))
    few, way = taken
    assert way == few[0] and way[0] == first and 2 <= len({*few}) == len(few) <= 4
    assert (dtype == to) == ("elements" in {kind for kind, _ in few})


@pytest.mark.parametrize("name", ["far apart", "odd bytes", "short rows", "a long row"])
def test_each_way(name, monkeypatch):
    """Whatever is measured copies the tensor, and nothing beside it."""
    x = {
        "far apart": lambda: some(40, 8, 81, dtype=torch.float32)[:, 2:3, 1:70],
        "odd bytes": lambda: some(30, 4, 10, 66, dtype=torch.int8)[:, 1:3, 2:5, 7:36],
        "short rows": lambda: some(200, 7, 80, dtype=torch.int8)[:, 2:3],
        "a long row": lambda: some(9001, dtype=torch.float32)[3:],
    }[name]()
    found = []
    monkeypatch.setattr(tp.calling, "looked", lambda name, few, *how: found.append(few) or few[0])
    tp.schedules.Copy()(x)
    for way in found[0]:
        monkeypatch.setattr(tp.calling, "looked", lambda name, few, *how, way=way: way if way in few else few[0])
        check(x)


def test_rows_that_are_repeated():
    check(some(33).expand(4, 33))


def check_types(device="cpu"):
    x = torch.randn(9, 301, device=device)
    for kind in (BF16, torch.float16):
        for view in (x, x[:, :296], x[1:, 3:]):
            y = torch.empty(view.shape, dtype=kind, device=device)
            back = torch.empty(view.shape, device=device)
            assert torch.equal(tp.schedules.Copy()(view, out=y), view.to(kind))
            assert torch.equal(tp.schedules.Copy()(y, out=back), y.float())


def test_types_are_converted():
    check_types()


def test_arrays():
    x = np.arange(7 * 501, dtype=np.float32).reshape(7, 501)[:, 3:]
    assert (tp.schedules.Copy()(x) == x).all()


# ---- element by element ----------------------------------------------------------------------------------------------


@settings(max_examples=examples(25), deadline=None)
@given(st.data())
def test_elements_of_any_view(data):
    extents = data.draw(st.lists(st.sampled_from([1, 2, 3, 5, 17, 33, 64]), min_size=1, max_size=5))
    while math.prod(extents) > 20_000:
        extents.remove(max(extents))
    dtype = data.draw(st.sampled_from([torch.int8, BF16, torch.float32]))
    _, x = data.draw(views(extents, dtype))
    memory = torch.full((math.prod(extents) + 9,), 77).to(dtype)
    start, kept = data.draw(st.integers(0, 8)), memory.clone()
    one, other = copy.merged(x, memory[start : start + x.numel()].view(extents))
    width = data.draw(st.sampled_from([1, 2, 4, 8]))
    places.copy_elements({}, one, other, width * dtype.itemsize)
    kept[start : start + x.numel()] = x.flatten()
    assert torch.equal(memory, kept)


def test_an_output_with_gaps_has_no_elements_in_order():
    x, y = some(4, 6), some(4, 8)[:, :6]
    assert places.gaps_of(y, x) == ((6, 2),) and places.gaps_of(x, y) is None and places.gaps_of(x, x) == ()
    assert places.gaps_of(some(6, 4).t(), x) == ((1, 3), (6, -23)), "of a transposed tensor, elements lie before others"


def test_what_is_copied_by_elements_is_shown_to_be_whole():
    report = places.CopyElements(((23, 32), (276, 220)), 2, 2, (8, 2, 4)).check()
    assert report.ok and "safe for every trip count" in str(report)


@pytest.mark.parametrize("given, argument", [
    ({"size": 8}, "size, tile"), ({"size": True}, "size, tile"), ({"tile": (3, 2, 4)}, "size, tile"),
    ({"tile": (4, 2)}, "size, tile"), ({"gaps": [(1, 2)]}, "gaps"), ({"vector": 3}, "vector"),
])  # fmt: skip
def test_numbers_of_elements_that_do_not_fit(given, argument):
    with pytest.raises(tp.InputError) as info:
        places.CopyElements(**given)
    assert argument in info.value.argument


class Shifted(tp.Schedule):
    """y[i] = x[i - 3]."""

    work = tp.Role(warps=1)
    x = tp.Table("w", dtype="int16")
    y = tp.ThreadStoreStage("n", tile=(64,), role=work, vector=2, dtype="int16")
    first = 0

    @work.jit
    def copy(self, k, tile):
        k.y.store(tile, k.x.read(tile=(64,), at=(-3, tile.n * 64 + self.first), width=1))


def test_there_are_zeros_beyond_the_ends_of_data():
    x, y = np.arange(1, 71, dtype=np.int16), np.full(100, 9, np.int16)
    shifted = Shifted()
    assert (shifted(x, y) == [0] * 3 + [*x] + [0] * 27).all() and "int16" in repr(shifted.x)
    shifted.first = -1
    with pytest.raises(tp.InputError, match=r"k.x.read\(at\).* = \(-3, -1\): begins with element 0"):
        shifted(x, y)


class Mistaken(Shifted):
    rows = tp.Table("r")
    how = "x.entry(0)"

    @Shifted.work.jit
    def copy(self, k, tile):
        if self.how == "x.entry(0)":
            k.x.entry(0)
        else:
            k.rows.read(tile=(64,), at=(0, 0))


@pytest.mark.parametrize("how, text", [("x.entry(0)", "which holds data"), ("rows.read", "which holds entries")])
def test_entries_are_no_data_and_data_no_entries(how, text):
    mistaken = Mistaken()
    mistaken.how = how
    with pytest.raises(tp.errors.ScopeError, match=text):
        mistaken.program()


def test_data_is_of_the_type_that_is_declared():
    with pytest.raises(tp.InputError, match="a table holds int16"):
        Shifted()(np.zeros(8, np.int32), np.zeros(8, np.int16))
    for wrong in ({"dtype": "fp32"}, {"dtype": "int64"}, {"dims": "a b", "dtype": "int8"}):
        with pytest.raises(tp.InputError, match="dtype"):
            tp.Table(**{"dims": "w", **wrong})


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_bits_of_what_is_no_number(dtype):
    """A copy of the same type keeps all bits, also where rows are apart and elements are copied one by one."""
    bits = torch.arange(-(1 << 15), 1 << 15, 7).to(torch.int16)
    x = bits[: 96 * 97].view(dtype).view(96, 97)
    for some in (x.T, x[:, ::2], x[:40, :17].T):
        y = torch.empty(some.shape[1], some.shape[0] + 3, dtype=dtype).T[3:]
        for found in (tp.schedules.Copy()(some), tp.schedules.Copy()(some, out=y)):
            assert torch.equal(found.view(torch.int16), some.view(torch.int16))
