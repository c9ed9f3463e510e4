"""Sweeps over many cases of one property: `make test` runs a fixed sample of them, `make oracle` (TESTS=all) each."""

import os
from collections.abc import Iterable
from typing import TypeVar

__all__ = ["ALL", "examples", "sample"]

ALL = os.environ.get("TESTS") == "all"
Case = TypeVar("Case")


def sample(cases: Iterable[Case], every: int, first: int = 0) -> list[Case]:
    """One in *every* of the cases, from the number *first* on."""
    return list(cases) if ALL else list(cases)[first::every]


def examples(count: int) -> int:
    """How many random examples Hypothesis draws: *count* in the whole sweep, a fifth otherwise."""
    return count if ALL else count // 5
