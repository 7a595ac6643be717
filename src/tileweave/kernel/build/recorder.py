"""The recorder: statements as they are traced, the user's lines, names, and what is in reach."""

from __future__ import annotations

import linecache
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from tileweave.errors import VerifyError
from tileweave.index import Expr, simplify, symbol, symbols_of
from tileweave.kernel.build.mesh import DEVICES, Mesh, collective_of
from tileweave.kernel.ir import (
    RESERVED,
    Alloc,
    Fence,
    Grid,
    Init,
    KernelTensor,
    Line,
    Number,
    Region,
    Scope,
    Statement,
    Sync,
    whole,
)
from tileweave.layout import Coord, Iter, Layout, strided
from tileweave.layout.f2.swizzle import Swizzle

_HERE, _PACKAGE = (str(Path(__file__).parents[n]) for n in (0, 2))
_TARGET = re.compile(r"\s*([A-Za-z_][\w, ]*?)\s*=[^=]|\s*for\s+([A-Za-z_][\w, ]*?)\s+in\b")


def user_frame() -> FrameType:
    """The nearest frame that is the user's."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and (
        frame.f_code.co_filename.startswith(_HERE) or "contextlib" in frame.f_code.co_filename
    ):
        frame = frame.f_back
    return frame if frame is not None else sys._getframe(0)


def line_of(error: BaseException, own: str) -> Line:
    """The user's innermost line in a traceback; `own` is the file of the kernel, which may be one of ours."""
    found, trace = Line("", 0), error.__traceback__
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if file == own or not (file.startswith(_PACKAGE) or "contextlib" in file):
            found = Line(shown_path(file), trace.tb_lineno)
        trace = trace.tb_next
    return found


def with_text(line: Line) -> str:
    """A line and what stands there."""
    text = linecache.getline(line.file, line.number).strip()
    return f"{line}: {text}" if text else str(line)


def shown_path(path: str) -> str:
    """A file as people are told of it: relative where it lies below the working directory."""
    relative = os.path.relpath(path) if path and not path.startswith("<") else path
    return path if relative.startswith("..") else relative


@dataclass(slots=True, eq=False)
class Body:
    """A body that is being written, and the scope that executes it."""

    scope: Any
    statements: list[Statement | Callable[[], list[Statement]]] = field(default_factory=list)

    def closed(self) -> tuple[Statement, ...]:
        """The statements, those included that could not be written before the end."""
        return tuple(one for s in self.statements for one in (s() if callable(s) else [s]))


class Recorder:
    """What one trace has written so far."""

    def __init__(self, name: str, params: tuple[KernelTensor, ...], mesh: Mesh) -> None:
        self.name = name
        self.params = params
        self.mesh, self.axes = mesh.number, mesh
        self.mesh_symbols = {axis: symbol(axis, 0, extent) for axis, extent in (*mesh.number, *mesh.axes)}
        self.bodies: list[Body] = [Body(None)]
        self.home: dict[str, Body] = {one.name: self.bodies[0] for one in params}
        self.names: set[str] = {one.name for one in params} | set(self.mesh_symbols) | RESERVED
        self.automatic: dict[str, KernelTensor] = {}
        self.renamed: dict[KernelTensor, KernelTensor] = {}
        self.loaded: dict[str, tuple[int | None, ...]] = {}
        """Register tensor -> the extents that it was asked for with, before it was padded to its threads."""
        self.warps = 0
        self.ended: set[Expr] = set()
        self._bound_in: dict[Expr, Body] = {}
        self.stage: Any = None
        self.decided: tuple[Body, int, bool] | None = None
        """The body, its statements and the truth of the last `k.when` whose condition was known."""
        self._flags: dict[str, KernelTensor] = {}
        self.grid: Grid | None = None
        self.poison: VerifyError | None = None

    # The user's source.

    def line(self) -> Line:
        """Where the user's code is now."""
        frame = user_frame()
        return Line(shown_path(frame.f_code.co_filename), frame.f_lineno)

    def refuse(self, where: str, problem: str, *, legal: str = "", rule: str = "trace", line: Line | None = None,
               inputs: Mapping[str, object] | None = None) -> NoReturn:  # fmt: skip
        """Raise the error of a trace, with the user's line."""
        raise self.error(where, problem, legal=legal, rule=rule, line=line, inputs=inputs)

    def error(self, where: str, problem: str, *, legal: str = "", rule: str = "trace", line: Line | None = None,
              inputs: Mapping[str, object] | None = None) -> VerifyError:  # fmt: skip
        """The error of a trace, with the user's line."""
        line = line or self.line()
        rows = {"line": with_text(line), **(inputs or {})}
        return VerifyError(where, problem, inputs=rows, legal=legal, facts={"rule": rule, "path": "", "line": line})

    # Names.

    def fresh(self, stem: str) -> str:
        """A name that nothing has yet."""
        name, number = stem, 0
        while name in self.names:
            number += 1
            name = f"{stem}_{number}"
        self.names.add(name)
        return name

    def target(self, position: int, default: str) -> str:
        """The name that the user's line assigns to."""
        frame = user_frame()
        found = _TARGET.match(linecache.getline(frame.f_code.co_filename, frame.f_lineno))
        names = [n.strip() for n in (found.group(1) or found.group(2)).split(",")] if found else []
        return names[position] if position < len(names) and names[position].isidentifier() else default

    def counter(self, default: str, stop: Number | None, start: Number = 0, position: int = 0) -> Expr:
        """A new symbol, named as the user's line names it."""
        name = self.fresh(self.target(position, default))
        if isinstance(start, int) and isinstance(stop, int) and stop <= start:
            stop = start + 1
        made = symbol(name, start, stop)
        self._bound_in[made] = self.bodies[-1]
        return made

    def has_ended(self, index: Expr) -> bool:
        """Whether a symbol of an index has no value any more."""
        return any(
            s in self.ended or self._bound_in.get(s, self.bodies[0]) not in self.bodies for s in symbols_of(index)
        )

    def name_from(self, values: Mapping[str, Any]) -> None:
        """Tensors without a name of the user's take that of the local variable that holds them."""
        for name, value in values.items():
            region = getattr(value, "region", None)
            if isinstance(region, Region) and region.tensor.name in self.automatic:
                old = self.automatic.pop(region.tensor.name)
                self.renamed[old] = replace(old, name=self.fresh(name))

    # Statements.

    @property
    def scope(self) -> Any:
        """The handle of the innermost scope, None outside every scope."""
        return self.bodies[-1].scope

    def emit(self, statement: Statement) -> None:
        """The next statement of the innermost body."""
        if self.poison is not None:
            raise self.poison
        self.bodies[-1].statements.append(statement)

    def defer(self, statements: Callable[[], list[Statement]]) -> None:
        """Statements for here that are known when the body ends."""
        self.bodies[-1].statements.append(statements)

    def flags(self, verb: str, view: Any, index: tuple[Any, ...]) -> KernelTensor:
        """The flags of a tensor's tiles: one per device of the mesh and tile, zero before the kernel starts."""
        tensor = view.region.tensor
        if tensor.name not in self._flags:
            if self.grid is None or len(index) != len(self.grid.extents):
                rank = 0 if self.grid is None else len(self.grid.extents)
                self.refuse(
                    f"scope.{verb}({view}, ..)", f"an index of rank {len(index)} in a grid of rank {rank}",
                    legal="the tile of a block: as many numbers as k.grid(..) has",
                )  # fmt: skip
            shape = tuple(extent for extent in self.grid.extents if isinstance(extent, int))
            strides = [prod(shape[d + 1 :]) for d in range(len(shape))]
            layout, name = strided(shape, strides), self.fresh(f"{self.shown(view.region)}_flags")
            if self.mesh:
                extent = self.mesh[0][1]
                layout = Layout((Iter(extent, Coord(((DEVICES, 1),))), *layout.shard))
                shape = (extent, *shape)
            self._flags[tensor.name] = KernelTensor(name, shape, "u32", "symmetric" if self.mesh else "global", layout)
            self.home[name] = self.bodies[0]
            self.bodies[0].statements.insert(0, Alloc(self._flags[tensor.name], line=self.line()))
        return self._flags[tensor.name]

    def collective(self, target: KernelTensor, source: KernelTensor, *, sums: bool = False) -> str | None:
        """What the devices of the mesh do together to have one tensor from another, in words."""
        found = collective_of(target, source, self.mesh[0][1], sums=sums) if self.mesh else None
        return None if found is None else self.axes.shown(found)

    def mesh_coordinates(self) -> tuple[tuple[Expr, Expr], ...]:
        """The place of this device on each axis of a mesh of several."""
        ((number, _),) = self.mesh
        found = self.axes.coordinates(self.mesh_symbols[number])
        return tuple((self.mesh_symbols[name], simplify(value)) for name, value in found.items())

    def barrier(self, count: int) -> Region:
        """One mbarrier, started and published."""
        region = self.alloc((1,), "mbarrier", "shared", strided((1,), (1,)), stem="barrier")
        region = Region(region.tensor, (0,), (1,), (1,), ())
        line = self.line()
        for one in (Init(region, count, line=line), Fence("mbarrier_init", line=line), Sync(line=line)):
            self.emit(one)
        return region

    @contextmanager
    def body(self, scope: Any) -> Iterator[Body]:
        """A body inside the innermost one; the caller emits the statement that holds it."""
        inner = Body(scope)
        self.bodies.append(inner)
        try:
            yield inner
        finally:
            self.bodies.remove(inner)

    def alloc(
        self, shape: tuple[int, ...], dtype: str, space: Any, layout: Layout | None = None,
        swizzle: Swizzle | None = None, *, name: str = "", stem: str = "t",
    ) -> Region:  # fmt: skip
        """New storage in the innermost body; without a name it is named after the local variable that will hold it."""
        chosen = self.fresh(name or stem)
        tensor = KernelTensor(chosen, shape, dtype, space, layout, swizzle)
        if not name:
            self.automatic[chosen] = tensor
        self.home[chosen] = self.bodies[-1]
        self.emit(Alloc(tensor, line=self.line()))
        return whole(tensor)

    def require_in_reach(self, region: Region, where: str) -> None:
        """Raise unless the region's tensor was declared in a body that is still open."""
        if self.home.get(region.tensor.name) not in self.bodies:
            self.refuse(
                where, f"{self.shown(region)} was made in a body that has ended",
                legal="declare it before the loop or the scope, and copy into it", rule="declared",
            )  # fmt: skip

    def shown(self, region: Region) -> str:
        """The name of a region's tensor as the user knows it."""
        return self.renamed.get(region.tensor, region.tensor).name

    def scope_of_threads(self, scope: Scope) -> None:
        """Note that these threads exist."""
        last = scope.layout.bounds("warp")[1]
        self.warps = max(self.warps, int(last) + 1) if isinstance(last, int) else self.warps
