"""Every reduction of TMA stores in every type that the hardware takes, on the device, against the model."""

import pytest
import torch

from tests.unit.test_added import inputs, stacked
from tmapipe.store_pipeline import REDUCTIONS


def on_gpu(array):
    kinds = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32, "float64": torch.float64}
    whole = torch.from_numpy(array.view(f"i{array.itemsize}").copy()).cuda()
    return whole.view(kinds.get(str(array.dtype), whole.dtype))


@pytest.mark.parametrize("reduce, dtype", [(how, dtype) for how, types in REDUCTIONS.items() for dtype in types])
@pytest.mark.parametrize("shape", [(20, 72), (500, 1032)])
def test_reductions(reduce, dtype, shape):
    x, out = inputs(reduce, dtype, 5, shape)
    there, found = on_gpu(x), on_gpu(out)
    schedule = stacked(reduce)
    schedule(there, out=found)
    schedule(x, out=out)
    assert torch.equal(found, on_gpu(out))
