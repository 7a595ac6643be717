"""Calls of compiled programs: arrays that are refused, overlap, threads of Python, forked children."""

from __future__ import annotations

import ctypes
import gc
import os
import subprocess
import sys
import threading

import numpy as np
import pytest

from tileweave.backends.cpu import compile
from tileweave.backends.cpu.target import calls, native
from tileweave.errors import BackendError, VerifyError
from tileweave.layout import strided
from tileweave.teir import Operand, emit_contraction, emit_relu
from tileweave.teir.ir.dtypes import numpy_dtype
from tileweave.teir.ir.program import Axis, Program


def operand(array: np.ndarray, dtype: str) -> Operand:
    steps = tuple(step // array.itemsize for step in array.strides)
    return Operand(strided(array.shape, steps), dtype)


def whole_numbers(shape: tuple[int, ...], dtype: str, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(-3, 4, shape).astype(numpy_dtype(dtype))


EQUATIONS = [
    ("ik,kj->ij", {"i": 70, "j": 100, "k": 50}),
    ("ik,jk->ij", {"i": 70, "j": 100, "k": 51}),
    ("ki,kj->ij", {"i": 33, "j": 130, "k": 90}),
    ("ki,jk->ji", {"i": 70, "j": 20, "k": 30}),
    ("ik,kj->ij", {"i": 5, "j": 900, "k": 500}),
    ("ik,kj->ij", {"i": 900, "j": 3, "k": 40}),
    ("ik,k->i", {"i": 77, "k": 201}),
    ("k,k->", {"k": 1000}),
    ("i,j->ij", {"i": 40, "j": 70}),
    ("bik,bkj->bij", {"b": 5, "i": 9, "j": 20, "k": 31}),
    ("bi,bi->b", {"b": 50, "i": 21}),
    ("bi,bi->bi", {"b": 7, "i": 35}),
    ("adb,cd->cba", {"a": 32, "b": 24, "c": 9, "d": 20}),
    ("adb,cd->cba", {"a": 48, "b": 16, "c": 30, "d": 400}),
    ("adb,cd->cba", {"a": 20, "b": 24, "c": 9, "d": 20}),
    ("aebd,ce->dcba", {"a": 32, "b": 6, "c": 12, "d": 12, "e": 30}),
    ("aebd,ce->dcba", {"a": 16, "b": 3, "c": 12, "d": 36, "e": 33}),
    ("acd,db->cba", {"a": 96, "b": 24, "c": 5, "d": 37}),
    ("dabe,ec->dcba", {"a": 32, "b": 7, "c": 24, "d": 5, "e": 18}),
    ("be,dcea->dcba", {"a": 52, "b": 14, "c": 6, "d": 5, "e": 17}),
    ("dac,bcd->ba", {"a": 40, "b": 30, "c": 20, "d": 9}),
    ("dac,bcd->ba", {"a": 80, "b": 75, "c": 48, "d": 96}),
    ("fbea,ecfd->dcba", {"a": 12, "b": 13, "c": 10, "d": 9, "e": 6, "f": 7}),
    ("aged,cbfg->fedcba", {"a": 6, "b": 5, "c": 4, "d": 7, "e": 5, "f": 4, "g": 8}),
    ("bgfd,caeg->fedcba", {"a": 24, "b": 5, "c": 4, "d": 3, "e": 5, "f": 4, "g": 8}),
    ("bae,ced->dcba", {"a": 8, "b": 17, "c": 8, "d": 32, "e": 8}),
    ("trus,pqtu->pqrs", {"p": 4, "q": 5, "r": 3, "s": 19, "t": 2, "u": 11}),
]


# ---- arrays that are refused ------------------------------------------------------------------------------------


def relu_kernel(count: int = 8) -> object:
    flat = Operand(strided((count,), (1,)), "FP32")
    return compile(emit_relu(flat, flat))


def test_wrong_arrays_are_refused_before_work_starts() -> None:
    kernel = relu_kernel()
    good, out = np.ones(8, np.float32), np.zeros(8, np.float32)
    frozen = np.zeros(8, np.float32)
    frozen.flags.writeable = False
    for arrays in ((good,), (good, np.zeros(8)), (good, frozen), (good, out[:7].copy()), (good, [0.0] * 8)):
        with pytest.raises(BackendError):
            kernel(*arrays)
    with pytest.raises(BackendError, match="in0"):
        kernel.run({"in1": good, "out": out})
    for given in (None, [good, out], 3):
        with pytest.raises(BackendError, match=f"{type(given).__name__} is given instead of a mapping"):
            kernel.run(given)
    assert not out.any()
    kernel.run({"in0": good, "out": out})
    assert np.array_equal(out, good)


def test_overlap_is_refused_unless_in_place_or_interleaved() -> None:
    kernel = relu_kernel()
    store = np.array([-1.0, 2.0] * 8, np.float32)
    kernel(store[:8], store[:8])
    assert store[:8].tolist() == [0.0, 2.0] * 4
    with pytest.raises(BackendError, match="share memory"):
        kernel(store[:8], store[4:12])
    every_other = Operand(strided((8,), (2,)), "FP32")
    weave = compile(emit_relu(every_other, every_other))
    weave(store[::2], store[1::2])
    assert np.array_equal(store[1::2], np.maximum(store[::2], 0))


def test_a_contraction_into_its_operand_is_refused() -> None:
    a = np.ones((4, 4), np.float32)
    square = operand(a, "FP32")
    kernel = compile(emit_contraction("ik,kj->ij", (square, square), square))
    with pytest.raises(BackendError, match="share memory"):
        kernel(a, a.copy(), a)
    kernel(a, a, out := np.zeros_like(a))
    assert np.array_equal(out, a @ a)


def test_malformed_programs_are_refused() -> None:
    with pytest.raises(VerifyError):
        compile(Program((), (Axis("a", 0, (), ()),), (), (), ()))


# ---- calls ------------------------------------------------------------------------------------------------------


def test_kernels_run_from_many_python_threads() -> None:
    a, b = whole_numbers((200, 150), "FP32"), whole_numbers((150, 170), "FP32", 1)
    outs = [np.zeros((200, 170), np.float32) for _ in range(8)]
    kernel = compile(
        emit_contraction("ik,kj->ij", (operand(a, "FP32"), operand(b, "FP32")), operand(outs[0], "FP32")), threads=2
    )

    def work(out: np.ndarray) -> None:
        for _ in range(20):
            out[:] = 0
            kernel(a, b, out)

    workers = [threading.Thread(target=work, args=(out,)) for out in outs]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert all(np.array_equal(out, a @ b) for out in outs)


def test_a_prepared_call_sees_new_values() -> None:
    kernel = relu_kernel()
    source, out = np.ones(8, np.float32), np.zeros(8, np.float32)
    call = kernel.prepare(source, out)
    call()
    source[:] = -2
    source[0] = 5
    call()
    assert out.tolist() == [5.0] + [0.0] * 7


def script(text: str) -> str:
    return subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True, timeout=120).stdout


def test_the_import_is_light() -> None:
    text = "import sys, tileweave.backends.cpu; print('llvmlite' in sys.modules, 'llvmlite.binding' in sys.modules)"
    assert script(text).split() == ["False", "False"]


def test_a_forked_child_has_threads_of_its_own() -> None:
    text = """
import os, sys, numpy as np
from tileweave.backends.cpu import compile
from tileweave.layout import strided
from tileweave.teir import Operand, emit_contraction
x = Operand(strided((256, 256), (256, 1)), "FP32")
kernel = compile(emit_contraction("ik,kj->ij", (x, x), x), threads=2)
a, c = np.ones((256, 256), "f4"), np.zeros((256, 256), "f4")
kernel(a, a, c)
child = os.fork()
c[:] = 0
kernel(a, a, c)
right = bool((c == 256).all())
if child == 0:
    os._exit(0 if right else 1)
print(right, os.waitpid(child, 0)[1])
"""
    assert script(text).split() == ["True", "0"]


@pytest.mark.skipif(
    not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < 2, reason="threads that choose processors"
)
def test_the_pools_threads_keep_off_the_callers_processor() -> None:
    text = """
import os, time, numpy as np
from tileweave.backends.cpu import compile
from tileweave.backends.cpu.target.threads import pool
from tileweave.layout import strided
from tileweave.teir import Operand, emit_contraction
x = Operand(strided((256, 256), (256, 1)), "FP32")
kernel = compile(emit_contraction("ik,kj->ij", (x, x), x), threads=2)
a, c = np.ones((256, 256), "f4"), np.zeros((256, 256), "f4")
allowed = os.sched_getaffinity(0)
pool()  # its code is made in a thread
before = set(os.listdir("/proc/self/task"))
pool(2)
(worker,) = map(int, set(os.listdir("/proc/self/task")) - before)

def stays(wanted, turns=400):
    for _ in range(turns):
        kernel(a, a, c)
        time.sleep(0.002)
        if os.sched_getaffinity(worker) == wanted:
            return True
    return False

first, second = sorted(allowed)[:2]
for place in (first, second, first):
    os.sched_setaffinity(0, {place})
    print(stays(allowed - {place}))
os.sched_setaffinity(worker, {first})
stays(set(), 20)
print(os.sched_getaffinity(worker) == {first})
os.sched_setaffinity(worker, {first, second})
print(stays({second}), bool((c == 256).all()))
"""
    assert script(text).split() == ["True"] * 6


def test_kernels_take_large_working_memory_in_turn() -> None:
    one, two = ((30, 109, 145), (40, 100, 150))
    taken = []
    for m, k, n in (one, two):
        a, b, out = whole_numbers((k, m), "FP32").T, whole_numbers((n, k), "FP32").T, np.zeros((m, n), np.float32)
        kernel = compile(
            emit_contraction("ik,kj->ij", (operand(a, "FP32"), operand(b, "FP32")), operand(out, "FP32")), threads=1
        )
        assert kernel.run_on(a, b, out)
        assert np.array_equal(out, a @ b)
        taken.append((kernel, kernel._directs[-1], (a, b, out)))
    (first, busy, arrays), (second, other, others) = taken
    assert busy is other
    busy[0] = 1  # as while another thread runs one of them
    assert not first.run_on(*arrays)
    assert not second.run_on(*others)
    others[2][:] = 0
    second(*others)
    assert np.array_equal(others[2], others[0] @ others[1])
    busy[0] = 0
    assert first.run_on(*arrays)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_a_child_takes_no_memory_that_its_parent_was_using() -> None:
    text = """
import os, numpy as np, tileweave as tw
a, b = np.ones((109, 30), "f4").T, np.ones((145, 109), "f4").T
first = tw.contract("ik,kj->ij", a, b, threads=2)
from tileweave.backends.cpu.kernel import _LIVE
busy = [word for kernel in _LIVE for word in kernel._directs]
for word in busy:
    word[0] = 1  # another thread is in the call
child = os.fork()
right = all((tw.contract("ik,kj->ij", a, b, threads=2) == 109).all() for _ in range(3))
if child == 0:
    os._exit(0 if right else 1)
print(len(busy) > 0, right, os.waitpid(child, 0)[1])
"""
    assert script(text).split() == ["True", "True", "0"]


def test_a_builtin_keeps_what_describes_it() -> None:
    """Of two threads that make the first calls of a process, each may make descriptions, and caches keep one's."""
    made = calls._builtin("run", ctypes.create_string_buffer(8), None)
    held = [one for kept in gc.get_referents(made) if isinstance(kept, tuple) for one in kept]
    assert native.code() in held and any(isinstance(one, calls._Method) for one in held)
