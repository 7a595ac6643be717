"""Boxes of the copy engine by the steps of Axe, section 3.4: atoms of shared memory, the tiler over them, the map."""

import pytest

from tileweave import kernel as tk
from tileweave.index import evaluate
from tileweave.kernel.dispatch import lower
from tileweave.kernel.ir import DTYPES, Alloc, walk
from tileweave.kernel.threads import instructions
from tileweave.layout import Iter, Layout, tile_of


@tk.kernel
def fetch(k, x, rows=128, columns=128, width=128):
    i, j = k.grid(x.blocks(0, rows), x.blocks(1, columns))
    tile = k.shared((rows, columns), like=x, swizzle=width)
    full = k.barrier(1)
    with k.cta(threads=128) as cta:
        cta.arrive(full, lanes="one", bytes=rows * columns * x.region.tensor.element.bytes)
        cta.copy_async(tile, x.tile(rows, columns)[i, j], barrier=full)
        cta.wait(full, parity=0)


@pytest.mark.parametrize("dtype", ["f32", "f16", "e4m3"])
@pytest.mark.parametrize("width", [32, 64, 128])
@pytest.mark.parametrize(("rows", "atoms"), [(8, 1), (128, 2), (256, 1), (64, 3)])
def test_every_box_is_a_column_of_the_atoms_that_the_tiler_enumerates(dtype, width, rows, atoms):
    element = DTYPES[dtype].bytes
    across = width // element  # of one atom: 8 rows of `width` bytes
    columns = across * atoms
    kernel = fetch.trace(tk.spec((3 * rows, 2 * columns), dtype), rows=rows, columns=columns, width=width)
    held = next(s.tensor for s in walk(kernel.body) if isinstance(s, Alloc) and s.tensor.space == "shared")
    atom = Layout((Iter(8, across), Iter(across, 1)))
    tiler = tile_of(held.layout, (rows, columns), atom, (8, across))
    begins = [8 * across * n for n in tiler.table()]  # of atom (row, column), the column last
    program = lower(kernel, "sm_90a").program
    ((_, box),) = program.maps
    assert box.box == (rows, across) and box.swizzle == width
    made = [one for one in instructions(program.body) if one.atom.startswith("cp.async.bulk.tensor")]
    assert len(made) == atoms
    for column, one in enumerate(made):
        where, _, _, inner, outer = one.operands
        assert evaluate(where.offset, {}) == begins[column]  # the box's rows are those of the atoms below it:
        assert begins[column::atoms] == [begins[column] + 8 * across * n for n in range(rows // 8)]
        block = {str(s): n for (s, _), n in zip(kernel.grid.coords, (2, 1), strict=True)}
        assert (evaluate(outer, block), evaluate(inner, block)) == (2 * rows, columns + across * column)
