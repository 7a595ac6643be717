"""Targets and numbers of threads: what no processor has is refused before LLVM sees it, which would end the process."""

from dataclasses import replace

import numpy as np
import pytest

from tileweave.backends import cpu
from tileweave.backends.cpu import Target, host
from tileweave.backends.host import available_threads
from tileweave.errors import BackendError, VerifyError
from tileweave.teir import Axis, First, Invocation, Iteration, Primitive, Program, TensorSpec

ZERO = Program(
    (TensorSpec("out", "FP32", "out"),),
    (Axis("n", 4, (4,), (0,)),),
    ("i",),
    (Invocation("i", "p"),),
    (Primitive("p", "Zero", (("M", ()), ("N", ("n",))), ("out",)),),
)


@pytest.mark.parametrize(
    ("processor", "features", "why"),
    [
        ("foo", "+bar", "'foo' is not a recognized processor for this target; '\\+bar' is not a recognized feature"),
        (host().cpu, "+bar", "'\\+bar' is not a recognized feature"),
    ],
)
def test_names_that_llvm_does_not_know_are_refused(processor, features, why):
    with pytest.raises(BackendError, match=why):
        cpu.compile(ZERO, target=Target(processor, features, 16, 16), cache=False)
    with pytest.raises(BackendError, match=why):
        cpu.tune(ZERO, target=Target(processor, features, 16, 16), cache=False)


@pytest.mark.skipif(not host().has("sse2"), reason="names of x86-64")
@pytest.mark.parametrize(
    ("processor", "features", "why"),
    [
        ("i386", "", "64-bit code requested"),
        ("cortex-a72", "", "not a recognized processor"),
        ("x86-64", "-sse2", "SSE2 disabled"),
    ],
)
def test_processors_without_code_are_refused(processor, features, why):
    with pytest.raises(BackendError, match=why):
        cpu.compile(ZERO, target=Target(processor, features, 16, 16), cache=False)


def test_features_that_this_processor_lacks_are_refused():
    lacking = [name[1:] for name in host().features.split(",") if name.startswith("-")]
    if lacking:
        with pytest.raises(BackendError, match=f"this processor, {host().cpu}, has no \\+{lacking[0]}"):
            cpu.compile(ZERO, target=replace(host(), features=f"+{lacking[0]}"), cache=False)
    assert host().has_not(lacking[0]) if lacking else True


@pytest.mark.parametrize("name", ["znver5", 3, ZERO])
def test_what_is_no_target_is_refused(name):
    with pytest.raises(BackendError, match="is no target"):
        cpu.compile(ZERO, target=name)


@pytest.mark.parametrize(
    "change",
    [{"cpu": 3}, {"cpu": 'a"b'}, {"cpu": ""}, {"features": "avx2"}, {"features": None}, {"features": "+a\0"}]
    + [{"vector_bytes": 3}, {"vector_bytes": 16.0}, {"registers": 0}, {"registers": True}, {"l1_bytes": -1}],
)
def test_fields_of_other_types_are_refused(change):
    with pytest.raises(BackendError, match="it is no such"):
        replace(host(), **change)


@pytest.mark.parametrize("threads", [0, -3, "2", 2.7, True, [1]])
def test_what_is_no_number_of_threads_is_refused(threads):
    with pytest.raises(BackendError, match="is no number of threads"):
        cpu.compile(ZERO, threads=threads)
    with pytest.raises(BackendError, match="is no number of threads"):
        cpu.tune(ZERO, threads=threads)


def test_numbers_of_threads_are_bounded_by_the_pool():
    assert cpu.compile(ZERO).threads == min(available_threads(), 255)
    assert cpu.compile(ZERO, threads=np.int64(2)).threads == 2
    kernel = cpu.compile(ZERO, threads=10**30)
    assert kernel.threads == 255
    out = np.ones(4, "f4")
    kernel(out)
    np.testing.assert_array_equal(out, 0)


@pytest.mark.parametrize("change", [{"seconds": -1}, {"seconds": "1"}])
def test_tuning_refuses_numbers_out_of_range(change):
    with pytest.raises(BackendError, match="is no "):
        cpu.tune(ZERO, **change)


def test_tuning_says_where_memory_is_missing():
    axis = Axis("n", 2**50, (4,), (0,))
    with pytest.raises(BackendError, match=f"no memory for {2**52} bytes of 'out'"):
        cpu.tune(replace(ZERO, axes=(axis,)), cache=False)


def test_scratch_that_memory_does_not_hold_is_refused():
    scratch = TensorSpec("s", "FP32", "scratch", 2**50)
    axis = Axis("n", 4, (4, 4), (0, 0))
    program = replace(ZERO, tensors=(*ZERO.tensors, scratch), axes=(axis,))
    with pytest.raises(BackendError, match="no memory for"):
        cpu.compile(program, cache=False)(np.zeros(4, "f4"))


def test_what_is_no_program_is_refused_with_the_place():
    for program in (3, replace(ZERO, axes=list(ZERO.axes))):
        with pytest.raises(VerifyError, match=r"no Program|its axes are"):
            cpu.compile(program)


@pytest.mark.parametrize("extents", [(2,) * 70, (2**40, 2**40)])
def test_overlap_of_arrays_is_judged_beyond_what_numpy_counts(extents):
    axes = tuple(Axis(k, extent, (0, 0), (0, 0)) for k, extent in enumerate(extents))
    loops = tuple(Iteration(k, k, (k + 1,), guard=(First(k - 1),) if k else ()) for k in range(len(extents)))
    copy = Primitive("p", "Copy", (("M", ()), ("N", ("n",))), ("in0", "out"))
    tensors = (TensorSpec("in0", "FP32", "in"), TensorSpec("out", "FP32", "out"))
    body = Invocation(len(extents), "p", tuple(First(k) for k in range(len(extents))))
    program = Program(tensors, (*axes, Axis("n", 4, (8, 8), (0, 0))), (0,), (*loops, body), (copy,))
    kernel = cpu.compile(program, cache=False)
    memory = np.arange(9, dtype="f4")
    with pytest.raises(BackendError, match="share memory"):
        kernel(memory, memory[2:])
