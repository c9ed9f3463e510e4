import contextlib  # noqa: F401 - for the mistake

from tmapipe.schedules import PingPong


class Turns(PingPong):
    """d = a b^T; epilogues take turns."""

    def __init__(self):
        super().__init__((64, 64, 64), (1, 1), stages=2)

    def epilogue_turn(self, k):
        return super().epilogue_turn(k)


Program = Turns
