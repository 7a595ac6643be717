"""Every synchronisation of a kernel is deleted and perturbed; the interpreter names each fault with its line.

A mutant counts only if a rule is named. The few that change nothing are listed with the reason.
"""

import sys
from collections import Counter
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from random import Random
from types import SimpleNamespace

import numpy as np
import pytest

from tileweave import kernel as tk
from tileweave.errors import TileweaveError, VerifyError
from tileweave.kernel.dispatch import expand
from tileweave.kernel.ir import (
    Arrive,
    Await,
    Commit,
    Fence,
    For,
    Init,
    On,
    Op,
    Region,
    Signal,
    Sync,
    Wait,
    WaitGroup,
    When,
    While,
    head,
)
from tileweave.kernel.semantics import check_kernel

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "kernels"))
attention_tensor = import_module("attention_tensor").attention_tensor
mx_gemm = import_module("mx_gemm")
matmul, transpose, gemm_reduce_scatter, gather_gemm, moe, gemm_cp_async, clusters, tensor_memory = map(
    import_module,
    (
        "matmul", "transpose", "gemm_reduce_scatter", "gather_gemm", "moe", "gemm_cp_async", "clusters",
        "tensor_memory",
    ),
)  # fmt: skip

DELETED = (Arrive, Wait, Fence, Sync, Commit, WaitGroup, Signal, Await, Init)


@tk.kernel
def staged_copy(k, x, y):
    """cp.async two rows ahead, one group per row."""
    s = k.shared((3, 64), like=x)
    with k.cta(threads=64) as cta:
        for i in range(2):
            cta.copy_async(s[i], x[i])
            cta.commit()
        for i in cta.range(6):
            with k.when(i < 4):
                cta.copy_async(s[(i + 2) % 3], x[i + 2])
            cta.commit()
            cta.wait_group(2)
            cta.sync()
            cta.copy(y[i], s[i % 3])
            cta.sync()
        cta.wait_group(0)


@tk.kernel
def stored_boxes(k, x, y):
    """Threads write a buffer, the asynchronous proxy stores it; the buffer is used again."""
    s = k.shared((64,), like=x)
    with k.cta(threads=64) as cta:
        for i in cta.range(6):
            cta.copy(s, x[i])
            cta.fence("proxy.async")
            cta.sync()
            with cta.thread[0] as t:
                t.copy_async(y[i], s)
                t.commit("bulk")
                t.wait_group(0, "bulk")
            cta.sync()


@tk.kernel
def reused(k, A, B, C):
    """A product that is loaded, and tensor memory that the next product overwrites; C adds up both."""
    sa, sb = k.shared((2, 128, 64), like=A, swizzle=128), k.shared((2, 32, 64), like=B, swizzle=128)
    acc = k.tensor_memory(32)
    ring = k.pipeline(2, products=True)
    done, free = k.barrier(1), k.barrier(4)
    with k.warpgroup[0] as wg:
        total = wg.zeros((128, 32))
        for i in wg.range(4):
            wg.wait(done, parity=i % 2)
            wg.fence("tcgen05.after")
            total += wg.load(acc)
            wg.fence("tcgen05.before")
            wg.arrive(free, lanes="warp")
        wg.copy(C, total)
    with k.warp[4]() as load:
        for i in load.range(4):
            with ring.fill(i) as s:
                load.copy_async(sa[s], A.tile(128, 64)[0, i])
                load.copy_async(sb[s], B.tile(32, 64)[0, i])
    with k.warp[5]() as mma:
        for i in mma.range(4):
            mma.wait(free, parity=(i + 1) % 2)
            mma.fence("tcgen05.after")
            with ring.use(i) as s:
                mma.gemm(acc, sa[s], sb[s], keep=False)
            mma.commit("tcgen05", done)


def expanded(function, arch):
    """The explicit program of an automatic kernel for a target, in a kernel's place."""
    return SimpleNamespace(trace=lambda *args, **options: expand(function.trace(*args, **options), arch))


def kernels():
    random = np.random.default_rng(3)

    def rows(*shape):
        return random.standard_normal(shape).astype(np.float16)

    pairs = [(rows(128, 40), rows(70, 40)) for _ in range(4)]
    local = [a for a, _ in pairs], [b for _, b in pairs]
    return {
        "transpose": (transpose.transpose, (rows(70, 45), rows(45, 70)), {}),
        "matmul_roles": (
            matmul.matmul_roles,
            (rows(40, 330), rows(20, 330), rows(40, 20)),
            {"bm": 32, "bn": 16, "stages": 2},
        ),
        "gemm_rs": (
            gemm_reduce_scatter.gemm_rs,
            (*local, tk.sharded(np.zeros((128, 70), np.float32), "gpu", 0, 4)),
            {"bm": 32, "bn": 64},
        ),
        "gather_gemm": (
            gather_gemm.on(2),
            ([rows(70, 40) for _ in range(2)], [rows(33, 40) for _ in range(2)],
             [np.zeros((140, 33), np.float32) for _ in range(2)]),
            {},
        ),
        "moe": (moe.moe, tuple(moe.arguments(50, 40, 20, 2)), {}),
        "gemm_cp_async": (
            gemm_cp_async.gemm_cp_async,
            (rows(40, 200), rows(40, 200), rows(40, 40)),
            {"bm": 32, "bn": 32},
        ),
        "matmul_cluster": (
            clusters.matmul_cluster,
            (rows(40, 264), rows(20, 264), rows(40, 20)),
            {"bm": 32, "bn": 16, "stages": 2},
        ),
        "matmul_tensor": (
            tensor_memory.matmul_tensor,
            (rows(40, 264), rows(20, 264), rows(40, 20)),
            {"bn": 32, "stages": 2},
        ),
        "mx_gemm": (mx_gemm.mx_gemm, tuple(mx_gemm.arguments(40, 20, 272)), {"stages": 2}),
        "matmul_pair": (
            tensor_memory.matmul_pair,
            (rows(40, 264), rows(20, 264), rows(40, 20)),
            {"bn": 32, "stages": 2},
        ),
        "matmul_automatic": (
            expanded(matmul.matmul, "sm_100a"),
            (rows(40, 264), rows(24, 264), rows(40, 24)),
            {"bn": 64, "stages": 2},
        ),
        "reused": (reused, (rows(128, 256), rows(32, 256), np.zeros((128, 32), np.float32)), {}),
        "attention_tensor": (
            attention_tensor,
            (*(rows(1, 80, 64) for _ in range(3)), np.zeros((1, 80, 64), np.float32)),
            {"bn": 32},
        ),
        "row_sums": (clusters.row_sums, (np.ones((2, 70), np.float32), np.zeros((2, 1), np.float32)), {}),
        "staged_copy": (staged_copy, (rows(6, 64), rows(6, 64)), {}),
        "stored_boxes": (stored_boxes, (rows(6, 64), rows(6, 64)), {}),
    }  # fmt: skip


def changed(s):
    """The statements that may stand for one: none, or itself perturbed."""
    if isinstance(s, DELETED):
        yield f"without {head(s)}", ()
    if isinstance(s, Arrive):
        lanes = {"warp": ("one", "each"), "one": ("warp",), "each": ("one",)}[s.lanes]
        yield from ((f"{head(s)} by {one}", (replace(s, lanes=one),)) for one in lanes)
        if s.bytes is not None:
            yield from ((f"{head(s)} {by:+} bytes", (replace(s, bytes=s.bytes + by),)) for by in (-64, 64))
            yield f"{head(s)} without bytes", (replace(s, bytes=None),)
        yield f"{head(s)} twice", (s, s)
        if s.cta is not None:
            yield f"{head(s)}, not the next", (replace(s, cta=(s.cta + 1) % 2),)
    if isinstance(s, Init):
        yield from ((f"{head(s)} {by:+}", (replace(s, count=s.count + by),)) for by in (-1, 1))
    if isinstance(s, Wait):
        yield f"{head(s)}, other parity", (replace(s, parity=1 - s.parity),)
    if isinstance(s, WaitGroup):
        yield f"{head(s)} +1", (replace(s, pending=s.pending + 1),)
    if isinstance(s, Await):
        yield f"{head(s)} + 1", (replace(s, at_least=s.at_least + 1),)
    if isinstance(s, Op):
        yield from unmasked(s)
        if s.option("multicast") is not None:
            yield from ((f"{head(s)} to mask {m}", (replace(s, options=(("multicast", m),)),)) for m in (1, 2))
        if s.option("pair"):
            yield f"{head(s)} of one block", (replace(s, options=tuple(o for o in s.options if o[0] != "pair")),)
        if s.option("leader"):
            yield f"{head(s)} told to its own block", (replace(s, options=()),)
    if isinstance(s, Commit) and s.mask is not None:
        yield from ((f"{head(s)}, mask {m}", (replace(s, mask=m),)) for m in (1, 2))
    if isinstance(s, Sync) and s.cluster:
        yield "sync of the block in place of the cluster's", (replace(s, cluster=False),)


def unmasked(s):
    """Without the mask of one region in memory."""
    for n, one in enumerate((*s.outs, *s.ins)):
        if isinstance(one, Region) and one.masked and one.tensor.space != "register":
            parts = [*s.outs, *s.ins]
            parts[n] = replace(one, mask=one.extent)
            out, ins = tuple(parts[: len(s.outs)]), tuple(parts[len(s.outs) :])
            yield f"{head(s)} without the mask of {one.tensor.name}", (replace(s, outs=out, ins=ins),)


def mutants(body):
    """(what was changed, the user's line, the body) for every single change."""
    for n, s in enumerate(body):
        for text, instead in changed(s):
            yield text, s.line, (*body[:n], *instead, *body[n + 1 :])
        for field in ("body", "otherwise"):
            if isinstance(s, On | For | While | When) and getattr(s, field, ()):
                for text, line, inner in mutants(getattr(s, field)):
                    yield text, line, (*body[:n], replace(s, **{field: inner}), *body[n + 1 :])


#: (kernel, how the change begins) -> why it changes nothing that the claims speak of.
EQUIVALENT = {
    ("staged_copy", "wait cp.async until 0 pending +1"): "the last group is empty: its copies ended in the loop",
    ("staged_copy", "without wait cp.async until 0 pending"): "the last two groups are empty",
}


_EARLIER = ["without fence mbarrier_init", "without sync"]
#: Kernel -> changes that change nothing: the start of one barrier is published again with that of the next one, and
#: one arrival by a scope of one warp is the same as one by each of its warps; a ring of one turn waits for no earlier
#: use, and nobody waits for the end of its last one.
SAME = {
    "matmul_tensor": [*_EARLIER, "arrive ring_full[i % 2]"],
    "mx_gemm": [*_EARLIER, "arrive ring_full[i % 2]"],
    "matmul_automatic": ["arrive ring_full[i % 2]"],
    "matmul_pair": [*_EARLIER, "arrive ring_full[i % 2]"],
    "attention_tensor": [
        *_EARLIER, *_EARLIER, *_EARLIER, "without wait ring_empty_1[0] parity 1", "arrive ring_full_1[0]",
        "arrive ring_full[j_1 % 2]", "without commit tcgen05 arrives ring_empty_1[0]",
    ],
    "reused": [*_EARLIER, *_EARLIER, "arrive ring_full[i_1 % 2]"],
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(kernels()))
def test_every_fault_is_named(name, record_property):
    function, args, options = kernels()[name]
    kernel = function.trace(*args, **options)
    check_kernel(kernel, args)
    rules, missed, total = Counter(), [], 0
    for text, line, body in mutants(kernel.body):
        if any(other == name and text.startswith(start) for other, start in EQUIVALENT):
            continue
        total += 1
        try:
            check_kernel(replace(kernel, body=body), args)
            missed.append(f"{text} at {line}")
        except VerifyError as error:
            rules[error.rule] += 1
            assert error.line.number, error
    record_property("rules", dict(rules))
    print(name, total, dict(rules))  # the table: pytest -s
    assert [text.rpartition(" at ")[0].split(" by one thread")[0] for text in missed] == SAME.get(name, [])
    assert (
        total
        >= {
            "transpose": 3,
            "matmul_roles": 30,
            "gemm_rs": 14,
            "staged_copy": 7,
            "stored_boxes": 6,
            "gather_gemm": 8,
            "moe": 9,
            "gemm_cp_async": 9,
            "matmul_cluster": 30,
            "matmul_tensor": 30,
            "mx_gemm": 30,
            "matmul_automatic": 30,
            "matmul_pair": 30,
            "reused": 30,
            "attention_tensor": 30,
            "row_sums": 4,
        }[name]
    )


def edited(body, random):
    """A body with one statement somewhere dropped, doubled, or exchanged with another."""
    if not body:
        return body
    inside = [(n, f) for n, s in enumerate(body) for f in ("body", "otherwise") if getattr(s, f, ())]
    if inside and random.random() < 0.7:
        n, f = random.choice(inside)
        return (*body[:n], replace(body[n], **{f: edited(getattr(body[n], f), random)}), *body[n + 1 :])
    rows, at, other = list(body), random.randrange(len(body)), random.randrange(len(body))
    kind = random.choice(("drop", "double", "exchange"))
    if kind == "drop":
        rows.pop(at)
    elif kind == "double":
        rows.insert(other, rows[at])
    else:
        rows[at], rows[other] = rows[other], rows[at]
    return tuple(rows)


def flat(outputs):
    return [array.tobytes() for value in outputs.values() for array in (value if isinstance(value, list) else [value])]


def same_in_every_order(kernel, args, seeds):
    """A kernel that passes in one order passes in the others, with the same values; one that does not is refused."""
    try:
        first = flat(check_kernel(kernel, args).outputs)
    except TileweaveError:
        return False
    for seed in seeds:
        assert flat(check_kernel(kernel, args, seed=seed).outputs) == first, seed
    return True


@pytest.mark.parametrize("name", sorted(kernels()))
def test_values_do_not_depend_on_the_order(name):
    function, args, options = kernels()[name]
    assert same_in_every_order(function.trace(*args, **options), args, range(3))


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) for n in sorted(kernels())])
def test_no_faulty_kernel_passes_in_one_order_and_differs_in_another(name):
    """Races that the clocks miss would show here: statements dropped, doubled, exchanged at random."""
    function, args, options = kernels()[name]
    kernel, random, passed = function.trace(*args, **options), Random(name), 0
    for _ in range(60):
        body = kernel.body
        for _ in range(random.choice((1, 1, 2, 3))):
            body = edited(body, random)
        passed += same_in_every_order(replace(kernel, body=body), args, range(3))
    assert passed < 60
