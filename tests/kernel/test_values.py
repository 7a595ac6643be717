"""What operators compute, in bits: one rounding where the type says one."""

from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from tileweave import kernel as tk
from tileweave.kernel.ir import DTYPES
from tileweave.kernel.meaning import FUNCTIONS, neutral, rounded


@pytest.mark.parametrize(("name", "dtype"), [("f16", np.float16), ("bf16", ml_dtypes.bfloat16)])
def test_f64_is_rounded_once(name, dtype):
    """The number that differs: just above the middle of two neighbours, by less than f32 can say."""
    below, above = dtype(1), np.nextafter(dtype(1), dtype(2))
    middle = (float(below) + float(above)) / 2
    values = np.array(
        [middle, np.nextafter(middle, 2), np.nextafter(middle, 0), -np.nextafter(middle, 2), np.inf, np.nan]
    )
    got = rounded(values, DTYPES[name])
    assert got[:4].tolist() == [below, above, below, -above] and got[4] == np.inf and np.isnan(got[5])
    random = np.random.default_rng(0)
    some = random.standard_normal(2000) * 10.0 ** random.integers(-9, 6, 2000)
    tiny = dtype(np.finfo(dtype).smallest_subnormal) if dtype is np.float16 else dtype(2.0**-133)
    for x in [*some[:200], float(tiny) / 2, float(tiny) * 0.6, 1e39, -1e39]:
        y = rounded(np.array([x]), DTYPES[name])[0]
        if np.isfinite(y):
            near = [np.nextafter(y, dtype(np.inf)), np.nextafter(y, dtype(-np.inf))]
            error = abs(Fraction(float(y)) - Fraction(x))
            assert all(error <= abs(Fraction(float(n)) - Fraction(x)) for n in near if np.isfinite(n)), x


def test_printed_f64_is_rounded_once():
    @tk.kernel
    def narrow(k, x, y, z):
        k.grid(1)
        with k.cta(threads=64) as cta:
            cta.store(y, cta.load(x))
            cta.store(z, cta.load(x))

    random = np.random.default_rng(1)
    x = random.standard_normal(300) * 10.0 ** random.integers(-9, 6, 300)
    x[:3] = 1 + 2.0**-11 + 2.0**-40, 1 + 2.0**-8 + 2.0**-40, 1e39
    y, z = np.zeros(300, np.float16), np.zeros(300, ml_dtypes.bfloat16)
    want = narrow.check(x, y, z).outputs
    narrow.run(x, y, z, on="cpu", arch="sm_80")
    assert y.tobytes() == want["y"].tobytes() and z.tobytes() == want["z"].tobytes()
    assert float(y[0]) == 1 + 2.0**-10 and float(z[1]) == 1 + 2.0**-7


def test_fused_multiply_add_is_rounded_once():
    random = np.random.default_rng(0)
    a, b, c = (
        random.standard_normal(3000).astype(np.float32)
        * np.float32(2.0) ** random.integers(-20, 20, 3000).astype(np.float32)
        for _ in range(3)
    )
    c[:1000] = -(a[:1000] * b[:1000])  # cancellation: what is left is the error of the product
    got = FUNCTIONS["fma"](a, b, c)
    for x, y, z, r in zip(a, b, c, got, strict=True):
        exact = Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))
        error = abs(Fraction(float(r)) - exact)
        near = (np.nextafter(r, np.float32(np.inf)), np.nextafter(r, np.float32(-np.inf)))
        assert all(error <= abs(Fraction(float(n)) - exact) for n in near), (x, y, z)


def test_the_neutral_number_of_an_integer_has_its_bits():
    ends = {"s4": (-8, 7), "u4": (0, 15), "s8": (-128, 127), "u8": (0, 255), "s64": (-(2**63), 2**63 - 1)}
    for name, (least, greatest) in ends.items():
        assert neutral("max", DTYPES[name]) == least, name
        assert neutral("min", DTYPES[name]) == greatest, name
