"""The programs of `examples/` on the model: random shapes, the check, and how long they are."""

import inspect
import pathlib
import random

import pytest

from tests.programs import PROGRAMS, check
from tests.sweeps import ALL


@pytest.mark.parametrize("name", PROGRAMS)
def test_random_shapes(name):
    """`python -m tests.programs` runs more of them."""
    rng, program = random.Random(f"test {name}"), PROGRAMS[name]
    schedule = program.make()
    for _ in range(3 if ALL else 1):
        check(program, schedule, rng, 200 if ALL else 140)


FOLDER = pathlib.Path(__file__).parents[2] / "examples"


#: That examples prove too, or other sizes of what is proved: for the whole sweep alone.
ALIKE = {
    "softmax of short rows",
    "softmax of long rows",
    "softmax over CTAs",
    "rmsnorm over CTAs",
    "row_sums over CTAs",
    "dequant_gemm of int8",
    "dequant_gemm of int4",
    "conv of several images",
    "attention, causal",
    "attention of 64",
    "attention of 64, causal",
}


@pytest.mark.parametrize(
    "name", [name for name in PROGRAMS if not (FOLDER / f"{name}.py").exists() and (ALL or name not in ALIKE)]
)
def test_is_proved_for_every_trip_count(name):
    """The others print so when `test_examples` runs them."""
    report = PROGRAMS[name].make().check()
    assert report.ok and report.trips == "every trip count", str(report)


@pytest.mark.parametrize("name", PROGRAMS)
def test_short_and_without_raw_code(name):
    lines = [line for line in inspect.getsource(type(PROGRAMS[name].make())).splitlines() if line.strip()]
    assert len(lines) <= PROGRAMS[name].lines
    assert not any(word in line for line in lines for word in ("k.raw", "k.isa", "import"))
