"""Every claim that a kernel makes is checked: one kernel per rule that breaks it, and the error names both lines."""

import re

import numpy as np
import pytest

from tileweave import kernel as tk
from tileweave.errors import VerifyError
from tileweave.kernel import check_kernel


def arrays():
    x = np.arange(4 * 64, dtype=np.float32).reshape(4, 64)
    return x, np.zeros_like(x)


def refused(function, *args, **options):
    with pytest.raises(VerifyError) as caught:
        tk.kernel(function).check(*(args or arrays()), **options)
    return caught.value


def no_sync(k, x, y):
    s = k.shared((64,), like=x)
    with k.cta(threads=64) as cta:
        cta.copy(s, x[0])
        cta.copy(y[0], s)


def no_sync_before_reuse(k, x, y):
    s = k.shared((64,), like=x)
    with k.cta(threads=64) as cta:
        for i in cta.range(4):
            cta.copy(s, x[i])
            cta.sync()
            cta.copy(y[i], s)


def two_scopes(k, x, y):
    s = k.shared((64,), like=x)
    with k.warp[0] as a:
        a.copy(s, x[0])
    with k.warp[1] as b:
        b.copy(y[0], s)


def two_blocks_write(k, x, y):
    k.grid(3)
    with k.cta(threads=64) as cta:
        cta.copy(y[0], cta.load(x[0]))


def threads_write_the_same(k, x, y):
    with k.cta(threads=64) as cta, cta.thread.each() as t:
        t.copy(y[0, 0], t.load(x[0, 0]))


@pytest.mark.parametrize("body", [no_sync, no_sync_before_reuse, two_scopes, two_blocks_write, threads_write_the_same])
def test_a_race(body):
    error = refused(body)
    assert error.rule == "race" and "first" in error.inputs and "second" in error.inputs
    assert error.inputs["first"].count("test_claims.py:") == 1 and error.line.number


def unwritten(k, x, y):
    with k.cta(threads=64) as cta:
        a = cta.empty((64,))
        cta.store(y[0], a)


def partly_written(k, x, y):
    s = k.shared((2, 64), like=x)
    with k.cta(threads=64) as cta:
        cta.copy(s[0], x[0])
        cta.sync()
        cta.copy(y[0:2], s)


@pytest.mark.parametrize("body", [unwritten, partly_written])
def test_reading_what_was_never_written(body):
    assert refused(body).rule == "initialised"


def leaves(k, x, y):
    with k.cta(threads=32) as cta:
        for i in cta.range(3):
            cta.copy(y[i * 2], cta.load(x[0]))


def leaves_by_data(k, x, n, y):
    with k.cta(threads=32) as cta:
        cta.copy(y[cta.read(n[0])], cta.load(x[0]))


def test_leaving_a_tensor():
    error = refused(leaves)
    assert error.rule == "bounds" and "y is too small: 4 in dimension 0, 5 are written" in str(error)
    x, y = arrays()
    assert refused(leaves_by_data, x, np.array([7], np.int32), y).rule == "bounds"
    assert refused(leaves_by_data, x, np.array([-1], np.int32), y).rule == "range"


def no_wait(k, x, y):
    s = k.shared((64,), like=x)
    with k.cta(threads=64) as cta:
        cta.copy_async(s, x[0])
        cta.commit()
        cta.sync()
        cta.copy(y[0], s)
        cta.wait_group(0)


def wait_without_sync(k, x, y):
    s = k.shared((64,), like=x)
    with k.cta(threads=64) as cta:
        cta.copy_async(s, x[0])
        cta.commit()
        cta.wait_group(0)
        cta.copy(y[0], s)


def waits_for_too_few(k, x, y):
    s = k.shared((2, 64), like=x)
    with k.cta(threads=64) as cta:
        for i in range(2):
            cta.copy_async(s[i], x[i])
            cta.commit()
        cta.wait_group(1)
        cta.sync()
        cta.copy(y[0:2], s)
        cta.wait_group(0)


def never_waits(k, x, y):
    s = k.shared((64,), like=x)
    with k.cta(threads=64) as cta:
        cta.copy_async(s, x[0])
        cta.commit()


def stores_and_reuses(k, x, y):
    s = k.shared((64,), like=x)
    with k.cta(threads=64) as cta:
        cta.copy(s, x[0])
        cta.fence("proxy.async")
        cta.sync()
        cta.copy_async(y[0], s)
        cta.commit("bulk")
        cta.copy(s, x[1])
        cta.wait_group(0, "bulk")


@pytest.mark.parametrize("body", [no_wait, wait_without_sync, waits_for_too_few, never_waits, stores_and_reuses])
def test_a_copy_that_is_not_complete(body):
    assert refused(body).rule == "completion"


def no_fence(k, x, y):
    s = k.shared((64,), like=x)
    with k.cta(threads=64) as cta:
        cta.copy(s, x[0])
        cta.sync()
        cta.copy_async(y[0], s)
        cta.commit("bulk")
        cta.wait_group(0, "bulk")


def fence_behind_the_sync(k, x, y):
    s = k.shared((64,), like=x)
    with k.warp[0] as a:
        a.copy(s, x[0])
    with k.cta(threads=64) as cta:
        cta.sync()
        with cta.warp[1] as b:
            b.copy_async(y[0], s)
            b.commit("bulk")
            b.wait_group(0, "bulk")


@pytest.mark.parametrize("body", [no_fence, fence_behind_the_sync])
def test_a_missing_proxy_fence(body):
    error = refused(body)
    assert error.rule == "proxy" and "proxy.async" in str(error)


def barriers(k, x, y, count=2, arrivals=1, parity=0, size=256, init=True):
    s = k.shared((64,), like=x)
    bar = k.barrier(count) if init else k.shared((1,), "mbarrier")[0]
    with k.warp[0] as a:
        a.copy_async(s, x[0], barrier=bar)
        for _ in range(arrivals):
            a.arrive(bar, lanes="one")
        a.arrive(bar, lanes="one", bytes=size)
    with k.warp[1] as b:
        b.wait(bar, parity=parity)
        b.copy(y[0], s)


@pytest.mark.parametrize(
    ("options", "rule", "word"),
    [
        ({"parity": 1}, "deadlock", "for bar[0] parity 1"),
        ({"count": 3}, "deadlock", "2 of 3 arrivals"),
        ({"count": 1}, "mbarrier", "more than the count"),
        ({"arrivals": 0}, "deadlock", "1 of 2 arrivals"),
        ({"arrivals": 2}, "mbarrier", "more than the count"),
        ({"size": 128}, "deadlock", "128 bytes came that nobody announced"),
        ({"size": 512}, "deadlock", "256 announced bytes have not come"),
        ({"init": False}, "mbarrier", "before its init"),
        ({"parity": 2}, "mbarrier", "0 or 1"),
    ],
)
def test_an_mbarrier(options, rule, word):
    assert "every claim holds" in str(tk.kernel(barriers).check(*arrays()))
    error = refused(barriers, **options)
    assert (error.rule, word in str(error)) == (rule, True), error


def test_a_deadlock_says_who_waits_for_whom(golden):
    error = refused(barriers, count=3)
    rows = [line for line in str(error).splitlines() if not line.startswith("  line")]
    text = "\n".join(re.sub(r"at \S*test_claims\.py:\d+", "at ..", row) for row in rows)
    golden("kernel/deadlock.txt", text + "\n")


def ring_of_waits(k, x, y, warps=3, closed=True):
    bars = [k.barrier(32) for _ in range(warps)]
    for w in range(warps):
        with k.warp[w]() as warp:
            if closed or w:
                warp.wait(bars[w], parity=0)
            warp.arrive(bars[(w + 1) % warps])
            if not closed and not w:
                warp.wait(bars[w], parity=0)


@pytest.mark.parametrize("warps", [2, 3, 5])
def test_a_ring_of_waits_names_for_each_the_one_that_it_waits_for(warps):
    assert "every claim holds" in str(tk.kernel(ring_of_waits).check(*arrays(), warps=warps, closed=False))
    text = str(refused(ring_of_waits, warps=warps))
    for w in range(warps):
        before = (w - 1) % warps
        said = (
            rf"\(warp {w}\) of block 0 +at .*; warp \(warp {before}\) of block 0 arrives on \w+ at .*, and waits itself"
        )
        assert re.search(said, text), text


def flags_in_a_circle(k, x, y, signals=True):
    block = k.grid(2)
    done = k.flags((2,))
    with k.cta(threads=32) as cta:
        cta.wait(done[1 - block])
        if signals:
            cta.signal(done[block])


def test_blocks_that_wait_for_each_other_are_named():
    text = str(refused(flags_in_a_circle))
    assert "block 0" in text and "block 1 signals done at" in text and "block 0 signals done at" in text, text
    assert "nobody else signals it" in str(refused(flags_in_a_circle, signals=False))


def endless(k, x, y):
    with k.cta(threads=32) as cta:
        n = k.var(0, below=2)
        with k.while_(n.value < 1):
            cta.sync()


def test_a_kernel_that_does_not_end_is_reported():
    kernel = tk.kernel(endless).trace(*arrays())
    with pytest.raises(VerifyError) as caught:
        check_kernel(kernel, arrays(), limit=1000)
    assert caught.value.rule == "endless"


def test_an_index_that_leaves_its_declared_range():
    def body(k, x, n, y):
        with k.cta(threads=32) as cta:
            cta.copy(y[cta.read(n[0], below=2)], cta.load(x[0]))

    x, y = arrays()
    assert refused(body, x, np.array([3], np.int32), y).rule == "range"


def test_two_elements_in_one_place():
    def body(k, x, y):
        s = k.shared((2, 32), like=x, layout="(2:16@m, 32:1@m)")
        with k.cta(threads=32) as cta:
            cta.copy(s, x.tile(2, 32)[0, 0])

    assert refused(body).rule == "injective"


def test_registers_are_held_by_the_scope():
    def body(k, x, y):
        with k.warp[0] as warp:
            warp.zeros((64,), layout="(2:1@warp, 32:1@lane)")

    assert refused(body).rule == "replicas"


@tk.kernel
def pass_on(k, x, y, wait=True):
    """Block i waits for block i - 1."""
    row = k.grid(x.blocks(0, 1))
    work = k.workspace((4, 64), "f32")
    with k.cta(threads=64) as cta:
        cta.copy(work[row], cta.load(x[row]))
        cta.signal(work, row)
        with k.when(row > 0):
            if wait:
                cta.wait(work, row - 1)
            cta.copy(y[row], cta.load(work[row - 1]))


def test_blocks_that_pass_data_on():
    x, y = arrays()
    report = pass_on.check(x, y)
    assert (report.outputs["y"][1:] == x[:-1]).all()
    assert len(report.warnings) == 2 and "a possible deadlock, unless the whole grid is resident" in str(report)
    with pytest.raises(VerifyError) as caught:
        pass_on.check(x, y, wait=False)
    assert caught.value.rule == "race"


def waits_for_itself(k, x, y):
    row = k.grid(4)
    with k.cta(threads=64) as cta:
        cta.wait(y, row)
        cta.signal(y, row)


def test_blocks_that_wait_for_each_other():
    error = refused(waits_for_itself)
    assert error.rule == "deadlock" and "y_flags[3] to reach 1: it is 0" in str(error)


def test_another_devices_shard():
    @tk.kernel(mesh={"gpu": 2})
    def reads(k, x, y):
        with k.cta(threads=32) as cta:
            cta.store(y[k.gpu], cta.load(x[0]))

    x, y = np.ones((2, 32), np.float32), np.zeros((2, 32), np.float32)
    with pytest.raises(VerifyError) as caught:
        reads.check(tk.sharded(x, "gpu", 0, 2), tk.sharded(y, "gpu", 0, 2))
    assert caught.value.rule == "device" and "x[0, 0] is on device 0" in str(caught.value)


def test_a_ticket_orders_blocks():
    @tk.kernel
    def tickets(k, x, y):
        k.grid(4)
        counter = k.workspace((1,), "u32")
        with k.cta(threads=64) as cta:
            ticket = cta.atomic_add(counter[0])
            cta.copy(y[ticket], cta.load(x[ticket]))

    x, y = arrays()
    tickets.run(x, y)
    assert (y == x).all()


def test_an_error_reads_like_every_error(golden):
    error = refused(no_sync)
    lines = [line.split(" at ")[0].split(": cta")[0] for line in str(error).splitlines() if "  line" not in line]
    golden("kernel/race.txt", "\n".join(lines) + "\n")


@tk.kernel
def staged_from_registers(k, A, y, careful=True):
    """A product reads shared memory that the next turn overwrites from registers."""
    with k.cta(threads=64) as cta:
        s, acc = k.shared((64, 32), like=A), cta.zeros((64, 64))
        for _ in cta.range(3):
            cta.store(s, cta.load(A) * 2)
            cta.sync()
            cta.gemm(acc, s, s)
            if careful:
                cta.sync()
        cta.store(y, acc)


@tk.kernel
def turned_in_place(k, x, layout=""):
    """Registers of one layout are read, registers of another one written back: other threads hold an element."""
    with k.cta(threads=32) as cta:
        s = k.shared((8, 8), like=x)
        cta.copy(s, x)
        cta.sync()
        r = cta.load(s, layout="(8:4@lane, 4:1@lane, 2:1@reg)")
        t = cta.empty((8, 8), r.dtype, layout=layout)
        cta.copy(t, r)
        cta.store(s, t)
        cta.sync()
        cta.copy(x, s)


def test_reads_of_a_product_are_no_reads_of_the_threads_that_write_next():
    A, y = np.ones((64, 32), np.float16), np.zeros((64, 64), np.float32)
    staged_from_registers.check(A, y, careful=True)
    with pytest.raises(VerifyError) as caught:
        staged_from_registers.check(A, y, careful=False)
    assert caught.value.rule == "race" and "gemm" in str(caught.value)


def test_an_element_is_written_back_by_the_thread_that_read_it():
    x = np.ones((8, 8), np.float16)
    turned_in_place.check(x, layout="(8:4@lane, 4:1@lane, 2:1@reg)")
    with pytest.raises(VerifyError) as caught:
        turned_in_place.check(x, layout="(4:1@lane, 2:1@reg, 8:4@lane)")
    assert caught.value.rule == "race"


@tk.kernel
def tiles_of(k, x, y, row=0, column=0):
    i, j = k.grid(x.blocks(0, 16), x.blocks(1, 16))
    with k.cta(threads=32) as cta:
        source = x.tile(16, 16)[i, j + column]
        cta.store(y.tile(16, 16)[(j, i) if row else (i, j)], cta.load(source))


@pytest.mark.parametrize(("column", "said"), [(0, ()), (1, ("zeros are read",))])
def test_what_is_seldom_meant_is_said(column, said):
    x = np.ones((45, 70), np.float32)
    report = tiles_of.check(x, np.zeros_like(x), column=column)
    for text in said:
        assert any(text in one and "test_claims.py:" in one for one in report.warnings), report.warnings
    assert bool(said) == bool(report.warnings)


def test_tiles_that_are_stored_where_no_array_is_are_refused():
    x = np.ones((45, 70), np.float32)
    with pytest.raises(VerifyError, match="y is too small: 45 in dimension 0, 80 are written") as caught:
        tiles_of.check(x, np.zeros_like(x), row=1)
    assert caught.value.rule == "extent" and "test_claims.py:" in str(caught.value)


def unused_fill(k, x, y):
    """Four fills of a ring and three uses: the last copy may go on when the block has ended."""
    s = k.shared((2, 64), like=x)
    ring = k.pipeline(2, fills=1, uses=1)
    with k.warp[0] as load:
        for i in load.range(4):
            with ring.fill(i) as t:
                load.copy_async(s[t], x[i])
    with k.warp[1] as use:
        for i in use.range(3):
            with ring.use(i) as t:
                use.copy(y[i], s[t])


def test_a_copy_that_nobody_waits_for_is_named():
    error = refused(unused_fill)
    assert error.rule == "completion" and "nobody has waited for phase 1 of ring_full[1]" in str(error)


def sync_of_others(k, x, y):
    with k.cta(threads=64) as cta, k.warp[0] as warp:
        warp.copy(y[0], x[0])
        cta.sync()


def test_a_collective_statement_of_threads_that_are_not_here_names_them():
    error = refused(sync_of_others)
    assert error.rule == "scope" and "missing  warp 1" in str(error)


def waits_in_vain(k, x, y):
    done = k.barrier(3)
    with k.cta(threads=64) as cta:
        with cta.warp.each() as warp:
            warp.arrive(done, lanes="one")
        cta.wait(done, parity=0)
        cta.copy(y[0], x[0])


def test_a_deadlock_says_who_has_arrived():
    error = refused(waits_in_vain)
    assert error.rule == "deadlock" and "2 of 3 arrivals; on it arrived warp 0 of block 0 at" in str(error)


def test_a_number_beyond_its_range_is_told():
    x, y = arrays()
    error = refused(reads_below, x, np.array([9], np.int32), y)
    assert error.rule == "range" and "n_1 is 9, and was declared 0..3" in str(error)


def reads_below(k, x, n, y):
    with k.cta(threads=32) as cta:
        cta.copy(y[cta.read(n[0], below=4)], x[0])


def waits_without_a_grid(k, x, y):
    with k.cta(threads=64) as cta:
        cta.wait(y, 0)


def test_a_wait_for_a_tile_that_the_grid_lacks_is_named_as_a_wait():
    assert "scope.wait(y, ..): an index of rank 1 in a grid of rank 0" in str(refused(waits_without_a_grid))
