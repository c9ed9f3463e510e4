"""The small examples on the device, for random shapes."""

import numpy as np
import pytest
import torch

import tmapipe as tp
from tests.machine.test_small_programs import NAMES, PROGRAMS, tensors


def on_device(array):
    """A NumPy array as a CUDA tensor; torch knows NumPy's bf16 by its bits."""
    if array.dtype == tp.bf16.numpy:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16).cuda()
    return torch.from_numpy(array).cuda()


@pytest.mark.parametrize("name", NAMES)
def test_right_for_random_shapes(name):
    made, schedule = np.random.default_rng(1), PROGRAMS[name][0]()
    for _ in range(100):
        given, wanted = tensors(name, made)
        found = schedule(*(on_device(each) for each in given))
        torch.testing.assert_close(found, on_device(wanted), rtol=1e-6, atol=1e-6)
