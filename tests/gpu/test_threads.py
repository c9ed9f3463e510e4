"""Slots that threads read and write, on the device: every load -> transform -> store, across element types."""

import pytest
import torch

import tmapipe as tp
from tests.unit.test_thread_store import masked


class Scale(tp.Schedule):
    """y = 2 x + 1, in place in the slot that a third role stores."""

    load, work, save = tp.Role(warps=1), tp.Role(warps=3), tp.Role(warps=1)
    ring = tp.BarrierRing(stages=3, chain=(load, work, save))
    x = tp.TmaLoadStage(tile=(24, 64), ring=ring)
    y = tp.TmaStoreStage(source=x)

    @load.jit
    def fill(self, k, tile):
        with k.ring.produce() as slot:
            slot.x.load(tile)

    @work.jit
    def transform(self, k, tile):
        with k.ring.consume() as slot:
            slot.x.write(slot.x.read() * 2 + 1)

    @save.jit
    def drain(self, k, tile):
        with k.ring.consume() as slot:
            slot.y.store(tile)


class Convert(tp.Schedule):
    """y = x in another type, through buffers of the store stage."""

    load, work = tp.Role(warps=1), tp.Role(warps=4)
    ring = tp.BarrierRing(stages=2, producer=load, consumer=work)
    x = tp.TmaLoadStage(tile=(16, 64), ring=ring)
    y = tp.TmaStoreStage("m n", tile=(16, 64), role=work, stages=2)

    @load.jit
    def fill(self, k, tile):
        with k.ring.produce() as slot:
            slot.x.load(tile)

    @work.jit
    def convert(self, k, tile):
        with k.ring.consume() as slot:
            k.y.store(tile, slot.x.read())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(24, 64), (1000, 1000), (3001, 520)])
def test_transform_in_the_slot(dtype, shape):
    x = torch.randn(shape, device="cuda").to(dtype)
    y = torch.full_like(x, float("nan"))
    for _ in range(3):
        Scale()(x, out=y)
        expected = (x.float() * 2 + 1).to(dtype) if dtype == torch.float32 else x * 2 + 1
        assert torch.allclose(y.float(), expected.float(), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("source", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("target", [torch.float32, torch.bfloat16, torch.float16])
def test_conversion(source, target):
    x = torch.randn(777, 1000, device="cuda").to(source)
    y = torch.full(x.shape, float("nan"), device="cuda", dtype=target)
    Convert()(x, out=y)
    assert torch.equal(y, x.to(target))


@pytest.mark.parametrize("parts", [1, 2, 7, 16])
def test_add_parts_in_order(parts):
    x = torch.randn(parts, 300, 520, device="cuda")
    expected = x[0].clone()
    for part in x[1:]:
        expected += part
    assert torch.equal(tp.schedules.AddParts()(x), expected)


@pytest.mark.parametrize("parts", [1, 3, 16])
def test_split_k(parts):
    torch.manual_seed(0)
    a = torch.randn(300, 3000, device="cuda").to(torch.bfloat16)
    b = torch.randn(520, 3000, device="cuda").to(torch.bfloat16)
    split = tp.schedules.SplitK(parts)
    d = split(a, b)
    reference = a.double() @ b.double().t()
    assert ((d.double() - reference).norm() / reference.norm()).item() < 4e-3
    assert torch.equal(split(a, b), d)
    added = tp.schedules.SplitK(parts, reduce="add")(a, b)
    assert added.dtype == torch.float32
    assert ((added.double() - reference).norm() / reference.norm()).item() < 1e-5


@pytest.mark.parametrize("shares", [1, 7, 66, 200])
def test_stream_k(shares):
    torch.manual_seed(0)
    for m, n, k in [(300, 520, 3000), (1000, 3000, 200), (2000, 1000, 64)]:
        a = torch.randn(m, k, device="cuda").to(torch.bfloat16)
        b = torch.randn(n, k, device="cuda").to(torch.bfloat16)
        reference = a.double() @ b.double().t()
        stream = tp.schedules.StreamK(shares)
        d = stream(a, b)
        assert ((d.double() - reference).norm() / reference.norm()).item() < 4e-3
        assert all(torch.equal(stream(a, b), d) for _ in range(5))
        added = tp.schedules.StreamK(shares, reduce="add")(a, b)
        assert ((added.double() - reference).norm() / reference.norm()).item() < 1e-5


def test_split_k_again_and_again():
    """The second kernel starts under the first one, and the next first one follows the second: no step may see old parts."""
    torch.manual_seed(0)
    split = tp.schedules.SplitK(16, (128, 256, 64))
    a = torch.randn(512, 8192, device="cuda").to(torch.bfloat16)
    b = torch.randn(512, 8192, device="cuda").to(torch.bfloat16)
    expected = [split(a * scale, b) for scale in (1, 2)]
    torch.cuda.synchronize()
    found = [split(a * (1 + i % 2), b) for i in range(100)]
    assert all(torch.equal(d, expected[i % 2]) for i, d in enumerate(found))


@pytest.mark.parametrize("tile", [(128, 128, 64), (64, 256, 64), (128, 160, 64), (128, 192, 64)])
@pytest.mark.parametrize("cluster", [(1, 1), (2, 1), (1, 2)])
def test_ping_pong(tile, cluster):
    torch.manual_seed(0)
    for shape in [(1, 8, 8), (300, 520, 200), (3000, 2008, 64), (2000, 3000, 1000)]:
        m, n, k = shape
        a = torch.randn(m, k, device="cuda").to(torch.bfloat16)
        b = torch.randn(n, k, device="cuda").to(torch.bfloat16)
        out = torch.full((m, n), float("nan"), device="cuda", dtype=torch.bfloat16)
        ping = tp.schedules.PingPong(tile, cluster)
        ping(a, b, out=out)
        reference = a.double() @ b.double().t()
        assert ((out.double() - reference).norm() / reference.norm()).item() < 4e-3
        first = out.clone()
        ping(a, b, out=out)
        assert torch.equal(out, first)


class RowTops(tp.Schedule):
    """The largest number of each row, a number for each row, from threads."""

    load, work = tp.Role(warps=1), tp.Role(warps=4)
    ring = tp.BarrierRing(stages=2, producer=load, consumer=work)
    x = tp.TmaLoadStage("l m n", tile=(64, 64), ring=ring)
    relations = (tp.Dim("n", size=64),)
    top = tp.ThreadStoreStage(dims="l m", tile=(64,), role=work, vector=4, dtype="fp32")

    @load.jit
    def fill(self, k, tile):
        with k.ring.produce() as slot:
            slot.x.load(tile, n=0)

    @work.jit
    def find(self, k, tile):
        with k.ring.consume() as slot:
            k.top.store(tile, tp.math.row_max(slot.x.read()))


def test_numbers_of_rows_stay_inside():
    x = torch.randn(3, 1001, 64, device="cuda")
    whole = torch.full((5, 1001), 7.0, device="cuda")
    RowTops()(x, top=whole[1:4])
    assert torch.equal(whole[1:4], x.amax(2)) and (whole[::4] == 7).all()


def test_masks():
    x = torch.randn(213, 1000, device="cuda")
    y, z = torch.full_like(x, 7), torch.full_like(x, 7)
    masked(16)(x, y, z)
    top = torch.nn.functional.pad(x, (0, 24), value=-9).view(213, 8, 128).amax(2).repeat_interleave(128, 1)[:, :1000]
    assert torch.equal(y, torch.where((x > 1) & (top > 2), x, 7))
    assert torch.equal(z[:, ::2], x[:, ::2]) and (z[:, 1::2] == 7).all()
