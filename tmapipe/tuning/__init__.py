"""Which schedule for which problem: an estimate that runs nothing, and a tuner that measures.

``choose(problem)`` takes the candidate with the least estimated time, ``choose_conv(x, f, windows)`` does for a convolution.
``tune(problem)`` compiles the candidates with the least estimated times, measures them on this GPU, and keeps the winner on
disk. ``autotune`` measures which parameters of a function that makes schedules are the fastest.
"""

from tmapipe.tuning.autotune import AutoTuned, Choice, autotune
from tmapipe.tuning.candidates import candidates
from tmapipe.tuning.compiling import export_tuned, import_tuned
from tmapipe.tuning.cost import estimate
from tmapipe.tuning.problem import Candidate, Device, Problem
from tmapipe.tuning.tuner import Tuned, choose, choose_conv, ranked, tune

__all__ = [
    "AutoTuned",
    "Candidate",
    "Choice",
    "Device",
    "Problem",
    "Tuned",
    "autotune",
    "candidates",
    "choose",
    "choose_conv",
    "estimate",
    "export_tuned",
    "import_tuned",
    "ranked",
    "tune",
]
