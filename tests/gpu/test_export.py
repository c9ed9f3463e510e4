"""Exported kernels on the device: the same bits as the schedule's, from Python and from C++."""

import os
import pathlib
import shutil
import subprocess
import sys
import time

import pytest
import torch

import tmapipe as tp
from tests.unit.test_export import Move, Queued

FILES = pathlib.Path(__file__).parent.parent / "export"
NEEDS = [tool for tool in ("cc", "objcopy", "nm", "g++") if shutil.which(tool) is None]
needs_tools = pytest.mark.skipif(bool(NEEDS), reason=f"linking needs {', '.join(NEEDS)}")

WITHOUT_TORCH = """
import sys
sys.modules.update(dict.fromkeys(("torch", "cutlass", "tvm_ffi"), None))
import tmapipe as tp
kernel = tp.load(sys.argv[1])["gemm"]
kernel.warm_up()
print("ready")
"""


@needs_tools
def test_the_same_bits_and_a_quick_load(tmp_path):
    gemms = {
        "gemm": tp.schedules.Gemm((128, 128, 64), (2, 1)),
        "fetched": tp.schedules.Gemm((128, 128, 64), (1, 1), tiles=tp.tiles.DynamicTiles()),
    }
    a, b = (torch.randn(rows, 320, device="cuda").bfloat16() for rows in (1000, 520))
    tp.export(tmp_path / "k.so", {name: (gemm, (1000, 320), (520, 320)) for name, gemm in gemms.items()})
    began = time.perf_counter()
    kernels = tp.load(tmp_path / "k.so")
    assert time.perf_counter() - began < 0.05
    for name, gemm in gemms.items():
        d = kernels[name](a, b)
        assert torch.equal(d, gemm(a, b)) and kernels[name](a, b, out=d) is d
        other = torch.cuda.Stream()
        other.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(other):
            again = kernels[name](a, b)
        other.synchronize()
        assert torch.equal(again, d)
    done = subprocess.run([sys.executable, "-c", WITHOUT_TORCH, str(tmp_path / "k.so")], capture_output=True, text=True)
    assert done.stdout == "ready\n", done.stderr


@needs_tools
def test_from_cpp(tmp_path):
    tp.export(tmp_path / "kernels.so", {"plain": (Move(), (96, 256)), "queued": (Queued(), (96, 256))})
    flags = ["-std=c++17", f"-I{tmp_path}", str(FILES / "program.cpp"), str(tmp_path / "kernels.so"), "-ldl"]
    subprocess.run(["g++", *flags, "-o", str(tmp_path / "program")], check=True)
    content = os.urandom(96 * 256 * 2)
    (tmp_path / "in").write_bytes(content)
    run = [str(tmp_path / name) for name in ("program", "in", "out")]
    done = subprocess.run(run, capture_output=True, text=True, env={**os.environ, "LD_LIBRARY_PATH": f"{tmp_path}"})
    assert done.returncode == 0, done.stdout
    assert (tmp_path / "out").read_bytes() == content and "workspace" in done.stdout
