"""The examples of CuTe's documentation and the inputs of its unit tests: what is printed there comes out here."""

from __future__ import annotations

import pytest

from tileweave.errors import NoLayout, NotDivisible
from tileweave.layout import cute
from tileweave.layout.cute import CuteLayout, composition, parse


def tiler(text):
    """``<3:3 | (2,4):(1,8)>`` as a tuple of layouts; ``<3 | 8>`` as a shape; anything else as a layout."""
    if not text.startswith("<"):
        return parse(text)
    return tuple(int(part) if part.strip().isdecimal() else parse(part) for part in text[1:-1].split("|"))


NINE = "(9,(4,8)):(59,(13,1))"

DOCUMENTED = [
    # coalesce
    ("coalesce", "(2,(1,6)):(1,(6,2))", None, "12:1"),
    ("coalesce", "(2,(1,6)):(1,(6,2))", (1, 1), "(2,6):(1,2)"),
    # composition
    ("composition", "(6,2):(8,2)", "(4,3):(3,1)", "((2,2),3):((24,2),8)"),
    ("composition", "20:2", "(5,4):(4,1)", "(5,4):(8,2)"),
    ("composition", "20:2", "5:4", "5:8"),
    ("composition", "20:2", "4:1", "4:2"),
    ("composition", "(10,2):(16,4)", "(5,4):(1,5)", "(5,(2,2)):(16,(80,4))"),
    ("composition", "(10,2):(16,4)", "5:1", "5:16"),
    ("composition", "(10,2):(16,4)", "4:5", "(2,2):(80,4)"),
    ("composition", "(12,(4,8)):(59,(13,1))", "<3:4 | 8:2>", "(3,(2,4)):(236,(26,1))"),
    ("composition", "(12,(4,8)):(59,(13,1))", "<3 | 8>", "(3,(4,2)):(59,(13,1))"),
    # complement
    ("complement", "4:1", 24, "6:4"),
    ("complement", "6:4", 24, "4:1"),
    ("complement", "(4,6):(1,4)", 24, "1:0"),
    ("complement", "4:2", 24, "(2,3):(1,8)"),
    ("complement", "(2,4):(1,6)", 24, "3:2"),
    ("complement", "(2,2):(1,6)", 24, "(3,2):(2,12)"),
    ("complement", "64:1", (32, 4, 4), "8:64"),
    # divides
    ("logical_divide", "(4,2,3):(2,1,8)", "4:2", "((2,2),(2,3)):((4,1),(2,8))"),
    ("logical_divide", "(2,4,3):(4,1,8)", "4:2", "(4,(2,3)):(1,(4,8))"),  # the text has these modes by mistake
    ("logical_divide", NINE, "<3:3 | (2,4):(1,8)>", "((3,3),((2,4),(2,2))):((177,59),((13,2),(26,1)))"),
    ("zipped_divide", NINE, "<3:3 | (2,4):(1,8)>", "((3,(2,4)),(3,(2,2))):((177,(13,2)),(59,(26,1)))"),
    ("tiled_divide", NINE, "<3:3 | (2,4):(1,8)>", "((3,(2,4)),3,(2,2)):((177,(13,2)),59,(26,1))"),
    ("flat_divide", NINE, "<3:3 | (2,4):(1,8)>", "(3,(2,4),3,(2,2)):(177,(13,2),59,(26,1))"),
    # products
    ("logical_product", "(2,2):(4,1)", "6:1", "((2,2),(2,3)):((4,1),(2,8))"),
    ("logical_product", "(2,2):(4,1)", "(4,2):(2,1)", "((2,2),(4,2)):((4,1),(8,2))"),
    ("logical_product", "(2,5):(5,1)", "<3:5 | 4:6>", "((2,3),(5,4)):((5,10),(1,30))"),
    ("zipped_product", "(2,5):(5,1)", "<3:5 | 4:6>", "((2,5),(3,4)):((5,1),(10,30))"),
    ("tiled_product", "(2,5):(5,1)", "<3:5 | 4:6>", "((2,5),3,4):((5,1),10,30)"),
    ("flat_product", "(2,5):(5,1)", "<3:5 | 4:6>", "(2,5,3,4):(5,1,10,30)"),
    ("blocked_product", "(2,5):(5,1)", "(3,4):(1,3)", "((2,3),(5,4)):((5,10),(1,30))"),
    ("raked_product", "(2,5):(5,1)", "(3,4):(1,3)", "((3,2),(4,5)):((10,5),(30,1))"),
]  # fmt: skip


@pytest.mark.parametrize(("operation", "layout", "other", "printed"), DOCUMENTED)
def test_prints_what_the_documentation_prints(operation, layout, other, printed):
    layout, other = parse(layout), tiler(other) if isinstance(other, str) else other
    found = getattr(cute, operation)(layout) if other is None else getattr(cute, operation)(layout, other)
    assert str(found) == printed


DIVIDED_OUT = [
    ((6, 2), 2, (3, 2)), ((6, 2), 3, (2, 2)), ((6, 2), 6, (1, 2)), ((6, 2), 12, (1, 1)),
    ((3, 6, 2, 8), 6, (1, 3, 2, 8)), ((3, 6, 2, 8), 9, (1, 2, 2, 8)),
    ((42, 16, 3), 2, (21, 16, 3)), ((42, 16, 3), 6, (7, 16, 3)),
]  # fmt: skip
KEPT = [
    ((6, 2), 2, (2, 1)), ((6, 2), 3, (3, 1)), ((6, 2), 6, (6, 1)), ((6, 2), 12, (6, 2)),
    ((3, 6, 2, 8), 6, (3, 2, 1, 1)), ((3, 6, 2, 8), 9, (3, 3, 1, 1)),
    ((1, 2, 2, 8), 2, (1, 2, 1, 1)), ((1, 2, 2, 8), 16, (1, 2, 2, 4)),
]  # fmt: skip


def scattered(shape):
    """A layout of the shape of which no two modes merge, whatever is cut out of it."""
    return CuteLayout(shape, tuple(10_007 * 31**k for k in reversed(range(len(shape)))))


@pytest.mark.parametrize(("shape", "step", "left"), DIVIDED_OUT)
def test_every_so_many_elements_divide_the_shape(shape, step, left):
    size = cute.size(shape) // step
    found = composition(scattered(shape), CuteLayout(size, step))
    assert cute.flat_tuple(found.shape) == (tuple(n for n in left if n > 1) or (1,))


@pytest.mark.parametrize(("shape", "count", "left"), KEPT)
def test_the_first_elements_keep_the_front_of_the_shape(shape, count, left):
    found = composition(scattered(shape), count)
    assert cute.flat_tuple(found.shape) == tuple(n for n in left if n > 1)


def test_the_worked_composition_at_every_point():
    a, b = parse("(6,2):(8,2)"), parse("(4,3):(3,1)")
    r = composition(a, b)
    assert [r(i) for i in range(12)] == [0, 24, 2, 26, 8, 32, 10, 34, 16, 40, 18, 42]
    assert cute.compatible(b, r)


def test_the_tile_of_a_zipped_divide_is_the_composition():
    a, b = parse("(9,(4,8)):(59,(13,1))"), tiler("<3:3 | (2,4):(1,8)>")
    zipped = cute.zipped_divide(a, b)
    assert zipped[0] == composition(a, b)
    assert [zipped(0, 3), zipped(0, 7), zipped(0, (1, 2))] == [26, 60, 60]


# --- the inputs of the unit tests: R(c) = A(B(c)) as CuTe reads A, also beyond its size

COMPOSED = [
    ("1:0", "1:0"), ("1:0", "1:1"), ("1:1", "1:0"), ("1:1", "1:1"), ("4", "4"), ("4:2", "4"), ("4:0", "4"),
    ("4", "4:0"),
    ("4", "1:0"), ("4", "2"), ("4:2", "2"), ("4", "2:2"), ("4:2", "2:2"), ("(4,3)", "12"), ("12", "(4,3)"),
    ("12:2", "(4,3)"), ("12", "(4,3):(3,1)"), ("12:2", "(4,3):(3,1)"), ("12", "(2,3):(2,4)"), ("(4,3)", "(4,3)"),
    ("(4,3)", "6"), ("(4,3)", "6:2"), ("(4,3)", "(6,2):(2,1)"), ("(4,3)", "(4,3):(3,1)"), ("(4,3):(3,1)", "(4,3)"),
    ("(4,3):(3,1)", "12"), ("(4,3):(3,1)", "6:2"), ("(4,3):(3,1)", "(6,2):(2,1)"),
    ("(8,8)", "((2,2,2),(2,2,2)):((1,16,4),(8,2,32))"), ("(8,8):(8,1)", "((2,2,2),(2,2,2)):((1,16,4),(8,2,32))"),
    ("((4,2)):((1,16))", "(4,2):(2,1)"), ("(2,2):(2,1)", "(2,2):(2,1)"), ("(4,8,2)", "(2,2,2):(2,8,1)"),
    ("(4,8,2):(2,8,1)", "(2,2,2):(1,8,2)"), ("(4,8,2):(2,8,1)", "(4,2,2):(2,8,1)"), ("12:1", "4:1"),
    ("(12,3):(1,24)", "4:1"), ("16:2", "4:2"), ("(128,24,5):(1,128,3072)", "64:2"),
    ("(128,24,5):(1,128,3072)", "480:32"),
    # beyond the size of A
    ("1:0", "4"), ("1:1", "4"), ("4", "4:2"), ("(4,3):(3,1)", "24"), ("(4,3):(3,1)", "8"), ("(4,3,1):(3,1,0)", "24"),
    ("3:1", "4:1"), ("(48,24,5):(1,128,3072)", "32:1"),
    # negative strides
    ("4:-1", "4:1"), ("4:1", "4:-1"), ("4:-1", "4:-1"), ("4:1", "4:-2"), ("(4,4):(-1,1)", "(2,4,2)"),
    ("(4,4):(-1,1)", "(2,4,2):(1,4,2)"),
]  # fmt: skip


def as_cute_reads(layout, index):
    """The value at any index, the last leaf running on without bound."""
    *modes, (_n, last) = layout.flat
    value = 0
    for n, d in modes:
        index, digit = divmod(index, n)
        value += digit * d
    return value + index * last


@pytest.mark.parametrize(("a", "b"), COMPOSED)
def test_composition_answers_where_cute_does(a, b):
    a, b = parse(a), parse(b)
    r = composition(a, b)
    assert cute.compatible(b, r)
    assert [r(c) for c in range(b.size)] == [as_cute_reads(a, b(c)) for c in range(b.size)]


def test_composition_with_coordinate_strides_reads_the_modes():
    assert str(composition(parse("(4,4):(4,1)"), parse("(4,4):(1@1,1@0)"))) == "(4,4):(1,4)"
    found = composition(parse("(4,(2,3)):(6,(3,1))"), parse("(2,4):(1@1@1,1@0)"))
    assert str(found) == "(2,4):(1,6)"


def test_products_of_padded_blocks_leave_the_padding():
    padded = parse("(6,4):(1,8)")
    assert str(cute.blocked_product(padded, parse("(1,3)"))) == "((6,1),(4,3)):((1,0),(8,32))"  # 3 blocks of 4 columns
    assert str(cute.logical_product(parse("(2,2):(1,7)"), parse("6"))) == "((2,2),(3,2)):((1,7),(2,14))"
    with pytest.raises(NoLayout, match="would overlap") as caught:
        cute.logical_product(parse("(2,2):(2,3)"), 2)
    assert caught.value.where == "logical_product(layout, tiler)"


PRODUCTS = [
    ("1:0", "1:0"), ("1:1", "1:0"), ("1:0", "1:1"), ("3:1", "4:0"), ("3:0", "4:1"), ("3:0", "4:0"), ("3:2", "4:1"),
    ("3", "(2,4)"), ("(2,4)", "3"), ("(8,(2,2))", "4:2"), ("(2,2)", "(3,3):(3,1)"), ("3:32", "32"), ("3:2", "4"),
    ("3:32", "128"), ("3:32", "(8,8)"), ("3:32", "(8,8):(8,1)"), ("((4,2)):((1,16))", "(4,4)"),
    ("((4,2)):((1,16))", "(4,2):(2,1)"), ("((2,2),(2,2)):((1,4),(8,32))", "(2,2):(1,2)"),
    ("((2,2),(2,2)):((1,4),(8,32))", "(2,2):(2,1)"),
]  # fmt: skip


@pytest.mark.parametrize(("block", "tile"), PRODUCTS)
def test_products_keep_the_block_and_are_compatible_with_the_tiler(block, tile):
    block, tile = parse(block), parse(tile)
    r = cute.logical_product(block, tile)
    assert cute.rank(r) == 2 and r[0] == block
    assert cute.compatible(block, r[0]) and cute.compatible(tile, r[1])
    copies = {r[1](j) for j in range(tile.size)}
    images = [{v + block(i) for i in range(block.size)} for v in copies]
    assert sum(map(len, images)) == len(set().union(*images)), "two copies overlap"


DIVIDES = [
    ("1:0", "1:0"), ("6:1", "2:1"), ("6:1", "2:3"), ("6:1", "(2,3):(3,1)"), ("6:2", "2:1"), ("6:2", "2:3"),
    ("6:2", "(2,3):(3,1)"), ("(6,6):(1,12)", "(6,3):(3,1)"), ("(6,6):(12,1)", "(6,3):(3,1)"), ("32", "2:8"),
    ("(4,1):(1,1)", "2:1"), ("(4,1):(1,1)", "2:2"), ("(8,8):(1,8)", "32:2"), ("(8,8):(8,1)", "32:2"),
]  # fmt: skip


@pytest.mark.parametrize(("layout", "tile"), DIVIDES)
def test_divides_split_every_element_into_one_tile(layout, tile):
    layout, tile = parse(layout), parse(tile)
    r = cute.logical_divide(layout, tile)
    assert [r(i, 0) for i in range(tile.size)] == [layout(tile(i)) for i in range(tile.size)]
    assert sorted(r(i) for i in range(r.size)) == sorted(layout(i) for i in range(layout.size))


def test_tiles_that_do_not_divide_are_covered_by_name():
    for size, tile in ((48, 32), (96, parse("32:2"))):
        with pytest.raises(NotDivisible):
            cute.logical_divide(CuteLayout(size, 1), tile)
    cover = cute.cover_divide(CuteLayout(48, 1), 32)
    assert str(cover.layout) == "(32,2):(1,32)" and sum(cover.valid(i) for i in range(64)) == 48


# --- layouts, coordinates, sublayouts


def test_coordinates_of_the_documentation():
    shape, stride = (3, (2, 3)), (3, (12, 1))
    for crd in (16, (1, 5), (1, (1, 2))):
        assert cute.idx2crd(crd, shape) == (1, (1, 2))
        assert cute.crd2idx(crd, shape, stride) == 17


def test_sublayouts_of_the_documentation():
    a = cute.make_layout((4, (3, 6)))
    assert [str(cute.get(a, *path)) for path in ((), (0,), (1,), (1, 0), (1, 1))] == [
        "(4,(3,6)):(1,(4,12))", "4:1", "(3,6):(4,12)", "3:4", "6:12",
    ]  # fmt: skip
    b = cute.make_layout((2, 3, 5, 7))
    assert [str(cute.select(b, *modes)) for modes in ((1, 3), (0, 1, 3), (2,))] == [
        "(3,7):(2,30)", "(2,3,7):(1,2,30)", "(5):(6)",
    ]  # fmt: skip
    assert [str(cute.take(b, 1, end)) for end in (3, 4)] == ["(3,5):(2,6)", "(3,5,7):(2,6,30)"]
    assert str(cute.group(b, 0, 2)) == "((2,3),5,7):((1,2),6,30)"
    assert cute.flatten(cute.group(cute.group(b, 0, 2), 1, 3)) == b


COMPATIBLE = [
    (24, 32, False), (24, (4, 6), True), ((4, 6), ((2, 2), 6), True), (((2, 2), 6), ((2, 2), (3, 2)), True),
    (24, ((2, 2), (3, 2)), True), (24, ((2, 3), 4), True), (((2, 3), 4), ((2, 2), (3, 2)), False),
    (((2, 2), (3, 2)), ((2, 3), 4), False), (24, (24,), True), ((24,), 24, False), ((24,), (4, 6), False),
]  # fmt: skip


@pytest.mark.parametrize(("coarse", "fine", "answer"), COMPATIBLE)
def test_compatible_shapes_of_the_documentation(coarse, fine, answer):
    assert cute.compatible(coarse, fine) is answer


def test_printed_tables_of_the_documentation():
    rows = {
        "(2,4):(1,2)": [[0, 2, 4, 6], [1, 3, 5, 7]],
        "(2,4):(12,1)": [[0, 1, 2, 3], [12, 13, 14, 15]],
        "(2,(2,2)):(4,(2,1))": [[0, 2, 1, 3], [4, 6, 5, 7]],
        "((2,2),2):((4,1),2)": [[0, 2], [4, 6], [1, 3], [5, 7]],
    }
    for text, expected in rows.items():
        layout = parse(text)
        assert [[layout(m, n) for n in range(len(expected[0]))] for m in range(len(expected))] == expected
    assert [parse("((4,2)):((2,1))")(i) for i in range(8)] == [0, 2, 4, 6, 1, 3, 5, 7]
