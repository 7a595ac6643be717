"""What each NVVM intrinsic does on the fibers: CUDA text, with the very instruction as inline PTX where there is one.

The text goes the way of any CUDA text (`backends.cuda.cpu`): its PTX is parsed, and tiles are placed by the layouts
of the atom table.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from tileweave.backends.mlir.device_ir import Intrinsic, SharedArray
from tileweave.errors import BackendError
from tileweave.kernel.atoms import atom

_COORDINATES = {"tid": "threadIdx", "ntid": "blockDim", "ctaid": "blockIdx", "nctaid": "gridDim"}


def _coordinate(match: re.Match[str], _: Intrinsic) -> str:
    return f"*(int*)out = {_COORDINATES[match[1]]}.{match[2]};"


def _special(match: re.Match[str], _: Intrinsic) -> str:
    return f'unsigned v; asm volatile("mov.u32 %0, %%{match[1]};" : "=r"(v)); *(unsigned*)out = v;'


def _warp_size(_: re.Match[str], __: Intrinsic) -> str:
    return "*(int*)out = 32;"


def _barrier(_: re.Match[str], intrinsic: Intrinsic) -> str:
    if len(intrinsic.operands) == 2:
        return 'asm volatile("bar.sync %0, %1;" :: "r"((unsigned)in[0]), "r"((unsigned)in[1]) : "memory");'
    return 'asm volatile("bar.sync %0;" :: "r"((unsigned)in[0]) : "memory");'


def _warp_barrier(_: re.Match[str], __: Intrinsic) -> str:
    return 'asm volatile("bar.warp.sync %0;" :: "r"((unsigned)in[0]) : "memory");'


_OFFSET = '"r"((unsigned)__cvta_generic_to_shared((const void*)in[{}]))'


def _load_matrix(match: re.Match[str], _: Intrinsic) -> str:
    count, trans = int(match[1]), match[2] or ""
    registers = ", ".join(f"%{k}" for k in range(count))
    bound = ", ".join(f'"=r"(d[{k}])' for k in range(count))
    return (
        f'unsigned* d = (unsigned*)out; asm volatile("ldmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 '
        f'{{{registers}}}, [%{count}];" : {bound} : {_OFFSET.format(0)} : "memory");'
    )


def _store_matrix(match: re.Match[str], _: Intrinsic) -> str:
    count, trans = int(match[1]), match[2] or ""
    registers = ", ".join(f"%{k + 1}" for k in range(count))
    bound = ", ".join(f'"r"((unsigned)in[{k + 1}])' for k in range(count))
    return (
        f'asm volatile("stmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 [%0], {{{registers}}};" '
        f':: {_OFFSET.format(0)}, {bound} : "memory");'
    )


_TYPES = {"half": "f16", "float": "f32", "double": "f64"}


def _product_name(match: re.Match[str]) -> str:
    """The PTX opcode of an mma intrinsic, whose name leaves out the types that follow from others."""
    shape, saturate, kinds = match[1], match[2] or "", match[3].split(".")
    if len(kinds) == 1 and kinds[0] in ("bf16", "tf32"):
        types = ("f32", kinds[0], kinds[0], "f32")
    elif len(kinds) == 1 and kinds[0] == "f64":
        types = ("f64",) * 4
    elif len(kinds) == 1:
        types = ("s32", kinds[0], kinds[0], "s32")
    elif set(kinds) <= {"f16", "f32"}:
        types = (kinds[0], "f16", "f16", kinds[1])
    else:
        types = ("s32", kinds[0], kinds[1], "s32")
    return f"mma.sync.aligned.{shape}.row.col{saturate}.{'.'.join(types)}"


def _product(match: re.Match[str], _: Intrinsic) -> str:
    name = _product_name(match)
    row = atom(name)
    letter = {"f32": ("f", "float"), "f64": ("d", "double")}
    bound, read, at, slot = [], [], 0, 0
    groups = {}
    for role in ("d", "a", "b", "c"):
        code, kind = letter.get(row[role].dtype, ("r", "unsigned"))
        names = []
        for k in range(row[role].registers):
            if role == "d":
                bound.append(f'"={code}"((({kind}*)out)[{k}])')
            else:
                read.append(f'"{code}"(*(const {kind}*)(in + {slot}))')
                slot += 1
            names.append(f"%{at}")
            at += 1
        groups[role] = "{" + ", ".join(names) + "}"
    operands = ", ".join(groups[role] for role in ("d", "a", "b", "c"))
    return f'asm volatile("{name} {operands};" : {", ".join(bound)} : {", ".join(read)});'


def _copy(match: re.Match[str], intrinsic: Intrinsic) -> str:
    kind, size = match[1], match[2]
    addresses = f'{_OFFSET.format(0)}, "l"((unsigned long long)in[1])'
    part, held = (", %2", ', "r"((unsigned)in[2])') if len(intrinsic.operands) == 3 else ("", "")
    text = f"cp.async.{kind}.shared.global [%0], [%1], {size}{part};"
    return f'asm volatile("{text}" :: {addresses}{held} : "memory");'


def _plain(text: str) -> Callable[[re.Match[str], Intrinsic], str]:
    return lambda _match, _intrinsic: f'asm volatile("{text};" ::: "memory");'


def _wait_group(_: re.Match[str], __: Intrinsic) -> str:
    cases = " ".join(f'case {n}: asm volatile("cp.async.wait_group {n};" ::: "memory"); break;' for n in range(8))
    return f'switch ((unsigned)in[0]) {{ {cases} default: ::tw::trap("cp.async.wait_group of more than 7 groups"); }}'


def _shuffle(match: re.Match[str], _: Intrinsic) -> str:
    mode, predicate = match[1], match[3] is not None
    held = "bool p; " if predicate else ""
    text = (
        f'{held}unsigned v; {{ unsigned q = 0; asm volatile("{{ .reg .pred t; shfl.sync.{mode}.b32 %0|t, %2, %3, %4, '
        f'%5; selp.u32 %1, 1, 0, t; }}" : "=r"(v), "=r"(q) : "r"((unsigned)in[1]), "r"((unsigned)in[2]), '
        f'"r"((unsigned)in[3]), "r"((unsigned)in[0])); {"p = q;" if predicate else ""} }} ((unsigned*)out)[0] = v;'
    )
    return text + (" ((unsigned char*)out)[4] = p;" if predicate else "")


_FUNCTIONS: tuple[tuple[str, Callable[[re.Match[str], Intrinsic], str]], ...] = (
    (r"read\.ptx\.sreg\.(n?tid|n?ctaid)\.([xyz])", _coordinate),
    (r"read\.ptx\.sreg\.(laneid|warpid|nwarpid|smid)", _special),
    (r"read\.ptx\.sreg\.warpsize", _warp_size),
    (r"barrier0|barrier\.cta\.sync\.aligned\.(?:all|count)", _barrier),
    (r"bar\.warp\.sync", _warp_barrier),
    (r"ldmatrix\.sync\.aligned\.m8n8\.x([124])(\.trans)?\.b16(?:\.p\d)?", _load_matrix),
    (r"stmatrix\.sync\.aligned\.m8n8\.x([124])(\.trans)?\.b16(?:\.p\d)?", _store_matrix),
    (r"mma\.(m\d+n\d+k\d+)\.row\.col(\.satfinite)?\.([a-z0-9.]+)", _product),
    (r"cp\.async\.(ca|cg)\.shared\.global\.(4|8|16)(?:\.s)?", _copy),
    (r"cp\.async\.commit\.group", _plain("cp.async.commit_group")),
    (r"cp\.async\.wait\.all", _plain("cp.async.wait_all")),
    (r"cp\.async\.wait\.group", _wait_group),
    (r"membar\.cta", _plain("membar.cta")),
    (r"membar\.gl", _plain("membar.gl")),
    (r"membar\.sys", _plain("membar.sys")),
    (r"shfl\.sync\.(bfly|up|down|idx)\.(i32|f32)(p)?", _shuffle),
)
KNOWN = tuple(pattern for pattern, _ in _FUNCTIONS)
"""Patterns of the intrinsics that have a meaning here."""


def function_of(intrinsic: Intrinsic) -> str:
    """The CUDA function that an intrinsic calls: ``out`` is its result, ``in`` its operands in slots of 8 bytes.

    Example:
        >>> print(function_of(Intrinsic("read.ptx.sreg.tid.x", "i32", ())))
        extern "C" void tw_read_ptx_sreg_tid_x(void* out, const long long* in) { *(int*)out = threadIdx.x; }
    """
    for pattern, body in _FUNCTIONS:
        match = re.fullmatch(pattern, intrinsic.name)
        if match:
            head = f'extern "C" void {intrinsic.symbol}(void* out, const long long* in)'
            return f"{head} {{ {body(match, intrinsic)} }}"
    raise BackendError("run(text, ..)", f"no emulation of {intrinsic.name}", legal="operations that docs/mlir.md lists")


_LIBRARY = {
    **{name: f"{name}((double)a)" for name in ("exp", "log", "exp2", "log2", "tanh", "erf", "sin", "cos", "sqrt")},
    "floor": "floor((double)a)", "rsqrt": "1 / sqrt((double)a)",
}  # fmt: skip
#: Functions of CUDA's device library, as CUDA text has them on a CPU: computed in f64 and rounded once.
LIBRARY = {
    **{
        f"__nv_{name}{end}": f'extern "C" {kind} __nv_{name}{end}({kind} a) {{ return ({kind})({body}); }}'
        for name, body in _LIBRARY.items()
        for end, kind in (("f", "float"), ("", "double"))
    },
    "__nv_fmaf": 'extern "C" float __nv_fmaf(float a, float b, float c) { return fmaf(a, b, c); }',
    "__nv_fma": 'extern "C" double __nv_fma(double a, double b, double c) { return fma(a, b, c); }',
}
#: What LLVM calls on hosts without BF16; the result comes in the register of a half.
ROUNDED = """
static unsigned short tw_bf16(unsigned bits) {
  return (bits & 0x7fffffff) > 0x7f800000 ? bits >> 16 | 64 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
extern "C" _Float16 __truncsfbf2(float a) {
  return __builtin_bit_cast(_Float16, tw_bf16(__builtin_bit_cast(unsigned, a)));
}
extern "C" _Float16 __truncdfbf2(double a) {
  float near = (float)a;
  unsigned bits = __builtin_bit_cast(unsigned, near);
  if ((double)near != a && a == a) bits = (bits - (__builtin_fabs((double)near) > __builtin_fabs(a))) | 1;
  return __builtin_bit_cast(_Float16, tw_bf16(bits));
}
"""


def shared_function(array: SharedArray) -> str:
    """The CUDA function that finds a shared variable."""
    head = f'extern "C" void* {array.symbol}()'
    if array.elements == 0:
        return f"{head} {{ extern __shared__ __align__(16) char dynamic[]; return dynamic; }}"
    size = array.elements * array.bits // 8
    return f"{head} {{ __shared__ __align__({array.align}) char {array.name}[{size}]; return {array.name}; }}"
