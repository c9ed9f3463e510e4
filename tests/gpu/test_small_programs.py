"""The small examples on the device, for random shapes."""

import numpy as np
import pytest
import torch

from tests.machine.test_small_programs import NAMES, PROGRAMS, tensors


@pytest.mark.parametrize("name", NAMES)
def test_right_for_random_shapes(name):
    made, schedule = np.random.default_rng(1), PROGRAMS[name][0]()
    for _ in range(100):
        given, wanted = tensors(name, made)
        found = schedule(*(torch.from_numpy(each).cuda() for each in given))
        torch.testing.assert_close(found.cpu(), torch.from_numpy(wanted), rtol=1e-6, atol=1e-6)
