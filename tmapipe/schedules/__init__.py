"""Schedules from the shelf: ready to run, to give other tiles and stages, and to subclass."""

from tmapipe.schedules.addparts import AddParts
from tmapipe.schedules.copy import Copy
from tmapipe.schedules.gemm import Gemm
from tmapipe.schedules.pingpong import PingPong
from tmapipe.schedules.splitk import SplitK

__all__ = ["AddParts", "Copy", "Gemm", "PingPong", "SplitK"]
