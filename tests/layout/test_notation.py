"""The text form reads back what it prints, and malformed text is named with its place."""

from __future__ import annotations

import pytest
from hypothesis import given

from strategies import layouts, plain_iters
from tileweave.errors import LayoutError
from tileweave.index import minimum, symbol
from tileweave.layout import Coord, Layout, parse, to_text


@given(layouts(copies=3))
def test_every_layout_reads_back_from_its_text(layout):
    assert parse(str(layout)) == layout


@given(layouts(plain_iters, copies=2))
def test_memory_strides_read_back_without_their_axis(layout):
    text = to_text(layout, bare_axis="m")
    assert "@" not in text
    assert parse(text) == layout


@pytest.mark.parametrize(
    ("text", "layout"),
    [
        ("()", Layout()),
        ("5@warp", Layout((), (), {"warp": 5})),
        ("-5", Layout((), (), -5)),
        ("[2:4@warp]", Layout((), ((2, {"warp": 4}),))),
        ("(4:1)", Layout(((4, 1),))),
        ("( 4 : 1 , )", Layout(((4, 1),))),
        ("(4:-2, 3:0)", Layout(((4, -2), (3, 0)))),
        ("(4:1@a - 3@b + 1@a)", Layout(((4, {"a": 2, "b": -3}),))),
        ("1@a + (2:1) - 3@b + [3:2]", Layout(((2, 1),), ((3, 2),), {"a": 1, "b": -3})),
        ("(2:1)+[2:2]+1+1", Layout(((2, 1),), ((2, 2),), 2)),
        ("[4:1] + [2:1]", Layout((), ((4, 1), (2, 1)))),
        ("8:2", Layout(((8, 2),))),
        ("S[8:4@lane, 2:1@warp] + R[2:4@warp] + 5@warp", parse("(8:4@lane, 2:1@warp) + [2:4@warp] + 5@warp")),
        ("S[(8,2,4) : (4@lane,1@warp,1@lane)] + R[2:4@warp]", parse("(8:4@lane, 2:1@warp, 4:1@lane) + [2:4@warp]")),
        ("(8,2,4) : (4@lane,1@warp,1@lane) + R[2:4@warp]", parse("(8:4@lane, 2:1@warp, 4:1@lane) + [2:4@warp]")),
        ("(8,2,4):(4@lane,1@warp,1)", parse("(8:4@lane, 2:1@warp, 4:1)")),
        ("S[8:1@m] + R[2:4@lane] + O[3]", parse("(8:1) + [2:4@lane] + 3")),
        ("(8,2):(4@lane,1@warp) + R[2:4@warp] + O[5@warp]", parse("(8:4@lane, 2:1@warp) + [2:4@warp] + 5@warp")),
        ("O[5@warp, 1 - 2@a] + S[8:1]", parse("(8:1) + 5@warp + 1 - 2@a")),
        ("O[] + R[2:4]", parse("[2:4]")),
        ("(2:1@_x)", Layout(((2, {"_x": 1}),))),
    ],
)
def test_the_grammar(text, layout):
    assert parse(text) == layout


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "the text ends too early"),
        ("(4)", "(4) stands where extent:stride is expected"),
        ("(4:)", "')' is not expected here"),
        ("(4:1", "no ')'"),
        ("(4:1))", "')' is not expected here"),
        ("(4:1) (2:1)", "'(' is not expected here"),
        ("(4:1) + (2:1)", "a second shard in one sum"),
        ("(4:1) - (2:1)", "iters cannot be subtracted"),
        ("(4:1) - [2:1]", "iters cannot be subtracted"),
        ("(0:1)", "extent 0 is not positive"),
        ("(-4:1)", "extent -4 is not positive"),
        ("(4:1.5)", "a name is missing"),
        ("(4:a)", "there is no symbol a"),
        ("(4:1@)", "the name of an axis is missing"),
        ("(4:1@2)", "the name of an axis is missing"),
        ("(4:1 2:1)", "'2' stands where ',' or ')' is expected"),
        ("(4:1) +", "the text ends too early"),
        ("(4:1) * 2", "* is for numbers"),
        ("(4:1) $ 2", "'$' is not expected"),
        ("(4:1) + (tx)", "there is no symbol tx"),
        ("(4:1) + (1 +)", "')' is not expected here"),
        ("(4:1) + (n", "no ')'"),
        ("(4:1) + (f(1, 2))", "there is no operation f"),
        ("Row(2, 3)", "this is no layout in Axe's notation"),
        ("S[4]", "an iter is extent:stride"),
        ("S[4:1] + O[3] + S[2:4]", "a second shard in one sum"),
        ("S[4:1] - O[3]", "iters cannot be subtracted"),
        ("O[8:1]", "an Axe layout is no offset"),
        ("S[(4,2):(1,2,3)]", "2 extents and 3 strides"),
        ("((0):1)", "extent 0 is not positive"),
        (None, "None is not a text"),
    ],
)
def test_malformed_text_is_named(text, problem):
    with pytest.raises(LayoutError) as caught:
        parse(text)
    assert str(caught.value).splitlines()[0] == f"parse(text): {problem}"


def test_the_error_points_at_the_place():
    with pytest.raises(LayoutError) as caught:
        parse("(8:4@lane, 2:x)")
    assert str(caught.value) == (
        "parse(text): there is no symbol x\n"
        "  text   (8:4@lane, 2:x)\n"
        "                      ^\n"
        "  legal  (extent:stride@axis, ..) + [extent:stride@axis, ..] + offset@axis"
    )


def test_text_of_a_coordinate_inside_strides_and_offsets():
    layout = Layout(((4, {"a": 1, "b": -3}),), (), {"a": -2})
    assert str(layout) == "(4:1@a - 3@b) - 2@a"
    assert str(Layout(((4, Coord()),))) == "(4:0)"


def test_symbolic_layouts_read_back_given_their_symbols():
    n, tx = symbol("n", 1), symbol("tx", 0, 64)
    given = {"n": n, "tx": tx}
    for layout in [
        Layout(((n, n * 4 + 1), (4, 1)), (), (tx // 8) * 4 + tx % 8),
        Layout(((n * 2, {"lane": n, "m": 3}),), (), {"lane": -5, "m": minimum(tx, n)}),
        Layout((), (), tx),
    ]:
        again = parse(str(layout), given)
        assert again == layout
        assert str(again) == str(layout)
    assert parse("(tx)@lane - (n) + (4:1)", given) == Layout(((4, 1),), (), {"lane": tx, "m": -n})
    assert parse("((2 + 2):(3 * 2))") == Layout(((4, 6),))


def test_one_reader_reads_every_notation_as_its_own_value():
    from tileweave.layout import cute, lego, read

    for text, value in {
        "((2,2),4):((1,8),2)": cute.CuteLayout(((2, 2), 4), ((1, 8), 2)),
        "(_4,_8):(_1,_4)": cute.CuteLayout((4, 8), (1, 4)),
        "(8:4@lane, 2:1@reg) + [2:4@warp]": parse("(8:4@lane, 2:1@reg) + [2:4@warp]"),
        "S[8:4@lane] + 5@warp": parse("(8:4@lane) + 5@warp"),
        "(8,2):(4@lane,1@warp) + R[2:4@warp]": parse("(8:4@lane, 2:1@warp) + [2:4@warp]"),
        "OrderBy(Col(2,2), Row(3,3)).GroupBy((6,6))": lego.OrderBy(lego.Col(2, 2), lego.Row(3, 3)).GroupBy((6, 6)),
        "TileBy((2,2),(3,3))": lego.TileBy((2, 2), (3, 3)),
        "morton(4,4)": lego.morton(4, 4),
        "Sw<3,3,3> o 0 o (8,64):(64,1)": cute.ComposedLayout(
            cute.Swizzle(3, 3, 3), 0, cute.CuteLayout((8, 64), (64, 1))
        ),
        "(8,64):(72,1)^": cute.XorLayout((8, 64), (72, 1)),
    }.items():
        assert read(text) == value and type(read(text)) is type(value), text
    with pytest.raises(LayoutError, match="there is no operation composition"):
        read("composition((4,8):(1,4), 8:2)")
