"""DescriptorStage: descriptors that a kernel changes, in the slots of a ring."""

from __future__ import annotations

import attrs

from tmapipe.barrier import BarrierRing
from tmapipe.dtypes import int32
from tmapipe.errors import InputError
from tmapipe.stage import SharedStage, TmaLoadStage

__all__ = ["DescriptorStage"]


@attrs.frozen(eq=False, init=False, repr=False, kw_only=True)
class DescriptorStage(SharedStage):
    """A descriptor in each slot of `ring`, through which a stage is loaded: the kernel says which rows of the tensor it shows.

    The ring's producer, of one warp, calls ``slot.<stage>.set(first, rows)``. The role that loads has ``view =
    slot.<stage>.acquire()``, and loads with ``slot.b.load_through(view, ...)``: coordinates count from row *first*, and beyond
    the rows there are zeros. A slot is rewritten once all consumers have released it. So a role that has waited for the loads
    must be one of them, such as that which multiplies what was loaded.

    Args:
        of: The stage that is loaded through it, of another ring, by one of this ring's consumers. Its tile has as many extents
            as its tensor has dimensions.
        ring: Whose slots hold the descriptors.

    Raises:
        InputError: For any other value.
    """

    of: TmaLoadStage = attrs.field(default=None)

    def __init__(self, of: TmaLoadStage, *, ring: BarrierRing):
        plain = isinstance(of, TmaLoadStage) and of.tensor_map and of.windows is None and of.parts == 1
        if not plain or len(of.tile) != len(of.dims) or len(of.tile) < 2 or of.outside == "anything":
            rule = "is a TmaLoadStage whose tile has all extents of its tensor, two or more, and is loaded whole"
            raise InputError("DescriptorStage(of)", of, rule, "name such a stage")
        if not isinstance(ring, BarrierRing) or len(ring.phases[0]) != 1 or ring is of.ring:
            rule = "is another ring than that of the stage, with one producer"
            raise InputError("DescriptorStage(ring)", ring, rule, "declare one for descriptors")
        if not any(of.loader is role for role in ring.phases[-1]):
            rule = "has the role that loads among its consumers"
            raise InputError("DescriptorStage(ring)", ring, rule, "e.g. consumer=(load, math)")
        super().__init__(tile=(32,), ring=ring, writer=ring.phases[0][0], dtype=int32)
        object.__setattr__(self, "of", of)

    def __repr__(self) -> str:
        return f"DescriptorStage({self.of!r}, ring={self.ring!r})"
