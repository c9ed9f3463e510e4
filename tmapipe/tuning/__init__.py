"""Which schedule for which problem: a heuristic that runs nothing, and a tuner that measures.

``choose(problem)`` takes the candidate that `cost.estimate` calls the fastest; ``tune(problem)`` compiles the best few by
that estimate, times them on this GPU, and remembers the winner on disk.
"""

from tmapipe.tuning.candidates import Candidate, candidates
from tmapipe.tuning.choose import choose, ranked
from tmapipe.tuning.cost import estimate
from tmapipe.tuning.problem import Device, Problem
from tmapipe.tuning.tuner import Tuned, tune

__all__ = ["Candidate", "Device", "Problem", "Tuned", "candidates", "choose", "estimate", "ranked", "tune"]
