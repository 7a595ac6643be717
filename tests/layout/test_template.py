"""Templates: what is refused with its place, where parts are assigned, masks, widths and hints, and the values."""

import ctypes
import re
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import pytest

from tileweave.errors import LayoutError, TileweaveError, Unproved
from tileweave.index import c_prelude, evaluate, symbol, symbols, symbols_of
from tileweave.layout import lego
from tileweave.layout.lego import Col, OrderBy, PartialTiles, Row, TileBy, template

n, m = symbols("n m", 1, 1 << 20)
p = symbol("pid", 0, (n + 63) // 64)
k = symbol("k", 0, (m + 15) // 16)
INT_P = ctypes.POINTER(ctypes.c_int)
ROW = PartialTiles((n, m), (64, 16))[p, k, :, :]


def refusal(text, **bindings):
    with pytest.raises(TileweaveError) as caught:
        template(text, **bindings).fill("triton")
    return str(caught.value)


def test_undefined_and_unused_names_are_refused_with_their_place():
    text = "{{ define('pid') }}\nfor\n    {{ loop('k') }}\n  {{ a }} + {{ b }}\n"
    assert "line 4: 'b' is undefined" in refusal(text, a=ROW) and "{{ a }} + {{ b }}" in refusal(text, a=ROW)
    assert "c: bound, but not in the text" in refusal(text, a=ROW, b=1, c=ROW)
    assert "line 1" in refusal("{{ a", a=ROW)
    assert "needs pid before" in refusal("{{ a }}\n{{ define('pid') }}", a=PartialTiles((n,), (64,))[p, :])
    for match, call in (
        ("unknown target 'metal'", lambda: template("x").fill("metal")),
        ("the name 'loop' is taken", lambda: template("", loop=1)),
        ("is bound to", lambda: template("", a=[1])),
    ):
        with pytest.raises(LayoutError, match=match):
            call()


def test_slices_are_checked():
    tiles = PartialTiles((n, m), (64, 16))
    with pytest.raises(LayoutError, match="cut to slice"):
        tiles[p, k, 0:3, :]
    with pytest.raises(LayoutError, match="over a constant extent"):
        TileBy((2, 2), (n, 4))[0, 0, :, :]
    with pytest.raises(LayoutError, match="3 coordinates for 4"):
        tiles[p, k, :]
    with pytest.raises(Unproved):
        TileBy((2, 2), (4, 4))[symbol("q", 0, 3), 0, :, :]
    part = TileBy((2, 2), (8, 4))[1, 0, :, :]
    assert part.shape == (8, 4) and part.mask is True and part.text.endswith("[1, 0, :, :]")


def test_each_sliced_dimension_has_its_own_axis():
    """Three levels of tiles gave two ranges the same axis: ill-formed Triton."""
    part = TileBy((4,), (2,), (8,))[symbol("pid", 0, 4), :, :]
    text = template("{{ define('pid') }}\n{{ a }}", a=part).fill("triton").text
    assert "tl.arange(0, 2)[:, None]" in text and "tl.arange(0, 8)[None, :]" in text
    deep = TileBy((2, 2), (2, 4), (4, 8))[0, 1, :, :, :, :]
    ranges = re.findall(r"tl.arange\(0, \d+\)(\[.*\])", template("{{ define() }}\n{{ a }}", a=deep).fill().text)
    assert len(set(ranges)) == 4 and all(r.count("None") == 3 for r in ranges)


def test_invariants_leave_the_loop_and_offsets_are_base_plus_step():
    text = "{{ define('pid') }}\nfor k:\n    {{ loop('k') }}\n    {{ a.load('p') }}"
    whole = template(text, a=ROW).fill("triton").text
    before, inside = whole.split("for k:")
    assert "a_base = " in before and "pid" not in inside and "* m" not in inside
    assert "a_base + t" in inside and "k * 16" in inside
    assert "< n" in before  # the rows' mask does not depend on k


def test_masks_vanish_only_where_they_are_proved():
    text = "{{ define('pid') }}\n{{ a.load('p', 7) }}\n{{ a.store('q', 'v') }}\n{{ a.mask }}"

    def lines(count):
        programs = symbol("pid", 0, -(-count // 64) if isinstance(count, int) else (count + 63) // 64)
        return template(text, a=PartialTiles((count,), (64,))[programs, :]).fill("triton").text.split("\n")

    assert "mask" not in "".join(lines(128)) and lines(128)[-1] == "True"
    assert all("mask=" in line for line in lines(100)[-3:-1]) and "other=7" in lines(100)[-3]
    declared = symbol("w", 1, 1 << 20, multiple_of=64)
    assert "mask" not in "".join(lines(declared)) and "mask=" in "".join(lines(n))


def test_the_partial_tile_keeps_the_true_row_stride():
    """A hundred by a hundred in tiles of 32: the document's form takes the row stride 96."""
    tile = PartialTiles((100, 100), (32, 32))[symbol("i", 0, 4), symbol("j", 0, 4), :, :]
    filled = template("{{ define('i', 'j') }}\n{{ a.load('p') }}", a=tile).fill("triton")
    (offset,) = (part for part in filled.parts if part.name == "a")
    point = {str(s): v for s, v in zip(symbols_of((offset.after,)), (0, 0, 0, 0), strict=True)}
    point |= {"i": 2, "j": 2, "axis0_2_32": 31, "axis1_2_32": 31}
    assert evaluate(offset.after, point) == 9595 and "96" not in filled.text


def test_widths_and_hints():
    declared = symbol("w", 1, 1 << 20, multiple_of=16)
    tile = PartialTiles((n, declared), (64, 16))[p, symbol("k", 0, declared // 16), :, :]
    text = template("{{ define('pid', 'k') }}\n{{ a.load('p') }}", a=tile).fill("triton").text
    assert "tl.max_contiguous(tl.multiple_of(" in text and "(1, 16)), (1, 16))" in text
    assert "tl.int64" in text
    bricks = lego.bricks((64, 64), (8, 8))
    row = symbol("row", 0, 64)
    index = symbol("axis0_1_64", 0, 64)
    brick = lego.Slice("bricks", bricks[row, index], True, (index,))
    text = template("{{ define('row') }}\n{{ a.load('p') }}", a=brick).fill("triton").text
    assert "tl.max_contiguous(tl.multiple_of(" in text and ", 8), 8)" in text
    assert "int64" not in text


def test_the_filled_value_tells_what_was_done():
    rows = (n + 63) // 64
    copy = template(
        "{{ layouts }}\n{{ define('pid') }}\n{{ a.load('p') }}{{ arguments }}",
        grid=(rows,), given=[rows < 1000], name="copy", a=PartialTiles((n,), (64,))[p, :],
    )  # fmt: skip
    filled = copy.fill("triton")
    assert filled.text == copy.fill("triton").text and filled.text.startswith("# copy\n# a: PartialTiles((n), (64))")
    assert filled.arguments == ("n",) and filled.launch(n=130) == (3,)
    assert "a.mask: " in filled.explain() and "stays: it fails" in filled.explain()
    with pytest.raises(LayoutError, match="does not hold"):
        filled.launch(n=64 * 1000)
    with pytest.raises(LayoutError, match="lies below"):
        filled.launch(n=0)


class Tl:
    """Enough of Triton's words to run offsets and masks with NumPy."""

    int32, int64 = np.int32, np.int64
    arange, zeros = staticmethod(np.arange), staticmethod(np.zeros)
    cast = staticmethod(lambda value, kind: np.asarray(value).astype(kind))
    minimum, maximum, where = staticmethod(np.minimum), staticmethod(np.maximum), staticmethod(np.where)
    multiple_of = staticmethod(lambda value, _n: value)
    max_contiguous = staticmethod(lambda value, _n: value)

    @staticmethod
    def load(place, mask=None, other=None):
        memory = place.memory
        offset, mask = np.broadcast_arrays(place.offset, True if mask is None else mask)
        assert ((offset[mask] >= 0) & (offset[mask] < len(memory))).all()
        return np.where(mask, memory[np.where(mask, offset, 0)], other if other is not None else -1)


class Pointer:
    def __init__(self, memory, offset=0):
        self.memory, self.offset = memory, np.asarray(offset)

    def __add__(self, offset):
        return Pointer(self.memory, self.offset + offset)


def random_order(rng, rows, columns):
    kind = rng.integers(0, 4)
    if kind == 0:
        return OrderBy(Row(rows, columns))
    if kind == 1:
        return OrderBy(Col(rows, columns))
    if kind == 2 and rows % 4 == 0 and columns % 4 == 0:
        return lego.bricks((rows, columns), (4, 4)).orders[0]
    return OrderBy(lego.reversal((rows, columns), (int(rng.integers(0, 2)),)))


def test_an_offset_spans_its_tile_also_along_a_range_on_which_it_does_not_depend():
    """One row in tiles of 16: where the mask holds the row is 0, and the offset alone would have lost an axis."""
    tile = PartialTiles((1, 32), (16, 8), chain=OrderBy(lego.morton(1, 32)))[symbol("i", 0, 1), symbol("j", 0, 4), :, :]
    text = template("{{ define('i', 'j') }}\n{{ a.load('p', -1) }}", a=tile).fill("triton").text
    assert "tl.zeros((16, 8), dtype=tl.int32) + " in text
    found = eval(text.split("\n")[-1], assigned(text, 2) | {"p": Pointer(np.arange(32))})
    assert found.shape == (16, 8) and found[0].tolist() == list(range(16, 24)) and (found[1:] == -1).all()


def assigned(text, j):
    """The temporaries of a text without its last line."""
    names = {"tl": Tl, "i": 0, "j": j}
    exec("\n".join(text.split("\n")[:-1]), names)
    return names


@pytest.mark.parametrize("count", [50, pytest.param(2000, marks=[pytest.mark.slow, pytest.mark.timeout(3000)])])
def test_random_tiles_read_what_the_layout_says(count):
    rng = np.random.default_rng(11)
    text = "{{ define('pid') }}\nfor k in range({{ steps }}):\n    {{ loop('k') }}\n    out += [{{ a.load('p', -1) }}]"
    for _ in range(count):
        rows, columns = (int(rng.integers(1, 30)) * int(rng.choice([1, 4])) for _ in range(2))
        order = random_order(rng, rows, columns)
        tile = tuple(int(t) for t in rng.choice([1, 2, 4, 8, 16], 2))
        tiles = PartialTiles((rows, columns), tile, chain=order)
        grid, steps = tiles.grid
        pid, step = symbol("pid", 0, grid), symbol("k", 0, steps)
        filled = template(text, a=tiles[pid, step, :, :], steps=steps).fill("triton")
        memory = rng.permutation(rows * columns)
        for program in range(grid):
            out = []
            exec(filled.text, {"tl": Tl, "p": Pointer(memory), "pid": program, "out": out, "range": range})
            for block, found in enumerate(out):
                for i in range(tile[0]):
                    for j in range(tile[1]):
                        index = (program, block, i, j)
                        inside = tiles.mask(*index)
                        want = memory[tiles.apply(*index)] if inside else -1
                        assert np.broadcast_to(found, tile)[i, j] == want, (tiles, index, filled.text)


def test_in_cuda_a_slice_is_loops():
    """Copies between random orders, their text compiled by the host's compiler, equal to the layouts' own answer."""
    rng = np.random.default_rng(12)
    text = (
        "{{ layouts }}\nextern \"C\" void copy{{ number }}(const int *x, int *y, int pid) {\n  {{ define('pid') }}\n"
        "  for (int k = 0; k < {{ steps }}; ++k) {\n    {{ loop('k') }}\n    {{ b.open }}\n"
        "    {{ b.store('y', a.load('x', '-1')) }};\n    {{ b.close }}\n  }\n}"
    )
    cases, parts = [], ["#define __host__\n#define __device__", c_prelude(cuda=True)]
    for number in range(50):
        rows, columns = (int(rng.integers(1, 30)) * int(rng.choice([1, 4])) for _ in range(2))
        tile = tuple(int(t) for t in rng.integers(1, 9, 2))
        source, target = (PartialTiles((rows, columns), tile, chain=random_order(rng, rows, columns)) for _ in range(2))
        grid, steps = source.grid
        pid, step = symbol("pid", 0, grid), symbol("k", 0, steps)
        bindings = {"a": source[pid, step, :, :], "b": target[pid, step, :, :], "steps": steps, "number": number}
        filled = template(text, **bindings).fill("cuda")
        parts.append(filled.text)
        cases.append((source, target, rows, columns, grid))
    with tempfile.TemporaryDirectory() as folder:
        file, library = Path(folder, "copies.cpp"), Path(folder, "copies.so")
        file.write_text("\n".join(parts))
        command = ["g++", "-O1", "-fsanitize=undefined", "-shared", "-fPIC", "-o", str(library), str(file)]
        built = subprocess.run(command, capture_output=True, text=True)
        assert built.returncode == 0, built.stderr[:3000]
        compiled = ctypes.CDLL(str(library))
        for number, (source, target, rows, columns, grid) in enumerate(cases):
            x, y = rng.permutation(rows * columns).astype(np.int32), np.full(rows * columns, -7, np.int32)
            for program in range(grid):
                getattr(compiled, f"copy{number}")(x.ctypes.data_as(INT_P), y.ctypes.data_as(INT_P), program)
            i, j = np.indices((rows, columns)).reshape(2, -1)
            at = [np.array([tiles.chain.GroupBy((rows, columns))[int(a), int(b)] for a, b in zip(i, j, strict=True)])
                  for tiles in (source, target)]  # fmt: skip
            assert np.array_equal(y[at[1]], x[at[0]])


def test_cuda_text_says_its_types_and_refuses_ranges_without_loops(golden):
    copy = template(
        "{{ layouts }}\n__global__ void copy(const float *x, float *y{{ arguments }}) {\n  int pid = blockIdx.x;\n"
        "  {{ define('pid') }}\n  for (int k = 0; k < {{ steps }}; ++k) {\n    {{ loop('k') }}\n    {{ b.open }}\n"
        "    {{ b.store('y', a.load('x', '0.0f')) }};\n    {{ b.close }}\n  }\n}\n",
        name="copy", steps=(m + 15) // 16, a=ROW,
        b=PartialTiles((n, m), (64, 16), chain=OrderBy(Col(n, m)))[p, k, :, :],
    )  # fmt: skip
    golden("template_cuda.cu.txt", copy.fill("cuda").text)
    assert "int m, int n" in copy.fill("cuda").text and "long long" in copy.fill("cuda").text
    with pytest.raises(LayoutError, match="no ranges for `:`"):
        template("{{ define('pid', 'k') }} {{ a }}", a=ROW).fill("cuda")


def test_a_word_that_a_slice_does_not_have_is_refused():
    tiles = lego.PartialTiles((symbol("n", 1, 100),), (4,))
    with pytest.raises(LayoutError, match="x has no 'masked'") as caught:
        template("{{ x.masked }}", x=tiles.cell(symbol("i", 0, 25), symbol("a", 0, 4))).fill("cuda")
    assert "legal  mask, guard, open" in str(caught.value)


def test_runs_are_looked_for_along_axes_of_different_extents():
    order = lego.OrderBy(lego.antidiagonal(3))
    tile = lego.PartialTiles((3, 3), (16, 8), chain=order)[symbol("pid", 0, 1), symbol("k", 0, 1), :, :]
    text = lego.template("{{ define('pid', 'k') }}\nx = {{ a.load('p') }}", a=tile).fill("triton").text
    assert "tl.arange(0, 16)[:, None]" in text and "tl.arange(0, 8)[None, :]" in text


def test_what_stands_at_two_places_is_computed_once():
    tiles = PartialTiles(symbols("M N", 1, 1 << 20), (4, 8))
    i, j = (symbol(name, 0, 1 << 20) for name in "ij")
    text = "{{ define('i', 'j') }}\n{{ a.store('y', a.load('x')) }}\n{{ a.mask }}"
    filled = template(text, a=tiles[i, j, :, :]).fill("triton").text
    *_, copied, mask = filled.strip().split("\n")
    assert mask.isidentifier() and copied.count(mask) == 2 and "*" not in copied and "<" not in copied


def test_offsets_below_a_product_that_is_given_are_narrow_and_the_host_checks_it():
    m, n = symbols("m n", 1, 1 << 20)
    place = lego.GroupBy((m, n))[symbol("i", 0, m), symbol("j", 0, n)]
    assert "long long" in template("{{ x }}", x=place).fill("cuda").text
    filled = template("{{ x }}", x=place, grid=(m,), given=[m * n < 1 << 31]).fill("cuda")
    assert filled.text == "i * n + j" and filled.launch(m=1 << 10, n=1 << 19) == (1 << 10,)
    with pytest.raises(LayoutError, match=r"m \* n < 2147483648 does not hold"):
        filled.launch(m=1 << 13, n=1 << 19)
