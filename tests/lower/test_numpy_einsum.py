"""NumPy's own tests of einsum, taken from the installed NumPy, on `tileweave.contract`."""

import importlib.util
from typing import Any

import numpy as np
import pytest

from tileweave import contract
from tileweave import einsum as graph_einsum
from tileweave.errors import DtypeError, GraphError

DECLINED = {
    "test_einsum_object_errors": "objects are no elements",
    "test_object_loop": "objects are no elements",
    "test_einsum_sums_object": "objects are no elements",
    "test_einsum_sums_cfloat64": "complex numbers are no elements",
    "test_einsum_sums_cfloat128": "complex numbers are no elements",
    "test_einsum_sums_clongdouble": "complex numbers are no elements",
    "test_different_paths[F]": "complex numbers are no elements",
    "test_different_paths[D]": "complex numbers are no elements",
    "test_different_paths[G]": "complex numbers are no elements",
    "test_einsum_views": "results are never views",
    "test_out_is_res": "an output that shares memory with an operand is refused",
    "test_overlap": "an output that shares memory with an operand is refused",
    "test_einsum_0d_out": "floats are cast to an integer output only with casting='unsafe'",
    "test_output_order": "new results are in row-major order unless asked otherwise",
    "test_path_type_input_invalid": "a path that is none is a GraphError",
}
"""NumPy's tests that `contract` does not pass, each with the promise that it keeps instead."""
FEW = ("test_einsum_sums_float32",)
LONG = ("test_einsum_sums_", "test_complex", "test_edge_cases", "test_random_cases")
"""Tests that compile hundreds of shapes: slow, but for a few."""


class _Numpy:
    """NumPy whose einsum is ours."""

    einsum = staticmethod(contract)

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)


def _numpys_tests() -> Any:
    """A copy of NumPy's test module of our own, in which ``np.einsum`` is `contract`."""
    spec = importlib.util.find_spec("numpy._core.tests.test_einsum")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    numpys, np.einsum = np.einsum, contract
    try:
        spec.loader.exec_module(module)  # parametrised tests are made of what np.einsum is now
    finally:
        np.einsum = numpys
    module.np = _Numpy()
    return module


NUMPYS = _numpys_tests()
TestEinsum = NUMPYS.TestEinsum
TestEinsumPath = NUMPYS.TestEinsumPath
test_overlap = NUMPYS.test_overlap
test_einsum_chunking_precision = NUMPYS.test_einsum_chunking_precision
for _name in [name for name in vars(TestEinsum) if name.startswith(LONG) and name not in FEW]:
    setattr(TestEinsum, _name, pytest.mark.slow(getattr(TestEinsum, _name)))


@pytest.fixture(autouse=True)
def _declined(request: pytest.FixtureRequest) -> None:
    reason = DECLINED.get(request.node.name)
    if reason:
        request.node.add_marker(pytest.mark.xfail(reason=reason, strict=True))


def test_what_is_declined_is_a_test_of_numpys() -> None:
    names = {*vars(TestEinsum), *vars(TestEinsumPath), *vars(NUMPYS)}
    assert {name.split("[")[0] for name in DECLINED} <= names


@pytest.mark.parametrize("order", "CFAKcfak")
def test_a_new_result_lies_as_asked(order: str) -> None:
    rng = np.random.default_rng(0)
    for equation, shapes in (("...ft,mf->...mt", [(2, 3, 5), (4, 3)]), ("ij,kj->kij", [(3, 4), (5, 4)])):
        for kinds in ("CC", "FF", "CF"):
            arrays = [
                np.asarray(rng.integers(-9, 9, n).astype("f8"), order=k) for n, k in zip(shapes, kinds, strict=True)
            ]
            wanted = np.einsum(equation, *arrays, order=order)
            for _ in range(2):
                got = contract(equation, *arrays, order=order)
                np.testing.assert_array_equal(got, wanted)
                assert got.strides == wanted.strides
    whole = rng.integers(-9, 9, (2, 3, 4)).astype("f8")
    got = contract("ijk->kji", whole, order=order)  # NumPy gives a view here, whatever the order
    np.testing.assert_array_equal(got, whole.T)
    assert not np.may_share_memory(got, whole)
    assert got.flags.f_contiguous == (order in "FKfk")


def test_lists_of_indices() -> None:
    a, b = np.arange(6.0).reshape(2, 3), np.arange(12.0).reshape(3, 4)
    for einsum in (contract, graph_einsum):
        np.testing.assert_array_equal(einsum(a, [0, 1], b, [1, 2], [0, 2]), a @ b)
        np.testing.assert_array_equal(einsum(a, [30, 1], b, (1, 2)), (a @ b).T)  # implied, in the order of the numbers
        np.testing.assert_array_equal(einsum(a, [..., 1], b, np.array([1, 2]), [2, ...]), (a @ b).T)
    for words in ((a, [0, 1], b), (a, [0, 1], b, [1, 52]), (a, [0, -1]), (a, [0, 1.0]), (a, "ij"), ()):
        with pytest.raises(DtypeError, match="the equation comes first, and is a text; or each operand"):
            contract(*words)


def test_types_are_cast_as_asked() -> None:
    a = np.array([[0.75, 1.5], [2.5, -3.5]], "f4")
    whole = contract("ij,jk->ik", a, a, dtype="i8", casting="unsafe")
    assert whole.dtype == np.int64
    np.testing.assert_array_equal(whole, a.astype("i8") @ a.astype("i8"))
    with pytest.raises(DtypeError, match="operand 0 of float32 is not cast to int64 with casting='same_kind'"):
        contract("ij,jk->ik", a, a, dtype="i8", casting="same_kind")
    wide, narrow = np.empty((2, 2)), np.empty((2, 2), "f2")
    assert contract("ij,jk->ik", a, a, out=wide) is wide
    np.testing.assert_array_equal(wide, a.astype("f8") @ a.astype("f8"))
    with pytest.raises(
        DtypeError, match="out does not fit: the result of float32 is not cast to float16 with casting='safe'"
    ):
        contract("ij,jk->ik", a, a, out=narrow)
    assert contract("ij,jk->ik", a, a, out=narrow, casting="same_kind") is narrow
    np.testing.assert_array_equal(narrow, (a @ a).astype("f2"))
    with pytest.raises(DtypeError, match="operand 0 of float32 is not cast to float64 with casting='no'"):
        contract("ij,jk->ik", a, a.astype("f8"), casting="no")
    np.testing.assert_array_equal(contract("ij,jk->ik", a, a, casting="no"), a @ a)
    with pytest.raises(GraphError, match="casting='any' is none"):
        contract("ij,jk->ik", a, a, casting="any")
    truths = np.array([[True, False], [False, False]])
    assert contract("ij,jk->ik", truths, truths).tolist() == [[True, False], [False, False]]
    assert contract("ij,ij->", np.ones((32, 16), bool), np.ones((32, 16), bool)).item() is True  # no sum of 8 bits
    counts = contract("ij->", truths, out=np.zeros((), "i4"))
    assert counts == 1


def test_paths() -> None:
    rng = np.random.default_rng(0)
    arrays = [rng.integers(-5, 6, (4, 4)).astype("i8") for _ in range(4)]
    wanted = np.einsum("ab,bc,cd,de->ae", *arrays)
    path = np.einsum_path("ab,bc,cd,de->ae", *arrays, optimize="optimal")[0]
    for optimize in (True, False, "greedy", "optimal", ("greedy", 4), path, ["einsum_path", (0, 1, 2, 3)]):
        np.testing.assert_array_equal(contract("ab,bc,cd,de->ae", *arrays, optimize=optimize), wanted)
    for wrong in (
        "best",
        3,
        ["einsum_path", (0, 1)],
        ["einsum_path", (0, 9)],
        ["einsum_path", (0, 0)],
        ["einsum_path", 1],
    ):
        with pytest.raises(GraphError, match=r"^contract\('ab,bc,cd,de->ae', ..\): "):
            contract("ab,bc,cd,de->ae", *arrays, optimize=wrong)


def test_an_extent_of_1_broadcasts_and_a_diagonal_does_not() -> None:
    a, b = np.arange(4.0).reshape(1, 4), np.arange(12.0).reshape(3, 4)
    np.testing.assert_array_equal(contract("ij,ij->ij", a, b), a * b)
    np.testing.assert_array_equal(contract("ij,kj->ik", a, b), a @ b.T)
    with pytest.raises(GraphError, match="index 'i' has extent"):
        contract("ii,ik->k", a, np.ones((4, 2)))


KINDS = ("bool", "int8", "uint8", "int32", "int64", "float16", "float32", "float64")


@pytest.mark.parametrize("count", [30, pytest.param(600, marks=pytest.mark.slow)])
def test_random_calls_are_numpys(count: int) -> None:
    """Small integers in mixed types, repeated indices, extents of 1, casts and orders; two operands or three.

    With one operand NumPy gives a view of whatever type, which `contract` does not.
    """
    seed = int(np.random.SeedSequence().generate_state(1)[0])
    print(f"seed {seed}")
    rng = np.random.default_rng(seed)
    for _ in range(count):
        extent = {q: int(rng.integers(1, 4)) for q in "abcd"}
        terms = ["".join(rng.choice(list("abcd"), size=rng.integers(0, 4))) for _ in range(rng.integers(2, 4))]
        letters = sorted(set("".join(terms)))
        equation = ",".join(terms) + "->" + "".join(rng.permutation(letters)[: rng.integers(0, len(letters) + 1)])
        arrays = []
        for term in terms:
            shape = [1 if rng.random() < 0.1 and term.count(q) == 1 else extent[q] for q in term]
            arrays.append(np.asarray(rng.integers(0, 3, shape).astype(rng.choice(KINDS)), order=rng.choice(["C", "F"])))
        options: dict[str, Any] = {}
        if rng.random() < 0.5:
            options["dtype"] = str(rng.choice(KINDS))
        if rng.random() < 0.5:
            options["casting"] = str(rng.choice(["no", "equiv", "safe", "same_kind", "unsafe"]))
        if rng.random() < 0.3:
            options["order"] = str(rng.choice(list("CFAK")))
        try:
            wanted = np.asarray(np.einsum(equation, *arrays, **options))
        except (TypeError, ValueError):
            with pytest.raises(GraphError):
                contract(equation, *arrays, **options)
            continue
        got = contract(equation, *arrays, **options)
        assert got.shape == wanted.shape and got.dtype == wanted.dtype, (equation, arrays, options)
        np.testing.assert_allclose(got.astype("f8"), wanted.astype("f8"), rtol=1e-2, err_msg=f"{equation} {options}")
