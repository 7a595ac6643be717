"""Attention as one operation: against the composition in float64, on masks of every kind, and how plans cut it."""

import numpy as np
import pytest

import tileweave as tw
from tileweave import graph as g
from tileweave import teir
from tileweave.backends import cpu
from tileweave.backends.cpu.attention.match import match
from tileweave.backends.cpu.target.target import host
from tileweave.graph.ir.nodes import Tensor
from tileweave.layout import strided
from tileweave.lower.emitted import whole_program

SEED = 20261122
SHAPES = ((130, 300, 64, 64), (33, 129, 80, 97), (257, 40, 16, 3))


def drawn(*shape, seed=SEED, dtype=np.float32):
    return np.random.default_rng((seed, *shape)).standard_normal(shape).astype(dtype)


def planned(q, k, v, machines=1, **options):
    return tw.plan(tw.nn.attention(tw.source(q), tw.source(k), tw.source(v), **options), machines=machines)


def check(q, k, v, machines=1, tolerance=2e-5, threads=2, **options):
    """One step computes what the composition computes in float64; the plan is returned."""
    plan = planned(q, k, v, machines, **options)
    assert [step.node.operator for step in plan.steps if step.stage == "block"].count("attention") == 1
    got = tw.run(plan, threads=threads)
    with np.errstate(all="ignore"):
        wide = np.asarray(tw.nn.attention(*(x.astype(np.float64) for x in (q, k, v)), **options))
    np.testing.assert_allclose(got, wide, rtol=tolerance, atol=tolerance, err_msg=f"seed {SEED}")
    return plan


@pytest.mark.parametrize(("queries", "keys", "depth", "features"), SHAPES)
@pytest.mark.parametrize("kind", ["none", "truths", "added", "row", "window"])
def test_equals_the_composition(queries, keys, depth, features, kind):
    q, k, v = drawn(2, 3, queries, depth), drawn(2, 3, keys, depth), drawn(2, 3, keys, features)
    options = {
        "none": {},
        "truths": {"mask": drawn(2, 1, queries, keys) > -0.5},
        "added": {"mask": drawn(queries, keys), "scale": 0.3},
        "row": {"mask": drawn(2, 1, 1, keys), "cap": 5.0},
        "window": {"causal": queries <= keys, "window": (7, 9) if queries <= keys else None},
    }[kind]
    check(q, k, v, **options)


def test_heads_that_share_keys_and_float64():
    check(drawn(2, 6, 70, 32), drawn(2, 2, 90, 32), drawn(2, 2, 90, 40), mask=drawn(6, 70, 90) > 0, causal=True)
    q, k, v = (drawn(3, 50, 33, dtype=np.float64) for _ in range(3))
    check(q, k, v, tolerance=1e-12, causal=True)


def test_operands_of_any_strides():
    whole = drawn(2, 70, 3, 4, 32)  # batch, place, (q, k, v), head, feature: as one product makes them
    q, k, v = (whole[:, :, n].transpose(0, 2, 1, 3) for n in range(3))
    check(q, k, v, causal=True)
    check(q[..., ::-1], np.asfortranarray(k), v[..., ::2])
    check(
        drawn(2, 4, 32, 70).swapaxes(-1, -2), drawn(2, 4, 32, 90).swapaxes(-1, -2), drawn(2, 4, 8, 90).swapaxes(-1, -2)
    )


EDGES = (
    "hidden rows",
    "hidden blocks",
    "all hidden",
    "infinite value",
    "value NaN",
    "infinite key",
    "query NaN",
    "lowest",
)


@pytest.mark.parametrize("kind", EDGES)
def test_what_is_not_finite_is_as_the_definition_has_it(kind):
    """A row without keys is NaN; a value that is not finite counts even where its weight is zero."""
    q, k, v = drawn(2, 40, 16), drawn(2, 600, 16), drawn(2, 600, 16)
    mask = drawn(40, 600) > 0
    mask[3], mask[:20, :300] = False, False
    if kind == "all hidden":
        mask[:] = False
    elif kind == "infinite value":
        v[0, 5, 3], v[1, 590, 2] = np.inf, -np.inf
    elif kind == "value NaN":
        v[1, 100, 2] = np.nan
    elif kind == "infinite key":
        k[0, 550] = np.inf
    elif kind == "query NaN":
        q[1, 3, 4], q[0, 7] = np.nan, np.inf
    given = np.where(mask, 0, -np.inf).astype(np.float32) if kind == "hidden rows" else mask
    given = np.where(mask, 1, -3.4e38).astype(np.float32) if kind == "lowest" else given
    check(q, k, v, mask=given)


@pytest.mark.parametrize("parts", [{"batch": 2}, {"head": 4}, {"query": 3}, {"head": 2, "query": 2}])
def test_shards_of_batch_heads_and_queries(parts):
    plan = check(drawn(2, 4, 120, 32), drawn(2, 4, 120, 32), drawn(2, 4, 120, 32), machines=4, causal=True)
    (fused,) = (s.node for s in plan.steps if s.stage == "block" and s.node.operator == "attention")
    whole = tw.run(plan)
    cut = tw.plan(Tensor(fused), machines=4, pin={Tensor(fused): parts})
    assert next(step for step in cut.steps if step.node is fused).cuts.count == np.prod(list(parts.values()))
    assert np.array_equal(tw.run(cut), whole)  # a query's sums do not depend on where it is computed


def test_no_memory_for_scores():
    q, k, v = (drawn(1, 8, 1024, 16) for _ in range(3))
    plan = planned(q, k, v)
    assert plan.peak_bytes[0] < 5 * q.nbytes  # the scores of all heads are 32 MiB
    assert "scores are neither written nor kept" in str([step.kernel.reason for step in plan.steps])
    apart = tw.plan(tw.nn.attention(*map(tw.source, (q, k, v))), fuse=False)
    assert apart.peak_bytes[0] > 8 * 1024 * 1024 * 4


def test_what_stays_apart():
    """Weights that are a result too, and single queries, whose scores are fewer than what is read."""
    q, k, v = (tw.source(drawn(2, 64, 32, seed=n)) for n in range(3))
    weights = tw.softmax(tw.matmul(q, g.permute(k, (0, 2, 1))), -1)
    assert "attention" not in tw.plan([tw.matmul(weights, v), weights]).explain()
    one = tw.nn.attention(tw.source(drawn(2, 1, 32)), k, v)
    assert "attention" not in tw.plan(one).explain()
    for queries in (1, 3, 7, 8):
        few = (tw.source(drawn(2, 3, n, 32)) for n in (queries, 64, 64))
        assert ("attention" in tw.plan(tw.nn.attention(*few)).explain()) == (queries >= 8)
    assert "attention" in tw.plan(tw.matmul(weights, v)).explain()


def program(queries, keys, depth, features):
    def dense(*shape):
        return teir.Operand(strided(shape, [int(np.prod(shape[n + 1 :])) for n in range(len(shape))]), "FP32")

    steps = [("Fill", (0.5,)), ("Mul", (0, -1)), ("ReduceMax", (-2,)), ("Sub", (-2, -3)), ("Exp", (-4,))]
    steps += [("ReduceSum", (-5,)), ("Div", (-5, -6))]
    operands = [dense(queries, depth), dense(keys, depth), dense(keys, features)]
    return teir.emit_attention(steps, operands, dense(queries, features), ["id", "jd", "je", "ie"])


def test_the_program_is_the_definition():
    """The interpreter, the literal schedule and the tiles agree; `explain` says how it is computed."""
    made = program(5, 7, 3, 4)
    arrays = {"in0": drawn(5, 3), "in1": drawn(7, 3), "in2": drawn(7, 4)}
    results = [np.empty((5, 4), np.float32) for _ in range(3)]
    teir.interpret(made, {**arrays, "out": results[0]})
    for merge, out in zip((True, False), results[1:], strict=True):
        kernel = cpu.compile(made, threads=1, merge=merge)
        kernel.run({**arrays, "out": out})
        assert ("running softmax" in kernel.explain()) == merge
    for out in results[1:]:
        np.testing.assert_allclose(out, results[0], rtol=1e-5)


def test_programs_that_are_no_attention():
    assert match(program(50, 70, 8, 8), host()) is not None
    assert match(teir.emit_chain([("Exp", (0,))], [program_operand()], program_operand()), host()) is None


def program_operand():
    return teir.Operand(strided((40, 80), (80, 1)), "FP32")


def test_outer_comparisons_of_several_sizes():
    """Their operands walk as those of a product do; kernels of two sizes live at once."""
    kept = []
    for n in (130, 257):
        a, b = np.arange(n), np.arange(300)
        plan = tw.plan(tw.less_equal(tw.source(b), g.unsqueeze(tw.source(a), 1)))
        kept.append(plan)
        assert np.array_equal(tw.run(plan), b <= a[:, None])


def test_attention_of_other_lengths_and_batches_shares_code():
    def kernel(batch, length, width=24):
        q, k, v = (tw.source(shape=(batch, 3, length, width), dtype="float32") for _ in range(3))
        weights = tw.softmax(tw.einsum("bhqd,bhkd->bhqk", q, k) * 0.25)
        (step, _) = tw.plan(tw.einsum("bhqk,bhkd->bhqd", weights, v)).steps
        assert step.name == "attention"
        return cpu.compile(whole_program(step.node, "block"), threads=1)

    one, other, wider = kernel(2, 168), kernel(1, 504), kernel(2, 168, 40)  # whole tiles of 6, 8, 12 or 14 rows
    assert one.source == other.source != wider.source
