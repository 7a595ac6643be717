"""Sets of a tensor's elements as boxes: strided accesses of any size compared without listing their elements.

The strides of real accesses nest. A *grid* takes a chain of them, each a multiple of the one before, as the units of
digits; an element is then a point of digits, and an access that steps along some of them is a box, or a few boxes where
a run crosses the border of a digit. Sets that the grid cannot express exactly say so.

Source: own; the digits are the modes of a layout whose strides nest.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product

from tileweave.layout import DEFAULT_AXIS, Layout
from tileweave.layout.core.search import Term
from tileweave.space import Box

BOXES = 256
"""Boxes of one region at most; beyond, the region is inexact."""


@dataclass(frozen=True, slots=True)
class DigitRegion:
    """Boxes of digits.

    Args:
        boxes: that together hold the elements.
        exact: whether they hold nothing else.
    """

    boxes: tuple[Box, ...]
    exact: bool


@dataclass(frozen=True, slots=True)
class DigitGrid:
    """How bytes of a tensor are read as digits.

    Args:
        units: bytes per step of each digit, fastest first; each divides the next. The last digit has no end.
        start: the byte at which all digits are zero.
    """

    units: tuple[int, ...]
    start: int

    @staticmethod
    def of(layouts: Sequence[Layout], width: int) -> DigitGrid | None:
        """A grid in which elements of these accesses are points; None where there is none.

        Args:
            layouts: bytes at which elements begin.
            width: bytes per element.
        """
        strides = {abs(it.stride[DEFAULT_AXIS]) for place in layouts for it in place.shard if it.extent > 1} - {0}
        units = [max(strides, default=width)]
        for stride in sorted(strides, reverse=True):
            if units[0] % stride == 0 and stride != units[0]:
                units.insert(0, stride)
        starts = [place.offset[DEFAULT_AXIS] for place in layouts]
        start = min(starts, default=0)
        if any((other - start) % units[0] for other in starts) and units[0] % width == 0 and units[0] != width:
            units.insert(0, width)  # halves of pairs, and fields of records, begin between the elements of others
        bad = units[0] < width or any(stride % units[0] for stride in strides)
        return None if bad or any((other - start) % units[0] for other in starts) else DigitGrid(tuple(units), start)

    def region(self, place: Layout) -> DigitRegion:
        """The elements of an access."""
        rows = [(it.stride[DEFAULT_AXIS], 0, it.extent - 1) for it in place.shard]
        return self.moved(
            DigitRegion((Box(self.digits(place.offset[DEFAULT_AXIS]), (1,) * len(self.units)),), True), rows
        )

    def moved(self, region: DigitRegion, rows: Iterable[Term]) -> DigitRegion:
        """The union of a region at every index of some rows: bytes per step, least index, greatest index."""
        boxes, exact = list(region.boxes), region.exact
        for stride, low, high in sorted(rows, key=lambda row: abs(row[0])):
            if not stride or low == high == 0:
                continue
            digit = max(k for k, unit in enumerate(self.units) if stride % unit == 0)
            step, count = abs(stride) // self.units[digit], high - low + 1
            begin_at = min(stride * low, stride * high) // self.units[digit]
            wider: list[Box] = []
            for box in boxes:
                first, length = box.start[digit] + begin_at, box.shape[digit]
                if step > length and count > BOXES:
                    exact = False
                runs = [first + step * k for k in range(count)] if length < step and count <= BOXES else [first]
                length = length if len(runs) > 1 else length + (count - 1) * step
                wider += [box.with_range(digit, begin, begin + length) for begin in runs]
            boxes = wider
            if len(boxes) > BOXES:
                boxes, exact = [_hull(boxes)], False
        carried = [part for box in boxes for part in self._carried(box)]
        return DigitRegion(tuple(carried), exact)

    def digits(self, byte: int) -> tuple[int, ...]:
        """The digits of a byte at which an element begins."""
        rest, found = (byte - self.start) // self.units[0], []
        for unit, following in zip(self.units, self.units[1:], strict=False):
            rest, digit = divmod(rest, following // unit)
            found.append(digit)
        return (*found, rest)

    def bytes_of(self, boxes: Iterable[Box]) -> list[int]:
        """The bytes at which the elements of some boxes begin, in order."""
        found = set()
        for box in boxes:
            ranges = (range(a, b) for a, b in zip(box.start, box.stop, strict=True))
            found |= {self.byte(point) for point in product(*ranges)}
        return sorted(found)

    def byte(self, point: Sequence[int]) -> int:
        """The byte at which the element of these digits begins."""
        return self.start + sum(digit * unit for digit, unit in zip(point, self.units, strict=True))

    def _carried(self, box: Box) -> list[Box]:
        """The same elements with every digit below its radix: a run that crosses a border is cut there."""
        boxes = [box]
        for k, (unit, following) in enumerate(zip(self.units, self.units[1:], strict=False)):
            radix, cut = following // unit, list[Box]()
            for one in boxes:
                first, end = one.start[k], one.stop[k]
                low, high = first // radix, (end - 1) // radix
                if low == high:
                    cut.append(_at(one, k, first - low * radix, end - low * radix, low, low))
                    continue
                cut.append(_at(one, k, first - low * radix, radix, low, low))
                cut.append(_at(one, k, 0, end - high * radix, high, high))
                if high - low > 1:
                    cut.append(_at(one, k, 0, radix, low + 1, high - 1))
            boxes = cut
        return boxes


def _at(box: Box, k: int, first: int, end: int, low: int, high: int) -> Box:
    """A box with other values of digit k, which carry between ``low`` and ``high`` into the next digit."""
    moved = box.with_range(k + 1, box.start[k + 1] + low, box.stop[k + 1] + high) if low or high else box
    return moved.with_range(k, first, end)


def _hull(boxes: Sequence[Box]) -> Box:
    start = tuple(min(values) for values in zip(*(box.start for box in boxes), strict=True))
    return Box.between(start, tuple(max(values) for values in zip(*(box.stop for box in boxes), strict=True)))


def subtracted(boxes: Sequence[Box], other: Box) -> list[Box]:
    """What is left of some boxes without another one."""
    left: list[Box] = []
    for box in boxes:
        met = box.intersect(other)
        if met.empty:
            left.append(box)
            continue
        for k in range(box.rank):
            if box.start[k] < met.start[k]:
                left.append(box.with_range(k, box.start[k], met.start[k]))
            if met.stop[k] < box.stop[k]:
                left.append(box.with_range(k, met.stop[k], box.stop[k]))
            box = box.with_range(k, met.start[k], met.stop[k])
    return left
