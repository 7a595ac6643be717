from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tileweave.errors import Undecided
from tileweave.space.reach import first_collision, reach

terms = st.lists(st.tuples(st.integers(-9, 9), st.integers(-3, 2), st.integers(-2, 3)), min_size=0, max_size=4)


@given(terms, st.integers(-20, 20), st.integers(0, 3))
def test_reach_is_enumeration(terms, low, width):
    high = low + width
    ranges = [range(a, b + 1) for _, a, b in terms]
    sums = {sum(s * v for (s, _, _), v in zip(terms, vs, strict=True)) for vs in product(*ranges)}
    found = reach(terms, low, high)
    assert (found is not None) == any(low <= total <= high for total in sums)
    if found is not None:
        assert all(v in r for v, r in zip(found, ranges, strict=True))
        assert low <= sum(s * v for (s, _, _), v in zip(terms, found, strict=True)) <= high


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(-9, 9)), min_size=0, max_size=4), st.integers(1, 3))
def test_first_collision_is_enumeration(dims, width):
    extents, strides = [n for n, _ in dims], [s for _, s in dims]
    points = list(product(*(range(n) for n in extents)))
    values = [sum(s * x for s, x in zip(strides, point, strict=True)) for point in points]
    meet = any(abs(u - v) < width for k, u in enumerate(values) for v in values[:k])
    found = first_collision(extents, strides, width)
    assert (found is not None) == meet
    if found is not None:
        assert any(found)
        assert all(abs(d) < n for d, n in zip(found, extents, strict=True))
        assert abs(sum(s * d for s, d in zip(strides, found, strict=True))) < width


def test_large_nested_strides_need_no_search():
    extents = (2**20, 2**20, 2**10)
    assert first_collision(extents, (2**30, 2**10, 1), limit=1) is None


def test_the_bound_is_honest():
    primes = (10007, 10009, 10037, 10039, 10061, 10067, 10069, 10079)
    with pytest.raises(Undecided) as caught:
        reach([(p, 0, 1000) for p in primes], 5_000_001, 5_000_001, limit=20)
    assert caught.value.facts["bound"] == 20
