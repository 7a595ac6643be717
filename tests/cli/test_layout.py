"""``tileweave layout`` as a user meets it: the algebra's own results, and what it says to text that is none."""

from __future__ import annotations

import io
import json
import re
import shlex
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tileweave.cli.layout.command import epilog, text_of
from tileweave.cli.layout.operations import FAMILIES, METHODS, OPERATIONS
from tileweave.cli.main import main
from tileweave.errors import LayoutError, TileweaveError
from tileweave.index import symbol
from tileweave.layout import Coord, axe, cute, lego
from tileweave.layout.cute import ComposedLayout, CuteLayout, E, Swizzle, XorLayout
from tileweave.layout.text.reader import evaluate

TILE = "(8:4@lane, 2:1@warp, 4:1@lane, 2:1@reg) + [2:4@warp] + 5@warp"
FIGURE_9 = "OrderBy(Col(2,2), antidiagonal(3)).OrderBy(RegP((2,3,2,3), (1,3,2,4))).GroupBy((6,6))"

DIVIDED = "((3,3),((2,4),(2,2))):((177,59),((13,2),(26,1)))"
MEANS = "means    lanes\nelement  1\nplace    1@lane\nsteps    lanes: 3 shuffles, the fewest; 12 instructions a warp"


def value(text: str, **symbols):
    return evaluate(text, OPERATIONS, METHODS, symbols)


def run(capsys, *words: str) -> str:
    assert main(["layout", *words]) == 0
    return capsys.readouterr().out


def refused(capsys, *words: str) -> str:
    assert main(["layout", *words]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    return err


# ── the three notations ──


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("(4,8):(1,4)", CuteLayout((4, 8), (1, 4))),
        ("((2,2),4):((1,8),-2)", CuteLayout(((2, 2), 4), ((1, 8), -2))),
        ("(_4,_8):(_8,_1)", CuteLayout((4, 8), (8, 1))),
        ("8:2", CuteLayout(8, 2)),
        ("(8):(2)", CuteLayout(8, 2)),
        ("(4,5):(1@1,1@0)", CuteLayout((4, 5), (E(1), E(0)))),
        ("4:1@0@1", CuteLayout(4, E(1, 0))),
        ("(4,5):(E(1),2*E(0))", CuteLayout((4, 5), (E(1), 2 * E(0)))),
        ("4:1@a + 2@b", CuteLayout(4, Coord.of({"a": 1, "b": 2}))),
        ("(8,64):(72,1)^", XorLayout((8, 64), (72, 1))),
        ("Sw<3,3,-3>", Swizzle(3, 3, -3)),
        ("Sw<3,3,3> o 8 o (8,64):(64,1)", ComposedLayout(Swizzle(3, 3, 3), 8, CuteLayout((8, 64), (64, 1)))),
        ("Sw<3,3,3> o (8,64):(64,1)", ComposedLayout(Swizzle(3, 3, 3), 0, CuteLayout((8, 64), (64, 1)))),
        (TILE, axe.parse(TILE)),
        ("(8:2)", axe.parse("(8:2)")),
        ("()", axe.parse("()")),
        ("() + [2:1] - 3@a", axe.parse("() + [2:1] - 3@a")),
        ("[3:1]", axe.parse("[3:1]")),
        ("(4:1, 2:1@a - 3@b) + 64", axe.parse("(4:1, 2:1@a - 3@b) + 64")),
        ("(8:2) + 5", axe.parse("(8:2) + 5")),
        ("64 + (8:2) + [2:1]", axe.parse("(8:2) + [2:1] + 64")),
        ("tile((2:1), (4:1)) + 3@a", axe.parse("(2:4, 4:1) + 3@a")),
        (FIGURE_9, None),
        ("7 - 2*3", 1),
        ("17 // 5 % 2", 1),
        ("E(0) + 2*E(1) - E(0)", 2 * E(1)),
        ("(4, 8)", (4, 8)),
    ],
)
def test_text_in_every_notation_means_what_the_room_says(text, expected):
    if expected is None:
        split = lego.RegP((2, 3, 2, 3), (1, 3, 2, 4))
        expected = lego.OrderBy(lego.Col(2, 2), lego.antidiagonal(3)).OrderBy(split).GroupBy((6, 6))
        assert (value(text).table() == expected.table()).all()
    else:
        assert value(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "(4,8):(1,4)",
        "((2,2),4):((1,8),-2)",
        "(4,(2,2)):(1@0,(1@0@1,1@1@1))",
        "(8,64):(72,1)^",
        "Sw<3,3,3> o 8 o (8,64):(64,1)",
        "F2Map((4,1,2), 3)",
        TILE,
        "() + [2:1@m, 3:4@m] - 3@m",
        "(2:1@a - 3@b) + 1@a - 4@m",
        "OrderBy(RegP((2, 2), (2, 1)), hilbert(4)).OrderBy(RegP((64,), (1,))).GroupBy((8, 8))",
        "GroupBy((4,))",
        "xor_swizzle(4, 8)",
        "morton(4, 8)",
        "grouped(5, 4, 2)",
    ],
)
def test_what_is_printed_is_read_back(text):
    printed = text_of(value(text))
    assert text_of(value(printed)) == printed
    again, first = value(printed), value(text)
    if not isinstance(first, lego.GroupBy | lego.GenP):  # these hold functions; the table decides
        assert again == first
    else:
        size = first.size
        assert [again.inv(k) for k in range(size)] == [first.inv(k) for k in range(size)]


# ── operations ──


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("composition((6,2):(8,2), (4,3):(3,1))", "((2,2),3):((24,2),8)"),
        ("composition((4,8):(1,4), 8:2)", "8:2"),
        ("composition((12,(4,8)):(59,(13,1)), (3:4, 8:2))", "(3,(2,4)):(236,(26,1))"),
        ("composition((12,(4,8)):(59,(13,1)), <3:4, 8:2>)", "(3,(2,4)):(236,(26,1))"),
        ("composition(Sw<3,3,3>, (8,64):(64,1))", "Sw<3,3,3> o 0 o (8,64):(64,1)"),
        ("logical_divide((4,2,3):(2,1,8), 4:2)", "((2,2),(2,3)):((4,1),(2,8))"),
        ("logical_divide((9,(4,8)):(59,(13,1)), (3:3, (2,4):(1,8)))", DIVIDED),
        ("complement((2,2):(1,6), 24)", "(3,2):(2,12)"),
        ("complement((2:6, 2:1), 24)", "(2:12@m, 3:2@m)"),
        ("coalesce((2,(1,6)):(1,(6,2)))", "12:1"),
        ("slice((2,(3,4)):(1,(2,6)), (1,(_,2)))", "3:2"),
        ("slice((2:192, 8:8, 3:64, 8:1), shape=(16,24), box=[0:8, 8:24])", "(8:8@m, 2:64@m, 8:1@m) + 64@m"),
        ("tile((2:3, 3:1), (8:8, 8:1))", "(2:192@m, 8:8@m, 3:64@m, 8:1@m)"),
        ("tile((2:3, 3:1), (2,3), (8:8, 8:1), (8,8))", "(2:192@m, 8:8@m, 3:64@m, 8:1@m)"),
        ("tile_of((9:1), (3:1))", "(3:1@m)"),
        ("canonicalize((2:12, 3:4, 4:1) + [2:-3, 3:3])", "(24:1@m) + [2:3@m, 3:3@m] - 3@m"),
        ("group((12:1), (3,4))", "(3:4@m)\n(4:1@m)"),
        ("span((2:112@Col, 128:1@Lane, 112:1@Col))", "224@Col + 128@Lane"),
        ("same_map([2:1, 2:1], [3:1], 'set')".replace("'set'", "replicas"), None),
        ("to_index_map((2,3):(1,10))", "(3:10@m, 2:1@m)"),
        ("to_coordinate_map(((2,2),3):((1,8),2))", "(2:8@m, 2:1@m, 3:2@m)"),
        ("from_coordinate_map((2:8, 2:1, 3:2), (4,3))", "((2,2),3):((1,8),2)"),
        ("to_core(OrderBy(RegP((2,3),(2,1))).GroupBy((6)))", "(2:1@m, 3:2@m)"),
        ("xor_strides(Sw<3,3,3> o 0 o (8,64):(64,1))", "(8,64):(72,1)^"),
        ("size((4,8):(1,4))", "32"),
        ("size((4:1, 8:4))", "32"),
        ("is_injective((2:6, 3:8))", "True"),
        ("GroupBy((4,4)).inv(6)", "(1,2)"),
        ("bricks((4,4),(2,2)).apply(0,2)", "4"),
        ("PartialTiles((100,100),(32,32)).mask(3,0,4,0)", "False"),
        ("permutation([2,0,1]).inv(2)", "(0)"),
        ("cover_divide(10:1, 4)", "(4,3):(1,4)\nvalid where (4,3):(1@0,4@0) is below (10)"),
        ("slice_pieces((4:1, 3:9), (12), [1:8])", None),
        ("idx2crd(7, ((3,2),2))", "((1,0),1)"),
        ("conversion((4:1@lane, 2:1@reg), (4:1@reg, 2:1@lane))", MEANS),
    ],
)
def test_operations_by_name(text, result, capsys):
    if result is None:
        return_code = main(["layout", text])
        assert return_code == (2 if "replicas" in text else 0)
        return
    assert run(capsys, text) == f"{result}\n"


def test_pieces_of_a_slice_say_whether_they_are_the_fewest(capsys):
    assert run(capsys, "slice_pieces((4:1, 3:9), (12), [1:8])").splitlines() == [
        "[1:2]  () + 9@m",
        "[2:4]  (2:-17@m) + 18@m",
        "[4:8]  (2:-8@m, 2:9@m) + 10@m",
        "3 pieces, the fewest",
    ]


def test_every_operation_of_the_notations_is_known():
    missing = {n for n in cute.__all__ if callable(getattr(cute, n)) and n not in OPERATIONS}
    # classes, second names, the reader of text, and what takes a dict
    assert missing == {"Cover", "CuteLayout", "f2_to_core", "filter_layout", "parse", "slice_"}
    missing = {n for n in axe.__all__ if callable(getattr(axe, n)) and n not in OPERATIONS}
    assert missing == {"Blocks", "Coord", "Iter", "Pieces", "intersect", "parse", "to_text"}  # values and the text
    missing = {n for n in lego.__all__ if callable(getattr(lego, n)) and n not in OPERATIONS}
    # GenP takes Python functions, templates their text
    values = {"Accessor", "Chain", "Filled", "Slice", "Template"}
    assert missing == values | {"accessor", "choose", "flat_index", "GenP", "template", "tuple_index"}


def test_shared_names_go_by_their_first_argument():
    for name in set(FAMILIES["CuTe"]) & set(FAMILIES["Axe"]) - {"slice", "group", "complement"}:
        for text in ("(4,2):(1,4)", "(2:4, 4:1)"):
            assert value(f"{name}({text})") is not None


# ── options ──


def test_at_an_index_a_coordinate_and_all_replicas(capsys):
    assert run(capsys, TILE, "--at", "3,9", "--shape", "8,16") == (
        "12@lane + 1@reg + 6@warp\n12@lane + 1@reg + 10@warp\n"
    )
    assert run(capsys, TILE, "--at", "57") == run(capsys, TILE, "--at", "3,9", "--shape", "8x16")
    assert run(capsys, TILE, "--at", "3,1,0,1") == run(capsys, TILE, "--at", "57")
    assert run(capsys, "((2,2),4):((1,8),2)", "--at", "(0,1),2") == "12\n"
    assert run(capsys, "((2,2),4):((1,8),2)", "--at", "1,_") == "4:2\n"
    assert run(capsys, FIGURE_9, "--at", "4,2") == f"{value(FIGURE_9).apply(4, 2)}\n"
    assert run(capsys, "Sw<3,3,3>", "--at", "72") == "64\n"


@pytest.mark.parametrize(
    ("text", "names", "ranges"),
    [
        ("TileBy((2,2),(3,3))", "i,j,k,l", (2, 2, 3, 3)),
        ("((2,2),4):((1,8),2)", "i,j", (4, 4)),
        ("((2,2),4):((1,8),2)", "x", (16,)),
        ("hilbert(4)", "i,j", (4, 4)),
        ("(8,8):(9,1)^", "i,j", (8, 8)),
        ("(4:7, 2:1)", "x", (8,)),
    ],
)
def test_at_names_the_expression_has_the_layout_s_values(capsys, text, names, ranges):
    first, c = run(capsys, text, "--at", names).splitlines()
    assert c.startswith("C  ")
    layout = value(text)
    code = compile(first, "expression", "eval")
    for point in np.ndindex(*ranges):
        scope = dict(zip(names.split(","), map(int, point), strict=True))
        got = eval(code, {"select": lambda c, a, b: a if c else b}, scope)
        want = layout.apply(*point) if hasattr(layout, "apply") else layout(*map(int, point))
        assert got == (want["m"] if isinstance(want, Coord) else want)


def test_symbols_pass_through_the_algebra(capsys):
    text = "bind((16:128, 8:8, 2:4, 4:1) + 2112, (tx//8, tx%8), (16,8))"
    tx = symbol("tx", 0, 128)
    expected = axe.bind(axe.parse("(16:128, 8:8, 2:4, 4:1) + 2112"), (tx // 8, tx % 8), (16, 8))
    assert run(capsys, text, "--symbol", "tx=0:128") == f"{expected}\n"


def test_symbols_may_be_open_and_multiples(capsys):
    text = "zipped_divide((M,N):(1,M), (4,8))"
    found = run(capsys, text, "--symbol", "M=1::4", "--symbol", "N=1:64:8")
    assert found == "((4,8),((M // 4),(N // 8))):((1,M),(4,(8 * M)))\n"
    assert "M % 4 == 0 fails at M = 1" in refused(capsys, text, "--symbol", "M=1:", "--symbol", "N=1:64:8")
    assert "1 <= M fails" in refused(capsys, "(M,4):(1,M)", "--symbol", "M=:")


@pytest.mark.parametrize(
    "text", ["(M,4):(1,M)", "(4,4):(1,M)", "(M:4, 4:1)", "(4:M, 4:1)", "(4:1,) + M", "OrderBy(Row(M,4)).GroupBy((M,4))",
             "Sw<1,0,1> o M o 4:1", "Sw<1,0,1> o 0 o (4,M):(M,1)", "(M,4):(1@0,1@1)"],
)  # fmt: skip
def test_symbolic_layouts_print_and_draw_but_have_no_table(capsys, tmp_path, text):
    words = [text, "--symbol", "M=1:9"]
    assert "M" in run(capsys, *words) and "M" in run(capsys, *words, "--json")
    for option in ("--table", "--banks"):
        assert "the layout is symbolic" in refused(capsys, *words, option)
    picture = tmp_path / "symbolic.svg"
    run(capsys, *words, "--draw", str(picture))
    assert picture.read_text().startswith("<svg") and "M" in picture.read_text()


def test_tables_list_coordinates_in_the_layout_s_own_order(capsys):
    assert run(capsys, "((2,2),2):((1,8),2)", "--table").splitlines()[2:] == [
        "index  coordinate  value",
        "    0   ((0,0),0)      0",
        "    1   ((1,0),0)      1",
        "    2   ((0,1),0)      8",
        "    3   ((1,1),0)      9",
        "    4   ((0,0),1)      2",
        "    5   ((1,0),1)      3",
        "    6   ((0,1),1)     10",
        "    7   ((1,1),1)     11",
    ]
    rows = run(capsys, TILE, "--table", "--limit", "3", "--shape", "8,16").splitlines()
    assert rows[-1] == "showing 3 of 128 rows"
    assert rows[-2].split(maxsplit=2) == ["2", "(0,2)", "1@lane + 5@warp | 1@lane + 9@warp"]


def test_a_table_of_a_huge_layout_is_cut_and_quick(capsys):
    out = run(capsys, f"({1 << 30}:{1 << 30}, {1 << 30}:1)", "--table", "--limit", "2")
    assert out.splitlines()[-1] == f"showing 2 of {1 << 60} rows"


def test_json_holds_the_result_and_what_was_asked(capsys):
    found = json.loads(run(capsys, TILE, "--json", "--table", "--limit", "1", "--at", "0"))
    assert found["result"]["notation"] == "axe"
    assert found["result"]["text"] == TILE
    assert found["result"]["shard"][0] == {"extent": 8, "stride": {"lane": 4}}
    assert found["result"]["replica"] == [{"extent": 2, "stride": {"warp": 4}}]
    assert found["result"]["axes"]["warp"] == {"min": 5, "max": 10}
    assert found["result"]["injective"] is True
    assert found["table"]["size"] == 128
    assert found["at"]["value"] == [{"warp": 5}, {"warp": 9}]
    found = json.loads(run(capsys, "((2,2),4):((1,8),2)", "--json"))["result"]
    assert (found["shape"], found["stride"], found["size"], found["cosize"]) == ([[2, 2], 4], [[1, 8], 2], 16, 16)
    for text in (FIGURE_9, "Sw<1,2,3>", "F2Map((1,2),2)", "(8,8):(9,1)^", "3", "span((2:1@a))", "vector_width(8:1, 4)"):
        assert "result" in json.loads(run(capsys, text, "--json"))


def test_draw_writes_a_picture(capsys, tmp_path):
    for k, text in enumerate([TILE, "(4,8):(8,1)", FIGURE_9, "Sw<2,0,2>"]):
        target = tmp_path / f"{k}.svg"
        assert main(["layout", text, "--draw", str(target)]) == 0
        assert ElementTree.parse(target).getroot().tag.endswith("svg")
        assert f"drawn: {target}" in capsys.readouterr().err
    words = ["layout", TILE, "--draw", str(tmp_path / "0.svg")]
    assert main(words) == 2 and "the file exists already" in capsys.readouterr().err
    assert main([*words, "--overwrite"]) == 0
    assert main(["layout", TILE, "--draw", str(tmp_path / "warp.svg"), "--colour", "warp", "--shape", "16,8"]) == 0
    assert "on 16 x 8, coloured by warp" in (tmp_path / "warp.svg").read_text()


def test_banks_name_the_addresses_that_collide(capsys):
    assert run(capsys, "(32,32):(32,1)", "--banks", "--threads", "0:4").splitlines()[2:] == [
        "warp 0: 4 passes, 1 without conflicts",
        "bank 0: thread 0 at byte 0, thread 1 at byte 128, thread 2 at byte 256, thread 3 at byte 384",
    ]
    assert "warp 0: 1 pass, no conflicts" in run(capsys, "(32,32):(32,1)", "--banks", "--threads", "0:1024:32")
    assert "and 26 more" in run(capsys, "(32,32):(32,1)", "--banks")
    rows = ["--banks", "--width", "2", "--vector", "8", "--threads", "0:8"]
    assert "8 passes" in run(capsys, "(8,64):(64,1)", *rows)
    assert "1 pass, no" in run(capsys, "Sw<3,3,3> o 0 o (8,64):(64,1)", *rows)
    found = json.loads(run(capsys, "(32,32):(32,1)", "--banks", "--json", "--threads", "0,-1,2"))["banks"]
    assert found["collisions"] == [{"bank": 0, "threads": [0, 2], "first_bytes": [0, 256]}]


def test_the_expression_may_come_from_the_standard_input(capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("composition((4,8):(1,4),\n  8:2)\n"))
    assert run(capsys, "-") == "8:2\n"


def test_the_examples_of_the_help_run(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as caught:
        main(["layout", "--help"])
    assert caught.value.code == 0
    help_text = capsys.readouterr().out
    assert epilog() in help_text
    examples = re.findall(r"^  tileweave (layout .*)$", help_text, re.MULTILINE)
    assert len(examples) >= 10
    for example in examples:
        assert main(shlex.split(example)) == 0
    for name in OPERATIONS:
        assert name in help_text


# ── refusals ──


def test_a_caret_points_at_the_operation_that_refuses(capsys):
    assert refused(capsys, "coalesce(composition((3,4):(1,10), 4:2))") == "\n".join(
        [
            "NoLayout: composition(a, b): the modes carry: at (3,) the value is 20, the modes alone add up to 13",
            "  a      (3,4):(1,10)",
            "  b      4:2",
            "  text   coalesce(composition((3,4):(1,10), 4:2))",
            "                  ^",
            "  legal  modes whose sum does not carry in the digits of the outer layout",
            "",
        ]
    )


def test_a_caret_points_at_malformed_text(capsys):
    assert refused(capsys, "tile((2:3, 3;1), (8:1))") == "\n".join(
        [
            "LayoutError: tileweave layout: ';' is not expected",
            "  text   tile((2:3, 3;1), (8:1))",
            "                     ^",
            "  legal  such as (4,8):(1,4), (8:4@lane, 2:1@reg) + [2:1@warp], or composition((4,8):(1,4), 8:2); "
            "see --help",
            "",
        ]
    )


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "the text ends too early"),
        ("(4,8):(1,4", "no ')'"),
        ("composition((3,4):(1,10), 4:2", "the text ends before ','"),
        ("(4:1@)", "the name of an axis is missing"),
        ("foo(3)", "there is no operation foo"),
        ("logical_devide(8:1, 2)", "perhaps logical_divide"),
        ("x", "there is no symbol x"),
        ("a.b", "the text ends before '('"),
        ("(8:1).foo()", "an Axe layout has no method foo"),
        ("().__class__", "a name is missing"),
        ("__import__(os)", "'_' is not expected"),
        ("8:2 + 5", "write (8:2) + 5 for an offset"),
        ("(4:1) + (2:1)", "a second shard"),
        ("(4:1) - [2:1]", "iters cannot be subtracted"),
        ("(4:1) + Sw<1,0,1>", "a swizzle cannot be part of a sum"),
        ("1 // 0", "by zero"),
        ("coalesce(Row(2,2))", "is no layout"),
        ("9" * 1001, "a number of 1001 digits"),
        ("(" * 100, "deeper than 64"),
        ("1" + "*1" * 3000, "recursion"),
        ("(0:3)", "extent 0 is not positive"),
        ("(4,8):(1)", "nest differently"),
        ("composition(4:1)", "missing a required argument: 'b'"),
        ("composition(4:1, c=3)", "missing a required argument: 'b'"),
        ("slice((8:1), box=[1:2])", "slice(layout, shape, box)"),
        ("tile((8:1), 8:1)", "to_index_map(L) or to_coordinate_map(L)"),
        ("coalesce((8:8, 8:1))", "from_index_map(L) or from_coordinate_map(L, shape)"),
        ("tile((4:1), (2:2, 2:1))", "the shapes are missing"),
        ("slice((8:1), 8, [0:9])", "is no interval of [0, 8)"),
        ("slice((8:1), 8, 3)", "3 is no box"),
        ("(4,8):(1,4) o 3", "a number cannot be composed"),
        ("(4:1) o 4:1", "o composes a swizzle or a CuTe layout"),
        ("OrderBy(3)", "are no pieces"),
        ("4@lane@warp:1", "one stride has one axis"),
        ("E(0)@lane", "an axis belongs to a number"),
        ("E(0) // 2", "// is for numbers"),
        ("a=1", "'=' is not expected here"),
    ],
)
def test_malformed_expressions_are_refused_with_their_place(capsys, text, problem):
    err = refused(capsys, text)
    assert problem in err
    assert "^" in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["3", "--table"], "the result is no layout but 3"),
        (["Sw<1,0,1>", "--banks"], "the result is no layout but Sw<1,0,1>"),
        ([TILE, "--banks"], "values lie on the axes lane, reg, warp"),
        (["4:1", "--banks", "--threads", "a"], "this is no thread set"),
        (["4:1", "--banks", "--threads", "0:9999"], "this is no thread set"),
        (["4:1", "--banks", "--threads", "0:8:0"], "this is no thread set"),
        (["4:1", "--at", "9"], "out of range"),
        (["(4:1)", "--at", "1,2,3"], "3 coordinates for 1 dimensions"),
        (["(4:1)", "--at", "_"], "a coordinate of an Axe layout is flat"),
        (["(4:1)", "--at", "(i"], "no ')'"),
        (["((2,2),4):((1,8),2)", "--at", "(i,j,k),l"], "the names do not fit the shape"),
        (["4:1", "--shape", "4", "--table"], "only an Axe layout takes --shape"),
        (["(4:1)", "--shape", "5", "--table"], "the shape has 5 points"),
        (["(4:1)", "--shape", "a", "--table"], "this is no shape"),
        (["4:1", "--symbol", "x=3:1"], "the range is empty"),
        (["4:1", "--symbol", "x=1:2:z"], "this declares no symbol"),
        (["4:1", "--symbol", "x=1:9:0"], "is not known to be positive"),
        (["4:1", "--draw", "no-such-folder/x.svg"], "there is no directory 'no-such-folder'"),
        (["4:1", "--draw", "x.txt"], "legal  a path that ends in .svg"),
        (["(4:1)", "--draw", "x.svg", "--colour", "lane"], "does not use the axis lane"),
    ],
)
def test_options_that_do_not_fit_are_refused(capsys, words, problem):
    assert problem in refused(capsys, *words)


PIECES = re.findall(
    r"\S+",
    "( ) [ ] < > , : @ + - * % // . ^ _ = 0 1 2 8 lane m tile slice group composition logical_divide Swizzle Sw<1,0,1> "
    "GroupBy OrderBy Col (4,8):(1,4) 8:2 (2:3,3:1) [2:4@warp] hilbert(4) E get complement conversion o ",
)
ARGUMENTS = re.findall(
    r"\S+",
    "3 (4,2) 8:2 (4,8):(1,4) (2:3,3:1) [0:2,1:2] _ Sw<1,0,1> hilbert(2) -1 GroupBy((4,4)) E(0) () [2,0,1] (4,_)",
)


@settings(max_examples=400, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=12).map(" ".join))
def test_no_text_ends_in_anything_but_a_value_or_a_refusal(text):
    try:
        text_of(value(text))
    except TileweaveError as error:
        assert "^" in str(error)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(sorted(OPERATIONS)), st.lists(st.sampled_from([*ARGUMENTS, TILE]), max_size=4))
def test_no_call_ends_in_anything_but_a_value_or_a_refusal(name, arguments):
    text = f"{name}({', '.join(arguments)})"
    try:
        text_of(value(text))
    except TileweaveError as error:
        assert "^" in str(error)


def test_an_error_names_its_place_in_a_long_text():
    text = "(" + ", ".join(["2:1"] * 100) + ", 0:3)"
    with pytest.raises(LayoutError) as caught:
        value(text)
    assert len(max(str(caught.value).splitlines(), key=len)) < 200


def session() -> list[tuple[str, str]]:
    """The commands of the tutorial's last section, with what the page says that they print."""
    page = (Path(__file__).resolve().parent.parent.parent / "docs" / "layouts.md").read_text(encoding="utf-8")
    block = page.split("## From the shell")[1].split("```")[1]
    return [
        (command, text.strip()) for command, text in re.findall(r"^\$ tileweave (.*)\n((?:(?!\$).*\n)*)", block, re.M)
    ]


@pytest.mark.parametrize(("command", "printed"), session(), ids=lambda text: text[:40])
def test_the_shell_session_of_the_tutorial_is_true(capsys, command, printed):
    main(shlex.split(command))
    out, err = capsys.readouterr()
    assert (out + err).strip() == printed
