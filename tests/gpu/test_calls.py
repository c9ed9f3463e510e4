"""Random calls on the device, right and wrong; several threads, streams and graphs; a kernel that traps; many calls in a row.

The long runs: ``python -m tests.fuzz.valid --calls 1000``, the same with ``--bad --calls 300``, and this file with
TMAPIPE_SOAK=360 (seconds).
"""

import functools
import os
import subprocess
import sys
import threading
import time

import pytest
import torch

import tmapipe as tp
from tests.fuzz.valid import bad_call, valid_call

S = tp.schedules


@pytest.mark.parametrize("block", range(8))
def test_right_calls(block):
    for seed in range(10 * block, 10 * block + 10):
        valid_call(seed)


def test_wrong_calls_are_refused():
    for seed in range(60):
        bad_call(seed)
    torch.cuda.synchronize()


def test_two_threads_with_a_stream_each():
    """One schedule, which both compile and launch."""
    gemm, errors = S.Gemm((128, 128, 64), (1, 1)), []

    def work(number):
        try:
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                for i in range(20):
                    m = 128 + 8 * ((number + i) % 5)
                    a, b = (torch.randint(-2, 3, (rows, 256), device="cuda").bfloat16() for rows in (m, 192))
                    d = gemm(a, b)
                    stream.synchronize()
                    assert torch.equal(d, (a.double() @ b.double().T).bfloat16()), (number, i)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
        assert not thread.is_alive()
    assert not errors, errors


TRAPS = """
import torch
import tmapipe as tp

class Between(tp.schedules.Copy):
    load, store = tp.schedules.Copy.load, tp.schedules.Copy.store

    @load.jit
    def fill(self, k, tile):
        with k.ring.produce() as slot:
            slot.x.load_from(tile.m * 4, 1)  # between units of 16 bytes: the hardware traps

x = torch.randn(64, 1032, device="cuda").bfloat16()[:, :1024]  # by TMA, in two dimensions
wrong = Between((4, 64))
wrong.checked = False
wrong(x)
try:
    torch.cuda.synchronize()
except RuntimeError as error:
    print("said:", str(error).splitlines()[0])
try:
    tp.schedules.Copy((4, 64))(x)
    torch.cuda.synchronize()
except Exception as error:
    print("again:", type(error).__name__)
"""


def test_a_kernel_that_is_stopped_says_so(tmp_path):
    """In a process of its own, whose device context is lost."""
    program = tmp_path / "traps.py"
    program.write_text(TRAPS)
    result = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, timeout=110)
    assert "said: " in result.stdout and "again: " in result.stdout, result.stdout + result.stderr


def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.timeout(900)
def test_memory_does_not_grow():
    """Mixed calls for some time: the same bits, no more memory on the host or the device."""
    seconds = float(os.environ.get("TMAPIPE_SOAK", "20"))
    a, b = (torch.randn(rows, 512, device="cuda").bfloat16() for rows in (1000, 768))
    x = torch.randn(1000, 512, device="cuda").bfloat16()
    kept = [S.Gemm(), S.PingPong(), S.SplitK(2), S.Gemm(tiles=tp.tiles.DynamicTiles())]
    calls = [lambda: S.Copy()(x), *(functools.partial(each, a, b) for each in kept)]  # the first is compiled each time
    first = [call() for call in calls]
    start = time.monotonic()
    before = None
    while time.monotonic() - start < seconds:
        for call, expected in zip(calls, first, strict=True):
            assert torch.equal(call(), expected)
        torch.cuda.synchronize()
        if before is None and time.monotonic() - start > seconds / 4:
            before = resident(), torch.cuda.memory_allocated(), torch.cuda.mem_get_info()[0]
    assert before is not None
    assert resident() - before[0] < 64 << 20
    assert torch.cuda.memory_allocated() <= before[1]
    if "PYTEST_XDIST_WORKER" not in os.environ:  # of the device as a whole, which others may use beside this process
        assert before[2] - torch.cuda.mem_get_info()[0] < 64 << 20
