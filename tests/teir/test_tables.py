"""Every numbered table of the document, by its number, and every sentence of its rules: ours say the same."""

from __future__ import annotations

from dataclasses import fields, replace
from random import Random

import numpy as np
import pytest

from tileweave.teir import Axis, First, Invocation, Iteration, Last, Primitive, Program, TensorSpec, operation, problems
from tileweave.teir.analysis.interpret import Memory, Run, tile_address
from tileweave.teir.analysis.lower import Brgemm, Gemm, ScalarKernel, eligibility
from tileweave.teir.ir import examples
from tileweave.teir.ir.text import invocations_table, iterations_table, primitives_table, tree
from tileweave.teir.ir.verify import RULES

E = {"a": 2, "b": 3, "c": 4, "d": 5, "p": 4, "q": 2, "r": 3, "s": 5, "t": 2, "u": 6, "m": 3, "n": 4, "k": 5}


def rows(table) -> list[tuple[str, ...]]:
    return list(table)[1:]


def named(program: Program) -> dict[str, tuple[str, ...]]:
    """Axis -> (extent, strides in elements of four bytes), as the tables of section 10.7 print them."""
    return {str(axis.id): tuple(s // 4 for s in axis.strides) for axis in program.axes}


def lines(text: str) -> list[tuple[str, ...]]:
    """A table as the document prints it: a row per line, cells between bars."""
    return [tuple(cell.strip() for cell in line.split("|")) for line in text.strip().splitlines()]


# number -> (what we make of the example, the rows that the document prints)
SCHEDULES = {
    "10.2.5": (
        lambda: iterations_table(examples.guarded_reduction(E)),
        "k | k | sequential | [zero, contraction, relu] | None",
    ),
    "10.2.6": (
        lambda: invocations_table(examples.guarded_reduction(E)),
        "zero | zero_prim | first(k)\ncontraction | contraction_prim | None\nrelu | relu_prim | last(k)",
    ),
    "10.2.7": (
        lambda: iterations_table(examples.branching(E)),
        "r | r | sequential | [s, t] | None\ns | s | sequential | [op_s] | None\nt | t | sequential | [op_t] | None",
    ),
    "10.2.8": (lambda: invocations_table(examples.branching(E)), "op_s | p_s | None\nop_t | p_t | None"),
    "10.7.2": (
        lambda: iterations_table(examples.permutation_scalar(E)),
        """
        a | a | sequential | [b] | None
        b | b | sequential | [c] | None
        c | c | sequential | [d] | None
        d | d | sequential | [copy] | None""",
    ),
    "10.7.3": (lambda: invocations_table(examples.permutation_scalar(E)), "copy | copy_scalar | None"),
    "10.7.4": (
        lambda: primitives_table(examples.permutation_scalar(E)),
        "copy_scalar | Copy | {M: [], N: []} | {data_type: FP32}",
    ),
    "10.7.6": (
        lambda: iterations_table(examples.permutation_tiled(E)),
        "b | b | sequential | [c] | None\nc | c | sequential | [copy] | None",
    ),
    "10.7.7": (lambda: invocations_table(examples.permutation_tiled(E)), "copy | copy_da | None"),
    "10.7.8": (
        lambda: primitives_table(examples.permutation_tiled(E)),
        "copy_da | Copy | {M: [d], N: [a]} | {data_type: FP32}",
    ),
    "10.7.10": (
        lambda: iterations_table(examples.batched_gemm_scalar(E)),
        """
        a | a | sequential | [b] | None
        b | b | sequential | [c] | None
        c | c | sequential | [d] | None
        d | d | sequential | [zero, contraction] | None""",
    ),
    "10.7.11": (
        lambda: invocations_table(examples.batched_gemm_scalar(E)),
        "zero | zero_scalar | first(a)\ncontraction | contraction_scalar | None",
    ),
    "10.7.12": (
        lambda: primitives_table(examples.batched_gemm_scalar(E)),
        """
        zero_scalar | Zero | {M: [], N: []} | {data_type: FP32}
        contraction_scalar | Contraction | {M: [], N: [], K: []} | {data_type: FP32}""",
    ),
    "10.7.13": (
        lambda: iterations_table(examples.batched_gemm_reordered(E)),
        """
        b | b | sequential | [c] | None
        c | c | sequential | [d] | None
        d | d | sequential | [zero, a] | None
        a | a | sequential | [contraction] | None""",
    ),
    "10.7.14": (
        lambda: invocations_table(examples.batched_gemm_reordered(E)),
        "zero | zero_scalar | None\ncontraction | contraction_scalar | None",
    ),
    "10.7.16": (
        lambda: iterations_table(examples.contraction_scalar(E)),
        """
        p | p | sequential | [q] | None
        q | q | sequential | [r] | None
        r | r | sequential | [s] | None
        s | s | sequential | [zero, t] | None
        t | t | sequential | [u] | None
        u | u | sequential | [contraction] | None""",
    ),
    "10.7.17": (
        lambda: invocations_table(examples.contraction_scalar(E)),
        "zero | zero_scalar | None\ncontraction | contraction_scalar | None",
    ),
    "10.7.18": (
        lambda: primitives_table(examples.contraction_scalar(E)),
        """
        zero_scalar | Zero | {M: [], N: []} | {data_type: FP32}
        contraction_scalar | Contraction | {M: [], N: [], K: []} | {data_type: FP32}""",
    ),
    "10.7.19": (
        lambda: iterations_table(examples.contraction_gemm(E)),
        "p | p | sequential | [r] | None\nr | r | sequential | [zero, t] | None\nt | t | sequential | [gemm] | None",
    ),
    "10.7.20": (
        lambda: invocations_table(examples.contraction_gemm(E)),
        "zero | zero_sq | None\ngemm | gemm_squ | None",
    ),
    "10.7.21": (
        lambda: primitives_table(examples.contraction_gemm(E)),
        """
        zero_sq | Zero | {M: [s], N: [q]} | {data_type: FP32}
        gemm_squ | Contraction | {M: [s], N: [q], K: [u]} | {data_type: FP32}""",
    ),
    "10.7.22": (
        lambda: iterations_table(examples.contraction_brgemm(E)),
        "p | p | parallel | [r] | None\nr | r | parallel | [zero, brgemm] | None",
    ),
    "10.7.23": (
        lambda: invocations_table(examples.contraction_brgemm(E)),
        "zero | zero_sq | None\nbrgemm | brgemm_sqtu | None",
    ),
    "10.7.24": (
        lambda: primitives_table(examples.contraction_brgemm(E)),
        """
        zero_sq | Zero | {M: [s], N: [q]} | {data_type: FP32}
        brgemm_sqtu | Contraction | {M: [s], N: [q], K: [t, u]} | {data_type: FP32}""",
    ),
}


@pytest.mark.parametrize("number", SCHEDULES)
def test_tables_of_schedules_and_primitives(number):
    make, expected = SCHEDULES[number]
    assert rows(make()) == lines(expected)


def test_tables_10_7_1_5_9_and_15_of_strides():
    a, b, c, d, p, q, r, s, t, u = (E[x] for x in "abcdpqrstu")
    permutation = {"a": (b * c * d, 1), "b": (c * d, a), "c": (d, b * a), "d": (1, c * b * a)}
    assert named(examples.permutation_scalar(E)) == permutation
    assert named(examples.permutation_tiled(E)) == permutation
    assert [axis.id for axis in examples.permutation_tiled(E).axes] == ["b", "c", "d", "a"]  # by role, as printed
    batched = {"d": (b * a, a * c, b * c), "b": (a, 0, c), "c": (0, 1, 1), "a": (1, c, 0)}
    assert named(examples.batched_gemm_scalar(E)) == named(examples.batched_gemm_reordered(E)) == batched
    contraction = {
        "p": (0, q * t * u, q * r * s),
        "q": (0, t * u, r * s),
        "r": (u * s, 0, s),
        "s": (1, 0, 1),
        "t": (r * u * s, u, 0),
        "u": (s, 1, 0),
    }
    for make in (examples.contraction_scalar, examples.contraction_gemm, examples.contraction_brgemm):
        assert named(make(E)) == contraction
        assert {axis.id: axis.extent for axis in make(E).axes} == {x: E[x] for x in "pqrstu"}
    assert p == 4


TENSORS = (TensorSpec("in0", "FP32", "in"), TensorSpec("out", "FP32", "out"))
COPY = Primitive("p", "Copy", (("M", ()), ("N", ())), (), (("data_type", "FP32"),))


def one_axis(**change) -> Program:
    axis = replace(Axis("x", 3, (4, 4), (0, 0)), **change)
    nodes = (Iteration("x", axis.id, ("op",)), Invocation("op", "p"))
    return Program(TENSORS, (axis,), ("x",), nodes, (COPY,), "document")


def broken(program: Program) -> set[str]:
    return {problem.rule for problem in problems(program)}


def test_table_10_1_1_of_an_axis():
    assert [field.name for field in fields(Axis)] == ["id", "extent", "strides", "offsets"]
    assert broken(one_axis()) == broken(one_axis(id=7)) == set()  # a string or a number
    assert broken(one_axis(extent=0)) == broken(one_axis(extent=-1)) == {"axis.extent-positive"}
    assert broken(one_axis(strides=(0, 4))) == set()  # the address does not depend on it
    assert broken(one_axis(strides=(4, -4))) == {"axis.strides-not-negative"}
    assert "axis.one-per-tensor" in broken(one_axis(strides=(4,)))
    assert broken(one_axis(offsets=(-4, 4))) == set()  # of any sign
    assert "axis.one-per-tensor" in broken(one_axis(offsets=()))


@pytest.mark.parametrize(
    ("number", "axes", "steps"),
    [
        # two matrices of the same shape; two with one shared axis
        ("10.1.2", {"a": (4, (32, 16)), "b": (8, (4, 2))}, {"a": (32, 16), "b": (4, 2)}),
        ("10.1.3", {"a": (4, (32, 32)), "b": (8, (4, 0)), "c": (16, (0, 2))}, {"b": (4, 0), "c": (0, 2)}),
    ],
)
def test_tables_10_1_2_and_3_of_axes(number, axes, steps):
    tensors = (TENSORS[0], replace(TENSORS[1], dtype="FP16"))
    program = Program(tensors, tuple(Axis(id, n, s, (0, 0)) for id, (n, s) in axes.items()), (), (), (), "document")
    assert problems(program) == (), number
    for id, (first, second) in steps.items():
        assert tile_address(program, "in0", {id: 1}) == first
        assert tile_address(program, "out", {id: 1}) == second


def test_tables_10_2_1_and_2_of_nodes():
    assert [field.name for field in fields(Iteration)] == ["id", "axis", "children", "policy", "guard"]
    assert [field.name for field in fields(Invocation)] == ["id", "primitive", "guard"]
    good = one_axis()
    loop, call = good.nodes

    def changed(*nodes) -> set[str]:
        return broken(replace(good, nodes=nodes))

    assert changed(replace(loop, policy="parallel"), call) == set()
    assert changed(replace(loop, policy="random"), call) == {"iteration.policy"}
    assert "iteration.has-children" in changed(replace(loop, children=()), call)
    assert changed(loop, replace(call, guard=(First("x"), Last("x")))) == set()  # a conjunction
    assert changed(replace(loop, guard=(First("x"),)), call) == {"guard.axis-iterated-by-ancestor"}
    assert "schedule.unique" in changed(replace(loop, children=("x",)), Invocation("x", "p"))  # one namespace
    assert changed(replace(loop, axis="y"), call) == {"iteration.axis-exists"}
    assert changed(loop, replace(call, primitive="q")) == {"invocation.primitive-exists"}


def test_tables_10_2_3_and_4_of_the_minimal_schedule():
    program = one_axis()
    assert tree(program) == "x\n└── op"
    assert rows(iterations_table(program)) == [("x", "x", "sequential", "[op]", "None")]
    assert rows(invocations_table(program)) == [("op", "p", "None")]


def test_tables_10_3_1_and_2_of_primitives():
    assert [field.name for field in fields(Primitive)] == ["id", "operation", "axes", "operands", "metadata"]
    roles = {name: operation(name).roles for name in ("Zero", "Copy", "ReLU", "Contraction")}
    two = ("M", "N")
    assert roles == {"Zero": two, "Copy": two, "ReLU": two, "Contraction": (*two, "K")}
    good = one_axis()
    for name in roles:
        empty = replace(COPY, operation=name, axes=tuple((role, ()) for role in roles[name]))
        tensors = (TENSORS[0], replace(TENSORS[0], name="in1"), replace(TENSORS[1], role="inout"))
        axes = (Axis("x", 3, (4, 4, 4), (0, 0, 0)),)
        assert broken(replace(good, primitives=(empty,), tensors=tensors, axes=axes)) == set()
        assert broken(replace(good, primitives=(replace(empty, axes=()),), tensors=tensors, axes=axes)) == {
            "primitive.roles"
        }


@pytest.mark.parametrize(
    ("number", "primitive", "row"),
    [
        (
            "10.3.3",
            Primitive("copy_2d", "Copy", (("M", ("a",)), ("N", ("b",))), (), COPY.metadata),
            ("copy_2d", "Copy", "{M: [a], N: [b]}", "{data_type: FP32}"),
        ),
        (
            "10.3.4",
            Primitive("gemm_mnk", "Contraction", (("M", ("m",)), ("N", ("n",)), ("K", ("k",))), (), COPY.metadata),
            ("gemm_mnk", "Contraction", "{M: [m], N: [n], K: [k]}", "{data_type: FP32}"),
        ),
    ],
)
def test_tables_10_3_3_and_4_of_tiles(number, primitive, row):
    axes = tuple(Axis(id, 4, (0, 0), (0, 0)) for id in "abmnk")
    program = Program(TENSORS, axes, (), (), (primitive,), "document")
    assert rows(primitives_table(program)) == [row], number


@pytest.mark.parametrize(("number", "offset", "out"), [("10.4.1", 0, 80), ("10.4.2", 16, 96)])
def test_tables_10_4_1_and_2_of_addresses(number, offset, out):
    axes = (Axis("a", 4, (32, 64), (0, 0)), Axis("b", 8, (4, 8), (0, offset)))
    program = Program(TENSORS, axes, (), (), (), "document")
    assert tile_address(program, "in0", {"a": 1, "b": 2}) == 40, number
    assert tile_address(program, "out", {"a": 1, "b": 2}) == out


def contraction(roles: tuple[tuple[str, tuple[str, ...]], ...], **axes: tuple[int, tuple[int, int, int]]):
    tensors = tuple(TensorSpec(n, "FP32", "inout" if n == "out" else "in") for n in ("in0", "in1", "out"))
    made = tuple(Axis(id, n, strides, (0, 0, 0)) for id, (n, strides) in axes.items())
    return eligibility("p", Program(tensors, made, (), (), (Primitive("p", "Contraction", roles),), "document"))


def test_tables_10_6_1_to_3_of_lowering():
    gemm = {"m": (8, (4, 0, 4)), "n": (4, (0, 64, 32)), "k": (16, (32, 4, 0))}  # table 10.6.3
    column = ("column-major",) * 3
    one_each = (("M", ("m",)), ("N", ("n",)), ("K", ("k",)))
    assert contraction((("M", ()), ("N", ()), ("K", ()))) == ScalarKernel("Contraction")
    assert contraction(one_each, **gemm) == Gemm(8, 4, 16, 8, 16, 8, column, "FP32")
    # two axes in K: the outermost is the batch-reduce axis, and its strides are unconstrained
    batch = {**gemm, "b": (3, (1000, 4000, 0))}
    two_of_k = (("M", ("m",)), ("N", ("n",)), ("K", ("b", "k")))
    expected = Brgemm(8, 4, 16, 8, 16, 8, 3, 250, 1000, column, "FP32")
    assert contraction(two_of_k, **batch) == expected
    # each operand has one axis at unit stride and one that carries the leading dimension
    for broken_axis, strides in (("m", (8, 0, 4)), ("k", (32, 8, 0)), ("m", (4, 0, 8))):
        wrong = {**gemm, broken_axis: (gemm[broken_axis][0], strides)}
        assert not isinstance(contraction(one_each, **wrong), Gemm), broken_axis


def test_every_table_is_here():
    here = set(SCHEDULES)
    here |= {
        "10.1.1",
        "10.1.2",
        "10.1.3",
        "10.2.1",
        "10.2.2",
        "10.2.3",
        "10.2.4",
        "10.3.1",
        "10.3.2",
        "10.3.3",
        "10.3.4",
    }
    here |= {"10.4.1", "10.4.2", "10.6.1", "10.6.2", "10.6.3", "10.7.1", "10.7.5", "10.7.9", "10.7.15"}
    counts = {"10.1": 3, "10.2": 8, "10.3": 4, "10.4": 2, "10.6": 3, "10.7": 24}
    assert here == {f"{section}.{k}" for section, count in counts.items() for k in range(1, count + 1)}


# section 10.5, sentence by sentence -> the rules that say it
SENTENCES = {
    "Every axis identifier is unique.": ["axis.unique"],
    "Every axis extent is positive.": ["axis.extent-positive"],
    "Every axis has one stride and one offset per tensor in the operation.": ["axis.one-per-tensor"],
    "Strides are non-negative byte counts.": ["axis.strides-not-negative"],
    "Every schedule node identifier is unique across iteration and invocation nodes.": ["schedule.unique"],
    "Every identifier in roots refers to an existing iteration node or invocation node.": ["schedule.roots-exist"],
    "Every identifier in any children list refers to an existing schedule node.": ["schedule.children-exist"],
    "Every non-root node appears in exactly one children list.": ["schedule.one-parent"],
    "Every root appears in roots exactly once and in no children list.": ["schedule.roots-once"],
    "The schedule is acyclic.": ["schedule.acyclic"],
    "An iteration node's axis refers to an existing axis in TEIR-Axes.": ["iteration.axis-exists"],
    "An iteration node's policy is sequential or parallel.": ["iteration.policy"],
    "An iteration node's children list is non-empty.": ["iteration.has-children"],
    "An invocation node's primitive refers to an existing primitive.": ["invocation.primitive-exists"],
    "An invocation node has no children.": ["invocation.no-children"],
    "A guard is either None or a conjunction of first(axis_id) and last(axis_id) terms.": ["guard.terms"],
    "Every axis referenced by a guard is iterated by an ancestor.": ["guard.axis-iterated-by-ancestor"],
    "Every primitive identifier is unique.": ["primitive.unique"],
    "A primitive defines a role list for every role required by its operation.": ["primitive.roles"],
    "Every axis identifier in a role list refers to an existing axis.": ["primitive.axes-exist"],
}


def test_every_rule_of_section_10_5_is_one_of_ours():
    ids = {rule.id: rule for rule in RULES}
    for sentence, names in SENTENCES.items():
        for name in names:
            assert ids[name].profile in ("both", "document"), sentence


def executed(program: Program) -> list[tuple[str, dict[str, int]]]:
    """Every invocation with the indices at which it ran, in order."""
    seen: list[tuple[str, dict[str, int]]] = []
    memories = {spec.name: Memory(np.zeros(4096, np.uint8), 0, None) for spec in program.tensors}
    run = Run(program, memories, "forward", Random(0))
    run.forest(lambda node, spec, names, addresses: seen.append((str(node), dict(run.indices))))
    return seen


def test_a_guard_skips_its_whole_subtree_and_siblings_run_in_order():
    """Sections 10.2.1 and 10.2.2: the guard is checked before the node is entered; s completes before t begins."""
    program = examples.branching({"r": 2, "s": 2, "t": 2})
    order = ["op_s", "op_s", "op_t", "op_t"]
    assert [node for node, _ in executed(program)] == order * 2
    swapped = tuple(replace(n, children=("t", "s")) if n.id == "r" else n for n in program.nodes)
    assert [node for node, _ in executed(replace(program, nodes=swapped))] == order[::-1] * 2
    guarded = tuple(replace(n, guard=(Last("r"),)) if n.id == "s" else n for n in program.nodes)
    assert [node for node, _ in executed(replace(program, nodes=guarded))] == ["op_t", "op_t", *order]
    both = tuple(replace(n, guard=(First("r"), Last("r"))) if n.id == "s" else n for n in program.nodes)
    assert [node for node, _ in executed(replace(program, nodes=both))] == ["op_t"] * 4
    assert [at["t"] for node, at in executed(program) if node == "op_t"] == [0, 1, 0, 1]  # increasing
