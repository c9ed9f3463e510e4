"""The programs that compute with values, on the model: random shapes and the check."""

import random

import pytest

from tests.programs import PROGRAMS, check


@pytest.mark.parametrize("name", PROGRAMS)
def test_random_shapes(name):
    """`python -m tests.programs` runs more of them."""
    rng, program = random.Random(f"test {name}"), PROGRAMS[name]
    schedule = program.make()
    for _ in range(3):
        check(program, schedule, rng, 200)


@pytest.mark.parametrize("name", PROGRAMS)
def test_is_safe(name):
    assert PROGRAMS[name].make().check().ok
