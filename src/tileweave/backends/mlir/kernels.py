"""Which layouts fill which MLIR template: a few lines for each kernel, for constant sizes or symbolic ones."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Literal

from tileweave.errors import LayoutError
from tileweave.index import Expr, symbol
from tileweave.layout.lego import GroupBy, OrderBy, PartialTiles, xor_swizzle
from tileweave.layout.notation.lego_slices import Slice
from tileweave.layout.template import Template, template

__all__ = ["KERNELS", "MlirKernel", "kernel"]

FOLDER = Path(__file__).parent / "templates"
LARGEST = (1 << 31) - (1 << 16)
"""Sizes stay below it, with room to round up to a tile."""
WORKGROUP = "#gpu.address_space<workgroup>"

Size = int | Expr


def _size(name: str, value: Size | None) -> Any:
    """A size: the given number or expression, or a symbol that becomes an argument of the kernel."""
    if value is not None and not isinstance(value, Expr) and not (type(value) is int and 1 <= value < LARGEST):
        raise LayoutError("kernel(name, ..)", f"the size {name} is {value!r}", legal=f"1 .. {LARGEST - 1}")
    return symbol(name, 1, LARGEST) if value is None else value


def _choose(name: str, value: Any, legal: tuple[Any, ...]) -> None:
    if value not in legal:
        raise LayoutError("kernel(name, ..)", f"{name} is {value!r}", legal=", ".join(map(str, legal)))


def _memref(element: str, *sizes: Any) -> str:
    """The type of a flat array of that many elements; of unknown extent where a size is symbolic."""
    return f"memref<{'?' if any(isinstance(n, Expr) for n in sizes) else prod(sizes)}x{element}>"


def _at(tiles: Any, *index: Any) -> Slice:
    """One element of a layout, with its mask where it has one."""
    mask = tiles.mask(*index) if isinstance(tiles, PartialTiles) else True
    name = repr(tiles) if not isinstance(tiles, PartialTiles) else tiles[(*index[:2], slice(None), slice(None))].text
    return Slice(name, tiles.apply(*index), mask, ())


# -- transposes ---------------------------------------------------------------------------------------------

Form = Literal["padded", "swizzled", "plain"]
_TILE = 32


def _transposed(M: Size | None, N: Size | None, threads: int) -> tuple[Any, ...]:
    """Sizes, thread symbols, and the elements that a thread reads and writes."""
    _choose("threads", threads, (1, 2, 4, 8, 16, 32))
    m, n = _size("M", M), _size("N", N)
    rows, columns = ((x + _TILE - 1) // _TILE for x in (m, n))
    bx, by = symbol("bx", 0, columns), symbol("by", 0, rows)
    tx, ty = symbol("tx", 0, _TILE), symbol("ty", 0, threads)
    lines = [ty + k for k in range(0, _TILE, threads)]
    source, target = PartialTiles((m, n), (_TILE, _TILE)), PartialTiles((n, m), (_TILE, _TILE))
    return (m, n), (columns, rows), (bx, by, tx), lines, source, target


def transpose_naive(M: Size | None = None, N: Size | None = None, *, threads: int = 8) -> Template:
    """The transpose of an M x N array of FP32, every thread reading along rows and writing along columns."""
    sizes, grid, (bx, by, tx), lines, source, target = _transposed(M, N, threads)
    return template(
        FOLDER / "transpose_naive.mlir.j2",
        grid=grid,
        src=tuple(_at(source, by, bx, y, tx) for y in lines),
        dst=tuple(_at(target, bx, by, tx, y) for y in lines),
        memref=_memref("f32", *sizes),
        threads=threads,
        parts=len(lines),
    )


def transpose_shared(
    M: Size | None = None, N: Size | None = None, *, threads: int = 8, form: Form = "swizzled"
) -> Template:
    """The transpose of an M x N array of FP32 by way of a tile in shared memory: rows padded by a word, or swizzled."""
    sizes, grid, (bx, by, tx), lines, source, target = _transposed(M, N, threads)
    layouts = {
        "padded": GroupBy((_TILE, _TILE + 1)),
        "swizzled": GroupBy((_TILE, _TILE), OrderBy(xor_swizzle(_TILE, _TILE))),
        "plain": GroupBy((_TILE, _TILE)),
    }
    _choose("form", form, tuple(layouts))
    tile = layouts[form]
    words = tile.dims[0] * tile.dims[1]
    return template(
        FOLDER / "transpose_shared.mlir.j2",
        grid=grid,
        src=tuple(_at(source, by, bx, y, tx) for y in lines),
        rows=tuple(_at(tile, y, tx) for y in lines),
        columns=tuple(_at(tile, tx, y) for y in lines),
        dst=tuple(_at(target, bx, by, y, tx) for y in lines),
        memref=_memref("f32", *sizes),
        shared=f"memref<{words}xf32, {WORKGROUP}>",
        threads=threads,
        parts=len(lines),
    )


# -- by name ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MlirKernel:
    """A named kernel: the function that binds its template.

    Args:
        name: also of the function in the text.
        build: takes sizes and options, returns the template.
        block: options -> threads of a block, x first.
        arrays: parameter -> element type and the names of its extents.
    """

    name: str
    build: Callable[..., Template]
    block: Callable[[dict[str, Any]], tuple[int, ...]]
    arrays: tuple[tuple[str, str, tuple[str, ...]], ...]

    @property
    def options(self) -> tuple[str, ...]:
        """The names that `build` takes."""
        return tuple(inspect.signature(self.build).parameters)

    def template(self, **options: Any) -> Template:
        """The template for sizes and options; a size left out becomes an argument of the kernel.

        Raises:
            LayoutError: an unknown option.
        """
        unknown = sorted(set(options) - set(self.options))
        if unknown:
            where = f"kernel({self.name!r})"
            raise LayoutError(where, f"no option {', '.join(unknown)}", legal=", ".join(self.options))
        return self.build(**options)


def _transpose_block(options: dict[str, Any]) -> tuple[int, ...]:
    return _TILE, options.get("threads", 8)


_TRANSPOSE = (("src", "float32", ("M", "N")), ("dst", "float32", ("N", "M")))
KERNELS: dict[str, MlirKernel] = {
    entry.name: entry
    for entry in (
        MlirKernel("transpose_naive", transpose_naive, _transpose_block, _TRANSPOSE),
        MlirKernel("transpose_shared", transpose_shared, _transpose_block, _TRANSPOSE),
    )
}


def kernel(name: str) -> MlirKernel:
    """The kernel of that name.

    Raises:
        LayoutError: there is none; the message lists the names.
    """
    if name not in KERNELS:
        raise LayoutError("kernel(name)", f"no kernel {name!r}", legal=", ".join(KERNELS))
    return KERNELS[name]
