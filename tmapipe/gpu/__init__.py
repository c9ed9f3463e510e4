"""The GPU backend: emits CuTe DSL. The only package that imports cutlass."""

from tmapipe.base import collector_at_rest

with collector_at_rest():  # 0.4 s of a first call
    import cutlass.cute as _  # noqa: F401
