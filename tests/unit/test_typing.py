"""README's programs under ``mypy --strict``, with the plugin. `tests/typed.py`, which `make lint` reads, has what it finds."""

import pathlib
import subprocess
import sys

import pytest

import tmapipe as tp
from tests.sweeps import ALL
from tests.unit.test_docs import ROOT, blocks

HEAVY = "torch.*,numpy.*,ml_dtypes.*,cutlass.*,cuda.*,tvm_ffi.*,greenlet.*"
STRICT = f"""
[mypy]
strict = True
plugins = mypy_tmapipe
[mypy-{HEAVY}]
follow_imports = skip
ignore_missing_imports = True
[mypy-tmapipe.*]
follow_imports = silent
"""


@pytest.mark.skipif(not ALL, reason="takes 5 s: TESTS=all")
def test_the_readmes_programs_are_strict(tmp_path):
    (tmp_path / "strict.ini").write_text(STRICT)
    wrong = "\n\nclass Wrong(Copy):\n    @Copy.load.jit\n    def fill(self, k, tile):\n        k.rign\n"
    program = "\n\n".join(block.text for block in blocks("README.md") if block.info == "python") + wrong
    (tmp_path / "programs.py").write_text(program)
    command = [sys.executable, "-m", "mypy", "--config-file", "strict.ini", "--cache-dir", "cache", "programs.py"]
    environment = {"PYTHONPATH": str(ROOT), "MYPYPATH": str(ROOT), "PATH": ""}
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=110)
    last = len(program.splitlines())
    assert done.stdout.splitlines()[:-1] == [
        f'programs.py:{last}: error: "Wrong" declares no part "rign", so a role\'s context has none  [attr-defined]'
    ], done.stdout + done.stderr


def test_lint_reads_the_plugin_and_what_it_finds():
    project = (ROOT / "pyproject.toml").read_text()
    assert '"mypy_tmapipe", "tests/typed.py"]\nplugins = ["mypy_tmapipe/__init__.py"]' in project
    assert "warn_unused_ignores = true" in project
    typed = (ROOT / "tests" / "typed.py").read_text()
    assert typed.count("type: ignore[attr-defined]") > 10


def test_the_plugin_names_what_there_is():
    """It knows the library's classes by their full names."""
    text = (pathlib.Path(tp.__file__).parents[1] / "mypy_tmapipe" / "__init__.py").read_text()
    from tmapipe.isa.fragment import Carried
    from tmapipe.kernel import KernelContext
    from tmapipe.protocol.matmuls import BoundMatmul
    from tmapipe.protocol.ring import RingEnd, Slot
    from tmapipe.protocol.slots import PartInSlot
    from tmapipe.protocol.stores import BoundStore, StoreOfSlot
    from tmapipe.protocol.tile import Tile

    declared = (tp.Schedule, tp.BarrierRing, tp.Wgmma, tp.TmaLoadStage, tp.TmaStoreStage)
    for kind in (*declared, Carried, KernelContext, Slot, Tile):
        assert f'"{kind.__module__}.{kind.__qualname__}"' in text, kind
    for kind in (BoundMatmul, RingEnd, PartInSlot, BoundStore, StoreOfSlot):
        name = f"{kind.__module__}.{kind.__qualname__}".removeprefix("tmapipe.protocol.")
        assert f'f"{{_PROTOCOL}}.{name}"' in text, kind
