"""No code touches a byte that is not an operand's: arrays that begin or end where memory does.

An access beyond them ends the process, so the test has one of its own.
"""

import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest

PROGRAM = textwrap.dedent(
    """
    import ctypes, mmap, sys
    import numpy as np
    import tileweave as tw
    from tileweave.graph import nn

    seed = int(sys.argv[1])
    random, page = np.random.default_rng(seed), mmap.PAGESIZE
    protect = ctypes.CDLL(None).mprotect
    protect.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    maps = []

    def edged(array):
        # the same array in pages between which no others can be read, at one of their ends
        pages = -(-max(array.nbytes, 1) // page)
        memory = np.frombuffer(mmap.mmap(-1, (pages + 2) * page), np.uint8)
        maps.append(memory)
        for at in (0, (pages + 1) * page):
            assert protect(memory.ctypes.data + at, page, 0) == 0
        start = page if random.random() < 0.3 else (pages + 1) * page - array.nbytes
        there = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
        there[...] = array
        return there

    def some(shape, dtype):
        if np.dtype(dtype).kind == "f":
            return random.standard_normal(shape).astype(dtype)
        return random.integers(0, 100, shape).astype(dtype)

    def turned(shape, dtype):
        # extents are these; memory has them in some order, and perhaps backwards
        order = random.permutation(len(shape)) if random.random() < 0.5 else np.arange(len(shape))
        held = edged(some([shape[k] for k in order], dtype)).transpose(np.argsort(order))
        flips = tuple(slice(None, None, -1 if random.random() < 0.1 else 1) for _ in shape)
        return held[flips]

    def size(most):
        return int(random.integers(1, 9)) if random.random() < 0.4 else int(random.integers(1, most))

    def product():
        spec = str(random.choice(["ij,jk->ik", "ji,jk->ik", "ij,kj->ik", "bij,bjk->bik", "bij,bkj->bik", "ij,j->i",
                                  "i,ij->j", "ij,jk->ki", "abk,kcd->abcd", "abkl,klc->abc", "i,j->ij", "bij,bj->bi"]))
        n = {letter: size(14 if len(spec) > 14 else 70) for letter in "abcdijkl"}
        dtype = random.choice(["float32", "float64", "int32", "float16", "int8"])
        left, right = spec.split("->")[0].split(",")
        x, y = (turned([n[letter] for letter in each], dtype) for each in (left, right))
        out = edged(np.zeros([n[letter] for letter in spec.split("->")[1]], dtype))
        tw.contract(spec, x, y, out=out, threads=1)
        wide = "float64" if np.dtype(dtype).kind == "f" else "int64"
        close(out, np.einsum(spec, x.astype(wide), y.astype(wide)).astype(dtype))

    def close(found, wanted):
        exact = np.dtype(found.dtype).kind != "f"
        tolerance = 0 if exact else {2: 5e-2, 4: 1e-3, 8: 1e-9}[found.dtype.itemsize]
        np.testing.assert_allclose(found.astype("float64"), wanted.astype("float64"), tolerance, tolerance * 10)

    def rows():
        rank = int(random.integers(1, 4))
        shape, dtype = [size(40) for _ in range(rank)], random.choice(["float32", "float64", "int8", "int32"])
        x, y = turned(shape, dtype), turned(shape, dtype)
        axis = int(random.integers(rank))
        s, t = tw.source(x), tw.source(y)
        made = {
            "sum": lambda: (tw.sum(s, axis=axis), x.sum(axis)),
            "all": lambda: (tw.sum(s), x.sum()),
            "max": lambda: (tw.max(s, axis=axis), x.max(axis)),
            "chain": lambda: (s * 2 + t, x * np.dtype(dtype).type(2) + y),
            "cast": lambda: (s.astype("int8"), x.astype("int8")),
            "turn": lambda: (tw.transpose(s) + tw.transpose(t), x.T + y.T),
            "running": lambda: (tw.cumsum(s, axis=axis), np.cumsum(x, axis)),
            "sorted": lambda: (tw.sort(s, axis=axis), np.sort(x, axis)),
            "below": lambda: (s < t, x < y),
        }
        if np.dtype(dtype).kind == "f":
            e = np.exp(x - x.max(axis, keepdims=True))
            made["softmax"] = lambda: (nn.softmax(s, axis=axis), e / e.sum(axis, keepdims=True))
        else:
            made.pop("cast")
        tensor, wanted = made[str(random.choice(list(made)))]()
        found = tw.run(tensor, threads=1)
        if found.ndim and random.random() < 0.5:
            out = edged(np.zeros(found.shape, found.dtype))
            found = tw.run(tensor, out=out, threads=1)
        if found.dtype == bool:
            np.testing.assert_array_equal(found, wanted)
        else:
            close(found, wanted)

    for number in range(int(sys.argv[2])):
        print(number, flush=True)
        (product if random.random() < 0.6 else rows)()
        for memory in maps[:-12]:
            pages = memory.nbytes // page
            for at in (0, (pages - 1) * page):
                protect(memory.ctypes.data + at, page, 3)
        del maps[:-12]
    """
)


@pytest.mark.skipif(os.name != "posix", reason="memory is protected as POSIX does it")
@pytest.mark.parametrize("cases", [40, pytest.param(1000, marks=pytest.mark.slow)])
def test_no_byte_beyond_an_operand_is_touched(cases: int) -> None:
    given = str(int(np.random.default_rng().integers(1 << 31))), str(cases)
    done = subprocess.run([sys.executable, "-c", PROGRAM, *given], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"seed {given[0]}, case {done.stdout.split()[-1:]}: {done.stderr[-3000:]}"
