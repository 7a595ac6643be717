"""The array API namespace against NumPy's own, function by function."""

import numpy as np
import pytest

import tileweave as tw
from tileweave.errors import DtypeError, GraphError

xp = tw.array_api
RNG = np.random.default_rng(0)
X, Y = RNG.uniform(0.1, 0.9, (3, 4)), RNG.uniform(0.1, 0.9, (3, 4))
WIDE = np.array([0.0, -0.0, 1.5, -2.5, np.inf, -np.inf, np.nan, 1e300])
F = X.astype("float32")
I, J = RNG.integers(1, 9, (3, 4)), RNG.integers(1, 5, (3, 4))
SMALL = RNG.integers(-100, 100, (3, 4)).astype("int8")
B, C = RNG.random((3, 4)) > 0.5, RNG.random((3, 4)) > 0.5
V = np.sort(RNG.random(7))

ONE = [
    "abs", "acos", "acosh", "asin", "asinh", "atan", "atanh", "ceil", "cos", "cosh", "exp", "expm1", "floor",
    "isfinite", "isinf", "isnan", "log", "log10", "log1p", "log2", "negative", "positive", "real", "conj",
    "reciprocal", "round", "sign", "signbit", "sin", "sinh", "sqrt", "square", "tan", "tanh", "trunc",
]  # fmt: skip
TWO = [
    "add", "copysign", "divide", "equal", "floor_divide", "greater", "greater_equal", "hypot", "less", "less_equal",
    "logaddexp", "maximum", "minimum", "multiply", "nextafter", "not_equal", "remainder", "subtract",
]  # fmt: skip
FINITE = ("acosh", "conj", "real")
SHIFTS = ("left_shift", "right_shift")
CASES = {
    **{name: [((X,), {}), ((WIDE,), {})] for name in ONE if name not in FINITE},
    **{name: [((X + 1,), {})] for name in FINITE},
    **{name: [((X, Y), {}), ((WIDE[:, None], WIDE[None]), {})] for name in TWO},
    **{
        name: [((X, Y), {}), ((WIDE[:, None], WIDE[None]), {}), ((F, Y), {}), ((3.0, F), {})]
        for name in ("copysign", "hypot", "logaddexp")
    },
    "pow": [((X, Y), {}), ((I, J), {})],
    "atan2": [((X, Y), {}), ((WIDE[:, None], WIDE[None]), {})],
    **{f"bitwise_{name}": [((I, J), {}), ((B, C), {})] for name in ("and", "or", "xor")},
    **{f"bitwise_{name}": [((I, J), {})] for name in SHIFTS},
    "bitwise_invert": [((I,), {}), ((B,), {})],
    **{f"logical_{name}": [((B, C), {})] for name in ("and", "or", "xor")},
    "logical_not": [((B,), {})],
    "clip": [((X, 0.2, 0.6), {}), ((I, 2, None), {}), ((X,), {"max": 0.3})],
    "where": [((B, X, Y), {})],
    **{name: [((B,), {}), ((B,), {"axis": 1, "keepdims": True})] for name in ("all", "any")},
    **{
        name: [((X,), {}), ((X,), {"axis": 0}), ((I,), {"axis": 1, "keepdims": True})]
        for name in ("argmax", "argmin", "max", "min", "mean")
    },
    **{
        name: [
            ((X,), {}),
            ((SMALL,), {"axis": 0}),
            ((I.astype("uint8"),), {"keepdims": True}),
            ((X,), {"dtype": np.float32, "axis": (0, 1)}),
        ]
        for name in ("sum", "prod")
    },
    **{name: [((X,), {"axis": 1, "correction": 1.0}), ((X,), {"keepdims": True})] for name in ("std", "var")},
    **{
        name: [((V,), {}), ((SMALL,), {"axis": 1}), ((X,), {"axis": 0, "include_initial": True})]
        for name in ("cumulative_sum", "cumulative_prod")
    },
    "count_nonzero": [((I % 3,), {}), ((I % 3,), {"axis": 0})],
    "diff": [((X,), {}), ((I,), {"axis": 0, "n": 2}), ((X,), {"prepend": X[:, :1], "append": X[:, :2]}), ((B,), {})],
    **{name: [((X,), {}), ((I,), {"axis": 0, "descending": False, "stable": True})] for name in ("sort", "argsort")},
    "searchsorted": [
        ((V, X), {}),
        ((V, V), {"side": "right"}),
        ((V[::-1].copy(), X), {"sorter": np.arange(7)[::-1].copy()}),
        ((np.append(V, np.nan), np.array([0.5, np.nan])), {}),
        ((np.append(V, np.nan), np.array([0.5, np.nan])), {"side": "right"}),
    ],
    "concat": [(([X, Y],), {"axis": 1}), (([X, I],), {"axis": None})],
    "stack": [(([X, Y],), {"axis": 1})],
    "unstack": [((X,), {}), ((X,), {"axis": 1})],
    "reshape": [((X, (2, 6)), {}), ((X, -1), {})],
    "squeeze": [((X[:, None], 1), {})],
    "expand_dims": [((X,), {"axis": 1})],
    "permute_dims": [((X, (1, 0)), {})],
    "matrix_transpose": [((RNG.random((2, 3, 4)),), {})],
    "moveaxis": [((RNG.random((2, 3, 4)), 0, -1), {})],
    "flip": [((X,), {}), ((X,), {"axis": 1})],
    "repeat": [((X, 2), {"axis": 1}), ((X, 3), {}), ((X, np.arange(X.shape[0])), {"axis": 0})],
    "roll": [((X, 2), {}), ((X, (1, -1)), {"axis": (0, 1)}), ((X, 3), {"axis": 1})],
    "tile": [((X, (2, 1, 2)), {})],
    "take": [((X, np.array([2, 0])), {"axis": 0})],
    "take_along_axis": [((X, J - 1), {"axis": 1})],
    "broadcast_to": [((X, (2, 3, 4)), {})],
    "broadcast_arrays": [((X, Y[:1], 2.0), {})],
    "meshgrid": [((V[:3], V[:2]), {}), ((V[:3], V[:2], V[:4]), {"indexing": "ij"})],
    "matmul": [((X, Y.T), {})],
    "tensordot": [((X, Y.T), {"axes": 1}), ((X, Y), {"axes": ((0, 1), (0, 1))}), ((X, Y), {"axes": 0})],
    "vecdot": [((X, Y), {}), ((X, Y), {"axis": 0})],
    "tril": [((X,), {"k": 1})],
    "triu": [((X,), {"k": -1})],
    "arange": [((5,), {}), ((1, 9, 2), {"dtype": np.float32})],
    "linspace": [((0.0, 1.0, 5), {}), ((0.0, 1.0, 5), {"endpoint": False})],
    "full": [(((2, 3), 4), {}), ((3, 1.5), {"dtype": np.float32})],
    "full_like": [((X, 2), {})],
    **{name: [(((2, 3),), {}), ((4,), {"dtype": np.int32})] for name in ("zeros", "ones")},
    **{name: [((I,), {}), ((I,), {"dtype": np.float32})] for name in ("zeros_like", "ones_like")},
    "eye": [((3,), {}), ((3, 4), {"k": 1, "dtype": np.int64})],
    "asarray": [(([[1, 2], [3, 4]],), {}), ((X,), {"dtype": np.float32, "copy": True})],
    "astype": [((X, np.int64), {}), ((I, np.float32), {"copy": False})],
}
ANSWERS = {"can_cast", "finfo", "iinfo", "isdtype", "result_type", "empty", "empty_like"}
VALUES = {
    "bool",
    "e",
    "pi",
    "inf",
    "nan",
    "newaxis",
    "float32",
    "float64",
    *(f"{u}int{n}" for u in ("", "u") for n in (8, 16, 32, 64)),
}


def test_every_function_has_a_case():
    assert set(xp.__all__) == {*CASES, *ANSWERS, *VALUES}
    assert set(CASES) - set(dir(np)) == set()


@pytest.mark.parametrize("name", sorted(CASES))
def test_is_numpys(name):
    for args, options in CASES[name]:
        with np.errstate(all="ignore"):
            try:
                wanted = getattr(np, name)(*args, **options)
            except TypeError:  # NumPy has no such option
                options.pop("descending", None)
                wanted = getattr(np, name)(*args, **options)
        got = getattr(xp, name)(*args, **options)
        several = isinstance(wanted, (tuple, list))
        assert isinstance(got, (tuple, list)) == several
        for one, other in zip(got if several else [got], wanted if several else [wanted], strict=True):
            assert isinstance(one, tw.Tensor)  # nothing is computed
            other = np.asarray(other)
            assert one.shape == other.shape and one.dtype == other.dtype
            rounding = 3e-7 if other.dtype == np.float32 else 1e-12
            np.testing.assert_allclose(np.asarray(one), other, rtol=rounding, atol=1e-14)


def test_order_from_the_greatest():
    np.testing.assert_array_equal(xp.sort(X, descending=True), -np.sort(-X))
    np.testing.assert_array_equal(xp.argsort(I, axis=0, descending=True), np.argsort(-I, axis=0, stable=True))


def test_answers():
    x = xp.asarray([1.0, 2.0])
    assert x.__array_namespace__() is xp and x.device == "cpu" and x.to_device("cpu") is x
    assert xp.asarray(X).mT.shape == (4, 3)
    assert xp.result_type(x, np.int8) == np.float64 and xp.result_type(np.float32, 2.0) == np.float32
    assert xp.can_cast(np.int8, np.int16) and not xp.can_cast(x, np.int16)
    assert xp.finfo(x).eps == np.finfo(np.float64).eps and xp.iinfo(np.int8).max == 127
    assert xp.isdtype(np.float32, "real floating") and xp.isdtype(np.int8, ("bool", "integral"))
    assert xp.empty((2, 3)).shape == xp.empty_like(xp.zeros((2, 3))).shape == (2, 3)
    told = xp.__array_namespace_info__()
    assert told.capabilities()["data-dependent shapes"] is False and told.devices() == [told.default_device()]
    assert told.default_dtypes()["integral"] == np.int64
    assert set(told.dtypes(kind="integral")) == {f"{u}int{n}" for u in ("", "u") for n in (8, 16, 32, 64)}


def test_what_is_declined_says_why():
    for name, reason in xp.DECLINED.items():
        with pytest.raises(AttributeError, match=reason):
            getattr(xp, name)
    with pytest.raises(AttributeError, match="the array API has no 'nothing' here"):
        xp.nothing  # noqa: B018
    calls = {
        "there is no device 'cuda'": lambda: xp.zeros(3, device="cuda"),
        "there is no axis for": lambda: xp.cumulative_sum(X),
        "indexing='ab'": lambda: xp.meshgrid(V, V, indexing="ab"),
    }
    for said, call in calls.items():
        with pytest.raises(GraphError, match=said):
            call()
    with pytest.raises(DtypeError, match="only Python numbers"):
        xp.result_type(1, 2.0)


def test_code_written_for_the_standard_is_a_plan():
    def standardised(x):
        namespace = x.__array_namespace__()
        return (x - namespace.mean(x, axis=0)) / namespace.std(x, axis=0)

    wanted = (X - X.mean(0)) / X.std(0)
    np.testing.assert_allclose(tw.run(tw.plan(standardised(tw.source(X)), machines=2)), wanted)


def test_names_of_numpy_that_the_package_lacks_say_what_does_their_work():
    with pytest.raises(AttributeError, match=r"no attribute 'concatenate': it is tw.concat here, and np.concatenate"):
        tw.concatenate  # noqa: B018
    with pytest.raises(AttributeError, match=r"no attribute 'hypot': it is tw.array_api.hypot here$"):
        tw.hypot  # noqa: B018
    told = 0
    for name in [name for name in dir(np) if not name.startswith("_")]:
        try:
            getattr(tw, name)
        except AttributeError as error:
            said = str(error).partition(": it is tw.")[2].split(" here")[0]
            found = tw
            for part in said.split(".") if said else ():
                found = getattr(found, part)
            told += bool(said)
            assert not said or callable(found)
    assert told > 30
    assert not hasattr(tw, "nothing") and not hasattr(tw, "typecodes")
