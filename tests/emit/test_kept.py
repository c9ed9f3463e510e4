"""Kernels and verdicts are kept: by the process, for equal schedules, and on disk, for others."""

import os
import subprocess
import sys
from collections import OrderedDict

import pytest

import tmapipe as tp
from tests.raw_rows import Doubled, double_on_cpu
from tmapipe import prove as verdicts
from tmapipe.check import Report
from tmapipe.errors import UnsafeError
from tmapipe.gpu import build, kernels
from tmapipe.gpu.kernels import kernel_for
from tmapipe.prove import require_safe_once

torch = pytest.importorskip("torch")
RANKS = {"x": 2, "y": 2}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("TMAPIPE_CACHE_DIR", str(tmp_path / "cache"))
    restart(monkeypatch)
    return tmp_path / "cache"


def restart(monkeypatch):
    """As in another process."""
    monkeypatch.setattr(kernels, "kept", OrderedDict())
    monkeypatch.setattr(verdicts, "known", {})


def forbid(monkeypatch, where, name):
    def called(*_, **__):
        raise AssertionError(f"{name}() is called")

    monkeypatch.setattr(where, name, called)


def copy():
    return tp.schedules.Copy((4, 64))


def kernel_of(schedule):
    return kernel_for(schedule, schedule.plan(), RANKS, lambda *found: require_safe_once(schedule, {}, *found))


OTHER = """
import tmapipe as tp
from tests.emit.test_kept import copy, kernel_of
from tmapipe.gpu import kernels
from tmapipe import prove as verdicts

kernels.build = verdicts.require_safe = lambda *_, **__: 1 / 0
found = kernel_of(copy())
print(found.used.registers, len(found.code.object), callable(found.function))
"""


def test_once_a_process_and_once_on_disk(folder, monkeypatch):
    for module in (verdicts, build):  # what is identified is proved and compiled: traced once
        forbid(monkeypatch, module, "trace")
    first = kernel_of(copy())
    assert (first.used.registers, first.used.spill_bytes) == (8, 0)
    assert sorted(path.name for path in folder.iterdir()) == ["kernels", "locks", "verdicts"]
    for path in folder.glob("*/*"):
        assert str(first.plan.name).encode() not in path.read_bytes()[:200] and path.stat().st_mode & 0o077 == 0
    forbid(monkeypatch, kernels, "build")
    forbid(monkeypatch, verdicts, "require_safe")
    assert kernel_of(copy()) is first
    restart(monkeypatch)
    again = kernel_of(copy())
    assert again is not first and (again.used, again.code.object) == (first.used, first.code.object)
    with pytest.raises(ValueError, match="expected device_type=cuda"):  # it is loaded, and looks at its arguments
        again.function([torch.zeros(4, 64, dtype=torch.int32)] * 2, [1], None)
    with pytest.raises(AssertionError, match="build"):
        kernel_for(copy(), copy().plan(), {"x": 2, "y": 1})
    environment = {**os.environ, "PYTHONHASHSEED": "5"}
    done = subprocess.run([sys.executable, "-c", OTHER], capture_output=True, text=True, env=environment, timeout=100)
    assert done.stdout.split() == ["8", str(len(first.code.object)), "True"], done.stderr


def test_what_is_damaged_is_compiled_again(folder, monkeypatch):
    first = kernel_of(copy())
    (path,) = (folder / "kernels").iterdir()
    path.write_bytes(path.read_bytes()[:-100])
    restart(monkeypatch)
    with pytest.warns(RuntimeWarning, match=f"{path} is ignored"):
        again = kernel_of(copy())
    assert again.code.object == first.code.object
    restart(monkeypatch)
    forbid(monkeypatch, kernels, "build")
    assert kernel_of(copy()).used == first.used


class Unsafe(tp.schedules.Copy):
    @tp.schedules.Copy.store.jit
    def drain(self, k, tile):
        pass


def test_the_gate_comes_before_a_kernel_that_is_kept(folder, monkeypatch):
    unsafe = Unsafe((4, 64))
    forbid(monkeypatch, kernels, "build")
    for _ in range(2):
        with pytest.raises((UnsafeError, tp.InputError)):
            kernel_of(unsafe)
    assert not list(folder.glob("verdicts/*")) and not list(folder.glob("kernels/*"))
    monkeypatch.undo()
    monkeypatch.setenv("TMAPIPE_CACHE_DIR", str(folder))
    kernel_for(copy(), copy().plan(), RANKS)  # nobody has asked whether it is safe
    asked = []
    monkeypatch.setattr(verdicts, "require_safe", lambda *given: asked.append(given) or Report("", (), ""))
    kernel_of(copy())
    kernel_of(copy())
    assert len(asked) == 1 and asked[0][2].plan.name == "Copy"  # the program that is compiled is proved
    unchecked = copy()
    unchecked.checked = False
    restart(monkeypatch)
    forbid(monkeypatch, verdicts, "require_safe")
    kernel_of(unchecked)


def test_what_has_no_identity_is_not_kept(folder, monkeypatch):
    def schedule(file):
        class Opened(Doubled):
            @Doubled.work.jit
            def double(self, k, tile):
                with k.ring.consume() as slot:
                    k.raw(lambda rows: (rows, file), double_on_cpu, updates=(slot.x,))

        return Opened()

    built, asked = [], []
    monkeypatch.setattr(kernels, "build", lambda *given, **_: built.append(given))
    with open(os.devnull) as file:
        for _ in range(2):
            each = schedule(file)
            kernel_for(each, each.plan(), RANKS, lambda _, known: asked.append(known))
    assert len(built) == 2 and asked == [None, None] and not folder.exists()
