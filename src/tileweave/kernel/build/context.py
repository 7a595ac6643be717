"""What a traced function gets as `k`: the grid, memory, scopes, conditions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from tileweave.errors import LayoutError
from tileweave.index import Expr, as_expr, equal, symbol
from tileweave.kernel.build import flow
from tileweave.kernel.build.mesh import DEVICES, own_part
from tileweave.kernel.build.order import Order, owner_last, row_major
from tileweave.kernel.build.recorder import Recorder
from tileweave.kernel.build.rings import Ring
from tileweave.kernel.build.scopes import Opening, ScopeSelector
from tileweave.kernel.build.views import View, as_number
from tileweave.kernel.ir import DTYPES, Grid, Let, Number, Sync, cta_scope, dtype_of, whole
from tileweave.kernel.ir.verify import scale_layout, tensor_layout
from tileweave.layout import Coord, Iter, Layout, parse, strided
from tileweave.layout.analysis import remove_conflicts
from tileweave.layout.f2.swizzle import Swizzle


class Var:
    """An index that the kernel changes: `value` is what it holds now."""

    def __init__(self, recorder: Recorder, value: Expr) -> None:
        self._recorder = recorder
        self.value = value

    def set(self, value: Number) -> None:
        """A new value."""
        self._recorder.emit(Let(self.value, as_number(value), line=self._recorder.line()))


class KernelContext:
    """The kernel being traced. Axes of the mesh are attributes: ``k.gpu`` is the number of this device."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def __getattr__(self, name: str) -> Expr:
        symbols = self.__dict__["_recorder"].mesh_symbols if "_recorder" in self.__dict__ else {}
        if name in symbols:
            return symbols[name]  # type: ignore[no-any-return]
        raise AttributeError(f"k has no attribute {name!r}; axes of the mesh: {', '.join(symbols) or 'none'}")

    # The grid.

    def grid(self, *extents: int, order: Order | str = "rows", cluster: int = 1) -> Any:
        """The blocks, one per point of the extents; gives a block's coordinates.

        Args:
            extents: blocks per coordinate.
            order: ``"rows"``, `grouped`, ``"owner_last"`` on a mesh, or a function of (block, extents).
            cluster: neighbouring blocks that run together, in the order of the grid: `rank` is a block's number among
                them.
        """
        recorder = self._recorder
        if self._recorder.grid is not None or not extents or any(type(e) is not int or e < 1 for e in extents):
            problem = (
                "the grid is given already" if recorder.grid else f"the extents {extents} are no positive integers"
            )
            recorder.refuse("k.grid(..)", problem, legal="once, with positive integers")
        size = prod(extents)
        block = symbol(recorder.fresh("block"), 0, size)
        values = self._order(order)(block, extents)
        coords = []
        for position, (extent, value) in enumerate(zip(extents, values, strict=True)):
            name = recorder.fresh(recorder.target(position, "tile"))
            coords.append((symbol(name, 0, extent), as_expr(value)))
        recorder.grid = Grid(block, size, tuple(coords), tuple(extents), cluster)
        found = tuple(one for one, _ in coords)
        return found[0] if len(found) == 1 else found

    def _order(self, order: Order | str) -> Callable[..., Any]:
        if order == "rows":
            return row_major
        if order == "owner_last" and self._recorder.mesh:
            axis, devices = self._recorder.mesh[0]
            return owner_last(self._recorder.mesh_symbols[axis], devices)
        if callable(order):
            return order
        return self._recorder.refuse("k.grid(order)", f"no order {order!r}", legal='"rows" | grouped(n) | "owner_last"')

    @property
    def rank(self) -> Number:
        """The number of this block in its cluster."""
        grid = self._recorder.grid
        if grid is None:
            self._recorder.refuse("k.rank", "the grid is not given yet", legal="k.grid(.., cluster=2) before")
        return as_number(grid.block % grid.cluster)

    def sync(self, *, cluster: bool = False) -> None:
        """All threads of the block wait for each other; with `cluster`, those of all its blocks."""
        self._recorder.emit(Sync(None, cluster, line=self._recorder.line()))

    # Scopes.

    def cta(self, threads: int | None = None, *, warpgroups: int | None = None, warps: int | None = None) -> Opening:
        """All threads of a block."""
        given = [(threads, 1), (warpgroups, 128), (warps, 32)]
        counts = [n * size for n, size in given if n is not None]
        if len(counts) != 1:
            self._recorder.refuse("k.cta(..)", "one count is needed", legal="threads=, warps= or warpgroups=")
        return Opening(self._recorder, cta_scope(counts[0]))

    @property
    def warpgroup(self) -> ScopeSelector:
        """Warpgroups of the block."""
        return ScopeSelector(self._recorder, "warpgroup", None)

    @property
    def warp(self) -> ScopeSelector:
        """Warps of the block."""
        return ScopeSelector(self._recorder, "warp", None)

    @property
    def thread(self) -> ScopeSelector:
        """Threads of the block."""
        return ScopeSelector(self._recorder, "thread", None)

    # Memory.

    def shared(self, shape: Sequence[int], dtype: Any = None, *, like: View | None = None,
               layout: Layout | str | None = None, swizzle: int = 0, cluster: bool = False) -> View:  # fmt: skip
        """Shared memory of a block.

        Args:
            shape: extents.
            dtype: the element type, or `like` a tensor's.
            layout: places in elements; row-major by default; ``"conflict_free"``: the padding or swizzle for which
                rows and columns of a matrix meet no bank twice; ``"scales"``: (.., rows, k / 32) scales of a product as
                tensor memory takes them, four of 128 rows in 512 bytes.
            swizzle: 0, or the width in bytes (32, 64, 128) of the hardware's swizzle: the last two dimensions lie as
                TMA writes and wgmma reads them.
            cluster: the first dimension counts the blocks of the cluster: ``s[r]`` is the memory of block r, which all
                of them reach.
        """
        recorder, where = self._recorder, "k.shared(shape)"
        extents = tuple(shape)
        if not extents or any(type(e) is not int or e < 1 for e in extents):
            recorder.refuse(where, f"the shape {shape!r} is not positive integers")
        if (dtype is None) == (like is None):
            recorder.refuse(where, "the element type is needed once", legal="dtype= or like=")
        name = like.dtype if like is not None else dtype_of(dtype, where).name
        made, found = _row_major(extents), None
        if swizzle:
            made, found = self._swizzled(extents, DTYPES[name].bits, swizzle)
        elif layout == "conflict_free":
            made, found = _conflict_free(extents, DTYPES[name].bytes)
        elif layout == "scales":
            if len(extents) < 2 or extents[-2] % 128 or extents[-1] % 4 or DTYPES[name].bits != 8:
                recorder.refuse(where, f"scales of shape {extents} in {name}", legal="(.., 128 m, 4 k) in e8m0")
            made = scale_layout(extents)
        elif layout is not None:
            made = parse(layout) if isinstance(layout, str) else layout
        if cluster:
            blocks = recorder.grid.cluster if recorder.grid is not None else 1
            if extents[0] != blocks or swizzle or layout is not None:
                recorder.refuse(where, f"{extents[0]} parts over a cluster of {blocks} blocks",
                                legal=f"shape ({blocks}, ..), in rows, after k.grid(.., cluster=n)")  # fmt: skip
            made = Layout((Iter(blocks, Coord.of({"cta": 1})), *_row_major(extents[1:]).shard))
        if made.size != prod(extents):
            recorder.refuse(where, f"the layout {made} has {made.size} elements", legal=f"{prod(extents)}")
        return View(recorder, recorder.alloc(extents, name, "shared", made, found, stem="shared"))

    def _swizzled(self, shape: tuple[int, ...], bits: int, width: int) -> tuple[Layout, Swizzle]:
        row = width * 8 // bits
        if width not in (32, 64, 128) or len(shape) < 2 or shape[-1] % row or shape[-2] % 8:
            self._recorder.refuse(
                f"k.shared({shape}, swizzle={width})", f"rows of {shape[-1]} elements are no multiple of {width} bytes",
                legal=f"widths 32, 64, 128; rows of a multiple of {row} elements, a multiple of 8 rows", rule="swizzle",
            )  # fmt: skip
        *outer, rows, columns = shape
        m = "m"
        iters = [
            Iter(rows, Coord(((m, row),))),
            Iter(columns // row, Coord(((m, rows * row),))),
            Iter(row, Coord(((m, 1),))),
        ]
        if columns == row:
            iters = [Iter(rows, Coord(((m, row),))), Iter(row, Coord(((m, 1),)))]
        pitch = rows * columns
        for extent in reversed(outer):
            iters.insert(0, Iter(extent, Coord(((m, pitch),))))
            pitch *= extent
        return Layout(tuple(iters)), Swizzle((width // 16).bit_length() - 1, (128 // bits).bit_length() - 1, 3)

    def tensor_memory(self, columns: int, dtype: Any = "f32", *, rows: int = 128) -> View:
        """Tensor memory of a block (sm_100a): 128 lanes of so many elements, two of 16 bits in a cell.

        64 rows, for products of so many, lie in the first 16 lanes of each warp.

        Products write it, registers are loaded from it and stored to it, and of f16 and bf16 it is the left operand of
        a product.
        """
        recorder = self._recorder
        if type(columns) is not int or not 1 <= columns <= 512:
            recorder.refuse("k.tensor_memory(columns)", f"{columns!r} columns", legal="1 to 512 in all of a block")
        if rows not in (64, 128):
            recorder.refuse("k.tensor_memory(columns, rows=)", f"{rows!r} rows", legal="64 or 128")
        layout = tensor_layout(rows, columns)
        name = dtype_of(dtype, "k.tensor_memory(columns, dtype)").name
        return View(recorder, recorder.alloc((rows, columns), name, "tensor", layout, stem="tensor"))

    def sbuf(self, shape: Sequence[int], dtype: Any = None, *, like: View | None = None) -> View:
        """A tile in SBUF of Trainium: the first dimension on 128 partitions, the second in each of them."""
        return self._partitioned("sbuf", shape, like.dtype if like is not None else dtype)

    def psum(self, shape: Sequence[int]) -> View:
        """A tile of f32 in PSUM of Trainium, which products write: ``gemm(acc, a.T, b.T, keep=i > 0)``."""
        return self._partitioned("psum", shape, "f32")

    def _partitioned(self, space: Any, shape: Sequence[int], dtype: Any) -> View:
        extents, where = tuple(shape), f"k.{space}(shape)"
        if len(extents) != 2 or any(type(e) is not int or e < 1 for e in extents) or extents[0] > 128:
            self._recorder.refuse(where, f"the shape {extents}", legal="(partitions, free), at most 128 partitions")
        layout = Layout((Iter(extents[0], Coord.of({"P": 1})), Iter(extents[1], Coord.of({"F": 1}))))
        name = dtype_of(dtype, where).name
        return View(self._recorder, self._recorder.alloc(extents, name, space, layout, stem=space))

    def pipeline(
        self, stages: int, *, fills: int | None = None, uses: int | None = None, cluster: bool = False,
        products: bool = False, pair: bool = False,
    ) -> Ring:  # fmt: skip
        """A ring of stages between scopes that fill it and scopes that use it; the numbers of both are checked.

        Args:
            stages: how many there are.
            fills, uses: scopes that fill and that use a stage.
            cluster: whether the blocks of the cluster fill each other's stages (`multicast`): a stage is free when all
                of them have let it go, and the kernel ends with ``k.sync(cluster=True)``.
            products: whether a stage is let go when the products into tensor memory that use it are complete.
            pair: whether its products are of two blocks: both fill their own stage, the first one is told and uses
                both, and its products let both go.
        """
        if type(stages) is not int or stages < 1:
            self._recorder.refuse("k.pipeline(stages)", f"{stages!r} stages", legal="a positive integer")
        blocks = self._recorder.grid.cluster if self._recorder.grid is not None else 1
        if pair and blocks != 2:
            self._recorder.refuse("k.pipeline(pair=True)", f"clusters of {blocks}", legal="k.grid(.., cluster=2)")
        return Ring(self._recorder, stages, fills, uses, blocks if cluster else 1, products or pair, pair)

    def barrier(self, count: int) -> View:
        """An mbarrier of a count, for protocols that no ring says; `scope.arrive` and `scope.wait` use it."""
        return View(self._recorder, self._recorder.barrier(count))

    def symmetric(self, shape: Sequence[int], dtype: Any, layout: Layout | str | None = None) -> View:
        """Memory that every device of the mesh can reach, zero before the kernel starts.

        Args:
            shape: extents; with a layout of text ``"n:1@axis, .."`` the first dimension counts devices and the
                others lie in rows on each.
            dtype: the element type.
            layout: places on the axes of the mesh and on ``m``.
        """
        recorder, where = self._recorder, "k.symmetric(shape)"
        if not recorder.mesh:
            recorder.refuse(where, "the kernel has no mesh", legal="@tk.kernel(mesh=dict(gpu=4))")
        extents = tuple(shape)
        if layout is None or isinstance(layout, str):
            inner = _row_major(extents[1:])
            made = Layout((Iter(extents[0], Coord(((DEVICES, 1),))), *inner.shard))
            if isinstance(layout, str) and not layout.replace(" ", "").endswith(",.."):
                made = recorder.axes.joined(parse(layout))
        else:
            made = recorder.axes.joined(layout)
        return View(recorder, recorder.alloc(extents, dtype_of(dtype, where).name, "symmetric", made, stem="symmetric"))

    def workspace(self, shape: Sequence[int], dtype: Any) -> View:
        """Memory of the device that all blocks share, zero before the kernel starts."""
        name = dtype_of(dtype, "k.workspace(shape)").name
        layout = _row_major(tuple(shape))
        return View(self._recorder, self._recorder.alloc(tuple(shape), name, "global", layout, stem="workspace"))

    def flags(self, shape: Sequence[int]) -> View:
        """Counters that blocks of a device signal and wait for, one per point of a shape, zero before the kernel."""
        return self.workspace(shape, "u32")

    # Control.

    def when(self, condition: Any) -> Any:
        """``with k.when(condition):`` a body that runs where the condition on indices holds."""
        return flow.under(self._recorder, condition)

    def otherwise(self) -> Any:
        """``with k.otherwise():`` directly behind `k.when`: the body of the other case."""
        return flow.otherwise(self._recorder)

    def while_(self, condition: Any) -> Any:
        """``with k.while_(condition):`` a loop; the condition is on indices that the body changes (`k.var`)."""
        return flow.while_(self._recorder, condition)

    def var(self, value: Number = 0, *, below: int | None = None) -> Var:
        """An index that changes: ``n = k.var(0)``, ``n.value``, ``n.set(n.value + 1)``."""
        found = Var(self._recorder, self._recorder.counter("n", below, 0 if below is not None else -(1 << 62)))
        found.set(value)
        return found

    def own(self, view: View) -> View:
        """The part of a tensor that lies on this device; all of it where it says nothing of the mesh.

        ``scope.copy(own part, x)`` and ``scope.sum(own part, terms, axis=0)`` take x, or the terms, at the same place:
        every device fetches what it lacks from the others, and what all do together is a collective.
        """
        recorder, where = self._recorder, f"k.own({view})"
        if not recorder.mesh:
            recorder.refuse(where, "the kernel has no mesh", legal="@tk.kernel(mesh=dict(gpu=4))")
        if view.region != whole(view.region.tensor):
            recorder.refuse(where, "a part of a tensor", legal="the whole tensor; the result can be cut into tiles")
        axis, _ = recorder.mesh[0]
        try:
            begin, extent = own_part(view.region.tensor, recorder.mesh_symbols[axis])
        except LayoutError as error:
            recorder.refuse(where, str(error).splitlines()[0].split(": ", 1)[1], legal=error.legal)
        numbers = tuple(map(as_number, begin))
        return View(recorder, replace(view.region, begin=numbers, extent=extent, mask=extent))

    def owns(self, view: View) -> Expr | bool:
        """Whether this device holds a region of a tensor sharded over the mesh; all of it lies on one device."""
        recorder, where = self._recorder, f"k.owns({view})"
        region, layout = view.region, view.region.tensor.layout
        if not recorder.mesh or layout is None:
            recorder.refuse(where, "the kernel has no mesh", legal="@tk.kernel(mesh=dict(gpu=4))")
        axis, _ = recorder.mesh[0]
        try:
            begin: tuple[Any, ...] = region.begin
            place = layout.at(begin, region.tensor.shape)
        except LayoutError as error:
            recorder.refuse(where, f"its device is not known ({str(error).splitlines()[0]})")
        device = place.get(DEVICES, 0) if isinstance(place, dict) else place[DEVICES] if isinstance(place, Coord) else 0
        return equal(device, recorder.mesh_symbols[axis])


def _row_major(shape: tuple[int, ...]) -> Layout:
    strides = [prod(shape[d + 1 :]) for d in range(len(shape))]
    return strided(shape, strides)


def _conflict_free(shape: tuple[int, ...], size: int) -> tuple[Layout, Swizzle | None]:
    """A matrix whose rows and columns are both read without a bank met twice, as far as padding or a swizzle can."""
    *_, rows, columns = shape
    lanes = np.arange(32)
    accesses = [lanes[: min(32, columns)], (lanes[: min(32, rows)]) * columns]
    flat = strided((prod(shape),), (1,))
    found = remove_conflicts(flat, accesses, columns, element_bytes=size)
    if found.kind == "swizzle":
        return _row_major(shape), found.swizzle
    pitch = columns + found.padding
    strides = [prod((*shape[d + 1 : -1], pitch)) if d < len(shape) - 1 else 1 for d in range(len(shape))]
    return strided(shape, strides), None
