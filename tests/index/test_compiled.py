"""Printed expressions through the compilers of their languages: MLIR by mlir-opt and LLVM, CUDA by nvcc."""

import ctypes
import re
import shutil
import subprocess

import numpy as np
import pytest

from tileweave.index import (
    c_prelude,
    equal,
    evaluate,
    maximum,
    minimum,
    select,
    simplify,
    symbol,
    symbols_of,
    to_c,
    to_mlir,
)
from tileweave.index.evaluate import values_of

s, d, e, t = symbol("s", -40, 40), symbol("d", 1, 9), symbol("e", -8, 0), symbol("t", 0, 1024)
FIXED = [
    s // d * 10 + s % d,
    s // e * 10 + s % e,
    s // 8 * 10 + s % 8,
    s // -4 + s % -4,
    t // 8 % 4 * 4 + t % 8,
    minimum(s, d) * 3 - maximum(s, e),
    (s ^ d) * 2 + (s ^ e),
    select((s < d) & (t > 5) | equal(s, 3), s - (d - t), -(s + d) // 4),
    select(~((s < d) | (s > e)), s, d) + (s - (t - d)),
    t * 0 + 2**40 + s * 2**20,
]


def tool(name):
    """The newest installed program of that name; Debian adds the version to it."""
    return next(filter(None, map(shutil.which, [name, *(f"{name}-{v}" for v in range(30, 14, -1))])), None)


MLIR_OPT, MLIR_TRANSLATE, NVCC = tool("mlir-opt"), tool("mlir-translate"), shutil.which("nvcc")
needs_mlir = pytest.mark.skipif(
    not MLIR_OPT or not MLIR_TRANSLATE, reason="mlir-opt and mlir-translate are not installed"
)
needs_nvcc = pytest.mark.skipif(not NVCC, reason="nvcc is not installed")


def points_of(expr, seed):
    """Thirty random points within the ranges of the symbols, one array per symbol."""
    random = np.random.default_rng(seed)
    points = {}
    for node in symbols_of(expr):
        (low, high, step), _ = values_of(node.args[1:], points)
        drawn = low + (random.random(30) * np.maximum(high - low, 1)).astype(np.int64)
        points[node] = np.where(drawn // step * step >= low, drawn // step * step, drawn // step * step + step)
    inside = np.ones(30, dtype=bool)
    for node, value in points.items():
        (low, high), _ = values_of(node.args[1:3], points)
        inside &= np.broadcast_to((low <= value) & (value < high), 30)
    return {node: np.broadcast_to(value, 30)[inside] for node, value in points.items()}


def programs(generator, count):
    """Expressions with points at which they are defined and small."""
    out = [(expr, points_of(expr, seed)) for seed, expr in enumerate(FIXED)]
    for seed in range(count):
        expr = generator(seed).number(3)
        points = points_of(expr, seed)
        (value,), defined = values_of((expr,), points)
        if points and len(next(iter(points.values()))) and np.all(defined):
            if all(abs(int(v)) < 2**40 for v in np.atleast_1d(value)):
                out.append((expr, points))
    return out


def run(command, text):
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[:2000]
    return done.stdout


def called(function, expr, points):
    """The results of a compiled function at the points, and the expected ones."""
    function.restype = ctypes.c_int64
    names = [node for node in dict.fromkeys(symbols_of(expr)) if node in points]
    arguments = re_order(expr, names)
    rows = zip(*(points[node].tolist() for node in arguments), strict=True)
    found = [function(*map(ctypes.c_int64, row)) for row in rows]
    expected = evaluate(expr, points)
    return found, np.broadcast_to(expected, len(found)).tolist()


def re_order(expr, names):
    """The symbols in the order in which `to_mlir` declares them: that of first use, bounds left out."""
    used = re.findall(r"%(\w+): i64", to_mlir(expr, type="i64").splitlines()[0])
    return [next(node for node in names if str(node) == name) for name in used]


@needs_mlir
@pytest.mark.parametrize("passes", [(), ("--canonicalize", "--cse")], ids=["as printed", "canonicalized"])
def test_mlir_lowered_to_machine_code_gives_the_same_numbers(generator, passes):
    llvm = pytest.importorskip("llvmlite.binding")
    cases = programs(generator, 60)
    module = "\n".join(to_mlir(expr, function=f"f{k}", type="i64") for k, (expr, _points) in enumerate(cases))
    lowering = ["--arith-expand", "--convert-arith-to-llvm", "--convert-func-to-llvm", "--reconcile-unrealized-casts"]
    text = run([MLIR_TRANSLATE, "--mlir-to-llvmir"], run([MLIR_OPT, *passes, *lowering], module))
    text = re.sub(r"^(target|declare|source_filename).*$", "", text, flags=re.MULTILINE)
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    engine = llvm.create_mcjit_compiler(
        llvm.parse_assembly(text), llvm.Target.from_default_triple().create_target_machine()
    )
    engine.finalize_object()
    checked = 0
    for k, (expr, points) in enumerate(cases):
        address = engine.get_function_address(f"f{k}")
        kinds = [ctypes.c_int64] * len(re_order(expr, symbols_of(expr)))
        found, expected = called(ctypes.CFUNCTYPE(ctypes.c_int64, *kinds)(address), expr, points)
        assert found == expected
        checked += len(found)
    assert checked > 1000


@needs_mlir
@pytest.mark.parametrize("type", ["index", "i32", "i64"])
def test_mlir_opt_accepts_every_type_and_result(type):
    exprs = [s // 8, s % e, s < d, (s < d) & ~(t < 3), select(s < 3, t % d, 5), t * 0 + 7]
    text = to_mlir(exprs, function="several", type=type)
    assert "func.func @several" in run([MLIR_OPT, "--canonicalize"], text)
    simplified = to_mlir(simplify([t // 32 * 32 + t % 32, t % 64 // 8]), type=type)
    assert run([MLIR_OPT, "--canonicalize"], simplified).count("arith.") <= 6


@needs_nvcc
def test_cuda_text_compiles(generator, tmp_path):
    parts = [c_prelude(cuda=True)]
    for k, (expr, _points) in enumerate(programs(generator, 12)):
        arguments = ", ".join(f"int64_t {node}" for node in symbols_of(expr))
        body = to_c([expr, simplify(expr)], ["plain", "shared"], cse=True)
        parts.append(f"__global__ void kernel{k}(int64_t *out{', ' if arguments else ''}{arguments}) {{")
        parts.append(f"{body}\nout[threadIdx.x] = plain - shared; }}")
    source = tmp_path / "index.cu"
    source.write_text("\n".join(parts))
    built = subprocess.run(
        [NVCC, "-ptx", "-o", str(tmp_path / "index.ptx"), str(source)], capture_output=True, text=True
    )
    assert built.returncode == 0, built.stderr
    assert (tmp_path / "index.ptx").read_text().count(".entry") == len(parts) // 2
