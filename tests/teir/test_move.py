"""Hoisting, sinking and packing keep the value of random programs, or refuse; and do what they promise."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from tileweave.backends import cpu
from tileweave.errors import ScheduleError
from tileweave.layout import strided
from tileweave.teir import (
    Axis,
    First,
    Invocation,
    Iteration,
    Last,
    Operand,
    Primitive,
    Program,
    TensorSpec,
    as_tileweave,
    byte_bounds,
    demote,
    eligibility,
    emit_contraction,
    hoist,
    interpret,
    overlap,
    pack,
    parallelize,
    promote,
    races,
    sink,
    uninitialised,
    verify,
)
from tileweave.teir.analysis.lower import Gemm, General
from tileweave.teir.ir import examples
from tileweave.teir.ir.text import tree
from tileweave.teir.ir.walk import walk

E = {"p": 4, "q": 2, "r": 3, "s": 5, "t": 2, "u": 6}
Change = Callable[[], Program]


def changes(program: Program) -> Iterator[tuple[str, Change]]:
    """Every hoist, sink and pack that a program could take."""
    families = [program.roots, *(node.children for node in program.nodes if isinstance(node, Iteration))]
    for family in families:
        for a, b in pairwise(family):
            yield "sink", lambda a=a, b=b: sink(program, a, b)
            yield "sink", lambda a=a, b=b: sink(program, b, a)
    for visit in walk(program):
        node = visit.node
        if visit.path and node.guard:
            yield "hoist", lambda id=node.id: hoist(program, id)
        if isinstance(node, Invocation):
            for tensor in dict.fromkeys(program.primitive(node.primitive).operands):
                for above in (node, *visit.path):
                    yield "pack", lambda id=node.id, x=tensor, at=above.id: pack(program, id, x, at=at)


def check_seeds(wild, run, seeds: range) -> dict[str, int]:
    done = dict.fromkeys(("hoist", "sink", "pack", "refused"), 0)
    for seed in seeds:
        program = wild(seed, parallel=0.4)
        if races(program) is not None:
            program = replace(program, nodes=tuple(sequential(node) for node in program.nodes))
        expected, bounds = run(program), byte_bounds(program)
        orders = ("random",) if any(getattr(n, "policy", "") == "parallel" for n in program.nodes) else ("forward",)
        for name, change in changes(program):
            try:
                changed = change()
            except ScheduleError:
                done["refused"] += 1
                continue
            done[name] += 1
            verify(changed)
            assert races(changed) is None, f"seed {seed} {name}\n{program}\n\nbecame\n\n{changed}"
            after = byte_bounds(changed)
            for tensor, (low, high) in bounds.items():
                assert low <= after[tensor][0] and after[tensor][1] <= high
            for order in orders:
                assert np.array_equal(run(changed, order, seed), expected), f"seed {seed} {name}\n{program}\n{changed}"
    return done


def sequential(node):
    return replace(node, policy="sequential") if isinstance(node, Iteration) else node


@pytest.mark.parametrize("first", [0, 20])
def test_moves_keep_the_value_of_random_programs(wild, run, first):
    done = check_seeds(wild, run, range(first, first + 10))
    assert min(done.values()) > 0 and sum(done.values()) > 50, done


@pytest.mark.slow
@pytest.mark.parametrize("first", range(10_000, 14_000, 500))
def test_moves_keep_the_value_of_many_random_programs(wild, run, first):
    done = check_seeds(wild, run, range(first, first + 500))
    assert min(done.values()) > 50, done


# ── hoist and sink ──


def test_hoist_takes_the_guarded_initialisation_out_and_sink_brings_it_back():
    program = examples.guarded_reduction({"m": 2, "n": 3, "k": 4})
    out = hoist(hoist(program, "zero"), "relu")
    assert tree(out) == "zero\nk\n└── contraction\nrelu"
    back = sink(sink(out, "zero", "k"), "relu", "k")
    assert back == program
    a, b = np.arange(8, dtype="f4").reshape(2, 4) - 4, np.arange(12, dtype="f4").reshape(4, 3) - 6
    found = np.full((2, 3), np.nan, "f4")
    interpret(out, {"in0": a, "in1": b, "out": found})
    np.testing.assert_array_equal(found, np.maximum(a @ b, 0))


def test_the_batched_gemm_of_the_document_is_reached_by_reorder_and_hoist():
    from tileweave.teir import reorder

    e = {"a": 2, "b": 3, "c": 4, "d": 5}
    program = examples.batched_gemm_scalar(e)
    for _ in range(3):
        program = reorder(program, "a")
    assert tree(program).splitlines()[-3:] == [
        "        └── a",
        "            ├── zero  [first(a)]",
        "            └── contraction",
    ]
    assert tree(hoist(program, "zero")) == tree(examples.batched_gemm_reordered(e))


def offset_program(guard=(), policy="sequential") -> Program:
    """Per i, set element i of out (from byte 8) to in0[i]; a Zero of one element beside it."""
    tensors = (TensorSpec("in0", "INT32", "in"), TensorSpec("out", "INT32", "inout"))
    axes = (Axis("i", 3, (4, 4), (0, 8)),)
    roles = (("M", ()), ("N", ()))
    primitives = (Primitive("set", "Copy", roles, ("in0", "out")), Primitive("clear", "Zero", roles, ("out",)))
    nodes = (
        Iteration("i", "i", ("zero", "copy") if guard else ("copy",), policy),
        Invocation("zero", "clear", guard),
        Invocation("copy", "set"),
    )
    return Program(tensors, axes, ("i",) if guard else ("i", "zero"), nodes, primitives)


def result(program: Program) -> list[int]:
    out = np.full(6, 7, "i4")
    interpret(program, {"in0": np.arange(1, 4, dtype="i4"), "out": out})
    return out.tolist()


@pytest.mark.parametrize("guard", [(First("i"),), (Last("i"),)])
def test_an_axis_of_one_step_keeps_the_offsets(guard):
    program = offset_program(guard)
    if isinstance(guard[0], Last):  # the Zero comes after the Copy
        nodes = tuple(replace(n, children=("copy", "zero")) if n.id == "i" else n for n in program.nodes)
        program = replace(program, nodes=nodes)
    out = hoist(program, "zero")
    assert [axis.extent for axis in out.axes] == [3, 1]
    assert result(out) == result(program)


def test_sink_moves_the_node_back_to_its_own_address():
    program = offset_program()
    inside = sink(program, "zero", "i")
    assert inside.axis("i_base").offsets == (0, -16)
    assert result(inside) == result(program) == [0, 7, 1, 2, 3, 7]


def test_what_would_pass_a_conflict_stays():
    program = offset_program((Last("i"),))  # the Copy overwrites what Zero cleared; behind it, it would not
    with pytest.raises(ScheduleError, match="it would pass node 'copy', with which it conflicts") as caught:
        hoist(program, "zero")
    assert caught.value.facts["witness"].tensor == "out"


def test_a_parallel_loop_takes_no_conflicting_initialisation():
    program = as_tileweave(examples.contraction_gemm(E))
    outside = replace(
        program,
        roots=("zero_all", "p"),
        nodes=(
            Invocation("zero_all", "zero_prsq"),
            *(replace(n, children=("t",)) if n.id == "r" else n for n in program.nodes if n.id != "zero"),
        ),
        primitives=(
            *program.primitives,
            Primitive("zero_prsq", "Zero", (("M", ("p", "r", "s")), ("N", ("q",))), ("out",)),
        ),
    )
    with pytest.raises(ScheduleError, match=r"path\.|primitive consumes"):
        sink(outside, "zero_all", "p")  # it consumes the axis itself
    demoted = demote(demote(outside, "zero_all", "p"), "zero_all", "r")
    assert tree(demoted).startswith("p.2\n└── r.2\n    └── zero_all\np\n")
    with pytest.raises(ScheduleError):
        sink(demoted, "p.2", "p")
    other = replace(
        outside,
        axes=(*outside.axes, Axis("all", 4 * 2 * 3 * 5, (0, 0, 4), (0, 0, 0))),
        primitives=(
            *outside.primitives[:-1],
            Primitive("zero_prsq", "Zero", (("M", ()), ("N", ("all",))), ("out",)),
        ),
    )
    assert tree(sink(other, "zero_all", "p")).splitlines()[1] == "├── zero_all  [first(p)]"
    with pytest.raises(ScheduleError, match="is parallel, and its iterations would conflict"):
        sink(parallelize(other, "p"), "zero_all", "p")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p: hoist(p, "k"), "is a root"),
        (lambda p: hoist(p, "contraction"), r"exactly one of first\(k\), last\(k\)"),
        (lambda p: hoist(p, "x"), "there is no node 'x'"),
        (lambda p: sink(p, "zero", "k"), "are not neighbours"),
        (lambda p: sink(p, "zero", "contraction"), "is an invocation"),
    ],
)
def test_refusals_of_hoist_and_sink(change, message):
    with pytest.raises(ScheduleError, match=message):
        change(examples.guarded_reduction({"m": 2, "n": 3, "k": 4}))


def test_a_guarded_loop_takes_only_what_has_its_guard():
    program = examples.batched_gemm_reordered({"a": 2, "b": 3, "c": 4, "d": 5})
    nodes = tuple(replace(n, guard=(First("b"),)) if n.id == "a" else n for n in program.nodes)
    with pytest.raises(ScheduleError, match="has a guard that node 'zero' has not"):
        sink(replace(program, nodes=nodes), "zero", "a")
    nodes = tuple(replace(n, guard=(First("b"),)) if n.id in ("a", "zero") else n for n in program.nodes)
    assert "zero  [first(a) and first(b)]" in tree(sink(replace(program, nodes=nodes), "zero", "a"))


# ── pack ──


def product() -> tuple[Program, dict[str, np.ndarray]]:
    """A product whose in0 is every other element of every other row: no kernel of the document."""
    rng = np.random.default_rng(0)
    a = rng.integers(-4, 5, (12, 20)).astype("f4")
    b = rng.integers(-4, 5, (10, 8)).astype("f4")
    strides = (Operand(strided((6, 10), (40, 2)), "FP32"), Operand(strided((10, 8), (8, 1)), "FP32"))
    program = emit_contraction("ik,kj->ij", strides, Operand(strided((6, 8), (8, 1)), "FP32"))
    return program, {"in0": a, "in1": b, "out": np.zeros((6, 8), "f4")}


def test_a_packed_operand_is_a_gemm_s():
    program, arrays = product()
    assert isinstance(eligibility(program.node("contraction").primitive, program), General)
    packed = pack(program, "contraction", "in0")
    assert tree(packed) == "zero\npack_in0\ncontraction"
    assert packed.tensors[-1] == TensorSpec("in0_packed", "FP32", "scratch", 4 * 60)
    kernel = eligibility(packed.node("contraction").primitive, packed)
    assert isinstance(kernel, Gemm) and (kernel.lda, kernel.orders[0]) == (10, "row-major")
    turned = pack(program, "contraction", "in0", order=["k", "i"])
    kernel = eligibility(turned.node("contraction").primitive, turned)
    assert isinstance(kernel, Gemm) and (kernel.lda, kernel.orders[0]) == (6, "column-major")
    expected = arrays["in0"][::2, ::2] @ arrays["in1"]
    for changed in (packed, turned, pack(packed, "contraction", "in1")):
        assert uninitialised(changed) is None
        interpret(changed, arrays)
        np.testing.assert_array_equal(arrays["out"], expected)
        arrays["out"][:] = 0
        cpu.compile(changed, threads=1, cache=False).run(arrays)
        np.testing.assert_array_equal(arrays["out"], expected)


def test_parallel_iterations_have_scratch_of_their_own():
    program = as_tileweave(examples.contraction_brgemm(E))
    packed = pack(program, "brgemm", "in0")
    assert packed.tensors[-1].size_bytes == 4 * 5 * 2 * 6 * (4 * 3)  # a tile per p and r
    assert races(packed) is None
    shared = pack(program, "brgemm", "in1", at="r")
    assert shared.tensors[-1].size_bytes == 4 * 2 * 2 * 6 * 4  # a tile per p, filled before r begins
    assert tree(shared) == "p  (parallel)\n├── pack_in1\n└── r  (parallel)\n    ├── zero\n    └── brgemm"
    assert races(shared) is None


def test_pack_serves_a_tensor_that_is_both_inputs():
    x = np.arange(6, dtype="i4").reshape(2, 3)
    a = Operand(strided((2, 3), (3, 1)), "INT32")
    program = emit_contraction("ik,ik->ik", (a, a), a)
    both = replace(
        program,
        tensors=(TensorSpec("in0", "INT32", "in"), program.tensors[2]),
        axes=tuple(
            replace(axis, strides=(axis.strides[0], axis.strides[2]), offsets=(axis.offsets[0], axis.offsets[2]))
            for axis in program.axes
        ),
        primitives=tuple(
            replace(p, operands=("in0", "in0", "out")) if p.operation == "Contraction" else p
            for p in program.primitives
        ),
    )
    packed = pack(both, "contraction", "in0")
    assert packed.primitive(packed.node("contraction").primitive).operands == ("in0_packed", "in0_packed", "out")
    out = np.zeros((2, 3), "i4")
    interpret(packed, {"in0": x, "out": out})
    np.testing.assert_array_equal(out, x * x)


def test_a_packed_output_is_brought_back():
    program = as_tileweave(examples.contraction_gemm(E))
    packed = pack(program, "gemm", "out", at="t", order=["q", "s"])
    assert tree(packed) == "p\n└── r\n    ├── zero\n    ├── pack_out\n    ├── t\n    │   └── gemm\n    └── unpack_out"
    assert packed.primitive("gemm_squ").operands == ("in0", "in1", "out_packed")
    cleared = pack(program, "zero", "out")  # nothing of it is read
    assert tree(cleared) == "p\n└── r\n    ├── zero\n    ├── unpack_out\n    └── t\n        └── gemm"
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-4, 5, [E[c] for c in term]).astype("f4") for term in ("trus", "pqtu"))
    for changed in (packed, cleared, pack(cleared, "gemm", "out")):
        assert uninitialised(changed) is None
        out = np.full([E[c] for c in "pqrs"], np.nan, "f4")
        interpret(changed, {"in0": a, "in1": b, "out": out})
        np.testing.assert_array_equal(out, np.einsum("trus,pqtu->pqrs", a, b))


def test_an_output_whose_elements_overlap_is_not_packed():
    program = offset_program()
    axes = (Axis("i", 3, (4, 2), (0, 0)),)
    with pytest.raises(ScheduleError, match="elements of 'out' share a byte: i by"):
        pack(
            replace(program, axes=axes, roots=("i",), nodes=program.nodes[:1] + program.nodes[2:]),
            "copy",
            "out",
            at="i",
        )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p: pack(p, "zero", "in0"), "node 'zero' does not touch a tensor 'in0'"),
        (lambda p: pack(p, "gemm", "out", at="r"), "'out' is written below node 'r'"),
        (lambda p: pack(p, "t", "in0"), "node 't' is an iteration"),
        (lambda p: pack(p, "gemm", "in0", at="zero"), "neither node 'gemm' nor above it"),
        (lambda p: pack(p, "gemm", "in0", order=["u"]), "along which the operand moves: s, u"),
    ],
)
def test_refusals_of_pack(change, message):
    with pytest.raises(ScheduleError, match=message):
        change(as_tileweave(examples.contraction_gemm(E)))


def test_pack_refuses_the_document_a_guard_it_would_run_over_and_an_operand_that_changes():
    program = examples.contraction_gemm(E)
    with pytest.raises(ScheduleError, match="the document profile has no scratch tensors"):
        pack(program, "gemm", "in0")
    named = as_tileweave(program)
    guarded = replace(named, nodes=tuple(replace(n, guard=(First("t"),)) if n.id == "gemm" else n for n in named.nodes))
    with pytest.raises(ScheduleError, match="the guard of node 'gemm' depends on axis 't', which is packed"):
        pack(guarded, "gemm", "in0", at="t")
    assert "pack_in0  [first(t)]" in tree(pack(guarded, "gemm", "in0"))
    writes = replace(
        named,
        tensors=tuple(replace(t, role="inout") for t in named.tensors),
        primitives=tuple(replace(p, operands=("in0",)) if p.operation == "Zero" else p for p in named.primitives),
    )
    with pytest.raises(ScheduleError, match="'in0' is written below node 'r'") as caught:
        pack(writes, "gemm", "in0", at="r")
    assert caught.value.facts["witness"].tensor == "in0"


def test_additions_to_elements_that_share_some_bytes_do_not_commute():
    """Two sums into elements 2 bytes apart of 4 bytes each: the order in which they are stored is what is left."""
    axes = (Axis("k", 3, (4, 2), (0, 0)),)
    tensors = (TensorSpec("in0", "INT32", "in"), TensorSpec("out", "INT32", "inout"))
    roles = (("M", ()), ("N", ()), ("K", ()))
    add = Primitive("add", "ReduceSum", roles, ("in0", "out"))
    nodes = (Iteration("k", "k", ("add",)), Invocation("add", "add"))
    program = Program(tensors, axes, ("k",), nodes, (add,))
    assert overlap(program) is None
    with pytest.raises(ScheduleError, match="conflict"):
        promote(program, "k", "K")
    whole = replace(program, axes=(replace(axes[0], strides=(4, 0)),))
    assert promote(whole, "k", "K").roots == ("add",)
