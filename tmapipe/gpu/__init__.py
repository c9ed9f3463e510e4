"""The GPU backend: emits CuTe DSL. The only package that imports cutlass."""

import gc

_enabled = gc.isenabled()
gc.disable()  # what is imported stays, and the collector would go over all of it several times: 0.4 s of a first call
try:
    import cutlass.cute as _  # noqa: F401
finally:
    if _enabled:
        gc.enable()
