"""The checker: silent on programs that are right, and a name, a file and a line for each seeded bug."""

import re
from collections import Counter

import numpy as np
import pytest

from backends.cuda.bugs import BUGS, PROGRAMS, seeded
from tileweave.backends.cuda.checked import check, check_kernel
from tileweave.cli.main import main
from tileweave.errors import BackendError

RIGHT = ("reduction", "mma_gemm", "ring_gemm", "box_store", "everyday", "objects", "library", "streams", "images")


@pytest.mark.parametrize("order", ["forward", "reversed", 11])
@pytest.mark.parametrize("program", RIGHT)
def test_programs_that_are_right_have_no_finding(program, order):
    report = check(PROGRAMS / f"{program}.cu", order=order)
    assert (report.status, [str(f) for f in report.errors]) == (0, [])


def marked(bugs):
    """Each bug; from the third that one rule names on, only in the long suites."""
    seen = Counter()
    for name, (_, _, _, rule) in bugs.items():
        seen[rule] += 1
        yield pytest.param(name, marks=[pytest.mark.slow] if seen[rule] > 2 else [])


@pytest.mark.parametrize("name", list(marked(BUGS)))
def test_each_seeded_bug_is_named_with_its_place(name, tmp_path):
    path = seeded(name, tmp_path)
    report = check(path, seconds=60)
    rule = BUGS[name][3]
    if rule == "value":
        assert report.status == 3 or report.errors
        return
    found = [f for f in report.findings if f.rule == rule]
    assert found, [str(f) for f in report.findings]
    assert re.fullmatch(re.escape(str(path)) + r":\d+", found[0].place)
    if rule.startswith(("race-", "proxy")):
        assert re.fullmatch(re.escape(str(path)) + r":\d+", found[0].other)


def test_a_race_names_both_lines_and_threads(tmp_path):
    path = tmp_path / "race.cu"
    path.write_text("""__global__ void f(int* out) {
  __shared__ int box[64];
  box[threadIdx.x] = threadIdx.x;
  out[threadIdx.x] = box[63 - threadIdx.x];
}
""")
    (finding,) = check_kernel(path, 1, 64, {"out": np.zeros(64, np.int32)}, order="reversed").errors[:1]
    assert finding.rule in ("race-block", "uninitialised")
    report = check_kernel(path, 1, 64, {"out": np.zeros(64, np.int32)}, order=3)
    race = next(f for f in report.errors if f.rule == "race-block")
    assert {race.place, race.other} == {f"{path}:3", f"{path}:4"}
    assert "box at byte" in race.text and "__syncthreads() is missing" in race.text
    assert len(re.findall(r"thread \(\d+,0,0\) of block \(0,0,0\)", race.text)) == 2


def test_reads_of_one_word_by_all_lanes_are_no_race_and_a_later_write_is(tmp_path):
    path = tmp_path / "broadcast.cu"
    path.write_text("""__global__ void f(int* x) {
  __shared__ int box;
  if (threadIdx.x == 0) box = 5;
  __syncthreads();
  int v = box;
  if (threadIdx.x == 40) box = v + 1;
  x[threadIdx.x] = v;
}
""")
    report = check_kernel(path, 1, 64, {"x": np.zeros(64, np.int32)})
    assert [(f.rule, f.place, f.other) for f in report.errors][:1] == [("race-block", f"{path}:6", f"{path}:5")] or any(
        {f.place, f.other} == {f"{path}:5", f"{path}:6"} for f in report.errors
    )


def test_neighbouring_bytes_are_no_race(tmp_path):
    path = tmp_path / "bytes.cu"
    path.write_text("""__global__ void f(unsigned char* x, unsigned short* y) {
  x[threadIdx.x] = threadIdx.x;
  y[threadIdx.x] = threadIdx.x;
  __syncthreads();
  int v = *(unsigned*)(x + threadIdx.x / 4 * 4);
  __syncthreads();
  y[threadIdx.x] = v;
}
""")
    arrays = {"x": np.zeros(64, np.uint8), "y": np.zeros(64, np.uint16)}
    assert check_kernel(path, 1, 64, arrays).errors == ()
    assert arrays["y"][5] == 5 * 256 + 4


def test_flags_with_fences_order_blocks_and_plain_ones_do_not(tmp_path):
    path = tmp_path / "flag.cu"
    text = """__global__ void f(int* data, int* flag, int* out) {
  if (blockIdx.x == 0) {
    data[0] = 42;
    FENCE
    atomicExch(flag, 1);
  } else {
    while (atomicAdd(flag, 0) == 0);
    FENCE
    out[0] = data[0];
  }
}
"""
    for fence, wrong in (("__threadfence();", False), ("", True), ("__threadfence_block();", True)):
        path.write_text(text.replace("FENCE", fence))
        arrays = {"data": np.zeros(1, np.int32), "flag": np.zeros(1, np.int32), "out": np.zeros(1, np.int32)}
        assert ("race-grid" in [f.rule for f in check_kernel(path, 2, 1, arrays).errors]) == wrong
    path.write_text("""__global__ void f(int* data, int* flag, int* out) {
  int v;
  if (blockIdx.x == 0) {
    data[0] = 42;
    asm volatile("st.release.gpu.global.u32 [%0], %1;" :: "l"(flag), "r"(1) : "memory");
  } else {
    do asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(flag) : "memory"); while (!v);
    out[0] = data[0];
  }
}
""")
    arrays = {"data": np.zeros(1, np.int32), "flag": np.zeros(1, np.int32), "out": np.zeros(1, np.int32)}
    assert check_kernel(path, 2, 1, arrays).errors == () and arrays["out"][0] == 42


SOFT = 'asm volatile("fence.acq_rel.gpu;" ::: "memory");'


@pytest.mark.parametrize(
    ("before", "after", "wrong"),
    [("__threadfence();", "__threadfence();", False), ("__threadfence();", "", True), (SOFT, "__threadfence();", True)],
)
def test_the_last_block_reads_what_others_wrote_where_fences_stand_on_both_sides(before, after, wrong, tmp_path):
    """The lane that takes the ticket is not the one that reads: a barrier lies between, then a fence."""
    path = tmp_path / "last.cu"
    path.write_text(f"""__global__ void f(int* part, unsigned* count, int* out) {{
  __shared__ bool last;
  if (threadIdx.x == 0) {{
    part[blockIdx.x] = blockIdx.x + 1;
    {before}
    last = atomicInc(count, gridDim.x) == gridDim.x - 1;
  }}
  __syncthreads();
  if (last) {{
    {after}
    out[threadIdx.x] = part[threadIdx.x];
  }}
}}
""")
    arrays = {"part": np.zeros(4, np.int32), "count": np.zeros(1, np.uint32), "out": np.zeros(4, np.int32)}
    found = {f.rule for f in check_kernel(path, 4, 4, arrays).errors}
    assert found == ({"race-grid"} if wrong else set()) and arrays["out"].tolist() == [1, 2, 3, 4]


# --- the command
def test_the_command_keeps_output_and_status(tmp_path, capfd):
    assert main(["cuda", "check", str(PROGRAMS / "reduction.cu"), "--", "1000"]) == 0
    assert capfd.readouterr().out.startswith("sum ")
    path = tmp_path / "status.cu"
    path.write_text('#include <cstdio>\nint main(int n, char** a) { puts(a[1]); fprintf(stderr, "e\\n"); return 7; }\n')
    assert main(["cuda", "check", str(path), "--", "hello"]) == 7
    assert capfd.readouterr() == ("hello\n", "e\n")


def test_the_command_prints_a_line_for_each_finding(tmp_path, capfd):
    path = seeded("__threadfence before the ticket", tmp_path)
    assert main(["cuda", "check", str(path)]) == 1
    lines = capfd.readouterr().err.splitlines()
    assert re.match(
        re.escape(f"{path}:") + r"\d+: race-grid: thread .* \(the other access: .*reduction\.cu:\d+\)$", lines[0]
    )
    assert lines[-1] == "1 finding"
    path = seeded("tiles without padding", tmp_path)
    assert main(["cuda", "check", str(path)]) == 0
    assert "note: bank-conflict: shared memory takes" in capfd.readouterr().err
    assert main(["cuda", "check", str(path), "--strict"]) == 1


def test_the_command_runs_one_kernel(tmp_path, capfd):
    path, array = tmp_path / "scale.cu", tmp_path / "x.npy"
    path.write_text(
        "__global__ void scale(float* x, float by, int n) {\n  x[blockIdx.x * blockDim.x + threadIdx.x] *= by;\n}\n"
    )
    np.save(array, np.ones(500, np.float32))
    arguments = [
        "cuda",
        "check",
        str(path),
        "--launch",
        "4,128",
        "--arg",
        f"x={array}",
        "--arg",
        "by=2.5",
        "--arg",
        "n=500",
    ]
    assert main(arguments) == 1
    assert (
        f"{path}:2: out-of-bounds: thread (116,0,0) of block (3,0,0) reads 4 bytes at byte 2000 of x"
        in capfd.readouterr().err
    )
    assert main([*arguments[:4], "5,100", *arguments[5:]]) == 0


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["nowhere.cu"], "no file nowhere.cu"),
        (["PATH", "--order", "sideways"], "'sideways'"),
        (["PATH", "--launch", "four"], "'four'"),
        (["PATH", "--launch", "1,1", "--arg", "x"], "'x'"),
        (["PATH", "--launch", "1,1", "--arg", "x=none.npy"], "no file none.npy"),
        (["PATH", "--kernel", "f"], "--launch GRID,BLOCK"),
        (["PATH"], "does not accept the text"),
    ],
)
def test_bad_input_of_the_command_is_refused(arguments, problem, tmp_path, capfd):
    path = tmp_path / "f.cu"
    path.write_text("__global__ void f() { frobnicate(); }\n")
    assert main(["cuda", "check", *(str(path) if a == "PATH" else a for a in arguments)]) == 2
    assert problem in capfd.readouterr().err


def test_ptx_without_an_emulation_is_refused_with_its_line(tmp_path):
    path = tmp_path / "f.cu"
    path.write_text(
        '__global__ void f() {\n  asm volatile("tcgen05.shift.cta_group::1.down [%0];" :: "r"(0));\n}\nint main() {}\n'
    )
    with pytest.raises(BackendError, match=r"no emulation of tcgen05") as raised:
        check(path)
    assert f"{path}:2" in str(raised.value)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            "\n__global__ void f(cudaTextureObject_t t) { tex3D<float>(t, 0, 0, 0); }\nint main() {}\n",
            "textures other than",
        ),
        ("\n#include <thrust/sort.h>\nint main() {}\n", "no header thrust/sort.h"),
        (
            "\nint main() { cudaGraph_t g; cudaGraphCreate(&g, 0); }\n",
            "node by node have no emulation: cudaGraphCreate",
        ),
        ("\nint main() { f<<<1, 2>>(3); }\n", "a launch <<< that does not end"),
    ],
)
def test_what_the_fibers_do_not_have_is_refused_with_its_line(text, problem, tmp_path):
    path = tmp_path / "f.cu"
    path.write_text(text)
    with pytest.raises(BackendError, match=problem) as raised:
        check(path)
    assert f"{path}:2" in str(raised.value)


def test_parameters_may_have_the_names_of_coordinates(tmp_path):
    path = tmp_path / "f.cu"
    path.write_text(
        "#include <cstdio>\nvoid show(dim3 gridDim, const dim3 &blockDim);\n"
        "__global__ void f(int *x) { if (threadIdx.x == 0) x[blockIdx.x] = gridDim.x * blockDim.x; }\n"
        'void show(dim3 gridDim, const dim3 &blockDim) { printf("%u %u\\n", gridDim.x, blockDim.x); }\n'
        "int main() {\n  int *x; cudaMallocManaged(&x, 12);\n  { dim3 a(1), gridDim(3), blockDim = 64; show(gridDim, "
        "blockDim); f<<<gridDim, blockDim>>>(x); }\n  cudaDeviceSynchronize();\n  return x[2] != 192;\n}\n"
    )
    report = check(path)
    assert (report.status, report.errors, report.output.split()) == (0, (), ["3", "64"])


def test_asm_that_orders_memory_says_so():
    text = (
        'int main() {}\n__global__ void f(unsigned a) { asm volatile("mbarrier.inval.shared.b64 [%0];" :: "r"(a)); }\n'
    )
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "f.cu"
        path.write_text(text)
        report = check(path)
    assert [(f.rule, f.note) for f in report.findings] == [("asm-clobber", True)] and report.errors == ()


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("empty.cu", "", "empty.cu has no main, and no kernel was asked for\n  legal  a whole program"),
        (
            "one.cu",
            "__global__ void f(int n) {}",
            "no main, and no kernel was asked for\n  legal  --launch .* for one of f",
        ),
        ("text.py", "x = 1", r"text.py is no CUDA source file\n  legal  .cu, "),
    ],
)
def test_a_file_that_is_no_program_is_refused(name, text, problem, tmp_path):
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(BackendError, match=problem):
        check(path)


def test_comments_and_strings_in_other_encodings_stay(tmp_path):
    path = tmp_path / "latin.cu"
    path.write_bytes(b'#include <cstdio>\n// caf\xe9\nint main() { return "\xb5"[0] != (char)0xb5; }\n')
    assert check(path).status == 0


def test_a_header_with_asm_may_come_before_everything(tmp_path):
    (
        tmp_path / "product.cuh"
    ).write_text("""__device__ inline void product(float* d, const unsigned* a, const unsigned* b) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
    "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};" : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
    : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
""")
    path = tmp_path / "f.cu"
    path.write_text("""#include "product.cuh"
__global__ void f(float* x) {
  unsigned ones[4] = {0x3c003c00, 0x3c003c00, 0x3c003c00, 0x3c003c00};
  float d[4] = {0, 0, 0, 0};
  product(d, ones, ones);
  x[threadIdx.x] = d[threadIdx.x % 4];
}
int main() {
  float* x; cudaMallocManaged(&x, 128);
  f<<<1, 32>>>(x); cudaDeviceSynchronize();
  return x[31] != 16;
}
""")
    report = check(path)
    assert (report.status, report.errors) == (0, ())


def test_volatile_does_not_order_the_lanes_of_a_warp(tmp_path):
    path = tmp_path / "volatile.cu"
    path.write_text("""__global__ void f(int* x) {
  volatile __shared__ int box[64];
  const int t = threadIdx.x;
  box[t] = t; box[t + 32] = t;
  for (int n = 32; n; n /= 2) box[t] += box[t + n];
  if (t == 0) *x = box[0];
}
""")
    report = check_kernel(path, 1, 32, {"x": np.zeros(1, np.int32)})
    assert {f.rule for f in report.errors} == {"race-warp"} and "volatile or not" in report.errors[0].text


def test_errors_of_the_host_have_their_names_and_texts(tmp_path):
    path = tmp_path / "errors.cu"
    path.write_text("""#include <cstdio>
__global__ void f(int*) {}
void show(cudaError_t e) { printf("%d %s: %s\\n", (int)e, cudaGetErrorName(e), cudaGetErrorString(e)); }
int main() {
  f<<<1, 2048>>>(nullptr); show(cudaGetLastError());
  show(cudaSetDevice(9)); float* x; show(cudaMalloc(&x, (size_t)1 << 50)); show(cudaErrorIllegalAddress);
}
""")
    assert check(path).output.splitlines() == [
        "9 cudaErrorInvalidConfiguration: invalid configuration argument",
        "101 cudaErrorInvalidDevice: invalid device ordinal",
        "2 cudaErrorMemoryAllocation: out of memory",
        "700 cudaErrorIllegalAddress: an illegal memory access was encountered",
    ]


@pytest.mark.parametrize(
    ("statement", "rule", "text"),
    [
        ("child<<<1, 1>>>();", "unsupported", "launches by kernels have no emulation"),
        (
            "assert(threadIdx.x < 40);",
            "assertion",
            "thread (40,0,0) of block (0,0,0): assertion `threadIdx.x < 40' failed",
        ),
    ],
)
def test_what_ends_a_kernel_is_named_at_its_line(statement, rule, text, tmp_path):
    path = tmp_path / "end.cu"
    path.write_text(f"""__global__ void child() {{}}
__global__ void parent() {{
  {statement}
}}
int main() {{ parent<<<1, 64>>>(); return cudaDeviceSynchronize(); }}
""")
    (finding,) = check(path).errors
    assert (finding.rule, finding.place) == (rule, f"{path}:3") and text in finding.text


def test_pinned_memory_is_not_touched_while_it_is_copied(tmp_path):
    path = tmp_path / "pinned.cu"
    text = """int main() {
  int *h, *d; cudaMallocHost(&h, 64); cudaMalloc(&d, 64); cudaMemset(d, 0, 64);
  cudaStream_t s; cudaStreamCreate(&s);
  cudaMemcpyAsync(h, d, 64, cudaMemcpyDeviceToHost, s);
  WAIT
  return h[3];
}
"""
    for wait, rules in (("cudaStreamSynchronize(s);", []), ("", ["host-race"])):
        path.write_text(text.replace("WAIT", wait))
        assert [f.rule for f in check(path).errors] == rules


def test_kernels_are_launched_by_part_of_their_template_arguments_by_overload_and_by_pointer(tmp_path):
    path = tmp_path / "launches.cu"
    path.write_text("""#include <cstdio>
template <int N, class T> __global__ void fill(T* x) { x[threadIdx.x] = N; }
namespace a {
template <class T> __global__ void over(T* x) { x[1] = 5; }
__global__ void over(float* x, int n) { x[2] = n; }
__global__ void large(float* x) { extern __shared__ float s[]; s[0] = 7; x[3] = s[0]; }
}
template <class F> const char* launch(F f, float* x) {
  f<<<1, 1, 60000>>>(x);
  return cudaGetErrorName(cudaGetLastError());
}
int main() {
  float* x;
  cudaMallocManaged(&x, 128);
  fill<3><<<1, 32>>>(x); a::over<<<1, 1>>>(x, 4); a::over<<<1, 1>>>(x);
  printf("%s ", launch(a::large, x));
  cudaFuncSetAttribute(a::large, cudaFuncAttributeMaxDynamicSharedMemorySize, 60000);
  printf("%s ", launch(a::large, x));
  cudaDeviceSynchronize();
  printf("%g %g %g %g", x[0], x[1], x[2], x[3]);
}
""")
    report = check(path)
    assert report.output == "cudaErrorInvalidValue cudaSuccess 3 5 4 7" and not report.errors


def test_pageable_memory_is_read_before_an_asynchronous_copy_returns(tmp_path):
    path = tmp_path / "pageable.cu"
    path.write_text("""#include <cstdio>
int main() {
  int h[16] = {5}, r[16], *d;
  cudaMalloc(&d, 64);
  cudaStream_t s; cudaStreamCreate(&s);
  cudaMemcpyAsync(d, h, 64, cudaMemcpyHostToDevice, s);
  h[0] = 6;
  cudaMemcpyAsync(r, d, 64, cudaMemcpyDeviceToHost, s);
  printf("%d", r[0]);
}
""")
    report = check(path)
    assert report.output == "5" and not report.errors
