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
    ],
)
def test_the_grammar(text, layout):
    assert parse(text) == layout


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "'the end' is not expected here, a number is"),
        ("(4)", "')' is not expected here, : is"),
        ("(4:)", "')' is not expected here, a number is"),
        ("(4:1", "'the end' is not expected here, , is"),
        ("(4:1))", "')' is not expected here, + or - is"),
        ("(4:1) (2:1)", "'(' is not expected here, + or - is"),
        ("(4:1) + (2:1)", "a second '('"),
        ("(4:1) - (2:1)", "iters cannot be subtracted"),
        ("[4:1] + [2:1]", "a second '['"),
        ("(4:1) - [2:1]", "iters cannot be subtracted"),
        ("(0:1)", "the extent 0 is not positive"),
        ("(-4:1)", "'-' is not expected here, a number is"),
        ("(4:1.5)", "'.' is not expected"),
        ("(4:a)", "'a' is not expected here, a number is"),
        ("(4:1@)", "')' is not expected here, a name is"),
        ("(4:1@2)", "'2' is not expected here, a name is"),
        ("(4:1 2:1)", "'2' is not expected here, , is"),
        ("(4:1) +", "'the end' is not expected here, a number is"),
        ("(4:1) * 2", "'*' is not expected here, + or - is"),
        ("(4:1) $ 2", "'$' is not expected"),
        ("(4:1) + (tx)", "the symbol tx is not given; known: none"),
        ("(4:1) + (1 +)", "this is no index expression"),
        ("(4:1) + (n", "the symbol n is not given; known: none"),
        ("(4:1) + (f(1, 2))", "f(1, 2) is not allowed here"),
        ("((0):1)", "the extent 0 is not positive"),
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
        "parse(text): 'x' is not expected here, a number is\n"
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
