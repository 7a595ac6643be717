# ruff: noqa: E501 -- asm statements stay on one line

"""The source pass and the reader of inline PTX: what they keep, what they refuse."""

import pytest

from tileweave.backends.cuda.cpu import instructions  # noqa: F401
from tileweave.backends.cuda.cpu.emit import AtomTables, Emitter
from tileweave.backends.cuda.cpu.ptx import parse_asm, parse_statements
from tileweave.backends.cuda.cpu.source import translate
from tileweave.errors import BackendError


def block(body):
    return Emitter(AtomTables()).block(parse_asm(body, "x.cu:7"))


def refused(body):
    with pytest.raises(BackendError) as raised:
        block(body)
    assert "x.cu:7" in str(raised.value)
    return str(raised.value)


def test_asm_statements_are_read():
    asm = parse_asm(
        '"add.u32 %0, %1, %2;\\n" "// a remark\\n" : "=r"(x[1]) : "r"(f(a, b)), "n"(A::size) : "memory", "cc"', "x.cu:1"
    )
    assert [b.expression for b in asm.bindings] == ["x[1]", "f(a, b)", "A::size"]
    assert asm.clobbers == ("memory", "cc")
    (statement,) = parse_statements(asm)
    assert statement.modifiers == ("add", "u32") and [o.text for o in statement.operands] == ["0", "1", "2"]


def test_scopes_labels_and_guards():
    text = '"{ .reg .pred P; L: mbarrier.try_wait.parity.shared::cta.b64 P, [%0+8], %1; @!P bra L; }" :: "r"(a), "r"(b)'
    statements = parse_statements(parse_asm(text, "x.cu:1"))
    assert [s.opcode for s in statements] == [".reg", ":", "mbarrier.try_wait.parity.shared::cta.b64", "bra"]
    assert statements[3].guard.negated and statements[2].operands[1].offset == "+8"


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ('"mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%4,%5}, {%0,%1,%2,%3};" : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a), "r"(b)', "A has 2 registers, the instruction takes 4"),
        ('"mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%0,%0,%0}, {%0,%0}, {%1}, {%0,%0,%0,%0};" : "+f"(d) : "r"(a)', "A is bound as '+f', the instruction takes 'r'"),
        ('"mma.sync.aligned.m16n8k15.row.col.f32.f16.f16.f32 {%0}, {%0}, {%0}, {%0};" : "+f"(d)', "the atom table has no mma"),
        ('"cp.async.cg.shared.global [%0], [%1], 8;" :: "r"(a), "l"(b)', "the atom table has no cp.async.cg.shared.global.8"),
        ('"mov.u64 %0, %1;" : "=l"(a) : "r"(b)', "bound as 'r', of 32 bits, where the instruction takes u64"),
        ('"mov.u32 %0, %1;" :: "r"(a), "r"(b)', "operand %0 is written but bound as an input"),
        ('"mov.u32 %0, %3;" : "=r"(a) : "r"(b)', "operand %3 is not bound"),
        ('"frobnicate.u32 %0, %1;" : "=r"(a) : "r"(b)', "no emulation of frobnicate.u32"),
        ('"wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%0,%1,%2,%3}, %4, %4, 1, 1, 1;" : "+f"(a), "+f"(b), "+f"(c), "+f"(d) : "l"(e)', "3 operands follow the descriptors"),
        ('"cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %2}], [%0];" :: "r"(a), "l"(b), "r"(c)', "a box of rank 3 needs 3 coordinates"),
        ('"mov.u32 %0, 1;" : "=x"(a)', "constraint '=x'"),
    ],
)  # fmt: skip
def test_bad_asm_is_refused_with_its_place(body, problem):
    assert problem in refused(body)


def test_lines_stay_where_they_are():
    source = """# 1 "k.cu"
__global__ void f(float* x) {
  __shared__ float a[4],
    b[8];
  asm volatile("bar.sync 0;"
    ::: "memory");
  x[threadIdx.x] = a[0];
}
void g(float* x) { dim3 blockDim(2); f<<<1,
  blockDim>>>(x); }
"""
    lines = translate(source, "k.cu").text.split("\n")
    at = next(i for i, line in enumerate(lines) if line == '# 1 "k.cu"')
    assert "x[::tw::thread_index().x]" in lines[at + 6]
    assert '::tw::Launch("f"' in lines[at + 8] and "block_extent" not in lines[at + 8]
    assert lines[at + 9].endswith("x)); }") and len(lines) == at + 12


def test_kernels_and_their_parameters():
    source = '# 1 "k.cu"\ntemplate <int N> __global__ void __launch_bounds__(128, 2) f(const float* __restrict__ x, int (*n)[4], unsigned long long m) {}\n__global__ void g(void);\n'
    kernels = translate(source, "k.cu").kernels
    assert [(k.name, k.template) for k in kernels] == [("f", True), ("g", False)]
    assert kernels[0].parameters[0] == "x" and kernels[0].parameters[2] == "m" and kernels[1].parameters == ()


def test_tables_hold_the_layouts_of_the_atom_table():
    tables = AtomTables()
    body = '"ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%0}, [%1];" : "=r"(d) : "r"(a)'
    assert "load_matrix(tw_fragment_0" in Emitter(tables).block(parse_asm(body, "x.cu:1"))
    places = tables.text[0].split("{")[1].split("}")[0].split(",")
    assert places[:4] == ["0", "8", "16", "24"] and sorted(map(int, places)) == list(range(64))
