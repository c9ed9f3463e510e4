"""Random pipelines with copies by threads, on the device: random shapes, row pitches, warps and slots."""

import pytest
import torch

from tests.oracle.random_pipelines import COPIED, draw


@pytest.mark.parametrize("block", range(6))
def test_copies_by_threads(block):
    for seed in range(COPIED + 10 * block, COPIED + 10 * block + 10):
        pipeline = draw(seed)
        for number in range(2):
            inputs, out = pipeline.inputs("cuda", number), pipeline.poisoned("cuda")
            pipeline.schedule(*inputs, out=out)
            torch.cuda.synchronize()
            assert pipeline.wrong(out, inputs) is None, pipeline.text
