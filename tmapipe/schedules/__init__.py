"""Schedules from the shelf: ready to run, to give other tiles and stages, and to subclass."""

from tmapipe.schedules.copy import Copy
from tmapipe.schedules.gemm import Gemm
from tmapipe.schedules.pingpong import PingPong
from tmapipe.schedules.splitk import SplitK

__all__ = ["Copy", "Gemm", "PingPong", "SplitK"]
