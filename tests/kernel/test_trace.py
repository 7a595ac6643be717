"""What tracing refuses, with the user's line, and what loops carry."""

import numpy as np
import pytest

from tileweave import kernel as tk
from tileweave.errors import VerifyError
from tileweave.index import symbol
from tileweave.kernel.ir import For, Let, On, Op, When, While, walk

X = tk.spec((4, 96), "f32")


def refused(body, *args, rule=None, **options):
    """The error of tracing a kernel with this body."""
    with pytest.raises(VerifyError) as caught:
        tk.kernel(body).trace(*(args or (X, X)), **options)
    if rule:
        assert caught.value.rule == rule, caught.value
    return caught.value


def line_of(error):
    return str(error.line).rsplit(":", 1)[0].endswith("test_trace.py") and error.line.number > 0


def test_a_traced_tensor_has_no_truth_value():
    def body(k, x, y):
        with k.cta(threads=32) as cta:
            if cta.load(x[0]) > 0:
                cta.store(y[0], 1)

    error = refused(body)
    assert "k.when" in str(error) and "if cta.load" in str(error) and line_of(error)


def test_a_condition_on_an_index_has_no_truth_value():
    def body(k, x, y):
        row = k.grid(4)
        with k.cta(threads=32) as cta:
            if row < 2:
                cta.store(y[row], 1.0)

    error = refused(body)
    assert "k.when" in str(error) and "if row < 2" in str(error) and line_of(error)


def test_a_rebound_register_tensor_is_carried():
    @tk.kernel
    def powers(k, x, y):
        with k.cta(threads=32) as cta:
            m = cta.load(x[0])
            for _ in cta.range(3):
                new_m = m * 2
                m = new_m
            cta.store(y[0], m)

    x, y = np.arange(5, dtype=np.float32)[None], np.zeros((1, 5), np.float32)
    powers.run(x, y)
    assert (y == x * 8).all()


def test_a_carried_tensor_in_a_list():
    @tk.kernel
    def powers(k, x, y):
        with k.cta(threads=32) as cta:
            parts = [cta.load(x[0]), cta.load(x[1])]
            for i in cta.range(3):
                parts[0] = parts[0] + parts[1] * i
            cta.store(y[0], parts[0])

    x, y = np.arange(10, dtype=np.float32).reshape(2, 5), np.zeros((1, 5), np.float32)
    powers.run(x, y)
    assert (y[0] == x[0] + 3 * x[1]).all()


def counts(k, x, y):
    with k.cta(threads=32) as cta:
        count = 0
        for _ in cta.range(3):
            count = count + 1
        cta.store(y[0], float(count))


def swaps(k, x, y):
    with k.cta(threads=32) as cta:
        a, b = cta.load(x[0]), cta.load(x[1])
        for _ in cta.range(3):
            a, b = b, a
        cta.store(y[0], a)


def changes_its_shape(k, x, y):
    with k.cta(threads=32) as cta:
        a = cta.load(x[0])
        for _ in cta.range(3):
            a = cta.sum(a)
        cta.store(y[0], a)


def two_names(k, x, y):
    with k.cta(threads=32) as cta:
        a = first = cta.load(x[0])
        for _ in cta.range(3):
            a = a + 1
        cta.store(y[0], a + first)


def an_index(k, x, y):
    row = k.grid(4)
    with k.cta(threads=32) as cta:
        at = row
        for _ in cta.range(3):
            at = at + 1
        cta.store(y[at], 1.0)


def under_a_condition(k, x, y):
    row = k.grid(4)
    with k.cta(threads=32) as cta:
        a = cta.load(x[row])
        with k.when(row < 2):
            a = a + 1
        cta.store(y[row], a)


@pytest.mark.parametrize("body", [counts, swaps, changes_its_shape, two_names, an_index, under_a_condition])
def test_what_cannot_be_carried_is_refused(body):
    error = refused(body, rule="carried")
    assert line_of(error)


def test_a_name_that_is_reused_for_another_temporary_is_no_carried_value():
    @tk.kernel
    def twice(k, x, y):
        with k.cta(threads=32) as cta:
            for i in cta.range(2):
                a = cta.load(x[i])
                cta.store(y[i], a)
            for i in cta.range(2):
                a = cta.sum(cta.load(x[i]))
                cta.store(y[i + 2, 0:1], a)

    x, y = np.ones((4, 96), np.float32), np.zeros((4, 96), np.float32)
    twice.run(x, y)
    assert (y[:2] == 1).all() and (y[2:, 0] == 96).all()


def leaves_by_break(k, x, y):
    with k.cta(threads=32) as cta:
        for i in cta.range(2):
            cta.store(y[i], 1.0)
            break
        cta.store(y[0], 1.0)


def test_pythons_own_break_is_refused():
    error = refused(leaves_by_break)
    assert "break_" in str(error) and "for i in cta.range(2)" in str(error)


def test_control_flow_is_in_the_ir():
    @tk.kernel
    def flow(k, x, y):
        row = k.grid(4)
        with k.cta(threads=32) as cta:
            n = k.var(0, below=9)
            with k.while_(n.value < 4):
                n.set(n.value + 1)
                with k.when(n.value < 2):
                    cta.continue_()
                with k.when(n.value > 2):
                    cta.break_()
                with k.otherwise():
                    cta.store(y[row, 0:1], 7.0)

    kernel = flow.trace(X, X)
    kinds = [type(s) for s in walk(kernel.body)]
    assert kinds.count(While) == 1 and kinds.count(When) == 2 and kinds.count(Let) == 2
    y = np.zeros((4, 96), np.float32)
    flow.run(np.zeros_like(y), y)
    assert (y[:, 0] == 7).all()


def out_of_range(k, x, y):
    with k.cta(threads=32) as cta:
        cta.store(y[4], 1.0)


def wrong_shapes(k, x, y):
    with k.cta(threads=32) as cta:
        cta.copy(y[0], x[0, 0:50])


def wrong_scope(k, x, y):
    with k.cta(threads=64) as cta, cta.warp[0]:
        cta.store(y[0], 1.0)


def no_such_warp(k, x, y):
    with k.cta(threads=64) as cta, cta.warp[2] as warp:
        warp.store(y[0], 1.0)


def nobody(k, x, y):
    k.grid(4)


def two_blocks(k, x, y):
    with k.cta(threads=64) as cta:
        cta.store(y[0], 1.0)
    with k.cta(threads=96) as cta:
        cta.store(y[0], 1.0)


def ended(k, x, y):
    with k.cta(threads=64) as cta:
        with k.when(symbol("q", 0, 2) < 1):
            a = cta.load(x[0])
        cta.store(y[0], a)


def uses_unclaimed(k, x, y):
    ring = k.pipeline(2, fills=1, uses=2)
    s = k.shared((2, 96), like=x)
    with k.warpgroup[0] as load:
        for i in load.range(4):
            with ring.fill(i) as at:
                load.copy_async(s[at], x[i])
    with k.warpgroup[1] as wg:
        for i in wg.range(4):
            with ring.use(i) as at:
                wg.store(y[i], s[at])


def bad_swizzle(k, x, y):
    k.shared((8, 24), like=x, swizzle=128)
    with k.cta(threads=32) as cta:
        cta.store(y[0], 1.0)


def bad_registers(k, x, y):
    with k.warpgroup[0](registers=41) as wg:
        wg.store(y[0], 1.0)


def element_as_index(k, x, y):
    with k.cta(threads=32) as cta:
        cta.store(y[x[0, 0]], 1.0)


def registers_of_others(k, x, y):
    with k.cta(threads=64) as cta:
        a = cta.load(x[0])
        with cta.warp[0] as warp:
            warp.store(y[0], a)


def too_large(k, x, y):
    with k.cta(threads=32) as cta:
        cta.zeros((1 << 20, 257))


def bad_dtype(k, x, y):
    with k.cta(threads=32) as cta:
        cta.store(y[0], cta.cast(cta.load(x[0]), "f31"))


@pytest.mark.parametrize(
    ("body", "word"),
    [
        (out_of_range, "outside 0..3"),
        (wrong_shapes, "does not fit"),
        (wrong_scope, "innermost scope"),
        (no_such_warp, "2 of these"),
        (nobody, "who executes it"),
        (two_blocks, "blocks of [64, 96] threads"),
        (ended, "has ended"),
        (uses_unclaimed, "2 uses were declared, 1"),
        (bad_swizzle, "no multiple of 128 bytes"),
        (bad_registers, "multiple of 8"),
        (element_as_index, "no index"),
        (registers_of_others, "is held by cta"),
        (too_large, "values have at most 268435456"),
    ],
)
def test_a_mistake_is_named_with_its_line(body, word):
    error = refused(body)
    assert word in str(error) and line_of(error), error


def test_an_unknown_type_is_refused():
    with pytest.raises(TypeError, match="f31"):
        tk.kernel(bad_dtype).trace(X, X)


def test_arguments_are_checked():
    kernel = tk.kernel(wrong_shapes)
    for args in ((), (X,), (X, X, X), (X, 3), (X, np.zeros((0, 3))), (X, np.zeros(3, complex)), (X, [np.zeros(3)] * 2)):
        with pytest.raises(VerifyError) as caught:
            kernel.trace(*args)
        assert caught.value.rule == "argument"
    with pytest.raises(VerifyError, match="unknown options bm"):
        kernel.trace(X, X, bm=3)
    with pytest.raises(VerifyError, match="shapes are not known"):
        kernel.text()


def test_python_is_the_macro_language():
    @tk.kernel
    def unrolled(k, x, y, parts=3):
        def piece(cta, p):
            cta.store(y[0, p * 32 : p * 32 + 32], cta.load(x[0, p * 32 : p * 32 + 32]) + p)

        with k.cta(threads=32) as cta:
            for p in range(parts):
                piece(cta, p)

    kernel = unrolled.trace(X, X)
    assert not any(isinstance(s, For) for s in walk(kernel.body))
    assert sum(isinstance(s, Op) and s.name == "copy" for s in walk(kernel.body)) == 6


def test_every_entity_by_itself():
    @tk.kernel
    def warps(k, x, y):
        with k.cta(threads=128) as cta, cta.warp.each() as warp:
            warp.store(y[warp.index], warp.load(x[warp.index]) + 1)

    x, y = np.ones((4, 96), np.float32), np.zeros((4, 96), np.float32)
    warps.run(x, y)
    assert (y == 2).all()
    assert any(isinstance(s, On) and s.each is not None for s in walk(warps.trace(x, y).body))


def test_numbers_follow_python_and_types():
    @tk.kernel
    def mixed(k, x, n, y):
        with k.cta(threads=32) as cta:
            a, m = cta.load(x[0]), cta.load(n[0])
            cta.store(y[0], cta.where((a > 1) & ~(m == 3), -a / 2 + m, abs(a) - 1.5))

    x = np.arange(-4, 4, dtype=np.float16)[None]
    n = np.arange(8, dtype=np.int32)[None]
    y = np.zeros((1, 8), np.float32)
    mixed.run(x, n, y)
    a = x.astype(np.float32)
    assert (y == np.where((a > 1) & (n != 3), -a / 2 + n, abs(a) - 1.5)).all()


def test_a_refusal_reads_like_every_error(golden):
    error = refused(uses_unclaimed)
    golden("kernel/refused_ring.txt", str(error).replace(str(error.line), "FILE:LINE") + "\n")


def compares_a_counter(k, x, y):
    with k.cta(threads=32) as cta:
        total = cta.zeros((96,))
        for j in cta.range(4):
            with k.when(j == 2):
                total += cta.load(x[j])
        cta.store(y[0], total)


def compares_a_block(k, x, y):
    row = k.grid(4)
    with k.cta(threads=32) as cta:
        if row * 2 != 4:
            cta.store(y[row], 1.0)


def compares_a_warp(k, x, y):
    with k.cta(threads=64) as cta, cta.warp.each() as warp:
        warp.store(y[0], warp.where(warp.index == 0, 1.0, warp.load(x[0])))


@pytest.mark.parametrize(
    ("body", "text"),
    [(compares_a_counter, "j == 2"), (compares_a_block, "row * 2 != 4"), (compares_a_warp, "warp.index == 0")],
)
def test_an_index_compared_by_python_is_refused(body, text):
    """``==`` of indices is a question about expressions, and False: what depends on it would be lost in silence."""
    error = refused(body)
    assert str(error).startswith(f"{text}: Python compares the expressions") and "tk.equal" in str(error)
    assert line_of(error) and text in str(error).splitlines()[1]


def test_indices_are_compared_by_equal_and_known_things_by_python():
    @tk.kernel
    def flow(k, x, y, n=2):
        with k.cta(threads=32) as cta:
            places, total = cta.iota((96,), 0), cta.zeros((96,))
            for j in cta.range(4):
                with k.when(tk.equal(j, 1)):
                    total += cta.load(x[j])
                with k.when(tk.unequal(j % 2, 0)):
                    total += cta.where(places == j, 1.0, 0.0)
            for part in range(3):
                if part == n and x.dtype == "f32":
                    total = total + 10
            cta.store(y[0], total)

    x, y = np.arange(4 * 96, dtype=np.float32).reshape(4, 96), np.zeros((4, 96), np.float32)
    flow.run(x, y)
    assert (y[0] == x[1] + 10 + np.isin(np.arange(96), (1, 3))).all()


def test_the_other_case_of_a_condition_that_is_known():
    @tk.kernel
    def flow(k, x, y, first=True):
        row = k.grid(4)
        with k.cta(threads=32) as cta:
            with k.when(row < 2):
                cta.store(y[row, 1:96], 1.0)
            with k.when(first):
                cta.store(y[row, 0:1], 2.0)
            with k.otherwise():
                cta.store(y[row, 0:1], 3.0)

    for first, want in ((True, [2, 2, 2, 2]), (False, [3, 3, 3, 3])):
        y = np.zeros((4, 96), np.float32)
        flow.run(y.copy(), y, first=first)
        assert y[:, 0].tolist() == want and y[:, 1].tolist() == [1, 1, 0, 0]


def test_an_array_that_cannot_be_written_is_refused():
    @tk.kernel
    def double(k, x, y):
        with k.cta(threads=32) as cta:
            cta.store(y[0], cta.load(x[0]) * 2)

    x, y = np.ones((1, 5), np.float32), np.zeros((1, 5), np.float32)
    y.flags.writeable = False
    assert (double.check(x, y).outputs["y"] == 2).all()
    with pytest.raises(VerifyError, match="an array that the kernel writes is read-only"):
        double.run(x, y)
