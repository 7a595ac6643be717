"""Traced values: views of tensors. Indexing narrows them, arithmetic emits operators, a truth value is refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tileweave.errors import VerifyError
from tileweave.index import Expr, as_expr, constant_of, minimum, simplify
from tileweave.kernel.build.recorder import Recorder
from tileweave.kernel.ir import DTYPES, Number, Region, Scalar, before, clipped, promote


def as_number(value: Number) -> Number:
    """A number as simple as it gets: an int where the value is known."""
    if isinstance(value, Expr):
        value = simplify(value)
        known = constant_of(value)
        return value if known is None else known
    return int(as_expr(value).args[0])


def _least(a: Number, b: Number) -> Number:
    if isinstance(a, int) and isinstance(b, int):
        return min(a, b)
    return a if a is b else as_number(minimum(a, b))


class View:
    """A region of a tensor in a kernel that is being traced.

    ``v[i, a:b]`` narrows (integers drop a dimension, slices have a known length), ``v.tile(bm, bn)[i, j]`` is a tile
    whose mask says what of it exists, ``v.T`` turns the dimensions around. Arithmetic and comparisons are operators
    of the scope around; ``+=`` and the like write in place.
    """

    __slots__ = ("_recorder", "region")
    __array_ufunc__ = None

    def __init__(self, recorder: Recorder, region: Region) -> None:
        self._recorder = recorder
        self.region = region

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents."""
        return self.region.shape

    @property
    def dtype(self) -> str:
        """The element type, by its PTX name."""
        return self.region.tensor.dtype

    @property
    def T(self) -> View:
        """The view with its dimensions in the opposite order."""
        return View(self._recorder, self.region.transposed)

    def blocks(self, axis: int, size: int) -> int:
        """How many tiles of `size` cover a dimension, the last one perhaps in part."""
        if size < 1:
            self._recorder.refuse(f"{self}.blocks({axis}, {size})", "a tile of no elements", legal="a positive size")
        if not -len(self.shape) <= axis < len(self.shape):
            self._recorder.refuse(
                f"{self}.blocks({axis}, {size})", f"a view of rank {len(self.shape)} has no axis {axis}"
            )
        return -(-self.shape[axis] // size)

    def tile(self, *sizes: int, halo: int | Sequence[int] = 0) -> Tiles:
        """The view cut into tiles: ``v.tile(bm, bn)[i, j]``.

        Args:
            sizes: of a tile, one per dimension.
            halo: how far a tile reaches beyond itself on both sides, for all dimensions or one each; what lies outside
                the view does not exist, so it is read as zero.
        """
        rims = (halo,) * len(sizes) if isinstance(halo, int) else tuple(halo)
        wrong = len(sizes) != len(self.shape) or any(type(s) is not int or s < 1 for s in sizes)
        if wrong or len(rims) != len(sizes) or any(type(h) is not int or h < 0 for h in rims):
            self._recorder.refuse(
                f"{self}.tile{sizes}", f"{len(self.shape)} positive sizes are needed, one per dimension",
                legal=f"a view of shape {self.shape}; halo=h or one h >= 0 per dimension",
            )  # fmt: skip
        return Tiles(self, sizes, rims)

    def __getitem__(self, index: Any) -> View:
        parts = index if isinstance(index, tuple) else (index,)
        if Ellipsis in [p for p in parts if p is Ellipsis]:
            at = next(k for k, p in enumerate(parts) if p is Ellipsis)
            fill = (slice(None),) * (len(self.shape) - len(parts) + 1)
            parts = (*parts[:at], *fill, *parts[at + 1 :])
        if len(parts) > len(self.shape):
            self._recorder.refuse(f"{self}[..]", f"{len(parts)} indices for shape {self.shape}")
        begin, extent, mask = list(self.region.begin), list(self.region.extent), list(self.region.mask)
        dims, skip = list(self.region.dims), list(self.region.skip)
        for d, part in zip(self.region.dims, parts, strict=False):
            if isinstance(part, slice):
                start, length = self._slice(part, extent[d])
            else:
                start, length = self._index(part, extent[d]), 1
                dims.remove(d)
            begin[d] = as_number(begin[d] + start)
            # an index that leaves a whole dimension is a mistake to be found; in a masked one it meets the mask
            mask[d] = length if mask[d] == extent[d] else clipped(start, length, mask[d])
            if skip:
                skip[d] = before(start, skip[d])
            extent[d] = length
        return View(
            self._recorder,
            Region(self.region.tensor, tuple(begin), tuple(extent), tuple(mask), tuple(dims), tuple(skip)),
        )  # fmt: skip

    def __setitem__(self, index: Any, value: Any) -> None:
        """What ``view[..] += value`` ends with; an assignment is a copy, written out."""
        if not isinstance(value, View) or value.region != self[index].region:
            self._recorder.refuse(
                f"{self}[..] = ..", "an assignment", legal="scope.copy(view[..], value), view[..] += .."
            )

    def limit(self, axis: int, count: Number) -> View:
        """The view of which only `count` coordinates of a dimension exist, or as many as before if they are fewer."""
        if not 0 <= axis < len(self.shape):
            self._recorder.refuse(f"{self}.limit({axis}, count)", f"a view of rank {len(self.shape)}")
        d, mask = self.region.dims[axis], list(self.region.mask)
        mask[d] = _least(mask[d], as_number(count))
        return View(self._recorder, replace(self.region, mask=tuple(mask)))

    def _index(self, part: Any, size: int) -> Number:
        if isinstance(part, View):
            self._recorder.refuse(f"{self}[..]", "an element of a tensor is no index", legal="scope.read(element)")
        number = as_number(part)
        if isinstance(number, int) and not 0 <= number < size:  # an expression may stand in a body that never runs
            self._recorder.refuse(f"{self}[{part}]", f"{part} is outside 0..{size - 1}", rule="inside")
        return number

    def _slice(self, part: slice, size: int) -> tuple[Number, int]:
        start = as_number(0 if part.start is None else part.start)
        stop = as_number(size if part.stop is None else part.stop)
        length = as_number(stop - start)
        if part.step not in (None, 1) or not isinstance(length, int) or length < 1:
            self._recorder.refuse(
                f"{self}[{start}:{stop}]", f"the length {length} is not a known positive number",
                legal="a:b with b - a known, step 1",
            )  # fmt: skip
        if isinstance(start, int) and (start < 0 or start + length > size):
            self._recorder.refuse(f"{self}[{start}:{stop}]", f"it leaves 0..{size}", rule="inside")
        return start, length

    # Arithmetic: operators of the scope around.

    def _emit(self, fn: str, *operands: Any, into: View | None = None) -> View:
        scope = self._recorder.scope
        if scope is None:
            self._recorder.refuse(f"{fn}({self})", "no scope executes it", legal="inside `with k.cta(..) as cta:`")
        return scope.map(fn, *operands, into=into)  # type: ignore[no-any-return]

    def __bool__(self) -> bool:
        self._recorder.refuse(
            f"bool({self})", "a traced value has no truth value while the kernel is traced",
            legal="`with k.when(condition):`, or scope.where(condition, a, b)",
        )  # fmt: skip

    def __iter__(self) -> Any:
        self._recorder.refuse(f"iter({self})", "a traced tensor is no sequence", legal="for i in scope.range(..)")

    def __neg__(self) -> View:
        return self._emit("neg", self)

    def __abs__(self) -> View:
        return self._emit("abs", self)

    def __invert__(self) -> View:
        return self._emit("not", self)

    def __hash__(self) -> int:
        return id(self)

    def __repr__(self) -> str:
        return f"<traced {self.region}>"

    def __str__(self) -> str:
        return self._recorder.shown(self.region)


def _binary(fn: str) -> Callable[[View, Any], View]:
    def method(self: View, other: Any) -> View:
        return self._emit(fn, self, other)

    return method


def _mirrored(fn: str) -> Callable[[View, Any], View]:
    def method(self: View, other: Any) -> View:
        return self._emit(fn, other, self)

    return method


def _in_place(fn: str) -> Callable[[View, Any], View]:
    def method(self: View, other: Any) -> View:
        return self._emit(fn, self, other, into=self)

    return method


for _name, _fn in (("add", "add"), ("sub", "sub"), ("mul", "mul"), ("truediv", "div")):
    setattr(View, f"__{_name}__", _binary(_fn))
    setattr(View, f"__r{_name}__", _mirrored(_fn))
    setattr(View, f"__i{_name}__", _in_place(_fn))
for _name in ("lt", "le", "gt", "ge", "eq", "ne"):
    setattr(View, f"__{_name}__", _binary(_name))
for _name in ("and", "or"):
    setattr(View, f"__{_name}__", _binary(_name))


class Tiles:
    """A view cut into tiles; an index per dimension gives one, with the mask of what exists of it."""

    __slots__ = ("_rims", "_sizes", "_view")

    def __init__(self, view: View, sizes: tuple[int, ...], rims: tuple[int, ...]) -> None:
        self._view = view
        self._sizes = sizes
        self._rims = rims

    def __getitem__(self, index: Any) -> View:
        numbers = index if isinstance(index, tuple) else (index,)
        view, region = self._view, self._view.region
        if len(numbers) != len(self._sizes):
            view._recorder.refuse(f"{view}.tile{self._sizes}[..]", f"{len(numbers)} indices", legal="one per dimension")
        begin, extent, mask = list(region.begin), list(region.extent), list(region.mask)
        skip = list(region.skip or (0,) * len(begin))
        for d, number, size, rim in zip(region.dims, numbers, self._sizes, self._rims, strict=True):
            start = as_number(view._index(number, -(-extent[d] // size)) * size - rim)
            size += 2 * rim
            skip[d] = before(start, skip[d]) if rim or region.skip else 0
            begin[d], mask[d], extent[d] = as_number(begin[d] + start), clipped(start, size, mask[d]), size
        return View(
            view._recorder,
            replace(region, begin=tuple(begin), extent=tuple(extent), mask=tuple(mask), skip=tuple(skip)),
        )


def operand(value: Any, like: str, recorder: Recorder, where: str) -> Region | Scalar:
    """An operand of an operator: a view's region, or a number of the type `like`."""
    if isinstance(value, View):
        recorder.require_in_reach(value.region, where)
        return value.region
    if isinstance(value, bool | np.bool_):
        return Scalar(bool(value), "pred")
    if isinstance(value, Expr):
        return Scalar(value, "pred" if value.is_condition else like)
    if isinstance(value, int | float | np.integer | np.floating):
        plain = value.item() if isinstance(value, np.generic) else value
        if DTYPES[like].kind == "float":
            plain = float(plain)
        return Scalar(plain, like)
    raise VerifyError(
        where, f"{value!r} is no operand", legal="a traced tensor, a number or an index expression",
        facts={"rule": "trace", "path": "", "line": recorder.line()},
    )  # fmt: skip


def compute_type(operands: tuple[Any, ...], where: str) -> str:
    """The type in which an elementwise function of these operands computes."""
    views = [DTYPES[v.dtype] for v in operands if isinstance(v, View)]
    found = views[0] if views else DTYPES["f32"]
    for one in views[1:]:
        found = promote(found, one, where)
    if found.kind == "float":
        found = promote(found, found, where)
    elif found.kind != "pred" and any(isinstance(v, float | np.floating) for v in operands):
        found = DTYPES["f32"]
    return found.name
