"""Traces of kernels on the device: the same results, in the same form as the model's, with times that agree."""

import re
from collections import Counter

import pytest
import torch

import tmapipe as tp
from examples.softmax import softmax_of
from tests.unit.test_timeline import well_formed
from tmapipe.gpu.watchdog import EVERY
from tmapipe.program import places, trace
from tmapipe.timeline.stamped import launcher_of

S = tp.schedules
F16 = torch.float16


def half(*shape):
    return torch.randn(shape, device="cuda", dtype=F16)


@pytest.mark.parametrize(
    "schedule, inputs",
    [
        (S.Copy((4, 256), 4), [torch.arange(2048 * 1024, dtype=torch.int32).reshape(2048, 1024)]),
        (S.Gemm(), [(4096, 1024), (4096, 1024)]),
        (S.PingPong(), [(4096, 1024), (4096, 1024)]),
        (softmax_of(1024, 4, held=True), [(8192, 1000)]),
        (S.Attention(64), [(1, 32, 1024, 64), (1, 32, 1024, 64), (1, 32, 1024, 64)]),
        (S.Gemm((128, 128, 64), tiles=tp.tiles.DynamicTiles()), [(4096, 1000), (4096, 1000)]),
    ],
    ids=["copy", "gemm", "ping-pong", "softmax", "attention", "dynamic"],
)
def test_a_traced_kernel_does_the_same(schedule, inputs, tmp_path):
    tensors = [half(*x) if isinstance(x, tuple) else x.cuda() for x in inputs]
    plain = schedule(*tensors)
    out = torch.zeros_like(plain)
    trace = schedule.trace(*tensors, out=out, clusters=2)
    assert torch.equal(out, plain)
    document = trace.timeline()
    shared_out = not isinstance(schedule.tiles, tp.tiles.DynamicTiles)
    left = re.fullmatch(r"(\d+) of (\d+) tiles of a CTA are recorded", document["otherData"]["left out"])
    assert bool(left) is shared_out
    slices, arrows, names = well_formed(document)
    if left:
        recorded, tiles = map(int, left.groups())
        drawn_tiles = Counter((each["pid"], each["tid"]) for each in slices if each["cat"] == "tile")
        assert tiles > recorded == max(drawn_tiles.values()) >= tiles // 3
    roles = {role.name for role in schedule.plan(schedule.bind(*tensors).dtypes).roles}
    drawn = {each["args"].get("role") for each in slices} - {None}
    assert roles - {"tiles", "scheduler"} <= drawn, names
    assert arrows and 0.5 < trace.gigahertz < 2.5 and 100 < trace.pace() < 20_000
    for tail, head in arrows:  # clocks of two multiprocessors are some 100 cycles apart at most
        assert tail["ts"] <= head["ts"] + head["dur"] + 0.1, (tail, head)
    waits = {each["args"]["waits for"] for each in slices if each["cat"] == "wait"}
    assert waits & {"data", "a free slot"}
    trace.write_timeline(tmp_path / "page.html")
    assert (tmp_path / "page.html").stat().st_size > 10_000


def test_a_full_row_ends():
    """The kernel goes on, and what comes later is left out."""
    copy = S.Copy((1, 64), 4)
    x = torch.randint(100, (132 * 9000, 64), device="cuda", dtype=torch.int32)
    bound = copy.bind(x)
    launcher, stamps = launcher_of(copy, bound, 1, EVERY)
    launcher.launch(list(bound.tensors.values()))
    assert torch.equal(bound.result(), x)
    rows = stamps.rows(places(trace(copy, copy.plan(bound.dtypes))))
    assert [row.warp for row in rows] == stamps.warps and all(row.full for row in rows)
    assert all(15_000 < len(row.clocks) < 25_000 and (row.clocks[1:] >= row.clocks[:-1]).all() for row in rows)
    assert all(row.ended[1] >= row.clocks[-1] for row in rows)
