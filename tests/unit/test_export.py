"""Ahead of time: kernels in a library that is called from Python without a compiler and without torch, and from C++.

A stub stands for the CUDA driver, which prints the launches. What the kernels compute is in tests/gpu/test_export.py.
"""

import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest
import torch

import tmapipe as tp
from tests.unit.errors import refused

S = tp.schedules


class Move(tp.Schedule):
    """y = x."""

    load, store = tp.Role(warps=1), tp.Role(warps=1)
    ring = tp.BarrierRing(stages=3, producer=load, consumer=store)
    x = tp.TmaLoadStage(tile=(16, 128), ring=ring)
    y = tp.TmaStoreStage(source=x)

    @load.jit
    def fill(self, k, tile):
        with k.ring.produce() as slot:
            slot.x.load(tile)

    @store.jit
    def drain(self, k, tile):
        with k.ring.consume() as slot:
            slot.y.store(tile)


class Queued(Move):
    """The same, of tiles that are fetched."""

    tiles = tp.tiles.DynamicTiles()


class Placed(Move):
    """The same, of tiles by GPC."""

    tiles = tp.tiles.GpcTiles()


FILES = pathlib.Path(__file__).parent.parent / "export"

#: A tensor on a GPU that no library has made: it lies at an address that nobody reads.
IN_PYTHON = """
import ctypes, sys, time
sys.modules.update(dict.fromkeys(("torch", "cutlass", "tvm_ffi", "cuda"), None))
import numpy as np
import tmapipe as tp
from tmapipe.loaded import _DlTensor

class OnGpu:
    def __init__(self, address, shape=(96, 256), strides=None, device=(2, 0), code=(4, 16)):
        self.shape, self.strides = (ctypes.c_int64 * 2)(*shape), strides and (ctypes.c_int64 * 2)(*strides)
        self.tensor = _DlTensor(address, *device, 2, *code, 1, self.shape, self.strides, 0)
        self.device = device
    def __dlpack_device__(self):
        return self.device
    def __dlpack__(self, stream=None):
        made = ctypes.pythonapi.PyCapsule_New
        made.restype, made.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return made(ctypes.addressof(self.tensor), b"dltensor", None)

def refused(*given, **named):
    try:
        kernels["plain"](*given, **named)
    except tp.PipelineError as error:
        print("refused:", str(error).splitlines()[0])
    else:
        print("taken")

began = time.perf_counter()
kernels = tp.load(sys.argv[1])
assert time.perf_counter() - began < 0.05
print(list(kernels), kernels.arch, kernels["plain"])
x, y = OnGpu(0x10000), OnGpu(0x90000)
assert kernels["plain"](x, y, stream=7) is y
assert kernels["queued"](x, out=y, stream=7) is y
kernels["queued"].warm_up(8)
assert kernels["queued"](x, OnGpu(0x90000, strides=(256, 1)), stream=8)
refused(x)
refused(x, x)
refused(x, OnGpu(0x10000 + 48 * 256))
refused(x, OnGpu(0x90000, (96, 128)))
refused(x, OnGpu(0x90000, strides=(512, 1)))
refused(x, OnGpu(0x90000, code=(2, 16)))
refused(OnGpu(0x10008), y)
refused(x, OnGpu(0x90000, device=(2, 1)))
refused(x, np.zeros((96, 256), np.float32))
refused(x, 3)
refused(x, y, out=y)
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A folder with kernels.so, kernels.h and the stub's libcuda.so.1."""
    folder = tmp_path_factory.mktemp("export")
    plain, queued = Move(), Queued()
    shapes = (96, 256)
    header = tp.export(folder / "kernels.so", {"plain": (plain, shapes), "queued": (queued, shapes)}, arch="sm_90a")
    assert header == folder / "kernels.h"
    stub = [
        "cc",
        "-shared",
        "-fPIC",
        "-D_GNU_SOURCE",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-o",
        str(folder / "libcuda.so.1"),
    ]
    subprocess.run([*stub, str(FILES / "driver.c")], check=True)
    return folder


def run(command, folder, **more):
    environment = {**os.environ, "LD_LIBRARY_PATH": str(folder), **more}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def test_from_python_without_a_compiler_and_torch(built):
    lines = run([sys.executable, "-c", IN_PYTHON, str(built / "kernels.so")], built)
    assert lines[0].startswith("['plain', 'queued'] sm_90a Kernel(plain, x: bf16 [96, 256], y: bf16 [96, 256])")
    launches = [line.split(", ") for line in lines if line.startswith("launch")]
    assert [(each[0], *each[2:]) for each in launches] == [
        (f"launch 12 x {threads}", f"stream 0x{stream}", "10000") for threads, stream in ((64, 7), (96, 7), (96, 8))
    ]
    said = [line for line in lines if line.startswith(("refused", "taken"))]
    words = ["1 tensors", "overlap", "overlap", "shape", "strides", "dtype", "multiple of 16", "current device"]
    words += ["no CUDA device", "DLPack", "follows the 1 inputs"]
    assert [word in line for word, line in zip(words, said, strict=True)] == [True] * len(words), said


def test_from_a_program_in_cpp(built, tmp_path):
    program = tmp_path / "program"
    flags = [
        "-std=c++17",
        "-Wall",
        "-Wextra",
        "-Werror",
        f"-I{built}",
        str(FILES / "program.cpp"),
        str(built / "kernels.so"),
    ]
    subprocess.run(["g++", *flags, "-ldl", "-o", str(program)], check=True)
    (tmp_path / "in").write_bytes(bytes(96 * 256 * 2))
    lines = run([str(program), str(tmp_path / "in"), str(tmp_path / "out")], built)
    assert [line.split(",")[0] for line in lines[:2]] == ["launch 12 x 64", "launch 12 x 96"] and "workspace" in lines[
        2
    ]
    environment = {**os.environ, "LD_LIBRARY_PATH": str(built), "MAJOR": "8"}
    done = subprocess.run([str(program), "in", "out"], capture_output=True, text=True, env=environment, timeout=60)
    assert done.returncode == 1 and "the kernel is for sm_90, and the device is sm_80" in done.stdout


def test_without_a_driver(built):
    kernels = tp.load(built / "kernels.so")
    with pytest.raises(tp.errors.MissingGpuError, match="no CUDA driver"):
        kernels["plain"].warm_up() or kernels["queued"].warm_up()
    with pytest.raises(tp.errors.MissingGpuError, match="lies on no CUDA device"):
        kernels["plain"](torch.zeros(96, 256).bfloat16())
    refused(kernels.__getitem__, "other", argument="name", rule="plain, queued")
    refused(kernels["plain"], torch.zeros(96, 256, requires_grad=True), argument="x", rule="differentiation")
    assert "other" not in kernels and len(kernels) == 2


def test_no_library(tmp_path):
    (tmp_path / "text.so").write_text("nothing")
    for path in (tmp_path / "none.so", tmp_path / "text.so", "libc.so.6", 3):
        refused(tp.load, path, argument="path", rule="")


@pytest.mark.parametrize(
    "call, argument",
    [
        (lambda: Move().export("x.txt", (8, 64)), "path"),
        (lambda: Move().export(3, (8, 64)), "path"),
        (lambda: Move().export("int.so", (8, 64)), "name"),
        (lambda: Move().export("x.so", (8, 64), name="a b"), "name"),
        (lambda: Move().export("x.so", (8, -64)), "x"),
        (lambda: Move().export("x.so", (8, 63)), "x.stride"),
        (lambda: Move().export("x.so", (0, 64)), "x"),
        (lambda: Move().export("x.so"), "x"),
        (lambda: Move().export("x.so", (8, 64), dtypes={"z": "bf16"}), "dtypes"),
        (lambda: Move().export("x.so", (8, 64), (8, 64), (8, 64)), "tensors"),
        (lambda: S.SplitK(2).export("x.so", (64, 64), (64, 64)), "SplitK.export"),
        (lambda: Placed().export("x.so", (8, 64)), "tiles"),
        (lambda: tp.export("x.so", {}), "kernels"),
        (lambda: tp.export("x.so", {"x": Move()}), "kernels"),
    ],
)
def test_what_cannot_be_exported(call, argument):
    refused(call, argument=argument, rule="")


def test_arrays_say_types_and_strides(tmp_path):
    x = np.empty((96, 512), tp.dtypes.bf16.numpy)[:, :256]
    header = Move().export(tmp_path / "x.so", x)
    assert "x: bf16 [96, 256], strides 512, 1\n" in header.read_text()
    assert "y: bf16 [96, 256], strides 256, 1, the output\n" in header.read_text()
