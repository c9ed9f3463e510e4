"""The GPU reading: emits CuTe DSL. The only package that imports cutlass."""
