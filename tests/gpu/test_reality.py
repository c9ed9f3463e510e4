"""Random pipelines from the public objects on the device: right, and bit-identical in every launch.

`python -m tests.oracle.reality --out DIR` tries many more, and mutants that the checker rejects besides.
"""

import pytest

from tests.oracle.random_pipelines import draw
from tests.oracle.reality_worker import run_compiled


@pytest.mark.parametrize("seed", range(24))
def test_random_pipeline(seed):
    outcome, seen = run_compiled(draw(seed, "many" if seed % 2 else "any"), None, lambda: None, 4)
    assert outcome == "right", seen
