"""Forms of rows beside a GPU's multiprocessors: how many clusters run at once, and what that means for some rows."""

from __future__ import annotations

import attrs

from tmapipe.base.arithmetic import ceil_div
from tmapipe.schedules.rowform import RowForm, resident

MULTIPROCESSORS, GPC = 132, 16  # of an H200, and of a part of it that a cluster lies in


def clusters_of(form: RowForm) -> int:
    """How many clusters of a form run at the same time."""
    share = form.share or 1
    if form.ctas == 1:
        return MULTIPROCESSORS * share
    return MULTIPROCESSORS // GPC * (GPC * share // form.ctas)


def of_height(form: RowForm, height: int) -> RowForm:
    """The form for so many rows that CTAs read by pieces: fewer a CTA, where else some multiprocessors would have none; more
    CTAs on a multiprocessor, where else the last few would start when all others have ended."""
    each, share = form.each, form.share or 1
    while form.ctas > 1 and each > 1 and ceil_div(height, each) < MULTIPROCESSORS * share:
        each //= 2
    wanted = ceil_div(ceil_div(height, each), MULTIPROCESSORS)
    if form.ctas > 1 and share < wanted <= resident(form, 1, 0):
        share = wanted
    return attrs.evolve(form, each=each, share=share)
