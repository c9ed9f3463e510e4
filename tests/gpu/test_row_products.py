"""Batches of small products, by several CTAs on a multiprocessor."""

import pytest
import torch

import tmapipe as tp
from tmapipe.tuning import Problem, candidates
from tmapipe.tuning.problem import H200


@pytest.mark.parametrize("m, n, k", [(64, 64, 64), (128, 128, 128), (16, 24, 72), (96, 40, 256)])
def test_all_forms(m, n, k):
    a, b = (torch.randn(700, rows, k, device="cuda").to(torch.bfloat16) for rows in (m, n))
    want, problem = a.float() @ b.float().mT, Problem(m, n, k, batch=700)
    few = [each for each in candidates(problem, H200) if each.share > 1]
    assert few
    for each in few:
        torch.testing.assert_close(each.build(problem)(a, b).float(), want, atol=0.25, rtol=0.02)


def test_a_batch_is_chosen_for():
    a, b = (torch.randn(1000, 64, 64, device="cuda").to(torch.bfloat16) for _ in "ab")
    made = tp.tuning.choose(Problem.of(a, b), look=1)
    torch.testing.assert_close(made(a, b).float(), a.float() @ b.float().mT, atol=0.25, rtol=0.02)
