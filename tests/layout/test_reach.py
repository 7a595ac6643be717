from __future__ import annotations

from itertools import product
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tileweave.errors import Undecided
from tileweave.layout.core.checks import BOUND
from tileweave.layout.core.search import first_collision, reach

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
    assert first_collision((2**20, 2**20, 2**10), (2**30, 2**10, 1)) is None


def test_the_halves_of_strides_that_do_not_nest_meet():
    strides = (1000003, 100003, 10007, 1009, 3001, 99991)
    found = first_collision([12] * 6, strides, 3)
    assert found is not None
    assert abs(sum(s * d for s, d in zip(strides, found, strict=True))) < 3


def test_the_bound_is_honest():
    rng = Random(3)
    strides = [rng.randint(1 << 60, 1 << 61) for _ in range(44)]
    with pytest.raises(Undecided) as caught:
        reach([(s, 0, 1) for s in strides], sum(strides) // 2, sum(strides) // 2)
    assert caught.value.facts["bound"] == BOUND
