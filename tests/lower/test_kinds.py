"""A further shape of a known kind: `tw.contract` takes the code that is there, and gives the same values."""

from __future__ import annotations

import gc
import importlib
import itertools
import random
import threading
import weakref
from typing import Any

import numpy as np
import pytest

import tileweave as tw
from tileweave.backends import cpu
from tileweave.backends.cpu.kinds import Family
from tileweave.backends.cpu.target import jit, later
from tileweave.errors import TileweaveError
from tileweave.lower.eager import einsums
from tileweave.lower.eager.further import sizes_of

EQUATIONS = ["ik,kj->ij", "ki,kj->ij", "ik,jk->ij", "ik,kj->ji", "bik,bkj->bij", "ikb,bkj->jbi", "abk,kc->acb"]


def made(rng: random.Random, shape: tuple[int, ...], dtype: str) -> Any:
    """An array of small integers, which floats sum exactly: dense, with gaps, transposed, or reversed."""
    values = np.random.default_rng(rng.randrange(1 << 30)).integers(-3, 4, shape).astype(dtype)
    how = rng.randrange(6)
    if how == 0:
        wide = np.zeros((*shape[:-1], shape[-1] + 3), dtype)
        wide[..., : shape[-1]] = values
        return wide[..., : shape[-1]]
    if how == 1:
        return np.asfortranarray(values)
    return values[::-1] if how == 2 else values


@pytest.mark.parametrize(("dtype", "equation"), list(zip(itertools.cycle(["f4", "f8", "i4"]), EQUATIONS, strict=False)))
def test_values_are_einsums_for_any_sizes(equation: str, dtype: str) -> None:
    rng = random.Random(f"{equation} {dtype}")
    left, right, result = equation.replace("->", ",").split(",")
    for _ in range(8):
        extents = {x: rng.choice((1, 2, 3, 5, 8, 16, 17, 24, 33)) for x in sorted(set(equation) - set(",->"))}
        a, b = (made(rng, tuple(extents[x] for x in term), dtype) for term in (left, right))
        expected = np.einsum(equation, a, b)
        np.testing.assert_array_equal(tw.contract(equation, a, b, threads=1), expected)
        out = made(rng, tuple(extents[x] for x in result), dtype)
        assert tw.contract(equation, a, b, out=out, threads=1) is out
        np.testing.assert_array_equal(out, expected)


def forget_all() -> None:
    for kept in (einsums._KEPT, einsums._FAST, einsums._QUICK, einsums._LAST, einsums._KINDS, einsums._MET):
        kept.clear()
    importlib.import_module("tileweave.lower.execute")._KERNELS.clear()
    cpu.forget()
    gc.collect()


def test_a_further_shape_takes_the_code_that_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(m: int, k: int, n: int) -> Any:
        a, b = np.ones((m, k), "f4"), np.ones((k, n), "f4")
        assert (tw.contract("ik,kj->ij", a, b, threads=1) == k).all()
        (kind,) = einsums._KINDS.values()
        extents, walks = {"i": m, "j": n, "k": k}, ({"i": 4 * k, "k": 4}, {"k": 4 * n, "j": 4}, {"i": 4 * n, "j": 4})
        assert kind.kernel.axes == ("i", "j", "k")
        return kind.kernel.resized([(extents[x], tuple(walk.get(x, 0) for walk in walks)) for x in "ijk"], soon=True)

    forget_all()
    one = run(40, 50, 60)
    monkeypatch.setattr(einsums, "compiled", None)  # nothing is compiled any more
    two, other = run(40, 70, 61), run(3, 70, 61)
    assert one.settled and two.settled and not other.settled
    assert one.source == two.source == other.source
    assert "m 40, n 61, k 70" in two.explain()
    assert two.program.axes[0].extent == 40
    with pytest.raises(TileweaveError, match="2 arrays are given"):
        two(np.ones((40, 70), "f4"), np.ones((70, 61), "f4"))
    monkeypatch.undo()
    a, b = np.ones((40, 70), "f4"), np.ones((70, 61), "f4")
    with pytest.raises(TileweaveError, match="share memory"):
        tw.contract("ik,kj->ij", a[:, :40], b[:40, :40], out=a[:, :40], threads=1)


def test_sizes_that_come_again_get_a_kernel_of_their_own() -> None:
    forget_all()
    tw.contract("ik,kj->ij", np.ones((131, 65), "f4"), np.ones((65, 103), "f4"), threads=1)
    a, b = np.random.default_rng(2).standard_normal((5, 65), "f4"), np.ones((65, 103), "f4")
    made = []
    for _ in range(3):  # the first runs on code of another tile, the second asks for their own
        made.append(tw.contract("ik,kj->ij", a, b, threads=1))
        later.finish()
    np.testing.assert_array_equal(made[0], made[2])
    assert not einsums._MET and ("ik,kj->ij", 1, a.shape, b.shape, True) in einsums._QUICK


def test_another_kind_is_compiled_and_known_from_then_on() -> None:
    shapes = [(9, 9, 9), (200, 3, 300), (300, 300, 5), (2, 2, 2), (64, 64, 64), (9, 10, 9), (200, 4, 300)]
    for m, k, n in shapes:
        a, b = np.ones((m, k)), np.ones((k, n))
        assert (tw.contract("ik,kj->ij", a, b) == k).all()


def test_sizes_that_do_not_fit_are_told_as_ever() -> None:
    tw.contract("ik,kj->ij", np.ones((4, 5)), np.ones((5, 6)))
    with pytest.raises(TileweaveError, match=r"contract\('ik,kj->ij', \.\.\)"):
        tw.contract("ik,kj->ij", np.ones((4, 5)), np.ones((6, 6)))
    with pytest.raises(TileweaveError):
        tw.contract("ik,kj->ij", np.ones((4, 5)), np.ones((5, 6)), out=np.ones((4, 7)))


def test_code_goes_with_the_last_kernel_that_holds_it() -> None:
    tw.contract("ik,kj->ij", np.ones((31, 5)), np.ones((5, 47)))
    assert einsums._KINDS
    forget_all()
    before = len(jit._KEPT)
    tw.contract("ik,kj->ij", np.ones((31, 5)), np.ones((5, 47)))
    assert len(jit._KEPT) == before + 1


def test_the_sizes_of_a_kind_are_what_its_axes_walk() -> None:
    rng = random.Random("sizes")
    served = 0
    for _ in range(300):
        letters = "abcd"[: rng.randrange(2, 5)]
        terms = ["".join(rng.sample(letters, rng.randrange(1, len(letters) + 1))) for _ in range(3)]
        summed = "".join(x for x in letters if x in terms[0] and x in terms[1] and x not in terms[2])
        if set(terms[2]) - set(terms[0] + terms[1]) or set(terms[0] + terms[1]) != set(letters):
            continue
        extents = {x: rng.randrange(1, 6) for x in letters}
        inputs, axes = rng.choice([(0, 1), (1, 0)]), rng.sample(letters, len(letters))
        joined = rng.random() < 0.3
        axes = ["".join(axes[:2]), *axes[2:]] if joined else axes
        arrays = [made(rng, tuple(extents[x] for x in term), "f4") for term in terms]
        new = rng.random() < 0.5
        out = np.empty(arrays[2].shape, "f4") if new else arrays[2]
        walks = [dict(zip(term, x.strides, strict=True)) for term, x in zip(terms, [*arrays[:2], out], strict=True)]
        walks = [walks[inputs[0]], walks[inputs[1]], walks[2]]
        wanted: Any = [
            (int(np.prod([extents[x] for x in axis])), tuple(walk.get(axis[-1], 0) for walk in walks)) for axis in axes
        ]
        inner = extents[axes[0][-1]]
        apart = joined and any(walk.get(axes[0][0], 0) != walk.get(axes[0][1], 0) * inner for walk in walks)
        if min(extents.values()) < 2 or apart:
            wanted = None
        of = sizes_of(terms, inputs, axes, summed, [4, 4, 4])
        a, b = arrays[:2]
        found = of(a.shape, a.strides, b.shape, b.strides, None if new else out.strides)
        assert found == (None if wanted is None else (out.shape, wanted)), (terms, extents, axes)
        served += found is not None
    assert served > 30


def test_code_is_looked_for_while_other_threads_make_some() -> None:
    class Code:
        """Something that may be referred to weakly."""

    none: Any = None
    family = Family(none, (), none, 1, (), [], {}, weakref.WeakKeyDictionary(), {}, {}, [], [])
    cuts: Any = family.cuts
    ended = threading.Event()

    def make() -> None:
        held = [Code() for _ in range(50)]
        for k in range(20_000):
            held[k % 50] = Code()
            cuts[held[k % 50]] = none, ("axes", "tile")
        ended.set()

    thread = threading.Thread(target=make)
    thread.start()
    try:
        while not ended.is_set():
            family.near.clear()
            assert family._like("other axes", "tile", none) == []
    finally:
        thread.join()


def test_outputs_whose_strides_do_not_nest_are_written_or_refused() -> None:
    for n in range(4, 12):
        a, b = np.ones((n, 3), "f4"), np.ones((3, 2), "f4")
        whole = np.zeros(2000, "f4")
        out = np.lib.stride_tricks.as_strided(whole, (n, 2), (56, 68))  # each element has a place of its own
        tw.contract("ij,jk->ik", a, b, out=out, threads=1)
        assert (out == 3).all() and whole.sum() == 3 * out.size
        with pytest.raises(TileweaveError, match=r"elements of out that are \(1, -1\) apart share memory"):
            tw.contract("ij,jk->ik", a, b, out=np.lib.stride_tricks.as_strided(whole, (n, 2), (4, 4)), threads=1)
