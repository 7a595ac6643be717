"""The document's own examples: the same trees, tables, addresses, kernels and results."""

from __future__ import annotations

import numpy as np
import pytest

from tileweave.teir import Axis, Invocation, Iteration, Program, TensorSpec, interpret, problems, races
from tileweave.teir.analysis.interpret import tile_address
from tileweave.teir.analysis.lower import Brgemm, CopyKernel, Gemm, ScalarKernel, ZeroKernel, eligibility
from tileweave.teir.ir import examples
from tileweave.teir.ir.text import invocations_table, iterations_table, primitives_table, tree

E = {"a": 2, "b": 3, "c": 4, "d": 5, "p": 4, "q": 2, "r": 3, "s": 5, "t": 2, "u": 6, "m": 3, "n": 4, "k": 5}
ALL = [getattr(examples, name) for name in examples.__all__]

TREES = {
    "permutation_scalar": """
a
└── b
    └── c
        └── d
            └── copy""",
    "permutation_tiled": """
b
└── c
    └── copy""",
    "batched_gemm_scalar": """
a
└── b
    └── c
        └── d
            ├── zero  [first(a)]
            └── contraction""",
    "batched_gemm_reordered": """
b
└── c
    └── d
        ├── zero
        └── a
            └── contraction""",
    "contraction_scalar": """
p
└── q
    └── r
        └── s
            ├── zero
            └── t
                └── u
                    └── contraction""",
    "contraction_gemm": """
p
└── r
    ├── zero
    └── t
        └── gemm""",
    "contraction_brgemm": """
p  (parallel)
└── r  (parallel)
    ├── zero
    └── brgemm""",
    "guarded_reduction": """
k
├── zero  [first(k)]
├── contraction
└── relu  [last(k)]""",
    "branching": """
r
├── s
│   └── op_s
└── t
    └── op_t""",
}


@pytest.mark.parametrize("make", ALL, ids=lambda make: make.__name__)
def test_trees(make):
    program = make(E)
    assert problems(program) == ()
    assert races(program) is None
    assert tree(program) == TREES[make.__name__].strip("\n")
    assert TREES[make.__name__].strip("\n") in str(program)


def test_tables():
    program = examples.contraction_brgemm(E)
    assert iterations_table(program) == (
        ("Node", "Axis", "Policy", "Children", "Guard"),
        ("p", "p", "parallel", "[r]", "None"),
        ("r", "r", "parallel", "[zero, brgemm]", "None"),
    )
    assert invocations_table(program)[1:] == (("zero", "zero_sq", "None"), ("brgemm", "brgemm_sqtu", "None"))
    assert primitives_table(program) == (
        ("Primitive", "Operation", "Axes", "Metadata"),
        ("zero_sq", "Zero", "{M: [s], N: [q]}", "{data_type: FP32}"),
        ("brgemm_sqtu", "Contraction", "{M: [s], N: [q], K: [t, u]}", "{data_type: FP32}"),
    )
    guarded = examples.guarded_reduction(E)
    assert iterations_table(guarded)[1:] == (("k", "k", "sequential", "[zero, contraction, relu]", "None"),)
    assert invocations_table(guarded)[1:] == (
        ("zero", "zero_prim", "first(k)"),
        ("contraction", "contraction_prim", "None"),
        ("relu", "relu_prim", "last(k)"),
    )
    scalar = examples.batched_gemm_scalar(E)
    assert primitives_table(scalar)[1:] == (
        ("zero_scalar", "Zero", "{M: [], N: []}", "{data_type: FP32}"),
        ("contraction_scalar", "Contraction", "{M: [], N: [], K: []}", "{data_type: FP32}"),
    )


@pytest.mark.parametrize(
    ("program", "strides"),
    [
        (
            examples.permutation_scalar(E),
            {"a": (3 * 4 * 5, 1), "b": (4 * 5, 2), "c": (5, 3 * 2), "d": (1, 4 * 3 * 2)},
        ),
        (
            examples.batched_gemm_scalar(E),
            {"d": (3 * 2, 2 * 4, 3 * 4), "b": (2, 0, 4), "c": (0, 1, 1), "a": (1, 4, 0)},
        ),
        (
            examples.contraction_scalar(E),
            {
                "p": (0, 2 * 2 * 6, 2 * 3 * 5),
                "q": (0, 2 * 6, 3 * 5),
                "r": (6 * 5, 0, 5),
                "s": (1, 0, 1),
                "t": (3 * 6 * 5, 6, 0),
                "u": (5, 1, 0),
            },
        ),
    ],
)
def test_stride_tables(program, strides):
    assert {axis.id: axis.strides for axis in program.axes} == {
        id: tuple(4 * elements for elements in row) for id, row in strides.items()
    }
    assert all(not any(axis.offsets) for axis in program.axes)


@pytest.mark.parametrize(("offset", "out"), [(0, 80), (16, 96)])
def test_address_examples(offset, out):
    tensors = (TensorSpec("in0", "FP32", "in"), TensorSpec("out", "FP64", "out"))
    axes = (Axis("a", 4, (32, 64), (0, 0)), Axis("b", 8, (4, 8), (0, offset)))
    program = Program(tensors, axes, (), (), (), "document")
    assert tile_address(program, "in0", {"a": 1, "b": 2}) == 40
    assert tile_address(program, "out", {"a": 1, "b": 2}) == out


@pytest.mark.parametrize(
    ("axes", "rows"),
    [
        # two matrices with the same logical axes, FP32 and FP16; then with one shared axis
        ({"a": (4, (32, 16)), "b": (8, (4, 2))}, {(0, 3): 12, (1, 3): 6}),
        ({"a": (4, (32, 32)), "b": (8, (4, 0)), "c": (16, (0, 2))}, {(0, 3): 12, (1, 3): 0}),
    ],
)
def test_axes_examples(axes, rows):
    tensors = (TensorSpec("in0", "FP32", "in"), TensorSpec("out", "FP16", "out"))
    program = Program(tensors, tuple(Axis(id, n, s, (0, 0)) for id, (n, s) in axes.items()), (), (), (), "document")
    assert problems(program) == ()
    for (tensor, index), address in rows.items():
        assert tile_address(program, ("in0", "out")[tensor], {"b": index}) == address
    assert tile_address(program, "in0", {"a": 1}) == 32


def test_minimal_schedule_runs_the_primitive_once_per_index():
    axes = (Axis("x", 5, (4, 4), (0, 0)),)
    nodes = (Iteration("x", "x", ("op",)), Invocation("op", "p"))
    tensors = (TensorSpec("in0", "FP32", "in"), TensorSpec("out", "FP32", "out"))
    copy = examples.permutation_scalar(E).primitives[0]
    program = Program(tensors, axes, ("x",), (nodes[0], Invocation("op", copy.id)), (copy,), "document")
    assert tree(program) == "x\n└── op"
    source, out = np.arange(5, dtype=np.float32), np.zeros(6, np.float32)
    interpret(program, {"in0": source, "out": out})
    assert out.tolist() == [0, 1, 2, 3, 4, 0]


@pytest.mark.parametrize("make", ALL, ids=lambda make: make.__name__)
def test_results(make):
    rng = np.random.default_rng(3)
    shapes, reference = {
        "permutation": (("abcd",), lambda x: x.transpose(3, 2, 1, 0)),
        "batched": (("dba", "dac"), lambda x, y: np.einsum("dba,dac->dbc", x, y)),
        "contraction": (("trus", "pqtu"), lambda x, y: np.einsum("trus,pqtu->pqrs", x, y)),
        "guarded": (("mk", "kn"), lambda x, y: np.maximum(x @ y, 0)),
        "branching": (("rx",), lambda x: x),
    }[make.__name__.split("_")[0]]
    extents = {**E, "x": E["s"] + E["t"]}
    inputs = [rng.integers(-4, 5, [extents[c] for c in shape]).astype(np.float32) for shape in shapes]
    expected = reference(*inputs)
    out = np.full(expected.shape, np.nan, np.float32)
    for order in ("forward", "reversed", "random"):
        out[...] = np.nan
        interpret(make(E), {f"in{k}": x for k, x in enumerate(inputs)} | {"out": out}, order=order)
        np.testing.assert_array_equal(out, expected)
    assert np.isfinite(out).all()


def test_kernels_of_the_examples():
    a, b, c, d, q, r, s, t, u = (E[x] for x in "abcdqrstu")
    tiled = examples.permutation_tiled(E)
    assert eligibility("copy_da", tiled) == CopyKernel(d, a, "column-major", "row-major", b * c * d, c * b * a, "FP32")
    gemm = examples.contraction_gemm(E)
    assert eligibility("zero_sq", gemm) == ZeroKernel(s, q, "column-major", r * s, "FP32")
    column = ("column-major",) * 3
    assert eligibility("gemm_squ", gemm) == Gemm(s, q, u, s, t * u, r * s, column, "FP32")
    brgemm = eligibility("brgemm_sqtu", examples.contraction_brgemm(E))
    assert brgemm == Brgemm(s, q, u, s, t * u, r * s, t, r * u * s, u, column, "FP32")
    assert eligibility("contraction_scalar", examples.contraction_scalar(E)) == ScalarKernel("Contraction")
