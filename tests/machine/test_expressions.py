"""Random expressions of fragments on the model, against NumPy on whole tiles."""

import random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.expressions import expected, make, problem


@given(seed=st.integers(0, 2**32))
def test_random_expressions(seed):
    tree, tile, transposed, x, y = problem(random.Random(seed))
    schedule = make(tree, tile, transposed)
    schedule.checked = False
    np.testing.assert_allclose(schedule(x, y), expected(tree, x, y, tile, transposed), rtol=2e-6, atol=2e-6)
