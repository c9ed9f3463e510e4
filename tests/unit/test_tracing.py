"""The instruction sets that trace and that run the model have every instruction; the GPU's too, in tests/emit."""

import importlib

from tests.unit.traced import without_statements
from tmapipe.isa.fragments import Fragments
from tmapipe.isa.ops import Isa
from tmapipe.model import MachineFragments, MachineIsa
from tmapipe.program.expressions import Expr, values
from tmapipe.program.isa import TracingFragments, TracingIsa

HOOKS = {"_joined", "follow", "made"}  #: which nobody has to have
CONTROL = {"block", "call", "cells", "here", "loop", "loop_while", "select", "when"}  #: which traces put into programs
OF_FRAGMENTS, OF_ISA = without_statements(Fragments) - HOOKS, without_statements(Isa) - HOOKS


def test_values_that_nobody_uses_are_forgotten():
    used, most = Expr.of("symbol", "used"), 0
    for i in range(1_000_000):
        Expr.of("symbol", f"gone {i}")
        if len(values) < most:
            break
        most = len(values)
    assert len(values) < most and Expr.of("symbol", "used") is used


def test_each_instruction_is_recorded():
    assert len(OF_FRAGMENTS) > 40 and not OF_FRAGMENTS & without_statements(TracingFragments)
    assert CONTROL < OF_ISA and not OF_ISA & without_statements(TracingIsa) - {"ask"}


def test_the_model_has_each_instruction():
    """But for loops and branches, which the code of a traced program has."""
    assert not OF_FRAGMENTS & without_statements(MachineFragments)
    assert OF_ISA & without_statements(MachineIsa) <= CONTROL


INSTALLED = """
import tmapipe as tp
from installed.helpers import each

class Sums(tp.schedules.Gemm):
    @tp.schedules.Gemm.load.jit
    def fill(self, k, tile):
        each(k, tile)
"""
HELPERS = """
def each(k, tile):
    for step in range(k.steps("a", "k")):
        with k.ring.produce() as slot:
            slot.a.load(tile, k=step)
            slot.b.load(tile, k=step)
"""


def test_a_package_with_schedules_may_be_installed(tmp_path, monkeypatch):
    """Its functions are rewritten, as those of any user are, though what lies in site-packages is not."""
    folder = tmp_path / "site-packages" / "installed"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text(INSTALLED)
    (folder / "helpers.py").write_text(HELPERS)
    monkeypatch.syspath_prepend(str(folder.parent))
    made = importlib.import_module("installed").Sums((64, 64, 64), (1, 1))
    assert "for " in made.program() and str(made.program()) == str(made.program())
