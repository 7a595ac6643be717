"""The kernel IR: text, JSON both ways, and one bad kernel per rule of well-formedness."""

import copy
import json
import math
from dataclasses import replace
from random import Random
from typing import get_args

import pytest

from tileweave import kernel as tk
from tileweave.errors import DtypeError, TileweaveError, VerifyError
from tileweave.index import symbol
from tileweave.kernel.ir import (
    DTYPES,
    OPERATORS,
    RULES,
    Alloc,
    Arrive,
    Await,
    Break,
    Commit,
    Continue,
    Fence,
    For,
    Grid,
    Init,
    Kernel,
    KernelTensor,
    Let,
    Line,
    On,
    Op,
    Region,
    Scalar,
    Scope,
    Signal,
    Statement,
    Sync,
    Wait,
    WaitGroup,
    When,
    While,
    cta_scope,
    dtype_of,
    from_json,
    promote,
    to_json,
    to_text,
    verify,
    walk,
    whole,
)
from tileweave.layout import Layout, strided
from tileweave.layout.f2.swizzle import Swizzle

BLOCK = symbol("block", 0, 4)
ROW = symbol("row", 0, 4)
STEP = symbol("i", 0, 3)
LINE = Line("user.py", 7)
X = KernelTensor("x", (4, 32), "f16", "global", strided((4, 32), (32, 1)))
Y = KernelTensor("y", (4, 32), "f32", "global", strided((4, 32), (32, 1)))
FLAGS = KernelTensor("flags", (4,), "u32", "global", strided((4,), (1,)))
S = KernelTensor("s", (2, 32), "f16", "shared", strided((2, 32), (32, 1)), Swizzle(2, 3, 3))
FULL = KernelTensor("full", (2,), "mbarrier", "shared", strided((2,), (1,)))
R = KernelTensor("r", (1, 32), "f32", "register", Layout(((32, {"lane": 1}),), ((4, {"warp": 1}),)))
CTA = cta_scope(128)


def at(tensor, row):
    return Region(tensor, (row, 0), (1, 32), (1, 32), (0, 1))


def one(tensor, number=0):
    return Region(tensor, (number,), (1,), (1,), ())


def kernel(*body, params=(X, Y, FLAGS), mesh=()):
    grid = Grid(BLOCK, 4, ((ROW, BLOCK),), (4,))
    return Kernel("k", params, mesh, grid, tuple(body), line=LINE)


def inside(*body, scope=CTA, **more):
    return kernel(On(scope, tuple(body), line=LINE, **more))


def good():
    """A kernel with every statement that there is."""
    stage = STEP % 2
    warps = CTA.part("warpgroup", 0, 1)
    flag, count = symbol("n", 0, 9), symbol("w", 0, 4)
    return inside(
        Alloc(S),
        Alloc(FULL),
        Alloc(R),
        When(BLOCK < 1, (Init(one(FULL), 1), Init(one(FULL, 1), 1))),
        Fence("mbarrier_init"),
        Sync(),
        Op("fill", (whole(R),), (Scalar(0.0, "f32"),)),
        For(
            STEP,
            0,
            3,
            1,
            (
                Op("copy_async", (at(S, stage),), (at(X, ROW),), barrier=one(FULL, stage), line=LINE),
                Arrive(one(FULL, stage), "one", 64),
                Wait(one(FULL, stage), STEP // 2 % 2),
                Op("copy", (whole(R),), (at(S, stage),)),
                When(STEP < 1, (Continue(),), (Break(),)),
            ),
            stages=2,
        ),
        On(warps, (Op("map", (whole(R),), (whole(R), Scalar(2.0, "f32")), (("fn", "mul"),)),), registers=40),
        On(Scope("warp", CTA.layout), (Sync(1),), each=count),
        Commit("cp.async"),
        WaitGroup("cp.async", 0),
        Signal(one(FLAGS, ROW)),
        Await(one(FLAGS, ROW), 1),
        Let(flag, one(FLAGS, ROW)),
        While(flag < 1, (Let(flag, flag + 1),)),
        Op("copy", (at(Y, ROW),), (whole(R),)),
    )


def test_a_kernel_with_every_statement_is_well_formed(golden):
    verify(good())
    kinds = {type(s) for s in walk(good().body)}
    assert kinds == set(get_args(Statement))
    golden("kernel/every_statement.txt", to_text(good()))


def test_json_gives_the_kernel_back_with_its_lines():
    again = from_json(to_json(good()))
    assert again == good()
    assert to_text(again) == to_text(good())
    assert to_json(again) == to_json(good())


HEAD = '{"format": "tileweave.kernel", "version": 1, "kernel": '


@pytest.mark.parametrize(
    ("text", "place", "problem"),
    [
        ("", "$", "it is not JSON"),
        ("[]", "$", "[] is not an object with the keys format, version, kernel"),
        ('{"format": "tileweave.kernel", "format": 1}', "$", "repeat"),
        (HEAD.replace("1", "2") + "3}", "$.version", "2 is not version 1"),
        (HEAD + "NaN}", "$", "NaN is no JSON number"),
        (HEAD + "3}", "$.kernel", "3 is not a kernel"),
        (HEAD + '{"is": "Kernel"}}', "$.kernel", "no Kernel: "),
        (HEAD + '{"is": "os.system"}}', "$.kernel.is", '"os.system" is not one of Expr, Layout, float, Line'),
        (HEAD + '{"is": "Expr", "nodes": [["add", 0, 7]]}}', "$.kernel.nodes[0][1]", "0 is not the number of a node"),
        (HEAD + '{"is": "Expr", "nodes": [["const", 0, 7]]}}', "$.kernel.nodes[0]", "is not a node of 1 parts"),
        (HEAD + '{"is": "Layout", "shard": 3}}', "$.kernel", "the key 'replica' is missing"),
        (HEAD + '{"is": "Line", "file": "a", "number": "b"}}', "$.kernel.number", '"b" is not Line.number'),
        (HEAD + "[" * 700 + "]" * 700 + "}", "$.kernel", "it nests too deeply"),
    ],
)
def test_a_text_that_is_no_kernel_is_refused_at_its_place(text, place, problem):
    with pytest.raises(VerifyError) as caught:
        from_json(text)
    assert caught.value.rule == "json" and caught.value.path == place
    assert f"from_json(text): {place}: " in str(caught.value) and problem in str(caught.value)


def test_json_holds_infinities():
    kernel = inside(Op("fill", (whole(R),), (Scalar(-math.inf, "f32"),)))
    assert from_json(to_json(kernel)) == kernel and '"value": "-inf"' in to_json(kernel)
    json.loads(to_json(kernel), parse_constant=pytest.fail)


def bad_kernels():
    """Rule -> a kernel that breaks this rule and none before it."""
    fill = Op("fill", (whole(R),), (Scalar(0.0, "f32"),))
    mul = (("fn", "mul"),)
    return {
        "params": kernel(params=(X, X)),
        "resources": inside(On(CTA.part("warp", 0, 1), (), registers=40)),
        "tensor": inside(Alloc(replace(S, layout=strided((3, 32), (32, 1))))),
        "one-name": inside(Alloc(R), Alloc(R)),
        "declared": inside(fill),
        "box": inside(Op("fill", (Region(X, (0, 0), (2, 32), (2, 32), (1,)),), (Scalar(0.0, "f16"),))),
        "inside": inside(Op("fill", (at(X, 4),), (Scalar(0.0, "f16"),))),
        "halo": inside(Op("fill", (replace(whole(X), skip=(1, 0)),), (Scalar(0.0, "f16"),))),
        "symbols": inside(Op("fill", (at(X, symbol("q", 0, 4)),), (Scalar(0.0, "f16"),))),
        "scope": inside(On(cta_scope(256), ()), scope=CTA),
        "registers": kernel(Alloc(R), On(CTA, (fill,))),
        "loop-control": inside(Break()),
        "loop": inside(For(STEP, 0, 3, 0, ())),
        "cluster": inside(Sync(cluster=True)),
        "tensor-memory": inside(Commit("tcgen05")),
        "barrier": inside(Wait(one(FLAGS), 0)),
        "operator": inside(Alloc(R), Op("fill", (whole(R),), ())),
        "function": inside(Alloc(R), Op("map", (whole(R),), (whole(R),), mul)),
        "types": inside(Alloc(S), Op("copy_async", (at(S, 0),), (at(Y, 0),))),
    }


def test_every_rule_has_a_kernel_that_breaks_it():
    assert set(bad_kernels()) == {*RULES, "params", "resources", "cluster"}


@pytest.mark.parametrize("rule", sorted({*RULES, "params", "resources", "cluster"}))
def test_a_broken_rule_is_named(rule):
    with pytest.raises(VerifyError) as caught:
        verify(bad_kernels()[rule])
    assert caught.value.rule == rule


@pytest.mark.parametrize("name", sorted(OPERATORS))
def test_an_operator_refuses_an_option_that_it_does_not_know(name):
    ins = (whole(R),) * OPERATORS[name].inputs[-1]
    with pytest.raises(VerifyError, match="unknown"):
        verify(inside(Alloc(R), Op(name, (whole(R),), ins, (("no_such_option", 1),))))


def test_a_bad_statement_is_named_with_its_line():
    with pytest.raises(VerifyError) as caught:
        verify(inside(Break(line=Line("user.py", 12))))
    assert str(caught.value) == (
        "verify(kernel): break: there is no loop around it\n  rule  loop-control\n  line  user.py:12"
    )


def test_scopes_are_layouts():
    block = cta_scope(384)
    assert str(block.part("warpgroup", 1, 3).layout) == "(2:4@warp, 4:1@warp, 32:1@lane) + 4@warp"
    assert block.part("warpgroup", 1, 3).part("warp", 5, 6).members() == frozenset(range(9 * 32, 10 * 32))
    assert block.part("thread", 33, 34).members() == {33}
    assert block.part("warpgroup", 0, 3).entities == 3
    for kind, start, stop in (("warpgroup", 1, 4), ("warp", 2, 2), ("warp", -1, 1)):
        with pytest.raises(VerifyError):
            block.part(kind, start, stop)
    for threads in (0, 33, 2048, 64.0):
        with pytest.raises(VerifyError):
            cta_scope(threads)


def test_regions_print_what_they_are():
    part = Region(X, (ROW, 8), (1, 16), (1, 10), (1,))
    assert str(part) == "x[row, 8 +: 16 valid 10]"
    assert str(whole(X).transposed) == "x[:, :].order(1, 0)"
    assert part.shape == (16,) and part.valid == (10,) and part.masked and not whole(X).masked


def test_types_of_elements():
    assert all(dtype_of(one) is one and dtype_of(name) is one for name, one in DTYPES.items())
    assert dtype_of("float32").name == "f32" and dtype_of(bool).name == "pred"
    assert promote(DTYPES["s8"], DTYPES["u16"]).name == "u16"
    assert promote(DTYPES["bf16"], DTYPES["bf16"]).name == "f32"
    for value in ("f31", object(), "complex64"):
        with pytest.raises(DtypeError):
            dtype_of(value)
    with pytest.raises(DtypeError):
        promote(DTYPES["pred"], DTYPES["f32"])


def test_a_block_has_so_much_memory_and_so_many_registers():
    big = KernelTensor("big", (3, 128, 256), "f32", "shared", strided((3, 128, 256), (128 * 256, 256, 1)))
    with pytest.raises(VerifyError, match=r"393216 bytes of shared memory .big 393216., a block has at most 232448"):
        verify(inside(Alloc(big)))
    wide = cta_scope(384)
    parts = [On(wide.part("warpgroup", g, g + 1), (), registers=n) for g, n in enumerate((40, 240, 240))]
    with pytest.raises(VerifyError, match="66560 registers of a block's 65536"):
        verify(inside(*parts, scope=wide))


def test_a_region_fits_its_tensor():
    for begin, dims in (((0,), (0, 1)), ((0, 0, 0), (0, 1)), ((0, 0), (0, 0)), ((0, 0), (0, 2))):
        with pytest.raises(VerifyError, match="do not fit rank 2"):
            Region(X, begin, (1, 32), (1, 32), dims)


def test_a_text_with_one_wrong_value_is_refused_or_another_kernel():
    random, text = Random(4), json.loads(to_json(good()))
    places = [p for p in _paths(text) if len(p) > 1]
    wrong = (
        None,
        -1,
        2**70,
        1.5,
        "",
        "f16",
        [],
        {},
        True,
        {"is": "Line"},
        {"is": "Region"},
        {"is": "Expr", "nodes": []},
    )
    refused = 0
    for _ in range(150):
        data, path = copy.deepcopy(text), random.choice(places)
        around = data
        for step in path[:-1]:
            around = around[step]
        around[path[-1]] = copy.deepcopy(random.choice(wrong))
        try:
            kernel = from_json(json.dumps(data))
            verify(kernel)
            to_text(kernel)
        except TileweaveError:
            refused += 1
    assert refused > 100


def _paths(data, path=()):
    yield path
    for key, one in data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ():
        yield from _paths(one, (*path, key))


def test_a_kernel_prints_as_its_text():
    @tk.kernel
    def moved(k, x, y):
        with k.cta(threads=32) as cta:
            cta.copy(y, x)

    made = moved.expand(tk.spec((4, 32), "f32"), tk.spec((4, 32), "f32"))
    assert str(made) == tk.to_text(made).rstrip() and str(made).startswith("kernel moved")
