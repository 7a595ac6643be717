"""Scopes as a user holds them: `with k.cta(..) as cta:`; their operators write statements."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod
from types import TracebackType
from typing import Any, get_args

from tileweave.index import Expr
from tileweave.kernel.build import flow, shapes
from tileweave.kernel.build.recorder import Body, Recorder, user_frame
from tileweave.kernel.build.views import View, _least, compute_type, operand
from tileweave.kernel.ir import (
    DTYPES,
    ELEMENTWISE,
    MONOIDS,
    Arrive,
    Await,
    Break,
    Commit,
    Continue,
    Fence,
    Let,
    Number,
    On,
    Op,
    Region,
    Scalar,
    Scope,
    Signal,
    Statement,
    Sync,
    Wait,
    WaitGroup,
    cta_scope,
    dtype_of,
    whole,
)
from tileweave.kernel.ir.statements import FenceKind
from tileweave.layout import Coord, Layout, parse

_KINDS = ("warpgroup", "warp", "thread")
_PER_SCOPE = {"warpgroup": 8, "warp": 32, "thread": 1024}


class ScopeSelector:
    """``k.warpgroup``, ``cta.warp``: entities of one kind in a scope, picked by ``[i]``, ``[a:b]`` or ``.each()``."""

    def __init__(self, recorder: Recorder, kind: Any, around: Scope | None) -> None:
        self._recorder = recorder
        self._kind = kind
        self._around = around

    def __getitem__(self, part: int | slice) -> Opening:
        around = self._around or cta_scope(1024)
        start, stop = (part.start or 0, part.stop) if isinstance(part, slice) else (part, part + 1)
        size = {"warpgroup": 128, "warp": 32, "thread": 1}[self._kind]
        if stop is None:
            stop = around.threads // size
        try:
            scope = around.part(self._kind, start, stop)
        except ValueError as error:
            self._recorder.refuse(f"{self._kind}[{part}]", str(error).splitlines()[0].split(": ", 1)[1], rule="scope")
        return Opening(self._recorder, scope)

    def each(self) -> Opening:
        """Every entity by itself; the handle's `index` is its number."""
        if self._around is None:
            self._recorder.refuse(
                f"k.{self._kind}.each()", "of how many is not known", legal="cta.warp.each(), k.warp[0:4].each()"
            )
        return Opening(self._recorder, Scope(self._kind, self._around.layout)).each()


class Opening:
    """A scope that a `with` statement opens; ``(registers=..)`` and ``.each()`` say more about it."""

    def __init__(self, recorder: Recorder, scope: Scope) -> None:
        self._recorder = recorder
        self._scope = scope
        self._registers: int | None = None
        self._each = False
        self._body: Body | None = None
        self._handle: ScopeHandle | None = None

    def __call__(self, *, registers: int | None = None) -> Opening:
        """Open the scope, perhaps with a number of registers for each thread."""
        if registers is not None and (type(registers) is not int or registers % 8 or not 24 <= registers <= 256):
            self._recorder.refuse(
                f"{self._scope.kind}(registers={registers})", "setmaxnreg does not take it",
                legal="a multiple of 8 from 24 to 256",
            )  # fmt: skip
        self._registers = registers
        return self

    def each(self) -> Opening:
        """Every entity executes the body by itself; the handle's `index` is its number."""
        self._each = True
        return self

    def __enter__(self) -> ScopeHandle:
        recorder = self._recorder
        recorder.scope_of_threads(self._scope)
        self._line = recorder.line()
        index, inner = None, self._scope
        if self._each:
            index = recorder.counter(self._scope.kind, self._scope.entities)
            size = self._scope.threads // self._scope.entities
            first, layout = self._scope.part(self._scope.kind, 0, 1).layout, self._scope.layout
            step: Any = layout(size) - layout(0) if self._scope.entities > 1 else Coord()
            offset = first.offset + Coord(tuple((axis, stride * index) for axis, stride in step.terms))
            if self._scope.kind == "thread":
                number: Any = index
                place = layout.at((number,), (layout.size,))
                offset = Coord(tuple(place.items())) if isinstance(place, dict) else Coord(((layout.axes[0], place),))
            inner = Scope(self._scope.kind, Layout(first.shard, (), offset))
        self._handle = ScopeHandle(recorder, inner, index)
        self._index = index
        self._body = Body(self._handle)
        recorder.bodies.append(self._body)
        self._before = flow.bound(user_frame())
        return self._handle

    def __exit__(self, kind: type[BaseException] | None, error: Any, trace: TracebackType | None) -> None:
        recorder, body = self._recorder, self._body
        if body is None or body not in recorder.bodies:
            return
        frame = user_frame()
        if kind is None:
            flow.traced(recorder, frame)
            flow.refuse_rebinding(recorder, self._before, frame, "a scope")
        recorder.bodies.remove(body)
        if kind is None:
            recorder.emit(
                On(self._scope, body.closed(), self._index, self._registers, line=self._line)
            )  # fmt: skip


class ScopeHandle:
    """A scope inside its `with`: operators that its threads execute together.

    Shapes: an elementwise operator broadcasts extents of 1; a reduction keeps the reduced dimensions with extent 1.
    Floats of fewer than 32 bits compute in f32; `store` and `copy` round to the destination's type.
    """

    def __init__(self, recorder: Recorder, scope: Scope, index: Expr | None = None) -> None:
        self._recorder = recorder
        self._scope = scope
        self.index = index

    # Parts of the scope.

    @property
    def scope(self) -> Scope:
        """The threads."""
        return self._scope

    @property
    def threads(self) -> int:
        """The number of threads."""
        return self._scope.threads

    @property
    def warpgroup(self) -> ScopeSelector:
        """Warpgroups of this scope, counted from its first."""
        return ScopeSelector(self._recorder, "warpgroup", self._scope)

    @property
    def warp(self) -> ScopeSelector:
        """Warps of this scope, counted from its first."""
        return ScopeSelector(self._recorder, "warp", self._scope)

    @property
    def thread(self) -> ScopeSelector:
        """Threads of this scope, counted from its first."""
        return ScopeSelector(self._recorder, "thread", self._scope)

    def _where(self, name: str) -> str:
        return f"{self._scope.kind}.{name}"

    def _emit(self, name: str, outs: Sequence[Region], ins: Sequence[Region | Scalar] = (), *,
              barrier: Region | None = None, **options: Any) -> None:  # fmt: skip
        kept = tuple(sorted((key, value) for key, value in options.items() if value is not None))
        self._say(name, Op(name, tuple(outs), tuple(ins), kept, barrier, line=self._recorder.line()))

    def _say(self, name: str, statement: Statement) -> None:
        """The next statement, which all threads of this scope execute: they must all be here."""
        recorder, inner = self._recorder, self._recorder.scope
        if inner is not self:
            place = "outside every scope" if inner is None else f"inside {inner._scope}"
            recorder.refuse(
                self._where(name), f"this is {place}, not inside {self._scope}", legal="the innermost scope's handle",
                rule="scope", inputs=shapes.missing(self._scope, None if inner is None else inner._scope),
            )  # fmt: skip
        recorder.emit(statement)

    def _new(self, shape: tuple[int, ...], dtype: str, stem: str, mask: tuple[Number, ...] | None = None,
             layout: Layout | str | None = None, of: Sequence[Region] = ()) -> Region:  # fmt: skip
        made = parse(layout) if isinstance(layout, str) else layout
        region = self._recorder.alloc(shape, dtype, "register", made, stem=stem)
        if of and (wanted := shapes.common(of, self._recorder.loaded)) is not None:
            self._recorder.loaded[region.tensor.name] = wanted
        return region if mask is None else replace(region, mask=mask)

    def _view(self, value: Any, where: str) -> View:
        if not isinstance(value, View):
            self._recorder.refuse(where, f"{value!r} is no traced tensor", legal="a tensor, or a part of one")
        self._recorder.require_in_reach(value.region, where)
        return value

    # Making and moving.

    def zeros(self, shape: Sequence[int] | None = None, dtype: Any = "f32", *, layout: Layout | str | None = None,
              like: View | None = None) -> View:  # fmt: skip
        """Registers full of zeros: of a shape, or as wide as other registers and with their mask."""
        return self.full(shape, 0, dtype, layout=layout, like=like)

    def full(self, shape: Sequence[int] | None, value: Any, dtype: Any = "f32", *, layout: Layout | str | None = None,
             like: View | None = None) -> View:  # fmt: skip
        """Registers full of one value."""
        made = self.empty(shape, dtype, layout=layout, like=like)
        self._emit("fill", (made.region,), (operand(value, made.dtype, self._recorder, self._where("full")),))
        return made

    def empty(self, shape: Sequence[int] | None = None, dtype: Any = "f32", *, layout: Layout | str | None = None,
              like: View | None = None) -> View:  # fmt: skip
        """Registers without a value: reading them before they are written is an error."""
        if (shape is None) == (like is None):
            self._recorder.refuse(self._where("empty"), "the shape is needed once", legal="a shape, or like=")
        given = like.shape if like is not None else shape
        extents = (given,) if isinstance(given, int) else tuple(given or ())
        if any(type(e) is not int or e < 1 for e in extents):
            self._recorder.refuse(self._where("empty"), f"the shape {shape!r} is not positive integers")
        name = dtype_of(dtype, self._where("empty")).name
        mask, of = (None, ()) if like is None else (like.region.valid, (like.region,))
        return View(self._recorder, self._new(extents, name, "t", mask, layout, of))

    def iota(self, shape: Sequence[int], axis: int = 0, start: Any = 0, dtype: Any = "s32") -> View:
        """Registers that hold their own coordinate along an axis, plus `start`."""
        made = self.empty(shape, dtype)
        self._emit("iota", (made.region,), (operand(start, made.dtype, self._recorder, "iota"),), axis=axis)
        return made

    def load(
        self, source: View, dtype: Any = None, *, layout: Layout | str | None = None, use: str | None = None
    ) -> View:
        """The elements of a region in registers; with a mask where its tile is partial or does not fill the threads."""
        view = self._view(source, self._where("load"))
        shape, mask = view.shape, view.region.valid
        if layout is None and shape:
            shape = (*shape[:-1], shapes.even(shape[-1], prod(shape[:-1]), self.threads))
        kind = view.dtype if dtype is None else dtype_of(dtype).name
        made = self._new(shape, kind, "t", mask, layout, (view.region,))
        self._emit("copy", (made,), (shapes.widened(view.region, shape),), use=use)
        return View(self._recorder, made)

    def store(self, target: View, value: Any, *, use: str | None = None) -> None:
        """Write registers, or a number, to a region of memory, rounded to its type; what is masked stays as it was."""
        self._copy("copy", target, value, called="store", use=use)

    def copy(self, target: View, source: Any, *, use: str | None = None) -> None:
        """Copy a region to another of the same shape, rounded to its type; masked elements are read as zero."""
        self._copy("copy", target, source, use=use)

    def copy_async(self, target: View, source: View, *, barrier: View | None = None, use: str | None = None,
                   multicast: bool | Sequence[int] = False) -> None:  # fmt: skip
        """The same, in the background: complete at its barrier, that of the ring being filled, or the next commit.

        Args:
            target, source: regions of one shape.
            barrier: an mbarrier, where it is not that of a ring.
            use: the schedule that must be taken.
            multicast: the blocks of the cluster, by rank, in whose memory it is written and on whose barriers it
                completes; True: all of them. Every block of the cluster is taken to do the same, so a stage of a ring
                waits for the bytes of all.
        """
        recorder, found = self._recorder, barrier.region if barrier is not None else None
        blocks = recorder.grid.cluster if recorder.grid is not None else 1
        ranks = tuple(range(blocks)) if multicast is True else tuple(multicast or ())
        if multicast is not False and (not ranks or any(type(r) is not int or not 0 <= r < blocks for r in ranks)):
            recorder.refuse(self._where("copy_async"), f"multicast={multicast!r} in a cluster of {blocks}",
                            legal=f"True, or ranks of 0..{blocks - 1}", rule="cluster")  # fmt: skip
        filling = flow.filling(recorder)
        if found is None and filling is not None:
            if multicast is not False and len(set(ranks)) != blocks:
                recorder.refuse(self._where("copy_async"), f"a stage of a ring is filled by ranks {ranks} only",
                                legal="multicast=True, or a barrier of your own", rule="cluster")  # fmt: skip
            found = filling.full
            filling.bytes += prod(target.shape) * DTYPES[target.dtype].bits // 8 * max(1, len(ranks))
            filling.shared_by = max(filling.shared_by, len(ranks))
        mask = sum(1 << r for r in set(ranks)) or None
        leader = 1 if filling is not None and filling.pair else None
        self._copy("copy_async", target, source, barrier=found, use=use, multicast=mask, leader=leader)

    def _copy(self, name: str, target: View, source: Any, *, called: str = "", **options: Any) -> None:
        where = self._where(called or name)
        out = self._view(target, where).region
        if not isinstance(source, View):
            self._emit("fill", (out,), (operand(source, target.dtype, self._recorder, where),))
            return
        region = self._view(source, where).region
        copies = len(out.tensor.shape) - len(region.shape)  # a slowest dimension of the target, or none
        same = region.shape == out.tensor.shape[copies:] and out.dims[:1] != (0,) * copies
        apart = same and out.shape != out.tensor.shape
        if self._recorder.mesh and region == whole(region.tensor) and copies in (0, 1) and apart:
            dims = tuple(d - copies for d in out.dims)
            begin, extent, mask = out.begin[copies:], out.extent[copies:], out.mask[copies:]
            region = Region(region.tensor, begin, extent, mask, dims, out.skip[copies:])
            options["collective"] = self._recorder.collective(out.tensor, region.tensor)
        loaded = self._recorder.loaded
        fits = shapes.fits(out, region, loaded)
        if fits and len(region.shape) == len(out.shape):
            out, region = shapes.as_wide(out, region), shapes.as_wide(region, out)
        if not fits or out.shape != region.shape:
            self._recorder.refuse(
                where, f"{source} of shape {shapes.shown(region, loaded)} does not fit {target}, of {target.shape}",
                legal="equal shapes", rule="operator",
            )  # fmt: skip
        self._emit(name, (out,), (region,), **options)

    # Computing.

    def map(self, fn: str, *operands: Any, into: View | None = None, use: str | None = None) -> View:
        """An elementwise function of `ELEMENTWISE`, by name."""
        where = self._where(fn)
        row = ELEMENTWISE.get(fn)
        if row is None:
            self._recorder.refuse(where, f"no function {fn!r}", legal=" | ".join(ELEMENTWISE))
        numbers = operands[1:] if fn == "where" else operands
        kind = compute_type(numbers, where)
        if row.inputs == "float" and DTYPES[kind].kind != "float":
            kind = "f32"
        ins = [operand(value, kind, self._recorder, where) for value in operands]
        regions = [one for one in ins if isinstance(one, Region)]
        shape, mask = self._broadcast(regions, where)
        if into is not None:
            if shape != into.shape:
                self._recorder.refuse(where, f"the result has shape {shape}, {into} {into.shape}", rule="operator")
            self._emit("map", (into.region,), ins, fn=fn, use=use)
            return into
        made = self._new(shape, "pred" if row.result == "pred" else kind, fn, mask, of=regions)
        self._emit("map", (made,), ins, fn=fn, use=use)
        return View(self._recorder, made)

    def _broadcast(self, ins: list[Region], where: str) -> tuple[tuple[int, ...], tuple[Number, ...]]:
        if not ins:
            self._recorder.refuse(where, "no operand is a tensor", legal="scope.full(shape, value)")
        rank = max(len(one.shape) for one in ins)
        shape: list[int] = [1] * rank
        mask: list[Number] = [1] * rank
        loaded = self._recorder.loaded
        fit = all(len(one.shape) == rank for one in ins) and shapes.common(ins, loaded) is not None
        for one in ins:
            if not fit or any(1 not in (e, s) and e != s for e, s in zip(one.shape, shape, strict=True)):
                given = ", ".join(f"{self._recorder.shown(r)} {shapes.shown(r, loaded)}" for r in ins)
                self._recorder.refuse(
                    where, f"the shapes do not fit: {given}", rule="operator",
                    legal="equal extents, or 1; `zeros(like=r)` is as wide as what a load made r",
                )  # fmt: skip
            for d, (extent, valid) in enumerate(zip(one.shape, one.valid, strict=True)):
                if extent > shape[d]:
                    shape[d], mask[d] = extent, valid
                elif extent == shape[d]:
                    mask[d] = _least(mask[d], valid)
        return tuple(shape), tuple(mask)

    def where(self, condition: Any, then: Any, otherwise: Any, *, use: str | None = None) -> View:
        """Element by element, one or the other."""
        return self.map("where", condition, then, otherwise, use=use)

    def cast(self, value: View, dtype: Any, *, use: str | None = None) -> View:
        """The values in another type: to the nearest, ties to even; to integers towards zero."""
        view = self._view(value, self._where("cast"))
        kind = dtype_of(dtype, self._where("cast")).name
        made = self._new(view.shape, kind, "cast", view.region.valid, of=(view.region,))
        self._emit("cast", (made,), (view.region,), use=use)
        return View(self._recorder, made)

    def reduce(self, fn: str, value: View, axis: int | Sequence[int] | None = None, *, use: str | None = None) -> View:
        """Combine along axes, by default all; they stay with extent 1, every thread of the scope gets the result."""
        where = self._where("sum" if fn == "add" else fn)
        view = self._view(value, where)
        axes = self._axes(axis, len(view.shape), where)
        if fn not in MONOIDS:
            self._recorder.refuse(where, f"no monoid {fn!r}", legal=" | ".join(MONOIDS))
        shape = tuple(1 if d in axes else n for d, n in enumerate(view.shape))
        mask = tuple(1 if d in axes else n for d, n in enumerate(view.region.valid))
        kind = shapes.sum_type(view.dtype) if fn in ("add", "mul") else view.dtype
        made = self._new(shape, kind, fn, mask, of=(view.region,))
        self._emit("reduce", (made,), (view.region,), axes=axes, fn=fn, use=use)
        return View(self._recorder, made)

    def _axes(self, axis: int | Sequence[int] | None, rank: int, where: str) -> tuple[int, ...]:
        axes = tuple(range(rank)) if axis is None else (axis,) if isinstance(axis, int) else tuple(axis)
        if any(not -rank <= a < rank for a in axes):
            self._recorder.refuse(where, f"axis {axis} of a tensor of rank {rank}", rule="operator")
        return tuple(sorted({a % rank for a in axes}))

    def scan(self, fn: str, value: View, axis: int = -1, *, use: str | None = None) -> View:
        """Combine up to and with each coordinate of an axis."""
        view = self._view(value, self._where("scan"))
        (at,) = self._axes(axis, len(view.shape), self._where("scan"))
        kind = shapes.sum_type(view.dtype) if fn == "add" else view.dtype
        made = self._new(view.shape, kind, "scan", view.region.valid, of=(view.region,))
        self._emit("scan", (made,), (view.region,), axis=at, fn=fn, use=use)
        return View(self._recorder, made)

    def gemm(self, acc: View, a: View, b: View, *, use: str | None = None, keep: Any = None,
             pair: bool = False, precision: str | None = None, scales: tuple[View, ...] = ()) -> None:  # fmt: skip
        """``acc += a @ b.T``: a is (m, k), b is (n, k); exact products.

        Args:
            acc: registers, or tensor memory: then the product goes on in the background until a commit's barrier.
            a, b: the operands.
            use: the schedule that must be taken.
            keep: of tensor memory, the condition that its old value counts; None: it does.
            pair: a product of two blocks of a cluster, issued by the first: each has its 128 rows of acc and of a, and
                half of the rows of b.
            precision: ``"tf32"`` multiplies f32 by tensor cores, which leave out the 13 lowest bits of both operands.
            scales: of e8m0, (m, k / 32) and (n, k / 32): a factor for every 32 terms of a row of a, and of b.
        """
        c, first, second, *more = (self._view(v, self._where("gemm")).region for v in (acc, a, b, *scales))
        kept = keep if keep is None or isinstance(keep, Expr) else int(keep)
        ins = (*shapes.same_depth(first, second), c, *more)
        self._emit("gemm", (c,), ins, use=use, keep=kept, pair=1 if pair else None, precision=precision)

    def dot(self, a: View, b: View, dtype: Any = "f32", *, use: str | None = None) -> View:
        """``a @ b.T`` in new registers, masked where a row of a or of b does not exist."""
        where = self._where("dot")
        first, second = self._view(a, where).region, self._view(b, where).region
        if len(first.shape) != 2 or len(second.shape) != 2:
            self._recorder.refuse(where, f"shapes {first.shape} and {second.shape}", legal="(m, k) and (n, k)")
        first, second = shapes.same_depth(first, second)
        shape, mask = (first.shape[0], second.shape[0]), (first.valid[0], second.valid[0])
        made = self._new(shape, dtype_of(dtype, where).name, "dot", mask)
        zero = Scalar(0.0 if made.tensor.element.kind == "float" else 0, made.tensor.dtype)
        self._emit("gemm", (made,), (first, second, zero), use=use)
        return View(self._recorder, made)

    def sum(self, *args: Any, axis: Any = None, use: str | None = None) -> View | None:
        """``sum(x, axis)`` gives the sum; ``sum(target, x, axis=0)`` writes that of x, at target's box, to target."""
        if len(args) == 2 and isinstance(args[1], View):
            self._sum_into(args[0], args[1], axis, use)
            return None
        return self.reduce("add", args[0], args[1] if len(args) == 2 else axis, use=use)

    def _sum_into(self, target: View, source: View, axis: Any, use: str | None) -> None:
        where = self._where("sum")
        out, region = self._view(target, where).region, self._view(source, where).region
        (at,) = self._axes(axis, len(region.shape), where)
        if len(region.shape) != len(out.shape) + 1:
            self._recorder.refuse(where, f"{source} has rank {len(region.shape)}, {target} {len(out.shape)}")
        begin, extent, mask = list(region.begin), list(region.extent), list(region.mask)
        others = [k for d, k in enumerate(region.dims) if d != at]
        for k, o in zip(others, out.dims, strict=True):
            begin[k], extent[k], mask[k] = out.begin[o], out.extent[o], out.mask[o]
        box = Region(region.tensor, tuple(begin), tuple(extent), tuple(mask), region.dims)
        shape = tuple(1 if d == at else e for d, e in enumerate(box.shape))
        valid = tuple(1 if d == at else e for d, e in enumerate(box.valid))
        at_once = use == "multimem" and out.tensor.dtype == source.dtype
        total = self._new(shape, source.dtype if at_once else shapes.sum_type(source.dtype), "sum", valid)
        together = self._recorder.collective(out.tensor, region.tensor, sums=True) if at == 0 else None
        self._emit("reduce", (total,), (box,), axes=(at,), fn="add", use=use, collective=together)
        kept = tuple(d for d in total.dims if d != at)
        self._emit("copy", (out,), (replace(total, dims=kept),))

    # Ordering.

    def sync(self, barrier: int | None = None, *, cluster: bool = False) -> None:
        """The threads of the scope wait for each other; what they wrote is then visible to all of them.

        Args:
            barrier: the hardware barrier; chosen by dispatch where it is not given.
            cluster: the threads of all blocks of the cluster, each of which comes here in its own scope.
        """
        self._say("sync", Sync(barrier, cluster, line=self._recorder.line()))

    def fence(self, kind: str) -> None:
        """Order accesses: ``proxy.async``, ``cta``, ``gpu``, ``sys``, ``mbarrier_init``, ``wgmma``."""
        if kind not in get_args(FenceKind):
            self._recorder.refuse(self._where("fence"), f"no fence {kind!r}", legal=" | ".join(get_args(FenceKind)))
        self._say("fence", Fence(kind, line=self._recorder.line()))  # type: ignore[arg-type]

    def commit(self, kind: Any = "cp.async", barrier: View | None = None, *, blocks: Sequence[int] = ()) -> None:
        """Close the group of the asynchronous operations issued so far.

        Args:
            kind: ``cp.async``, ``bulk``, ``wgmma``; ``tcgen05``: products into tensor memory.
            barrier: of products, the mbarrier that gets an arrival when they are complete.
            blocks: whose barrier it is, by rank in the cluster; the own one where none is given.
        """
        region = None if barrier is None else barrier.region
        mask = sum(1 << r for r in set(blocks)) or None
        self._say("commit", Commit(kind, region, mask, line=self._recorder.line()))

    def wait_group(self, pending: int = 0, kind: Any = "cp.async") -> None:
        """Wait until at most `pending` groups are unfinished."""
        if not isinstance(pending, int) or pending < 0:
            self._recorder.refuse("scope.wait_group(pending)", f"{pending} groups", legal="an integer >= 0")
        self._say("wait_group", WaitGroup(kind, pending, line=self._recorder.line()))

    def arrive(self, barrier: View, *, lanes: Any = "each", bytes: Number | None = None,
               rank: Number | None = None) -> None:  # fmt: skip
        """Arrive on an mbarrier, or on that of another block of the cluster, by its rank."""
        self._say("arrive", Arrive(barrier.region, lanes, bytes, rank, line=self._recorder.line()))

    def wait(
        self, what: View, *index: Any, parity: Number | None = None, at_least: Number = 1, device: Number | None = None
    ) -> None:
        """Wait on an mbarrier (``parity=p``), on a flag of `k.flags`, or for a tensor's tile that was signalled.

        Args:
            what: the barrier, the flag, or the tensor.
            index: of the tensor's tile.
            parity: of the barrier's phase.
            at_least: how many signals.
            device: whose signals of a tile; None: every device's.
        """
        line = self._recorder.line()
        if what.dtype == "mbarrier":
            self._say("wait", Wait(what.region, 0 if parity is None else parity, line=line))
            return
        if not index and what.dtype == "u32" and not what.shape:
            self._say("wait", Await(what.region, at_least, line=line))
            return
        flags = self._recorder.flags("wait", what, index)
        whose: Any = (0,) if flags.space != "symmetric" else range(flags.shape[0]) if device is None else (device,)
        for number in whose:
            self._say("wait", Await(shapes.flag(flags, number, index), at_least, line=line))

    def signal(self, what: View, *index: Any) -> None:
        """Tell whoever waits for a flag, or for ``(tensor, i, j)``, that what this scope wrote is there."""
        if not index and what.dtype == "u32" and not what.shape:
            self._say("signal", Signal(what.region, line=self._recorder.line()))
            return
        flags = self._recorder.flags("signal", what, index)
        own: Number = next(iter(self._recorder.mesh_symbols.values()), 0)
        self._say("signal", Signal(shapes.flag(flags, own, index), line=self._recorder.line()))

    def atomic_add(self, cell: View, value: Any = 1, *, name: str = "ticket", use: str | None = None) -> Expr:
        """Add to one element of memory at once, and give the value before as an index."""
        where = self._where("atomic_add")
        region = self._view(cell, where).region
        old = self._new((), region.tensor.dtype, "old")
        self._emit("atomic_add", (old,), (region, operand(value, old.tensor.dtype, self._recorder, where)), use=use)
        return self.read(View(self._recorder, old), name=name)

    def read(self, element: View, *, below: int | None = None, name: str = "n") -> Expr:
        """One element of an integer tensor as an index, the same for all threads of the scope."""
        region = self._view(element, self._where("read")).region
        if region.size != 1 or DTYPES[element.dtype].kind not in ("signed", "unsigned"):
            self._recorder.refuse(self._where("read"), f"{element} is not one integer", legal="tensor[i, j]")
        number = self._recorder.counter(name, below)
        self._say("read", Let(number, region, line=self._recorder.line()))
        return number

    # Control.

    def range(self, *bounds: Any, stages: int = 1, unroll: bool = False) -> Iterator[Expr]:
        """A loop; ``stages`` is how many of its iterations dispatch may have in flight."""
        return flow.loop(self._recorder, bounds, stages, unroll)

    def break_(self) -> None:
        """Leave the nearest loop."""
        self._recorder.emit(Break(line=self._recorder.line()))

    def continue_(self) -> None:
        """Go to the next iteration of the nearest loop."""
        self._recorder.emit(Continue(line=self._recorder.line()))

    def __str__(self) -> str:
        return str(self._scope)


def _elementwise(fn: str) -> Any:
    def method(self: ScopeHandle, *operands: Any, use: str | None = None) -> View:
        return self.map(fn, *operands, use=use)

    method.__name__ = method.__qualname__ = fn
    method.__doc__ = f"``{fn}`` of each element."
    return method


def _reduction(fn: str, text: str) -> Any:
    def method(self: ScopeHandle, value: View, axis: Any = None, *, use: str | None = None) -> View:
        return self.reduce(fn, value, axis, use=use)

    method.__doc__ = f"The {text} along axes, by default all; they stay with extent 1."
    return method


for _name in ELEMENTWISE:
    if _name not in ("min", "max", "and", "or", "not", "where"):
        setattr(ScopeHandle, _name, _elementwise(_name))
ScopeHandle.maximum = _elementwise("max")  # type: ignore[attr-defined]
ScopeHandle.minimum = _elementwise("min")  # type: ignore[attr-defined]
ScopeHandle.max = _reduction("max", "greatest")  # type: ignore[attr-defined]
ScopeHandle.min = _reduction("min", "least")  # type: ignore[attr-defined]
