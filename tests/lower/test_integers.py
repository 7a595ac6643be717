"""Integers of every width and sign, and truths, as NumPy computes them: compiled, on dense and on strided operands."""

from __future__ import annotations

import platform
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.teir.test_extensions import operand

import tileweave as tw
from tileweave import graph as tg
from tileweave.backends.cpu import compile
from tileweave.teir import emit_contraction

Array = np.ndarray[Any, Any]
TIMES = 3
INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
ARITHMETIC = ("add", "subtract", "multiply", "maximum", "minimum", "bitwise_and", "bitwise_or", "bitwise_xor")
QUOTIENTS = ("floor_divide", "remainder", "left_shift", "right_shift")
COMPARISONS = ("less", "less_equal", "greater", "greater_equal", "equal", "not_equal")
UNARY = ("negative", "absolute", "sign", "logical_not")
OF_TRUTHS = ("logical_and", "logical_or", "logical_xor", "bitwise_and", "bitwise_or", "bitwise_xor", "equal", "maximum")
REDUCTIONS = ("sum", "max", "min", "argmax", "argmin", "cumsum")


def integers(rng: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> Array:
    """Of all sizes, both ends of the type's range among them."""
    limits = np.iinfo(dtype)
    low, high = int(limits.min), int(limits.max)
    wide = rng.integers(low, high, shape, dtype=dtype, endpoint=True)
    x = np.where(rng.random(shape) < 0.5, wide, (wide % 5).astype(dtype))
    x.flat[:3] = low, high, 0
    return np.asarray(x, dtype)


def strided(rng: np.random.Generator, dtype: str) -> list[Array]:
    """Two arrays of one shape: dense, or views of columns, reversed or transposed."""
    rows, columns = (int(n) for n in rng.integers(40, 90, 2))
    views: list[Callable[[], Array]] = [
        lambda: integers(rng, dtype, (rows, columns)),
        lambda: integers(rng, dtype, (rows, 2 * columns))[:, ::2],
        lambda: integers(rng, dtype, (rows, columns + 3))[:, columns - 1 :: -1],
        lambda: integers(rng, dtype, (columns, rows)).T,
        lambda: np.broadcast_to(integers(rng, dtype, (rows, 3))[:, 1:2], (rows, columns)),
    ]
    return [views[int(k)]() for k in rng.integers(0, len(views), 2)]


def compiled(make: Callable[..., Any], *arrays: Array) -> Array:
    """What a plan of compiled steps computes."""
    plan = tw.plan(make(*map(tw.source, arrays)))
    steps = [step for step in plan.steps if step.stage != "store"]
    assert all(str(step.kernel).startswith("cpu") for step in steps), [str(step.kernel) for step in steps]
    return np.asarray(tw.run(plan))


def same(found: Array, wanted: Any) -> None:
    """Element types and elements are the same."""
    assert found.dtype == np.asarray(wanted).dtype
    np.testing.assert_array_equal(found, wanted)


def drawn() -> np.random.Generator:
    """A generator whose seed a failing test shows."""
    seed = int(np.random.default_rng().integers(1 << 31))
    print(f"seed {seed}")
    return np.random.default_rng(seed)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_elementwise(dtype: str) -> None:
    rng = drawn()
    for name in (*rng.choice(ARITHMETIC, TIMES), *rng.choice(COMPARISONS, TIMES), *rng.choice(UNARY, TIMES)):
        arrays = strided(rng, dtype)[: 1 if name in UNARY else 2]
        with np.errstate(all="ignore"):
            same(compiled(getattr(tg, name), *arrays), getattr(np, name)(*arrays))


@pytest.mark.parametrize("dtype", INTEGERS)
def test_quotients_and_shifts(dtype: str) -> None:
    """By zero, by -1 and by more bits than there are, too; by one number as by many."""
    rng = drawn()
    for name in QUOTIENTS:
        x, y = strided(rng, dtype)
        low = np.iinfo(dtype).min
        ends = np.array([0, 1, 7, 8, 31, 63, low, np.iinfo(dtype).max, low + (low < 0)], dtype)
        z = rng.choice(np.concatenate([ends, y[:2, :3].ravel()]), x.shape)
        for other in (y, z, z[:1, :1]):
            with np.errstate(all="ignore"):
                same(compiled(getattr(tg, name), x, other), getattr(np, name)(x, other))


@pytest.mark.parametrize("dtype", ["int64", "uint64"])
def test_quotients_of_64_bits(dtype: str) -> None:
    """On both sides of where floats hold the operands, and next to whole quotients."""
    rng = drawn()
    for bits in (20, 47, 48, 49, 50, 53, 62):
        divisors = rng.integers(1, 1 << int(rng.integers(1, bits)), (30, 40), dtype)
        x = rng.integers(0, 1 << bits, divisors.shape, dtype) // divisors * divisors
        x += rng.integers(0, 2, x.shape, dtype)
        if dtype == "int64":
            x, divisors = (a * rng.choice([-1, 1], a.shape) for a in (x - 1, divisors))
        for name in ("floor_divide", "remainder"):
            same(compiled(getattr(tg, name), x, divisors), getattr(np, name)(x, divisors))


@pytest.mark.parametrize("dtype", INTEGERS)
def test_choices(dtype: str) -> None:
    x, y = strided(drawn(), dtype)
    with np.errstate(all="ignore"):
        wanted = np.where((x < y) ^ (x == 3), x, np.clip(y + x, 3, 100))
    same(compiled(lambda a, b: tw.where((a < b) ^ tg.equal(a, 3), a, tw.clip(b + a, 3, 100)), x, y), wanted)
    same(compiled(tg.relu, x), np.maximum(x, 0))


@pytest.mark.parametrize("dtype", INTEGERS)
def test_casts(dtype: str) -> None:
    rng = drawn()
    for other in rng.choice([k for k in (*INTEGERS, "bool", "float32", "float64", "float16") if k != dtype], TIMES):
        x, _ = strided(rng, dtype)
        with np.errstate(all="ignore"):
            same(compiled(lambda a, other=other: tw.cast(a, other), x), x.astype(other))
    x, _ = strided(rng, dtype)
    same(compiled(lambda a: tw.cast(a, "float64") * 0.5 + 1, x), x.astype("float64") * 0.5 + 1)


@pytest.mark.parametrize("dtype", ["bool", *INTEGERS])
def test_reductions(dtype: str) -> None:
    rng = drawn()
    for name in rng.choice(REDUCTIONS, TIMES):
        x, _ = strided(rng, "int8" if dtype == "bool" else dtype)
        x, axis = x > 0 if dtype == "bool" else x, int(rng.integers(2))
        found = compiled(lambda a, name=name, axis=axis: getattr(tw, name)(a, axis), x)
        same(found, getattr(np, name)(x, axis=axis))


def test_truths() -> None:
    rng = drawn()
    for name in OF_TRUTHS:
        x, y = (a > 0 for a in strided(rng, "int8"))
        same(compiled(getattr(tg, name), x, y), getattr(np, name)(x, y))
    x, y = (a > 0 for a in strided(rng, "int8"))
    same(compiled(lambda a: ~a, x), ~x)
    same(compiled(lambda a: tw.any(a, 0), x), x.any(0))
    same(compiled(lambda a: tw.all(a), y), y.all())


def test_floats_as_truths() -> None:
    """Whatever is not zero is true: subnormal numbers and NaN, too."""
    for dtype in ("float16", "float32", "float64"):
        x = np.resize(np.array([0.0, -0.0, np.nan, np.inf, np.finfo(dtype).smallest_subnormal, 1.5], dtype), (70, 40))
        same(compiled(lambda a: tw.cast(a, "bool"), x), x.astype(bool))
        same(compiled(tg.logical_not, x), np.logical_not(x))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_floats_as_integers(dtype: str) -> None:
    """As NumPy on this processor has them, also what no integer holds; and what a float is."""
    rng = drawn()
    ends = [
        0.0,
        -0.0,
        0.9,
        -1.5,
        255.9,
        -129,
        65535.5,
        2.0**31,
        -(2.0**31),
        -(2.0**31) - 0.5,
        2.0**63,
        np.inf,
        -np.inf,
        np.nan,
    ]
    for other in ("int8", "uint8", "int16", "uint16", "int32", "int64"):
        x = rng.standard_normal((50, 70)) * 10.0 ** rng.integers(0, 20, (50, 70))
        with np.errstate(all="ignore"):
            x = np.where(rng.random(x.shape) < 0.2, rng.choice(ends, x.shape), x).astype(dtype)
            if platform.machine() in ("x86_64", "AMD64"):
                same(compiled(lambda a, other=other: tw.cast(a, other), x), x.astype(other))
            y = np.where(np.abs(x) < 100, np.abs(x), 1)  # what all of them hold
            same(compiled(lambda a, other=other: tw.cast(a, other), y), y.astype(other))
    for name in ("isnan", "isinf", "isfinite"):
        same(compiled(getattr(tg, name), x), getattr(np, name)(x))
        same(
            compiled(lambda a, name=name: tw.where(getattr(tg, name)(a), a, 0), x), np.where(getattr(np, name)(x), x, 0)
        )


def test_saturation_takes_unsigned_bytes() -> None:
    x = np.resize(np.array([-3.5, 0.0, 1.9, 254.6, 255.9, 1e9, -np.inf, np.inf, np.nan], "float32"), (90, 50))
    wanted = np.clip(np.trunc(np.nan_to_num(x, nan=0.0, posinf=255, neginf=0)), 0, 255).astype("uint8")
    same(compiled(lambda a: tg.saturate(a * 1.0, "uint8"), x), wanted)


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32", "uint64"])
def test_products_of_unsigned_integers(dtype: str) -> None:
    """TEIR's own: sums of products wrap, of wider results they are formed wide."""
    rng = drawn()
    a, b = integers(rng, dtype, (21, 40)), integers(rng, dtype, (40, 33))
    for out in (np.empty((21, 33), dtype), np.empty((21, 33), "uint64")):
        program = emit_contraction("ik,kj->ij", [operand(a), operand(b)], operand(out), relu=True)
        compile(program, cache=False)(a, b, out)
        np.testing.assert_array_equal(out, a.astype(out.dtype) @ b.astype(out.dtype))


def test_rows_of_any_length_are_written_to_their_ends_and_no_further() -> None:
    """Of every width, casts between widths and comparisons: where results begin anywhere, and end within a vector."""
    rng, floats = drawn(), ("float16", "float32", "float64")
    for _ in range(60):
        source, target = (str(rng.choice((*INTEGERS, *floats))) for _ in range(2))
        shape = int(rng.integers(1, 4)), int(rng.integers(1, 160))
        x = integers(rng, source, shape) if source in INTEGERS else np.asarray(rng.normal(0, 999, shape), source)
        if source in floats:
            x.flat[:3] = np.nan, np.inf, -np.inf
        others = (
            ("uint32", "uint64") if platform.machine() in ("x86_64", "AMD64") else INTEGERS
        )  # to these, NumPy casts
        compare = rng.random() < 0.3 or (source in floats and target in others)
        with np.errstate(all="ignore"):
            wanted = x < x[:, ::-1] if compare else x.astype(target)
        memory = np.full(wanted.nbytes + 512, 0x5A, np.uint8)
        first = -memory.ctypes.data % 64 + wanted.itemsize * int(rng.integers(0, 32))
        out = memory[first : first + wanted.nbytes].view(wanted.dtype).reshape(shape)
        held = tw.source(x)
        tw.run(held < held[:, ::-1] if compare else tw.cast(held, target), out=out)
        np.testing.assert_array_equal(out, wanted, f"{source} to {target}, {shape}")
        assert (memory[:first] == 0x5A).all() and (memory[first + wanted.nbytes :] == 0x5A).all()
