"""ClusterSum: sums of a matmul's accumulators over CTAs of a cluster."""

from __future__ import annotations

import attrs

from tmapipe.errors import InputError
from tmapipe.fields import is_count, shown
from tmapipe.matmul import Wgmma
from tmapipe.register_tile import RegisterTile
from tmapipe.role import Role

__all__ = ["ClusterSum"]


@attrs.frozen(eq=False, init=False, repr=False)
class ClusterSum(RegisterTile):
    """Declares the sum of the accumulators of those CTAs that differ only along one axis of the cluster, such as partial sums
    of a split k. Each of these CTAs gets some of the columns: CTA i of c gets columns [i n / c, (i + 1) n / c).

    In the role's body, ``k.<name>.add(acc)`` sends each peer its columns by st.async, and adds those that it gets, in the
    order of the CTAs. A store takes the result as it takes accumulators.

    Args:
        role: That of the matmul: as many warpgroups as its tile has blocks of 64 rows.
        source: The matmul, in fp32.
        axis: Of the cluster, along which the CTAs differ.
        ctas: How many there are along this axis. The columns are a multiple of 8 for each.

    Raises:
        InputError: For any other value.
    """

    source: Wgmma = attrs.field(kw_only=True)
    axis: str = attrs.field(kw_only=True)
    ctas: int = attrs.field(kw_only=True)

    def __init__(self, role: Role, source: Wgmma, axis: str, ctas: int):
        if not isinstance(source, Wgmma):
            raise InputError("ClusterSum(source)", source, "is a Wgmma, whose accumulators are added", "pass one")
        if not isinstance(axis, str):
            raise InputError("ClusterSum(axis)", axis, "is the name of an axis of the cluster", 'e.g. "n"')
        rows, columns = source.shape[:2]
        if not is_count(ctas) or columns % (8 * ctas):
            rule = f"divides the {columns} columns into multiples of 8"
            raise InputError("ClusterSum(ctas)", ctas, rule, "use 2, 4 or 8")
        self.__attrs_init__(role, (rows, columns // ctas), source=source, axis=axis, ctas=ctas)

    def __repr__(self) -> str:
        return shown(self, "shape")
