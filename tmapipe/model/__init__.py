"""The CPU backend: a model of the hardware that runs a kernel's program as it is.

`Machine` runs a program, with data or without. `State` is the model itself, a transition system. Other drivers (the check, the
exhaustive search of the tests) use it with operations that were listed before. `tmapipe.isa` documents the operations.
"""

from tmapipe.isa.ops import Counted, Flight
from tmapipe.model.layout import Layout
from tmapipe.model.machine import Machine, Scheduler, steps_for
from tmapipe.model.run import Run, TraceEntry
from tmapipe.model.state import State
from tmapipe.model.warp import MachineIsa

__all__ = [
    "Counted",
    "Flight",
    "Layout",
    "Machine",
    "MachineIsa",
    "Run",
    "Scheduler",
    "State",
    "TraceEntry",
    "steps_for",
]
