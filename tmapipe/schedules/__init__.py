"""Schedules from the shelf: ready to run, to give other tiles and stages, and to subclass."""

from tmapipe.schedules.copy import Copy
from tmapipe.schedules.gemm import Gemm

from tmapipe.schedules.pingpong import PingPong

__all__ = ["Copy", "Gemm", "PingPong"]
