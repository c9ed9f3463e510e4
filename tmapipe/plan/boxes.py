"""Boxes: how much of a slot one TMA instruction moves, and from where on."""

from __future__ import annotations

from tmapipe.tma_rules import MAX_BOX

__all__ = ["SLOT_ALIGNMENT", "UNROLLED", "box_of", "cut_by_hand"]

SLOT_ALIGNMENT = 128  # bytes: where the engine writes to shared memory, and reads from it
UNROLLED = 16  # instructions of one copy that stand one after another; more are a loop


def box_of(tile: tuple[int, ...], span: int, peers: int, element: int) -> tuple[int, ...]:
    """The box of one TMA instruction (elements along the extents of a slot's *tile*).

    A box has one of *peers* shares of the rows, each at most a swizzle span long. Rows without a swizzle that are longer than
    a box can be are moved one by one, in equal pieces.

    Args:
        tile: Elements of a slot along the extents that the engine moves it by.
        span: Of the swizzle (elements), 0 without one.
        peers: CTAs that move a slot together.
        element: Bytes of an element.
    """
    *outer, inner = tile
    if outer:
        outer[0] //= peers
    else:
        inner //= peers
    if span:
        return (*outer, min(inner, span))
    if inner > MAX_BOX:
        whole = bool(outer) or peers == 1
        aligned = [d for d in _pieces(inner) if whole and d * element % SLOT_ALIGNMENT == 0]
        return (*(1 for _ in outer), max(aligned or _pieces(inner)))
    return (*outer, inner)


def cut_by_hand(inner: int, box: int, span: int) -> int:
    """Into how many pieces rows of *inner* elements are cut before CuTe DSL sees them: 1, unless it would take longer boxes
    than these of *box* elements, the longest ones that divide a row, or issue too many of them one after another."""
    alike = inner <= MAX_BOX or (box == max(_pieces(inner)) and inner // box <= UNROLLED)
    return 1 if span or alike else inner // box


def _pieces(inner: int) -> list[int]:
    return [d for d in range(1, MAX_BOX + 1) if inner % d == 0]
