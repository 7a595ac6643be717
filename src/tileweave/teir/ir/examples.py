"""The document's example programs, in its own profile: FP32, row-major tensors, extents as arguments.

Source: TEIR, section 10.2 and sections 10.7.1 to 10.7.7.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tileweave.teir.ir.program import (
    Axis,
    First,
    Guard,
    Id,
    Invocation,
    Iteration,
    Last,
    Node,
    Policy,
    Primitive,
    Program,
    TensorSpec,
)

__all__ = [
    "batched_gemm_reordered",
    "batched_gemm_scalar",
    "branching",
    "contraction_brgemm",
    "contraction_gemm",
    "contraction_scalar",
    "guarded_reduction",
    "permutation_scalar",
    "permutation_tiled",
]

FP32 = (("data_type", "FP32"),)
Extents = Mapping[str, int]


def _tensors(inputs: int) -> tuple[TensorSpec, ...]:
    names = [f"in{k}" for k in range(inputs)]
    return (*(TensorSpec(name, "FP32", "in") for name in names), TensorSpec("out", "FP32", "out"))


def _axes(shapes: Sequence[str], extents: Extents, order: str) -> tuple[Axis, ...]:
    """Row-major byte strides of every axis on every tensor; zero where the tensor does not have it."""

    def stride(shape: str, axis: str) -> int:
        if axis not in shape:
            return 0
        elements = 1
        for inner in shape[shape.index(axis) + 1 :]:
            elements *= extents[inner]
        return 4 * elements

    still = (0,) * len(shapes)
    return tuple(Axis(a, extents[a], tuple(stride(shape, a) for shape in shapes), still) for a in order)


def _iterate(axis: str, *children: Id, policy: Policy = "sequential") -> Iteration:
    return Iteration(axis, axis, children, policy)


def _roles(m: str, n: str, k: str | None = None) -> tuple[tuple[str, tuple[Id, ...]], ...]:
    return (("M", tuple(m)), ("N", tuple(n)), *((("K", tuple(k)),) if k is not None else ()))


def _primitive(id: str, operation: str, m: str = "", n: str = "", k: str | None = None) -> Primitive:
    return Primitive(id, operation, _roles(m, n, k), (), FP32)


def _program(
    name: str, shapes: Sequence[str], axes: tuple[Axis, ...], nodes: Sequence[Node], primitives: Sequence[Primitive]
) -> Program:
    tensors = _tensors(len(shapes) - 1)
    return Program(tensors, axes, (nodes[0].id,), tuple(nodes), tuple(primitives), "document", name)


PERMUTATION = ("abcd", "dcba")
BATCHED = ("dba", "dac", "dbc")
CONTRACTION = ("trus", "pqtu", "pqrs")
SCALAR = (_primitive("zero_scalar", "Zero"), _primitive("contraction_scalar", "Contraction", k=""))


def permutation_scalar(extents: Extents) -> Program:
    """``abcd -> dcba``, one element per invocation (listing 10.7.1)."""
    nodes = (_iterate("a", "b"), _iterate("b", "c"), _iterate("c", "d"), _iterate("d", "copy"))
    nodes_all = (*nodes, Invocation("copy", "copy_scalar"))
    axes = _axes(PERMUTATION, extents, "abcd")
    return _program("permutation_scalar", PERMUTATION, axes, nodes_all, (_primitive("copy_scalar", "Copy"),))


def permutation_tiled(extents: Extents) -> Program:
    """``abcd -> dcba``, a d x a tile per invocation (listing 10.7.3)."""
    nodes = (_iterate("b", "c"), _iterate("c", "copy"), Invocation("copy", "copy_da"))
    axes = _axes(PERMUTATION, extents, "bcda")
    return _program("permutation_tiled", PERMUTATION, axes, nodes, (_primitive("copy_da", "Copy", "d", "a"),))


def batched_gemm_scalar(extents: Extents) -> Program:
    """``dba,dac->dbc`` with the contracted axis outermost and a guarded Zero (listing 10.7.5)."""
    nodes: tuple[Node, ...] = (_iterate("a", "b"), _iterate("b", "c"), _iterate("c", "d"))
    nodes += (_iterate("d", "zero", "contraction"), Invocation("zero", "zero_scalar", (First("a"),)))
    nodes += (Invocation("contraction", "contraction_scalar"),)
    return _program("batched_gemm_scalar", BATCHED, _axes(BATCHED, extents, "dbca"), nodes, SCALAR)


def batched_gemm_reordered(extents: Extents) -> Program:
    """``dba,dac->dbc`` with the contracted axis innermost (listing 10.7.7)."""
    nodes: tuple[Node, ...] = (_iterate("b", "c"), _iterate("c", "d"), _iterate("d", "zero", "a"))
    nodes += (Invocation("zero", "zero_scalar"), _iterate("a", "contraction"))
    nodes += (Invocation("contraction", "contraction_scalar"),)
    return _program("batched_gemm_reordered", BATCHED, _axes(BATCHED, extents, "dbca"), nodes, SCALAR)


def contraction_scalar(extents: Extents) -> Program:
    """``trus,pqtu->pqrs``, one multiply-add per invocation (listing 10.7.9)."""
    nodes: tuple[Node, ...] = (_iterate("p", "q"), _iterate("q", "r"), _iterate("r", "s"), _iterate("s", "zero", "t"))
    nodes += (Invocation("zero", "zero_scalar"), _iterate("t", "u"), _iterate("u", "contraction"))
    nodes += (Invocation("contraction", "contraction_scalar"),)
    return _program("contraction_scalar", CONTRACTION, _axes(CONTRACTION, extents, "pqrstu"), nodes, SCALAR)


def contraction_gemm(extents: Extents) -> Program:
    """``trus,pqtu->pqrs`` with a GEMM per invocation (listing 10.7.11)."""
    nodes: tuple[Node, ...] = (_iterate("p", "r"), _iterate("r", "zero", "t"), Invocation("zero", "zero_sq"))
    nodes += (_iterate("t", "gemm"), Invocation("gemm", "gemm_squ"))
    primitives = (_primitive("zero_sq", "Zero", "s", "q"), _primitive("gemm_squ", "Contraction", "s", "q", "u"))
    return _program("contraction_gemm", CONTRACTION, _axes(CONTRACTION, extents, "pqrstu"), nodes, primitives)


def contraction_brgemm(extents: Extents) -> Program:
    """``trus,pqtu->pqrs`` with a batch-reduce GEMM per parallel iteration (listing 10.7.13)."""
    nodes: tuple[Node, ...] = (_iterate("p", "r", policy="parallel"),)
    nodes += (_iterate("r", "zero", "brgemm", policy="parallel"), Invocation("zero", "zero_sq"))
    nodes += (Invocation("brgemm", "brgemm_sqtu"),)
    primitives = (_primitive("zero_sq", "Zero", "s", "q"), _primitive("brgemm_sqtu", "Contraction", "s", "q", "tu"))
    return _program("contraction_brgemm", CONTRACTION, _axes(CONTRACTION, extents, "pqrstu"), nodes, primitives)


def guarded_reduction(extents: Extents) -> Program:
    """``mk,kn->mn`` by rank-one updates: Zero at the first k, ReLU at the last (listing 10.2.2)."""
    shapes = ("mk", "kn", "mn")
    first: Guard = (First("k"),)
    nodes: tuple[Node, ...] = (_iterate("k", "zero", "contraction", "relu"), Invocation("zero", "zero_prim", first))
    nodes += (Invocation("contraction", "contraction_prim"), Invocation("relu", "relu_prim", (Last("k"),)))
    primitives = (
        _primitive("zero_prim", "Zero", "m", "n"),
        _primitive("contraction_prim", "Contraction", "m", "n", ""),
        _primitive("relu_prim", "ReLU", "m", "n"),
    )
    return _program("guarded_reduction", shapes, _axes(shapes, extents, "mnk"), nodes, primitives)


def branching(extents: Extents) -> Program:
    """Per r, first every s and then every t (listing 10.2.3): copies the two parts of each row, side by side in out.

    The parts lie one behind the other in every row of in0 and in out; t's offset skips the first.
    """
    r, s, t = (extents[a] for a in "rst")
    row = 4 * (s + t)
    axes = (
        Axis("r", r, (row, row), (0, 0)),
        Axis("s", s, (4, 4), (0, 0)),
        Axis("t", t, (4, 4), (4 * s, 4 * s)),
    )
    nodes: tuple[Node, ...] = (_iterate("r", "s", "t"), _iterate("s", "op_s"), Invocation("op_s", "p_s"))
    nodes += (_iterate("t", "op_t"), Invocation("op_t", "p_t"))
    return _program("branching", ("rs", "rt"), axes, nodes, (_primitive("p_s", "Copy"), _primitive("p_t", "Copy")))
