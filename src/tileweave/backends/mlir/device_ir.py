"""LLVM IR of a device as IR of the host: intrinsics become calls of a runtime, shared memory a call that finds it.

The IR keeps its operations; what changes is what a CPU cannot say: address spaces vanish, and every ``llvm.nvvm``
intrinsic becomes a function that stores its operands in slots of 8 bytes and calls C++ (`intrinsics`).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from tileweave.errors import BackendError

_BITS = {"half": 16, "bfloat": 16, "float": 32, "double": 64, "ptr": 64}


@dataclass(frozen=True, slots=True)
class Intrinsic:
    """One intrinsic that a module calls.

    Args:
        name: without ``llvm.nvvm.``.
        result: its LLVM type.
        operands: their LLVM types.
    """

    name: str
    result: str
    operands: tuple[str, ...]

    @property
    def symbol(self) -> str:
        """The name of the C++ function."""
        return "tw_" + re.sub(r"\W", "_", self.name)


@dataclass(frozen=True, slots=True)
class SharedArray:
    """A variable in shared memory.

    Args:
        name: of the global variable.
        elements, bits: its size; no elements: the dynamic part.
        align: bytes.
    """

    name: str
    elements: int
    bits: int
    align: int

    @property
    def symbol(self) -> str:
        """The name of the C++ function that finds it."""
        return f"tw_shared_{self.name}"


@dataclass(frozen=True, slots=True)
class HostModule:
    """IR that a CPU can say, and what it asks of the runtime.

    Args:
        text: LLVM IR; kernel ``k`` is the function ``tw_kernel_k``.
        kernels: name -> the LLVM types of the parameters.
        intrinsics: what is called.
        places: name of an intrinsic -> the lines that call it.
    """

    text: str
    kernels: dict[str, tuple[str, ...]]
    intrinsics: tuple[Intrinsic, ...]
    places: dict[str, tuple[int, ...]]


_GLOBAL = re.compile(
    r"^ *llvm\.mlir\.global [^\n]*@(\w+)\(\) \{addr_space = 3 : i32(?:, alignment = (\d+) : i64)?[^\n]*\} : "
    r"!llvm\.array<(\d+) x ([^>\n]+)>.*\n",
    re.M,
)


def shared_arrays(module: str) -> tuple[tuple[SharedArray, ...], list[tuple[str, str]]]:
    """The shared variables of a module in the LLVM dialect, and the edits that turn them into calls."""
    found = []
    edits = [(_GLOBAL.pattern, "")]
    for name, align, count, element in _GLOBAL.findall(module):
        array = SharedArray(name, int(count), bits_of(element), int(align or 0) or max(1, bits_of(element) // 8))
        found.append(array)
        edits.append((rf"llvm\.mlir\.addressof @{name} : ", f"llvm.call @{array.symbol}() : () -> "))
    declared = "".join(f"  llvm.func @{array.symbol}() -> !llvm.ptr<3>\\n" for array in found)
    edits.append((r"^module \{\n", "module {\\n" + declared))
    return tuple(found), edits


def bits_of(element: str) -> int:
    """The bits of an MLIR or LLVM type: of a scalar, a vector, or an array."""
    nested = re.fullmatch(r"(?:vector<|!llvm\.array<|<|\[)(\d+) ?x (.+?)(?:>|\])|vector<(\d+)x(.+)>", element)
    if nested:
        count, inner = (nested[1], nested[2]) if nested[1] else (nested[3], nested[4])
        return int(count) * bits_of(inner)
    if element == "bf16":
        return 16
    return _BITS.get(element) or int(re.sub(r"\D", "", element) or 0)


# -- rewriting ----------------------------------------------------------------------------------------------

_DECLARED = re.compile(r"^declare (.*?)@llvm\.nvvm\.([\w.]+)\((.*)\)[^\n]*$", re.M)
_TYPE = r"\{.*\}|<[^>]*>|\[.*\]|\w+"
_FIRST_TYPE, _LAST_TYPE = re.compile(rf" *({_TYPE})"), re.compile(rf"({_TYPE}) *$")
"""Attributes follow the type of a parameter and precede that of a result."""


def _operands(types: str) -> tuple[str, ...]:
    """The types between commas that stand in no bracket."""
    parts, depth, start = [], 0, 0
    for i, letter in enumerate(types):
        depth += (letter in "<{[(") - (letter in ">}])")
        if letter == "," and not depth:
            parts.append(types[start:i])
            start = i + 1
    found = [_FIRST_TYPE.match(part) for part in (*parts, types[start:])]
    return tuple(match[1] for match in found if match)


def _result(text: str) -> str:
    match = _LAST_TYPE.search(text)
    return match[1] if match else "void"


def host_module(ir: str, *, checked: bool) -> HostModule:
    """Rewrites the IR of kernels.

    Args:
        ir: what mlir-translate prints.
        checked: call the checker before every access of memory.
    """
    text = re.sub(r" ?addrspace\(\d+\)", "", ir)
    text = re.sub(r"^(.*alloca .*), +$", r"\1", text, flags=re.M)
    text = re.sub(r"addrspacecast ptr (\S+?) to ptr", r"getelementptr i8, ptr \1, i64 0", text)
    intrinsics = []
    for result, name, operands in _DECLARED.findall(text):
        intrinsics.append(Intrinsic(name, _result(result), _operands(operands)))
    text = _DECLARED.sub("", text).replace("@llvm.nvvm.", "@tw.")
    kernels = {}
    for name, parameters in re.findall(r"^define ptx_kernel void @(\w+)\((.*?)\)[^)\n]*\{$", text, re.M):
        kernels[name] = _operands(parameters)
        text = re.sub(rf"@{name}\(", f"@tw_kernel_{name}(", text)
    text = text.replace("define ptx_kernel ", "define ")
    text = text.replace("!llvm.module.flags = !{", "!llvm.module.flags = !{!9999000, ")
    text = re.sub(r'filename: "[^"]*", directory: "[^"]*"', 'filename: "kernel.mlir", directory: ""', text)
    places = _places(text)
    text = _observed(text, checked)
    wrappers = [_wrapper(intrinsic) for intrinsic in intrinsics]
    head = [f"declare void @{intrinsic.symbol}(ptr, ptr)" for intrinsic in intrinsics]
    head += ["declare void @tw_aligned(ptr, i64)"]
    if checked:
        head += [f"declare void @__tsan_{kind}_range(ptr, i64)" for kind in ("read", "write")]
    # DWARF 4: addr2line of binutils 2.40 takes the wrong file from tables of version 5
    tail = ['!9999000 = !{i32 2, !"Dwarf Version", i32 4}']
    return HostModule("\n".join([text, *head, *wrappers, *tail]) + "\n", kernels, tuple(intrinsics), places)


def _places(text: str) -> dict[str, tuple[int, ...]]:
    lines = {number: int(line) for number, line in re.findall(r"^!(\d+) = !DILocation\(line: (\d+)", text, re.M)}
    found: dict[str, set[int]] = {}
    for name, number in re.findall(r"call [^@\n]*@tw\.([\w.]+)\(.*!dbg !(\d+)", text):
        found.setdefault(name, set()).add(lines.get(number, 0))
    return {name: tuple(sorted(numbers)) for name, numbers in found.items()}


def _wrapper(intrinsic: Intrinsic) -> str:
    """The function that an intrinsic becomes: operands to slots, the call, the result from memory."""
    names = [f"{kind} %a{k}" for k, kind in enumerate(intrinsic.operands)]
    lines = [f"define internal {intrinsic.result} @tw.{intrinsic.name}({', '.join(names)}) alwaysinline {{"]
    lines.append(f"  %in = alloca [{max(1, len(names))} x i64], align 8")
    void = intrinsic.result == "void"
    lines += [] if void else [f"  %out = alloca {intrinsic.result}, align 8"]
    for k, operand in enumerate(names):
        lines.append(f"  %s{k} = getelementptr i64, ptr %in, i64 {k}")
        lines.append(f"  store {operand}, ptr %s{k}, align 8")
    lines.append(f"  call void @{intrinsic.symbol}(ptr {'null' if void else '%out'}, ptr %in)")
    lines += ["  ret void"] if void else [f"  %r = load {intrinsic.result}, ptr %out, align 8"]
    lines += [] if void else [f"  ret {intrinsic.result} %r"]
    return "\n".join([*lines, "}"])


_ACCESS = re.compile(
    r"^  (?:%\S+ = load|store)(?: volatile)? (?P<type><\d+ x \w+>|\[[^\]]*\]|\w+)(?: [^,\n]+)?, ptr (?P<at>[^,\n ]+)"
    r"(?:, align (?P<align>\d+))?(?:, !\w+ !\d+)*(?P<place>, !dbg !\d+)?.*$"
)


def _observed(text: str, checked: bool) -> str:
    """The IR with a call before each access: alignment always, the checker's clocks where wanted."""
    out: list[str] = []
    for line in text.split("\n"):
        match = _ACCESS.match(line)
        if match:
            size, place = bits_of(match["type"]) // 8, match["place"] or ""
            align = int(match["align"] or 1)
            if align > 1:
                out.append(f"  call void @tw_aligned(ptr {match['at']}, i64 {align}){place}")
            if checked:
                kind = "write" if line.startswith("  store") else "read"
                out.append(f"  call void @__tsan_{kind}_range(ptr {match['at']}, i64 {size}){place}")
        out.append(line)
    return "\n".join(out)


def library(module: HostModule) -> list[str]:
    """The functions of a device library that a module calls."""
    return sorted(set(re.findall(r"^declare .*@(__nv_\w+|vprintf|__assertfail)\(", module.text, re.M)))


def refuse_unknown(
    where: str, module: HostModule, known: Sequence[str], source: str, functions: Collection[str] = ()
) -> None:
    """An error that names what no emulation exists for.

    Raises:
        BackendError: an intrinsic outside `known` patterns, or a call of a device library outside `functions`.
    """
    missing = [i.name for i in module.intrinsics if not any(re.fullmatch(p, i.name) for p in known)]
    missing += [name for name in library(module) if name not in functions]
    if missing:
        raise BackendError(
            where, f"no emulation of {', '.join(sorted(missing))}", legal="operations that docs/mlir.md lists",
            facts={"source": source},
        )  # fmt: skip
