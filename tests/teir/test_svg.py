"""Pictures of programs: pinned, valid, and true to the addresses."""

import tracemalloc
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import pytest

from tileweave.layout import strided
from tileweave.teir import First, Operand, Tiling, contraction_tiles, emit_contraction, emit_copy, tile_address
from tileweave.teir.analysis.svg import to_svg
from tileweave.teir.ir import examples

SVG = "{http://www.w3.org/2000/svg}"
FIGURE = {"p": 4, "q": 4, "r": 3, "s": 5, "t": 2, "u": 6, "a": 3, "b": 4, "c": 5, "d": 2, "m": 3, "n": 4, "k": 5}


def words(text: str) -> list[str]:
    return [found.text or "" for found in ElementTree.fromstring(text).iter(f"{SVG}text")]


def narrow_product():
    a, b = Operand(strided((100, 90), (90, 1)), "BF16"), Operand(strided((90, 500), (500, 1)), "BF16")
    return emit_contraction(
        "ik,kj->ij", (a, b), Operand(strided((100, 500), (500, 1)), "BF16"), tiling=contraction_tiles
    )


@pytest.mark.parametrize("name", ["contraction_gemm", "permutation_tiled", "guarded_reduction"])
def test_pictures_are_pinned(name, golden):
    program = getattr(examples, name)(FIGURE)
    assert program._repr_svg_() == to_svg(program)
    golden(f"teir_{name}.svg", to_svg(program))


@pytest.mark.parametrize("name", examples.__all__)
def test_every_example_is_a_valid_picture_inside_its_canvas(name):
    root = ElementTree.fromstring(to_svg(getattr(examples, name)(FIGURE)))
    width, height = float(root.get("width")), float(root.get("height"))
    for rect in root.iter(f"{SVG}rect"):
        if rect.get("width") != "100%":
            assert 0 <= float(rect.get("x")) <= float(rect.get("x")) + float(rect.get("width")) <= width
            assert 0 <= float(rect.get("y")) <= float(rect.get("y")) + float(rect.get("height")) <= height


def test_tiles_carry_their_addresses():
    program = examples.contraction_gemm(FIGURE)
    shown = words(to_svg(program))
    for tensor in ("in0", "in1", "out"):
        for p in range(4):
            for r in range(3):
                assert str(tile_address(program, tensor, {"p": p, "r": r, "t": 1})) in shown
    assert "memory t > r > u > s" in shown
    assert "tiles r x t = 3 x 2, each s x u = 5 x 6" in shown


def test_rows_and_columns_of_a_product_align():
    root = ElementTree.fromstring(to_svg(narrow_product()))
    fills = {"in1": {"#fdecd2", "#f9c27a"}, "in0": {"#dbe9f6", "#8fbbe0"}, "out": {"#e2f2d8", "#a4d584"}}
    tiles = {name: [r for r in root.iter(f"{SVG}rect") if r.get("fill") in fill] for name, fill in fills.items()}
    out_of_product = tiles["out"][:4]  # the others belong to the Copy below
    assert {r.get("x") for r in tiles["in1"]} == {r.get("x") for r in out_of_product}
    assert {r.get("y") for r in tiles["in0"][:2]} == {r.get("y") for r in out_of_product}


def test_tensors_of_other_invocations_follow():
    shown = words(to_svg(narrow_product()))
    assert "i_outer/j_outer/copy: Copy(acc, out)" in shown
    assert "out  BF16" in shown


def test_what_is_left_out_is_stated():
    line = Operand(strided((100,), (-1,)), "FP32")
    program = emit_copy(line, Operand(strided((100,), (1,)), "FP32"), tiling=lambda dims: replace_tiles(dims, 2))
    shown = words(to_svg(program, limit=3))
    assert "showing 3 of 50 rows, 1 of 1 columns" in shown
    assert "-8" in shown


def replace_tiles(dims, tile):
    from tileweave.teir import Tiling

    return Tiling((tile,) * len(dims))


def test_programs_that_are_not_well_formed_are_drawn_as_trees():
    program = examples.contraction_gemm(FIGURE)
    nodes = tuple(replace(n, guard=(First("t"),)) if n.id == "zero" else n for n in program.nodes)
    shown = words(to_svg(replace(program, nodes=nodes)))
    assert any("not well formed: [guard.axis-iterated-by-ancestor]" in word for word in shown)
    assert "zero: zero_sq  if first(t)" in shown
    assert "in0  FP32" not in shown


def test_branches_that_compute_the_same_are_counted():
    shown = words(to_svg(examples.branching({"r": 2, "s": 3, "t": 3})))
    assert "r/s/op_s: Copy(in0, out), one of 2 invocations" in shown
    assert "p/r/t/gemm: Contraction(in0, in1, out)" in words(to_svg(examples.contraction_gemm(FIGURE)))


def test_a_picture_of_long_axes_takes_no_memory_for_them():
    n = 30_000_000
    line = Operand(strided((n, n), (2 * n, 1)), "FP32")
    program = emit_copy(line, line, tiling=lambda dims: Tiling((1,) * len(dims)))
    tracemalloc.start()
    text = program._repr_svg_()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert "showing 6 of 30000000 rows, 6 of 30000000 columns" in text
    assert peak < 1 << 22
