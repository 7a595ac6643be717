"""The definitions of CuTe layouts, enumerated, and random layouts."""

from __future__ import annotations

from itertools import product

from hypothesis import strategies as st

from tileweave.layout import cute
from tileweave.layout.cute import CuteLayout


def table(layout):
    """The values at all linear indices, first mode fastest, from the definition alone."""
    leaves = leaves_of(layout.shape, layout.stride)
    out = [0 * leaves[0][1]] if leaves else [0]
    for n, d in leaves:
        out = [base + k * d for k in range(n) for base in out]
    return out


def leaves_of(shape, stride):
    if isinstance(shape, tuple):
        return [leaf for s, d in zip(shape, stride, strict=True) for leaf in leaves_of(s, d)]
    return [(shape, stride)]


def has_iters(f):
    """Whether the values f on [0, len f) are those of some list of iters: all chains of divisors are tried."""
    n = len(f)
    if f[0]:
        return False
    if all(v == i * f[1] for i, v in enumerate(f)) if n > 1 else True:
        return True
    for q in range(2, n):
        if n % q or any(f[i] != i * f[1] for i in range(q)):
            continue
        outer = [f[i * q] for i in range(n // q)]
        if all(f[i + q * k] == f[i] + outer[k] for i in range(q) for k in range(n // q)) and has_iters(outer):
            return True
    return False


def unbounded(layout, count):
    """The values at [0, count) with the last leaf running on, as CuTe reads a layout beyond its size."""
    *leaves, (_n, last) = leaves_of(layout.shape, layout.stride) or [(1, 0)]
    out = []
    for i in range(count):
        value = 0 * last
        for n, d in leaves:
            i, digit = divmod(i, n)
            value = value + digit * d
        out.append(value + i * last)
    return out


def is_linear(layout):
    """Whether the layout read without bound is one mode, which goes on below zero too."""
    values = unbounded(layout, 2 * layout.size + 1)
    return values == [i * values[1] for i in range(len(values))]


def composes(a, b):
    """Whether some layout that refines b has the values a(b(c)): additive over the leaves of b, iters along each."""
    inner = table(b)
    values = unbounded(a, max(inner) + 1)
    if min(inner) < 0:
        return is_linear(a)
    return has_layout(values, b)


def has_layout(values, b):
    """Whether some layout that refines b has the values at b(c): additive over its leaves, iters along each."""
    leaves = leaves_of(b.shape, b.stride)
    along = [[values[k * d] for k in range(n)] for n, d in leaves]
    for point in product(*(range(n) for n, _d in leaves)):
        at = sum(c * d for c, (_n, d) in zip(point, leaves, strict=True))
        if values[at] != sum(f[c] for f, c in zip(along, point, strict=True)):
            return False
    return all(map(has_iters, along))


def random_tree(rng, parts, most):
    """A random nesting of `parts` leaves (extent, stride)."""
    leaves = [
        (rng.choice([1, 2, 2, 3, 4, 5, 6][:most]), rng.choice([0, 1, 1, 2, 3, 4, 5, 6, 8, 9, 12, -1, -3]))
        for _k in range(parts)
    ]

    def nest(items):
        if len(items) == 1 and rng.random() < 0.8:
            return items[0]
        if len(items) <= 1 or rng.random() < 0.5:
            return tuple(i[0] for i in items), tuple(i[1] for i in items)
        cut = rng.randrange(1, len(items))
        halves = [nest(items[:cut]), nest(items[cut:])]
        return tuple(h[0] for h in halves), tuple(h[1] for h in halves)

    return CuteLayout(*nest(leaves))


def random_layout(rng, most=5, parts=3):
    return random_tree(rng, rng.randint(1, parts), most)


def random_compact(rng, parts=3, most=6):
    """A layout onto [0, size), its modes permuted."""
    extents = [rng.choice([1, 2, 2, 3, 4, 5][:most]) for _k in range(rng.randint(1, parts))]
    order = list(range(len(extents)))
    rng.shuffle(order)
    return cute.make_ordered_layout(tuple(extents), tuple(order))


def same(a, b):
    return table(a) == table(b)


small = st.integers(1, 4)
strides = st.integers(0, 6)


@st.composite
def layouts(draw, modes=2):
    rank = draw(st.integers(1, modes))
    return CuteLayout(tuple(draw(small) for _k in range(rank)), tuple(draw(strides) for _k in range(rank)))
