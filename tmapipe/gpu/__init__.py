"""The GPU backend: emits CuTe DSL. The only package that imports cutlass."""
