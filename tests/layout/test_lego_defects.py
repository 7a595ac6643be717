"""Eleven defects of LEGO's published code, each with its defective form, which fails, and ours, which does not."""

import ctypes
import re
import shutil
import subprocess

import numpy as np
import pytest

from tileweave.backends.cuda.templates import wavefront
from tileweave.backends.triton import kernel
from tileweave.errors import Incongruent, LayoutError, NoLayout
from tileweave.index import (
    bijective,
    c_prelude,
    evaluate,
    maximum,
    ops,
    simplify,
    symbol,
    symbols,
    to_c,
    to_python,
)  # fmt: skip
from tileweave.layout import cute, lego
from tileweave.layout.analysis.memory import bank_conflicts
from tileweave.layout.lego import GenP, GroupBy, OrderBy, PartialTiles, RegP, TileBy, template


@pytest.mark.parametrize(("rows", "columns", "group", "reached"), [(9, 4, 4, 32), (12, 5, 8, 40)])
def test_defect_1_grouped_program_ids_lose_rows(rows, columns, group, reached):
    def whole_groups(pid):  # as many groups as fit, the rest of the ids wraps around
        pid %= rows // group * group * columns
        return pid // (group * columns) * group + pid % group, pid % (group * columns) // group

    assert len({whole_groups(pid) for pid in range(rows * columns)}) == reached
    ours = lego.grouped(rows, columns, group)
    assert len({ours.inv(pid) for pid in range(rows * columns)}) == rows * columns
    pid = symbol("pid", 0, rows * columns)
    i, j = ours.inv(pid)
    assert bijective([i, j], (rows, columns))


@pytest.mark.parametrize(("r", "wrong_reads", "right_outputs"), [(1, 0.125, 216), (2, 0.1875, 64)])
def test_defect_2_brick_stencils_read_wrong_neighbours(r, wrong_reads, right_outputs):
    b, n = 8, 24
    layout = lego.bricks((n, n, n), (b, b, b))
    centre = np.indices((b, b, b)).reshape(3, -1) + b
    base = layout.apply(*(centre // b * b))

    def linear(step):  # the offset within the brick plus that of the step, as if the brick had no end
        at = centre % b + np.array(step)[:, None]
        return base + at[0] * b * b + at[1] * b + at[2]

    def right(step):
        return layout.apply(*(centre + np.array(step)[:, None]))

    star = [tuple(d if k == axis else 0 for k in range(3)) for axis in range(3) for d in range(-r, r + 1) if d]
    assert np.mean([linear(step) != right(step) for step in star]) == wrong_reads
    cube = [np.array(np.unravel_index(k, (2 * r + 1,) * 3)) - r for k in range((2 * r + 1) ** 3)]
    assert np.all([linear(step) == right(step) for step in cube], axis=0).sum() == right_outputs
    z, d = symbol("z", r, n - r), symbol("d", -r, r + 1)
    found = evaluate(simplify(layout[z + d, z, z]), {"z": centre[0], "d": np.full(b**3, r)})
    assert np.array_equal(found, layout.apply(centre[0] + r, centre[0], centre[0]))


def test_defect_3_nothing_is_checked():
    with pytest.raises(Incongruent):
        GroupBy((4, 5), OrderBy(RegP((3, 7), (1, 2))))
    with pytest.raises(LayoutError):
        RegP((2, 3), (0, 0))
    with pytest.raises(NoLayout):
        GenP((2, 2), lambda i, j: 0)


def test_defect_4_partial_tiles_take_a_stride_of_whole_tiles():
    def floor_form(i, j):  # 100 // 32 tiles of 32: a row of 96
        return i * (100 // 32 * 32) + j

    assert floor_form(95, 95) == 9215
    tiles = PartialTiles((100, 100), (32, 32))
    assert tiles.apply(2, 2, 31, 31) == 9595 and not tiles.mask(3, 0, 4, 0)
    i, j = symbol("i", 0, 4), symbol("j", 0, 4)
    text = "{{ define('i', 'j') }}\n{{ a.load('p') }}"
    partial = template(text, a=tiles[i, j, :, :]).fill().text
    whole = template(text, a=PartialTiles((128, 128), (32, 32))[i, j, :, :]).fill().text
    assert "mask=" in partial and "other=0.0" in partial and "mask" not in whole


@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not on PATH")
def test_defect_5_printers_truncate_and_lose_conditions(tmp_path):
    s, t = symbols("s t")
    exprs = [s // 7, s % 7, s // 8, maximum(s, t), lego.choose((s < t) & (t < 5), s, t)]
    text = "\n".join(
        f'extern "C" int64_t f{k}(int64_t s, int64_t t) {{ return {to_c(e)}; }}' for k, e in enumerate(exprs)
    )
    assert "fmax" not in text and "tw_floordiv" in text
    (tmp_path / "f.cpp").write_text(f"{c_prelude()}\n{text}")
    command = ["g++", "-O0", "-shared", "-fPIC", "-o", str(tmp_path / "f.so"), str(tmp_path / "f.cpp")]
    subprocess.run(command, check=True, timeout=60)
    library = ctypes.CDLL(str(tmp_path / "f.so"))
    points = [(a, b) for a in range(-20, 21, 3) for b in range(-9, 10, 4)]
    assert any(int(a / 7) != a // 7 for a, _ in points)  # what C's own division would give
    for k, expr in enumerate(exprs):
        function = getattr(library, f"f{k}")
        function.restype, function.argtypes = ctypes.c_int64, [ctypes.c_int64] * 2
        assert all(function(a, b) == evaluate(expr, _only(expr, s=a, t=b)) for a, b in points)
    assert "(s % 7 + 7) % 7" in to_python(s % 7, dialect="triton")  # Triton's own remainder has the dividend's sign


def _only(expr, **values):
    return {name: n for name, n in values.items() if re.search(rf"\b{name}\b", str(expr))}


def test_defect_6_a_bijection_of_the_user_has_no_symbolic_inverse():
    zigzag = GenP((2, 3), lambda i, j: 3 * i + lego.choose(i < 1, j, 2 - j), name="zigzag")
    p = symbol("p", 0, 6)
    i, j = zigzag.inv(p)
    assert [(evaluate(i, {"p": k}), evaluate(j, {"p": k})) for k in range(6)] == [zigzag.inv(k) for k in range(6)]


def test_defect_7_chains_of_divisions_survive():
    """The document's shared transpose: 50 integer operations, in one chain ((t/32*32 + t%32)/32*32 + ..)."""
    t, n = symbol("t", 0, 1024), symbol("n", 1, 1 << 15, multiple_of=32)
    by, bx = symbol("by", 0, n // 32), symbol("bx", 0, n // 32)
    flat = t // 32 * 32 + t % 32
    tiles = TileBy((n // 32, n // 32), (32, 32))
    chain = [
        tiles.apply(by, bx, flat // 32, flat % 32),
        flat // 32 * 32 + flat % 32,
        tiles.apply(bx, by, flat // 32, flat % 32),
    ]
    after = simplify(chain)
    assert ops(chain) > 26 >= ops(after) and str(after[1]) == "t"
    conflicts = bank_conflicts(cute.parse("(32,32):(32,1)")).passes
    padded, swizzled = cute.parse("(32,32):(33,1)"), lego.xor_swizzle(32, 32)
    down = np.arange(32) * 32  # a column, in row-major numbers
    assert conflicts == (32,) and bank_conflicts(padded).passes == (1,)
    assert bank_conflicts(swizzled, down).passes == (1,)


def test_defect_8_one_word_of_padding_equals_the_antidiagonal_layout():
    """Passes of shared memory for each access of a warp, over all steps of a tile of 64 x 64."""
    b = 64

    def passes(layout):
        place = layout.apply if hasattr(layout, "apply") else layout
        taken = []
        for half in (0, 1):
            for d in range(b - half):
                for warp in range(0, b, 32):
                    t = np.arange(warp, min(warp + 32, d + 1 if not half else b - 1 - d))
                    if not t.size:
                        continue
                    x, y = (t + 1, d - t + 1) if not half else (t + 2 + d, b - t)
                    for dy, dx in ((1, 1), (0, 1), (1, 0), (0, 0)):
                        taken += bank_conflicts(np.asarray(place(y - dy, x - dx))).passes
        return np.mean(taken)

    assert passes(cute.parse(f"({b + 1},{b + 1}):({b + 1},1)")) == pytest.approx(21.6, abs=0.1)
    assert passes(cute.parse(f"({b + 1},{b + 1}):({b + 2},1)")) == 1.0
    assert passes(lego.antidiagonal(b + 1)) == 1.0
    assert set(wavefront.BUFFERS) == {"row", "padded", "antidiagonal"}  # all three are printed and run


def test_defect_9_two_ranges_share_an_axis():
    part = TileBy((4,), (2,), (8,))[symbol("pid", 0, 4), :, :]
    text = template("{{ define('pid') }}\n{{ a }}", a=part).fill("triton").text
    assert re.findall(r"tl.arange\(0, \d\)(.*)", text) == ["[:, None]", "[None, :]"]


def test_defect_10_the_width_of_a_vector_is_lost():
    bricks = lego.bricks((64, 64), (8, 8))
    row, index = symbol("row", 0, 64), symbol("axis0_1_64", 0, 64)
    brick = lego.Slice("bricks", bricks[row, index], True, (index,))
    text = template("{{ define('row') }}\n{{ a.load('p') }}", a=brick).fill("triton").text
    assert "tl.max_contiguous(tl.multiple_of(" in text and ", 8), 8)" in text
    assert template("{{ a.width }}{% if False %}{{ a }}{% endif %}", a=brick).fill("cuda").text == "8"
    declared = symbol("n", 1, 1 << 20, multiple_of=4)
    for n, width in ((declared, "4"), (symbol("n", 1, 1 << 20), "1"), (64, "8"), (100, "4")):
        tile = PartialTiles((n, n), (1, 1), (1, 8))[symbol("i", 0, n), symbol("j", 0, (n + 7) // 8), 0, 0, 0, :]
        assert template("{{ a.width }}", a=tile).fill("cuda").text == width


def test_defect_11_loops_compute_whole_pointers_again():
    text = kernel("matmul").template().fill("triton").text
    before, inside = text.split("for k in range", 1)
    inside = inside.split("tl.store")[0].split("\n", 1)[1]
    assert "a_base = " in before and "b_base = " in before
    assert not re.search(r"//|%|\bpid\b", inside) and "a_base + t" in inside and "b_base + k * t" in inside
