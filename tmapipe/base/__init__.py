"""What everything stands on: numbers and their types, the rules of the TMA engine, clusters, files on disk."""

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def collector_at_rest() -> Iterator[None]:
    """Turns the garbage collector off, where all that is made lives until the end: it would go over it again and again."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
