"""The tracing instruction set has every instruction."""

import importlib
import inspect

import pytest

from tmapipe.isa.fragments import Fragments
from tmapipe.program.expressions import Expr, values
from tmapipe.program.isa import TracingFragments

ABSTRACT = [
    name
    for name, method in vars(Fragments).items()
    if inspect.isfunction(method) and "NotImplementedError" in method.__code__.co_names
]


def test_values_that_nobody_uses_are_forgotten():
    used, most = Expr.of("symbol", "used"), 0
    for i in range(1_000_000):
        Expr.of("symbol", f"gone {i}")
        if len(values) < most:
            break
        most = len(values)
    assert len(values) < most and Expr.of("symbol", "used") is used


@pytest.mark.parametrize("name", ABSTRACT)
def test_each_instruction_on_fragments_is_recorded(name):
    assert getattr(TracingFragments, name) is not getattr(Fragments, name)


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
