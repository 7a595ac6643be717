"""Accessors against their layouts, and proved vector widths against every point."""

import ctypes
import shutil
import subprocess

import numpy as np
import pytest

from tileweave.errors import LayoutError, TileweaveError
from tileweave.index import constant_of, evaluate, symbol, symbols_of
from tileweave.layout import cute, lego
from tileweave.layout.lego import Col, GroupBy, OrderBy, PartialTiles, RegP, Row, accessor
from tileweave.layout.template.accessor import at
from tileweave.layout.template.runs import width_of

LAYOUTS = {
    "rows": GroupBy((5, 7), OrderBy(Row(5, 7))),
    "columns": GroupBy((5, 7), OrderBy(Col(5, 7))),
    "padded": cute.parse("(5,7):(9,1)"),
    "diagonals": lego.antidiagonal(6),
    "swizzled": lego.xor_swizzle(6, 8),
    "composed": cute.composition(cute.Swizzle(2, 0, 3), cute.parse("(8,8):(8,1)")),
    "bricks": lego.bricks((4, 6, 8), (2, 3, 4)),
    "curve": lego.hilbert(8),
    "four": GroupBy((2, 3, 2, 5), OrderBy(RegP((2, 3, 2, 5), (3, 1, 4, 2)))),
}


@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not on PATH")
def test_every_element_lies_where_the_layout_says(tmp_path):
    """All structs in one file; a function for each writes the number of an element where the accessor finds it."""
    parts = ["#define __device__", "#define __host__"]
    for name, layout in LAYOUTS.items():
        made = accessor(layout, name.capitalize(), "long")
        index = "".join(f"[i{k}]" for k in range(len(made.dims)))
        loops = "".join(f"for (int i{k} = 0; i{k} < {n}; ++i{k}) " for k, n in enumerate(made.dims))
        body = f"n_{name}::{made.name} a{{base}}; long n = 0; {loops}a{index} = n++;"
        parts.append(f"namespace n_{name} {{ {made.text}\n}}")
        parts.append(f'extern "C" void {name}(long* base) {{ {body} }}')
    (tmp_path / "a.cpp").write_text("\n".join(parts))
    command = ["g++", "-std=c++17", "-O1", "-shared", "-fPIC", "-o", str(tmp_path / "a.so"), str(tmp_path / "a.cpp")]
    built = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert built.returncode == 0, built.stderr[:2000]
    library = ctypes.CDLL(str(tmp_path / "a.so"))
    for name, layout in LAYOUTS.items():
        made = accessor(layout)
        found = np.full(made.elements, -1, np.int64)
        getattr(library, name)(found.ctypes.data_as(ctypes.c_void_p))
        wanted = np.full(made.elements, -1, np.int64)
        points = np.indices(made.dims).reshape(len(made.dims), -1)
        wanted[np.asarray(at(layout, *points))] = np.arange(points.shape[1])
        assert np.array_equal(found, wanted), name


def test_what_has_no_accessor_is_refused():
    for layout in (Row(7), cute.parse("12:1"), GroupBy((symbol("n", 1), 4)), cute.parse("((2,2),4):((1,8),2)"), "rows"):
        with pytest.raises(LayoutError, match=r"accessor\(layout, name\): the extents are"):
            accessor(layout)


@pytest.mark.parametrize("count", [60, pytest.param(2000, marks=pytest.mark.slow)])
def test_a_width_holds_at_every_point(count):
    """Random tiles: elements side by side and aligned, and a mask that holds for all of an access or for none."""
    rng = np.random.default_rng(41)
    print("seed 41")
    wide = 0
    for _ in range(count):
        rows, columns = int(rng.integers(1, 20)), int(rng.choice([8, 12, 16, 20, 24, 30, 32]))
        orders = [Row(rows, columns), Col(rows, columns), lego.reversal((rows, columns), (0,))]
        if columns & (columns - 1) == 0:
            orders.append(lego.xor_swizzle(rows, columns))
        chosen = OrderBy(orders[int(rng.integers(0, len(orders)))])
        if rows % 2 == 0 and columns % 4 == 0 and rng.random() < 0.4:
            chosen = lego.bricks((rows, columns), (2, 4)).orders[0]
        inner = int(rng.choice([2, 4, 8, 16]))
        tiles = PartialTiles((rows, columns), (2, 1), (1, inner), chain=chosen)
        i, j = symbol("i", 0, constant_of(tiles.grid[0])), symbol("j", 0, constant_of(tiles.grid[1]))
        part = tiles[i, j, 1, 0, 0, :]
        width = width_of(part, ())
        wide += width > 1
        (node,) = part.ranges
        points = np.indices((i.args[2].args[0], j.args[2].args[0], inner)).reshape(3, -1)
        values = dict(zip((i, j, node), points, strict=True))

        def of(expr, values=values, points=points):
            if expr is True:
                return np.ones(points.shape[1], bool)
            known = {s: values[s] for s in symbols_of((expr,))}
            return np.broadcast_to(evaluate(expr, known), points.shape[1:])

        offset, mask = of(part.offset).reshape(-1, width), of(part.mask).reshape(-1, width)
        assert (mask.all(axis=1) == mask.any(axis=1)).all(), (tiles, width)
        there = offset[mask.all(axis=1)]
        assert (there == there[:, :1] + np.arange(width)).all() and (there[:, 0] % width == 0).all(), (tiles, width)
    assert wide > count // 6


def test_first_needs_a_slice():
    from tileweave.layout.lego import template

    with pytest.raises(TileweaveError, match=r"a\.first: a has no"):
        template("{{ a.first }}", a=symbol("i", 0, 4)).fill("cuda")
