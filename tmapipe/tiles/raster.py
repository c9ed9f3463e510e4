"""Rasters: how the tiles of one output matrix are numbered, so that CTAs at work together share operands in L2.

A raster maps the numbers 0 .. rows * columns - 1, one to one, to (row, column) in a matrix of tiles, in units of clusters. All
rasters go through the matrix in bands of some rows (or columns), one band after another. They differ in how they go through a
band.
"""

from __future__ import annotations

from typing import Any

import attrs

from tmapipe.errors import InputError
from tmapipe.fields import is_count, must
from tmapipe.isa.interface import Isa

__all__ = ["Backwards", "Columns", "Grouped", "Hilbert", "Snake", "is_raster"]


_positive = must(lambda n: is_count(n) and n < 2**31, "is a positive number of rows below 2^31", "use 8")


@attrs.frozen
class Grouped:
    """Each band column by column, from the first column to the last.

    Args:
        rows: Rows of a band.

    Raises:
        InputError: *rows* is no positive integer.
    """

    rows: int = attrs.field(default=8, validator=_positive)

    def divisors(self, rows: Any, columns: Any) -> dict[str, Any]:
        """The numbers that `coordinates` divides by, by name, for a matrix of so many rows and columns."""
        if self.rows == 1:
            return {"band": columns}
        return {"band": self.rows * columns, "last rows": (rows - 1) % self.rows + 1}

    def coordinates(self, isa: Isa, by: dict[str, Any], rows: Any, columns: Any, index: Any) -> tuple[Any, Any]:
        """(row, column) of tile number *index* in a matrix of *rows* x *columns* tiles.

        Args:
            isa: The backend that computes it.
            by: The divisors that `divisors` named.
            rows: Of tiles, in units of clusters.
            columns: The same along n.
            index: From 0 to rows * columns - 1.
        """
        if isinstance(columns, int) and columns == 1:
            return index, 0
        band = index // by["band"]
        index = index - band * (self.rows * columns)
        if self.rows == 1:
            return band, self._mirrored(isa, band, columns, index)
        first = band * self.rows
        short = rows - first < self.rows
        height = isa.select(short, rows - first, self.rows)
        down, right = self._in_band(isa, by, columns, index, short, height)
        return first + down, self._mirrored(isa, band, columns, right)

    def _in_band(self, isa: Isa, by: dict[str, Any], columns: Any, index: Any, short: Any, height: Any) -> Any:
        right = isa.select(short, index // by["last rows"], index // self.rows)
        return index - right * height, right

    def _mirrored(self, isa: Isa, band: Any, columns: Any, right: Any) -> Any:
        return right


@attrs.frozen
class Snake(Grouped):
    """As `Grouped`, but every second band from the last column to the first.

    A band then begins with the columns that the band before ended with.

    Args:
        rows: Rows of a band.
    """

    def _mirrored(self, isa: Isa, band: Any, columns: Any, right: Any) -> Any:
        return isa.select(band & 1 == 1, columns - 1 - right, right)


@attrs.frozen
class Backwards(Grouped):
    """As `Grouped`, from the last tile to the first: so that those begin first that take longest, in causal attention.

    Args:
        rows: Rows of a band.
    """

    def coordinates(self, isa: Isa, by: dict[str, Any], rows: Any, columns: Any, index: Any) -> tuple[Any, Any]:
        down, right = super().coordinates(isa, by, rows, columns, index)
        return rows - 1 - down, columns - 1 - right


@attrs.frozen
class Columns(Grouped):
    """Bands of some columns instead of rows, each row by row from the first row to the last.

    CTAs at work together then share columns of b, where `Grouped` has them share rows of a: for outputs of few columns.

    Args:
        columns: Columns of a band.

    Raises:
        InputError: *columns* is no positive integer.
    """

    rows: int = attrs.field(default=8, validator=_positive, alias="columns")

    def divisors(self, rows: Any, columns: Any) -> dict[str, Any]:
        return super().divisors(columns, rows)

    def coordinates(self, isa: Isa, by: dict[str, Any], rows: Any, columns: Any, index: Any) -> tuple[Any, Any]:
        right, down = super().coordinates(isa, by, columns, rows, index)
        return down, right


@attrs.frozen
class Hilbert(Snake):
    """Each band along Hilbert curves of `rows` x `rows` tiles, every second band backwards.

    Any run of consecutive tiles is then nearly square. Each curve ends beside the beginning of the next. The rest of a band,
    which is no whole square, is gone through column by column as in `Snake`.

    Args:
        rows: Rows of a band, a power of two up to 256; the rows of a square matrix give its Hilbert curve.

    Raises:
        InputError: *rows* is something else.
    """

    rows: int = attrs.field(default=8, validator=_positive)

    @rows.validator
    def _check(self, attribute: Any, value: Any) -> None:
        if value & (value - 1) or value > 256:
            raise InputError("Hilbert(rows)", value, "is a power of two up to 256", "use 8")

    def _in_band(self, isa: Isa, by: dict[str, Any], columns: Any, index: Any, short: Any, height: Any) -> Any:
        bits = self.rows.bit_length() - 1
        down, right = super()._in_band(isa, by, columns, index, short, height)
        square = index >> (2 * bits)
        inside, left = index & (self.rows * self.rows - 1), square << bits
        in_square = left + self.rows <= columns
        y, x = _hilbert(isa, bits, inside)

        def pick(curve: Any, otherwise: Any) -> Any:
            return isa.select(short, otherwise, isa.select(in_square, curve, otherwise))

        return pick(y, down), pick(left + x, right)


#: Validator of fields that hold one.
is_raster = must(
    lambda raster: isinstance(raster, Grouped), "is Grouped, Snake, Backwards, Columns or Hilbert", "use Grouped(8)"
)


def _hilbert(isa: Isa, bits: int, index: Any) -> tuple[Any, Any]:
    """(y, x) of point number *index* on the Hilbert curve through a square of 2^bits points a side.

    The curve goes from (0, 0) to (0, 2^bits - 1). It is built from the smallest square up: the curve of the next larger square
    goes through four copies, of which the first is mirrored at the diagonal and the last at the other diagonal.
    """
    x: Any = 0
    y: Any = 0
    for level in range(bits):
        side = 1 << level
        quarter = (index >> (2 * level)) & 3
        first, last = quarter == 0, quarter == 3
        mirrored_x = isa.select(first, y, isa.select(last, side - 1 - y, x))
        mirrored_y = isa.select(first, x, isa.select(last, side - 1 - x, y))
        x = mirrored_x + side * (quarter >> 1)
        y = mirrored_y + side * ((quarter ^ (quarter >> 1)) & 1)
    return y, x
