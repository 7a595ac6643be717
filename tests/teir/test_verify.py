"""Every rule: one bad program that breaks it and no program of the document that does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from xml.dom import minidom

import numpy as np
import pytest

from tileweave.errors import VerifyError
from tileweave.teir import (
    Axis,
    First,
    Invocation,
    Iteration,
    Primitive,
    Program,
    TensorSpec,
    byte_bounds,
    explain,
    from_json,
    interpret,
    out_of_bounds,
    overlap,
    problems,
    races,
    split,
    to_json,
    uninitialised,
    unwritten,
    verify,
)
from tileweave.teir.ir import examples
from tileweave.teir.ir.verify import RULES

E = {"a": 2, "b": 3, "c": 4, "d": 5, "p": 4, "q": 2, "r": 3, "s": 5, "t": 2, "u": 6, "m": 3, "n": 4, "k": 5}
DOCUMENT = examples.contraction_gemm(E)
GOOD = replace(
    DOCUMENT,
    profile="tileweave",
    primitives=tuple(
        replace(p, operands=("out",) if p.operation == "Zero" else ("in0", "in1", "out")) for p in DOCUMENT.primitives
    ),
)


def axes(program: Program, id: str, **change: object) -> Program:
    return replace(program, axes=tuple(replace(a, **change) if a.id == id else a for a in program.axes))


def nodes(program: Program, id: str, **change: object) -> Program:
    return replace(program, nodes=tuple(replace(n, **change) if n.id == id else n for n in program.nodes))


def primitives(program: Program, id: str, **change: object) -> Program:
    return replace(program, primitives=tuple(replace(p, **change) if p.id == id else p for p in program.primitives))


def tensors(program: Program, which: str, **change: object) -> Program:
    return replace(program, tensors=tuple(replace(t, **change) if t.name == which else t for t in program.tensors))


FP16 = (("data_type", "FP16"),)
BF16 = replace(GOOD, tensors=tuple(replace(t, dtype="BF16") for t in GOOD.tensors))
NO_METADATA = replace(BF16, primitives=tuple(replace(p, metadata=()) for p in BF16.primitives))

FILL = Program(
    (TensorSpec("in0", "FP32", "in"), TensorSpec("out", "FP32", "inout")),
    (Axis("k", 3, (4, 0), (0, 0)),),
    ("fold",),
    (Invocation("fold", "fold"),),
    (Primitive("fold", "Fill", (("M", ()), ("N", ())), ("out",), (("value", float("inf")),)),),
)


def deep(depth: int) -> Program:
    """Loops of one step in each other, around one primitive that consumes one axis."""
    loops = tuple(Iteration(k, k, (k + 1,)) for k in range(depth))
    zero = Primitive("z", "Zero", (("M", ()), ("N", (depth,))), ("out",))
    axes = tuple(Axis(k, 1, (4,), (0,)) for k in range(depth + 1))
    return Program((TensorSpec("out", "FP32", "out"),), axes, (0,), (*loops, Invocation(depth, "z")), (zero,))


# rule -> (a program that breaks it and nothing before it, what the message says)
INVALID: dict[str, tuple[Program, str]] = {
    "program.types": (replace(GOOD, roots="p"), "its roots are 'p'"),
    "program.names": (tensors(GOOD, "in0", name="a\x1b[0m"), r"'a\\x1b\[0m' cannot be shown on one line"),
    "path.depth": (deep(128), "its ancestors iterate 128 axes and its primitive consumes 1"),
    "program.profile": (replace(GOOD, profile="mine"), "its profile is 'mine'"),
    "tensor.unique": (replace(GOOD, tensors=(*GOOD.tensors[:2], GOOD.tensors[0])), "its name is used more than once"),
    "tensor.dtype": (tensors(GOOD, "in0", dtype="FP8"), "its element type is 'FP8'"),
    "tensor.role": (tensors(GOOD, "in0", role="scratch"), "its role is scratch and its size 0 bytes"),
    "tensor.shape": (tensors(GOOD, "in0", shape=(2, 0)), r"its shape is \(2, 0\)"),
    "tensor.by-position": (tensors(DOCUMENT, "in0", name="x"), "they are named x, in1, out"),
    "axis.unique": (replace(GOOD, axes=(*GOOD.axes, GOOD.axes[0])), "its identifier is used more than once"),
    "axis.extent-positive": (axes(GOOD, "p", extent=0), "its extent is 0"),
    "axis.one-per-tensor": (axes(GOOD, "p", strides=(0, 0)), "it has 2 strides for 3 tensors"),
    "axis.strides-not-negative": (axes(DOCUMENT, "p", strides=(0, -4, 4)), r"its strides are \(0, -4, 4\)"),
    "axis.fits-64-bits": (axes(GOOD, "p", extent=2**62), "its axes reach"),
    "schedule.unique": (replace(GOOD, nodes=(*GOOD.nodes, GOOD.nodes[-1])), "its identifier is used more than once"),
    "schedule.roots-exist": (replace(GOOD, roots=("p", "x")), "there is no such node"),
    "schedule.children-exist": (nodes(GOOD, "t", children=("gemm", "x")), "there is no node 'x'"),
    "schedule.one-parent": (nodes(GOOD, "t", children=("gemm", "gemm")), "it is no root and appears 2 times"),
    "schedule.roots-once": (replace(GOOD, roots=("p", "p")), "it appears in roots more than once"),
    "schedule.acyclic": (
        replace(GOOD, nodes=(*GOOD.nodes, Iteration("x", "p", ("y",)), Iteration("y", "q", ("x",)))),
        "it is its own descendant: x > y > x",
    ),
    "iteration.axis-exists": (nodes(GOOD, "t", axis="x"), "there is no axis 'x', which it iterates"),
    "iteration.policy": (nodes(GOOD, "t", policy="random"), "its policy is 'random'"),
    "iteration.has-children": (
        replace(GOOD, roots=("p", "x"), nodes=(*GOOD.nodes, Iteration("x", "p", ()))),
        "it has no children",
    ),
    "invocation.primitive-exists": (nodes(GOOD, "gemm", primitive="x"), "there is no primitive 'x'"),
    "guard.terms": (nodes(GOOD, "gemm", guard=("first(t)",)), r"its guard holds 'first\(t\)'"),
    "guard.axis-iterated-by-ancestor": (nodes(GOOD, "zero", guard=(First("t"),)), "no ancestor iterates axis 't'"),
    "path.axis-once": (nodes(GOOD, "t", axis="p"), "an ancestor iterates axis 'p' already"),
    "path.iterated-or-consumed": (nodes(GOOD, "t", axis="u"), "axis 'u' is iterated above it and consumed"),
    "primitive.unique": (
        replace(GOOD, primitives=(*GOOD.primitives, GOOD.primitives[0])),
        "its identifier is used more than once",
    ),
    "primitive.operation-known": (primitives(GOOD, "zero_sq", operation="Two"), "its operation is 'Two'"),
    "primitive.roles": (primitives(GOOD, "zero_sq", axes=(("M", ("s",)),)), "Zero has roles M, N; it lists M"),
    "primitive.axes-exist": (
        primitives(GOOD, "zero_sq", axes=(("M", ("x",)), ("N", ()))),
        "there is no axis 'x', which its role M names",
    ),
    "primitive.axis-in-one-role": (
        primitives(GOOD, "zero_sq", axes=(("M", ("s",)), ("N", ("s",)))),
        "it consumes axis 's' more than once",
    ),
    "primitive.operands-by-position": (
        primitives(DOCUMENT, "zero_sq", operands=("out",)),
        "it names the operands out",
    ),
    "primitive.operands": (primitives(GOOD, "zero_sq", operands=("x",)), "there is no tensor 'x'"),
    "primitive.writes": (primitives(GOOD, "zero_sq", operands=("in0",)), "it writes tensor 'in0', whose role is in"),
    "primitive.data-type": (primitives(GOOD, "zero_sq", metadata=FP16), "its data_type is FP16 and tensor 'out'"),
    "primitive.dtypes": (NO_METADATA, "accumulates in BF16, which is narrower than FP32"),
    "primitive.parameters": (FILL, "its value is inf"),
    "contraction.contracted-axes": (
        primitives(GOOD, "gemm_squ", axes=(("M", ("s",)), ("N", ()), ("K", ("u", "q")))),
        "its K axis 'q' has stride 60 on the output",
    ),
    "contraction.free-axes": (
        primitives(GOOD, "gemm_squ", axes=(("M", ("s", "u")), ("N", ("q",)), ("K", ()))),
        "its M axis 'u' stands still on the output",
    ),
}


def test_every_rule_has_a_bad_program():
    from_document_only = {"invocation.no-children"}  # an Invocation cannot even hold children; a JSON text can
    assert {rule.id for rule in RULES} == set(INVALID) | from_document_only
    assert len({rule.id for rule in RULES}) == len(RULES)


@pytest.mark.parametrize("rule", INVALID)
def test_bad_programs(rule):
    program, message = INVALID[rule]
    found = problems(program)
    assert rule in {problem.rule for problem in found}
    text = " / ".join(problem.message for problem in found if problem.rule == rule)
    with pytest.raises(ValueError, match=message):
        raise ValueError(text)
    with pytest.raises(VerifyError) as caught:
        verify(program)
    assert caught.value.facts["rule"] == found[0].rule
    assert caught.value.facts["path"] == found[0].path
    assert program.name in str(caught.value)
    assert str(program)  # bad programs print as well


def test_an_invocation_with_children_in_a_text():
    text = to_json(GOOD).replace('"primitive": "gemm_squ"', '"primitive": "gemm_squ", "children": []')
    with pytest.raises(VerifyError) as caught:
        from_json(text)
    assert caught.value.facts["rule"] == "invocation.no-children"


def test_the_message_names_the_node_and_shows_the_program():
    with pytest.raises(VerifyError) as caught:
        verify(nodes(GOOD, "zero", guard=(First("t"),)))
    assert str(caught.value) == "\n".join(
        [
            "verify(program): p/r/zero: no ancestor iterates axis 't', which its guard names",
            "  rule     guard.axis-iterated-by-ancestor",
            "  program  contraction_gemm",
            "           p",
            "           └── r",
            "               ├── zero  [first(t)]",
            "               └── t",
            "                   └── gemm",
            "  legal    every axis of a guard is iterated by an ancestor of the guarded node",
        ]
    )


def test_good_programs_have_no_problems():
    assert problems(GOOD) == ()
    for name in examples.__all__:
        make: Callable[[dict[str, int]], Program] = getattr(examples, name)
        assert problems(make(E)) == ()


def test_profiles_differ_by_name_only():
    negative = axes(GOOD, "p", strides=(0, -48, -120))
    assert problems(negative) == ()
    # the document allows narrow sums; our profile asks for a wide accumulator
    narrow = tuple(replace(t, dtype="BF16") for t in DOCUMENT.tensors)
    bare = tuple(replace(p, metadata=()) for p in DOCUMENT.primitives)
    assert problems(replace(DOCUMENT, tensors=narrow, primitives=bare)) == ()


@pytest.mark.parametrize(
    ("value", "dtype", "count"), [(1.5, "FP32", 0), (1.5, "INT8", 1), (127, "INT8", 0), (128, "INT8", 1)]
)
def test_a_fill_writes_a_number_that_its_output_holds(value, dtype, count):
    program = primitives(tensors(FILL, "out", dtype=dtype), "fold", metadata=(("value", value),))
    assert [problem.rule for problem in problems(program)] == ["primitive.parameters"] * count


def test_numeric_identifiers_are_identifiers():
    program = Program(
        (TensorSpec("out", "INT8", "out"),),
        (Axis(0, 3, (1,), (0,)),),
        (1,),
        (Iteration(1, 0, (2,)), Invocation(2, 3, (First(0),))),
        (Primitive(3, "Zero", (("M", ()), ("N", ())), ("out",)),),
    )
    assert problems(program) == ()
    assert from_json(to_json(program)) == program


def test_cycles_do_not_hang():
    loop = replace(GOOD, nodes=(*GOOD.nodes[:1], Iteration("r", "r", ("p",)), *GOOD.nodes[2:]))
    assert "schedule.acyclic" in {problem.rule for problem in problems(loop)}
    assert "(shown above)" in str(loop)


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (3, "program: it is int and no Program"),
        (replace(GOOD, axes=list(GOOD.axes)), "program: its axes are "),
        (replace(GOOD, roots=None), "program: its roots are None"),
        (replace(GOOD, name=3), "program: its name is 3"),
        (replace(GOOD, nodes=("i",)), r"nodes\[0\]: it is str and no Iteration or Invocation"),
        (axes(GOOD, "p", strides=[0, 0, 4]), r"axes\[\d\]: its strides are \[0, 0, 4\]"),
        (replace(GOOD, axes=(replace(GOOD.axes[0], id=True),)), r"axes\[\d\]: its id is True"),
        (replace(GOOD, axes=(replace(GOOD.axes[0], id=2**63),)), r"axes\[\d\]: its id is 9223372036854775808"),
        (nodes(GOOD, "zero", guard=None), r"nodes\[\d\]: its guard is None"),
        (nodes(GOOD, "zero", guard=(First(["p"]),)), r"nodes\[\d\]: its guard is "),
        (nodes(GOOD, "t", children="g"), r"nodes\[\d\]: its children is 'g'"),
        (tensors(GOOD, "in0", name=5), r"tensors\[0\]: its name is 5"),
        (tensors(GOOD, "in0", dtype=["FP32"]), r"tensors\[0\]: its dtype is \['FP32'\]"),
        (primitives(GOOD, "zero_sq", axes={"M": (), "N": ("s",)}), r"primitives\[\d\]: its axes are \{"),
        (primitives(GOOD, "zero_sq", operands=None), r"primitives\[\d\]: its operands are None"),
        (primitives(GOOD, "zero_sq", metadata={"a": 1}), r"primitives\[\d\]: its metadata is \{'a': 1\}"),
        (primitives(GOOD, "zero_sq", metadata=(("a", 2**5000),)), r"primitives\[\d\]: its metadata is "),
    ],
)
def test_values_of_other_types_are_refused(program, message):
    with pytest.raises(VerifyError, match=message) as raised:
        verify(program)
    assert raised.value.facts["rule"] == "program.types"


@pytest.mark.parametrize("value", [10**400, -(2**1024)])
def test_integers_that_no_float_comes_near_are_no_parameters(value):
    floating = replace(FILL, primitives=tuple(replace(p, metadata=(("value", value),)) for p in FILL.primitives))
    found = {problem.rule for problem in problems(floating)}
    assert found & {"primitive.parameters", "program.types"}


def test_huge_numbers_are_told_by_their_length():
    text = " / ".join(map(str, problems(axes(GOOD, "p", extent=2**40000, strides=(2**40000, 0, 4)))))
    assert "its extent is an integer of 40001 bits" in text


def test_addresses_of_the_document_fit_in_64_bits():
    found = {problem.rule for problem in problems(axes(DOCUMENT, "p", strides=(2**62, 0, 4)))}
    assert found == {"axis.fits-64-bits"}


def test_a_deep_program_is_refused_at_once_and_the_deepest_runs_everywhere():
    with pytest.raises(VerifyError, match="iterate 129 axes"):
        verify(deep(50_000))
    program = deep(127)
    verify(program)
    assert from_json(to_json(program)) == program
    out = np.ones(1, "f4")
    interpret(program, {"out": out})
    assert out[0] == 0
    assert uninitialised(program) is None
    assert races(program) is None
    assert split(deep(126), 0, 1)
    assert "127" in str(program)
    assert program._repr_svg_().startswith("<svg")


@pytest.mark.parametrize("name", ["a\nb", "\x00", "\x1b[0m", "\x9b", "\u202e", "\ud800", "\uffff"])
def test_names_that_cannot_be_shown_are_refused_and_escaped(name):
    program = replace(
        GOOD, name=name, roots=(name,), nodes=tuple(replace(n, id=name) if n.id == "p" else n for n in GOOD.nodes)
    )
    assert {problem.rule for problem in problems(program)} == {"program.names"}
    assert str(program).encode("utf-8").count(name.encode("utf-8", "replace")) == 0
    assert minidom.parseString(program._repr_svg_().encode("utf-8"))


def bad() -> Program:
    return primitives(GOOD, "zero_sq", axes=(("M", ("x",)), ("N", ())))


@pytest.mark.parametrize(
    "analysis",
    [
        races,
        byte_bounds,
        uninitialised,
        overlap,
        lambda program: unwritten(program, "out", [0]),
        lambda program: out_of_bounds(program, {}),
        lambda program: explain("zero_sq", program),
        lambda program: interpret(program, {}),
    ],
)
def test_analyses_verify_first(analysis):
    with pytest.raises(VerifyError, match="there is no axis 'x', which its role M names"):
        analysis(bad())
    with pytest.raises(VerifyError, match="no Program"):
        analysis(None)


def test_unknown_tensors_and_primitives_are_refused():
    with pytest.raises(VerifyError, match="there is no tensor 'x'"):
        unwritten(GOOD, "x", [0])
    with pytest.raises(VerifyError, match="there is no primitive 'zero_sq'"):
        explain(bad().primitive("zero_sq"), GOOD)
