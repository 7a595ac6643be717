"""The same texts through nvcc: they assemble, with the machine instructions and registers that are expected."""

import shutil
import subprocess

import pytest

from backends.cuda.bugs import PROGRAMS
from tileweave.backends.cuda import compile, run
from tileweave.backends.cuda.compiled import _usage
from tileweave.errors import BackendError

needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not on PATH")


@needs_nvcc
@pytest.mark.parametrize(
    ("kernel", "arch", "counts"),
    [
        ("reduce", "sm_80", {}),
        ("transpose", "sm_90", {}),
        ("mma_gemm", "sm_80", {"HMMA": 16, "LDSM": 8}),
        ("ring_gemm", "sm_90a", {"HGMMA": 4, "UTMALDG": 2}),
    ],
)
def test_the_texts_that_run_on_the_cpu_compile_for_a_device(text, kernel, arch, counts):
    compiled = compile(text(kernel), arch)
    (resources,) = compiled.kernels.values()
    assert resources.spill_bytes == 0 and 0 < resources.registers <= 128
    assert compiled.cubin.startswith(b"\x7fELF") and compiled.compiler.startswith("nvcc ")
    if compiled.sass:
        assert all(compiled.sass.get(name, 0) >= least for name, least in counts.items()), compiled.sass


@needs_nvcc
@pytest.mark.parametrize("program", ["reduction", "mma_gemm", "ring_gemm", "box_store"])
def test_whole_programs_that_are_checked_compile_unchanged(program, tmp_path):
    command = [
        "nvcc",
        "-std=c++17",
        "-gencode",
        "arch=compute_90a,code=sm_90a",
        "-cubin",
        "-o",
        str(tmp_path / "p.cubin"),
    ]
    done = subprocess.run([*command, str(PROGRAMS / f"{program}.cu")], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr


@needs_nvcc
def test_what_the_compiler_refuses_is_shown():
    with pytest.raises(BackendError, match="nvcc does not accept the text for sm_90a") as raised:
        compile("__global__ void f() { x = 1; }", "sm_90a")
    assert "identifier" in str(raised.value)
    assert raised.value.source.startswith("__global__")


@needs_nvcc
def test_machine_code_says_the_registers_that_the_compiler_says(text):
    """What is read of NVRTC's machine code, held against what ptxas says of the same text."""
    compiled = compile(text("ring_gemm"), "sm_90a")
    if not compiled.sass:
        pytest.skip("no cuobjdump")
    ((name, resources),) = compiled.kernels.items()
    read = _usage(compiled.cubin)[name]
    assert (read.registers, read.spill_bytes) == (resources.registers, 0)


def test_an_unknown_target_is_refused():
    with pytest.raises(BackendError, match="arch 'hopper'"):
        compile("", "hopper")


def test_without_a_device_the_error_says_what_is_missing(text):
    try:
        from cuda.bindings import driver
    except ImportError:
        driver = None
    if driver is not None:
        pytest.skip("cuda-bindings is installed: whether it finds a driver depends on the machine")
    with pytest.raises(BackendError, match="cuda-bindings is not installed") as raised:
        run("__global__ void f() {}", 1, 32, {}, on="cuda")
    assert "tileweave[gpu]" in str(raised.value)
