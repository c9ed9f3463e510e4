"""A limit on how long a call of a test may take: what hangs fails, instead of stopping all tests."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


def ended(call: Callable[[], Any], seconds: float = 60.0) -> Any:
    """What *call* returns or raises. Fails if it has not ended after so many seconds; its thread then goes on."""
    results: list[Any] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(call())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    assert not thread.is_alive(), f"has not ended after {seconds} s"
    if errors:
        raise errors[0]
    return results[0]
