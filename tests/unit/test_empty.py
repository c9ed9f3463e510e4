"""Problems with nothing in them return at once, with the right values."""

import numpy as np

import tmapipe as tp


def test_a_gemm_without_k_is_the_epilogue_of_zero():
    a, b = np.zeros((16, 0), np.float16), np.zeros((8, 0), np.float16)
    assert (tp.schedules.Gemm()(a, b) == 0).all()
    assert (tp.schedules.Gemm(epilogue=lambda x: x * 2 + 3)(a, b) == 3).all()


def test_an_empty_output_stays_empty():
    a, b = np.zeros((0, 64), np.float16), np.zeros((8, 64), np.float16)
    assert tp.schedules.Gemm()(a, b).shape == (0, 8)
