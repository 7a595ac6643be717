"""Register layouts read backwards: every element has its holders, every slot its element."""

from __future__ import annotations

import numpy as np
import pytest

from tileweave.errors import LayoutError
from tileweave.kernel.atoms import atom, names
from tileweave.kernel.dispatch.layouts.registers import blocked, holding
from tileweave.layout import Layout, parse


def _held(h, warps):
    """(warp, lane, slot) -> row-major index, by the expressions on numbers."""
    return {
        (w, t, r): np.ravel_multi_index(h.coordinates(w, t, r), h.shape) if h.shape else 0
        for w in range(warps) for t in range(32) for r in range(h.slots)
    }  # fmt: skip


@pytest.mark.parametrize("seed", range(3))
def test_blocked_layouts_hold_every_element(seed):
    rng = np.random.default_rng(seed)
    for _ in range(8):
        shape = tuple(int(n) for n in rng.integers(1, 40, rng.integers(0, 4)))
        warps, vector = int(rng.choice([1, 2, 3, 4])), int(rng.choice([1, 2, 4, 8]))
        layout, padded = blocked(shape, warps, vector, tuple(rng.permutation(len(shape)).tolist()))
        print(seed, shape, warps, vector, layout, padded)
        assert all(p >= n for p, n in zip(padded, shape, strict=True))
        h = holding(layout, padded, warps)
        found = _held(h, warps)
        assert set(found.values()) == set(range(max(1, int(np.prod(padded)))))
        for (w, t, r), x in found.items():
            places = {(c["warp"], c["lane"], c["reg"]) for c in layout.set_at(x)}
            assert (w, t, r) in places
        first = {}
        for (w, t, r), x in found.items():
            if all(bool(c) if isinstance(c, bool) else c.args == () or _true(c) for c in h.first_copy(w, t)):
                assert first.setdefault(x, (w, t, r)) == (w, t, r)
        assert len(first) == len(set(found.values()))


def _true(condition):
    from tileweave.index import evaluate

    return bool(evaluate(condition))


def test_the_fragments_of_the_atom_table_are_read_as_their_formula():
    for name in [n for n in names("mma") if ".f16.f16" in n] + ["wgmma.mma_async.sync.aligned.m64n24k16.f32.f16.f16"]:
        for role in ("d", "a"):
            operand = atom(name)[role]
            h = holding(operand.layout, operand.shape, operand.threads // 32)
            table = operand.places()
            for (w, t, r), x in _held(h, operand.threads // 32).items():
                assert table[32 * w + t][r] == x


def test_a_reduced_layout_declares_its_copies():
    d = atom("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32")["d"]
    h = holding(d.layout, d.shape, 1)
    assert str(h.without((1,))) == "(2:1@reg, 8:4@lane) + [4:1@lane]"
    assert str(h.without((0, 1))) == "() + [4:1@lane, 8:4@lane]"


@pytest.mark.parametrize("text", ["(16:1@lane, 2:1@reg)", "(32:1@lane, 2:2@reg)", "(32:1@lane, 2:1@m)", "(32:-1@lane)"])
def test_what_is_no_register_layout_is_refused(text):
    layout = parse(text)
    with pytest.raises(LayoutError):
        holding(layout, (layout.size,), 1)


def test_an_empty_layout_is_held_by_all():
    h = holding(Layout((), ((32, {"lane": 1}),)), (), 1)
    assert h.slots == 1 and h.coordinates(0, 5, 0) == ()
