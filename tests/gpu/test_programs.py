"""The programs that compute with values, on the device: random shapes against torch."""

import random

import pytest

from tests.programs import PROGRAMS, check


@pytest.mark.parametrize("name", PROGRAMS)
def test_random_shapes(name):
    rng, program = random.Random(f"device {name}"), PROGRAMS[name]
    schedule = program.make()
    for _ in range(20):
        check(program, schedule, rng, 2000, "cuda")
