"""Substitution, bound symbols and the affine part: each against the values at points."""

import numpy as np
import pytest

from tileweave.errors import LayoutError, Unproved
from tileweave.index import (
    bounds,
    constant_of,
    evaluate,
    let,
    minimum,
    select,
    simplify,
    split_affine,
    substitute,
    symbol,
    symbols,
    symbols_of,
)
from tileweave.index.evaluate import values_of
from tileweave.index.prove import _inside, _samples


def test_substitution_has_the_values_of_the_new_expressions(generator):
    checked = 0
    for seed in range(60):
        source = generator(seed)
        expr = source.number(3)
        nodes = [node for node in symbols_of(expr) if all(b is None or b.op == "const" for b in node.args[1:3])]
        if not nodes:
            continue
        node = nodes[0]
        if any(node in symbols_of(n.args[3]) for n in symbols_of(expr)):
            continue  # what divides a symbol is a product of symbols, no sum
        low, high, step = (constant_of(b) for b in node.args[1:])
        count = len(range(-(-low // step) * step, high, step))
        z = symbol("z", 0, count)
        moved = -(-low // step) * step + z * step
        replaced = substitute(expr, {node: moved})
        assert node not in symbols_of(replaced)
        for points in _samples(symbols_of((replaced, z))):
            named = {str(n): value for n, value in points.items()}  # bounds over the node make another symbol
            named[str(node)] = -(-low // step) * step + points[z] * step
            env = {**points, **{n: named[str(n)] for n in symbols_of(expr) if str(n) in named}}
            inside = _inside(symbols_of((replaced, z)), (), points)
            (new, old), defined = values_of((replaced, expr), env)
            differ = np.broadcast_to(np.asarray(new != old), (4096,)) & inside & np.asarray(defined)
            assert not differ.any()
        checked += 1
    assert checked > 20


def test_values_outside_a_range_are_not_substituted():
    i, n = symbol("i", 0, 8), symbol("n", 1)
    k, m = symbol("k", 0, n), symbol("m", 0, 32, multiple_of=4)
    assert substitute(i * 2, {"i": 3}) is simplify(i * 0 + 6)
    with pytest.raises(Unproved):
        substitute(i * 2, {i: 8})
    with pytest.raises(Unproved):
        substitute(k + 1, {k: n})
    with pytest.raises(Unproved):
        substitute(m + 1, {m: i})
    assert substitute(m + 1, {m: i // 2 * 4}) is i // 2 * 4 + 1
    assert substitute(k + n, {n: 4}) is symbol("k", 0, 4) + 4
    assert substitute([i, k], {i: k}, given=[n <= 8]) == (k, k)
    swapped = substitute(i - symbol("j", 0, 8), {"i": symbol("j", 0, 8), "j": i})
    assert str(swapped) == "j - i"
    with pytest.raises(LayoutError, match="no mapping"):
        substitute(i, [(i, 1)])


def test_let_proves_once_what_later_expressions_use():
    nm, nn, G = symbols("nm nn G", 1)
    pid = symbol("pid", 0, nm * nn)
    first = pid // (G * nn) * G
    row = let("row", first + pid % (G * nn) % minimum(nm - first, G), 0, nm)
    assert simplify((row * 64 + symbol("i", 0, 64)) // 64) is row
    assert repr(let("t", symbol("i", 0, 7) * 12 + 8)) == "symbol('t', 8, 81, multiple_of=4)"
    with pytest.raises(Unproved):
        let("row", first + pid % (G * nn), 0, nm)


def test_the_affine_part_has_the_values_of_the_whole(generator):
    found = 0
    for seed in range(150):
        source = generator(seed)
        k = symbol("loop", 0, 9)
        expr = source.number(2) * source.random.choice([0, 1, k]) + source.leaf() * k + source.number(2)
        expr = expr + source.random.choice([0, (k * 8 + source.leaf()) // 8, k % 3, select(k < 4, k, 4)])
        try:
            parts = split_affine(expr, k)
        except LayoutError:
            continue
        if parts is None:
            continue
        found += 1
        base, step = parts
        assert k not in symbols_of((base, step))
        for points in _samples(symbols_of((expr, k))):
            inside = _inside(symbols_of((expr, k)), (), points)
            (whole, apart), defined = values_of((expr, base + k * step), points)
            differ = np.broadcast_to(np.asarray(whole != apart), (4096,)) & inside & np.asarray(defined)
            assert not differ.any()
    assert found > 60


def test_what_is_not_affine_has_no_parts():
    k, i, n = symbol("k", 0, 64), symbol("i", 0, 8), symbol("n", 1)
    for expr in (k * k, (k + i) // 8, k % 4, select(k < 3, i, 0), minimum(k, i), (k + i) * (k - n)):
        assert split_affine(expr, k) is None
    assert split_affine((k * 8 + i) // 8 * n, k) == (simplify(n * 0), n)
    wide = symbol("w", 0, 64, multiple_of=8)
    base, step = split_affine(wide * n + wide * 3 + 1, wide)
    assert constant_of(base) == 1 and evaluate(step, n=5) == 8
    assert split_affine(wide // 8, wide) is None
    assert bounds(split_affine(k * 3 + i, k)[0]) == (0, 7)
