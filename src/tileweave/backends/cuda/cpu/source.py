"""CUDA C++ becomes C++ for the runtime: shared variables, launches, coordinates, asm; lines stay where they are."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tileweave.backends.cuda.cpu.emit import AtomTables, Emitter
from tileweave.backends.cuda.cpu.ptx import parse_asm
from tileweave.backends.cuda.cpu.tokens import (
    TOKEN,
    asm_opens,
    closing,
    declarator,
    declared_inside,
    last_word,
    skip_space,
    split_commas,
    take_alignment,
    take_callee,
    three_marks,
)
from tileweave.backends.cuda.parameters import Parameter, aliases_of, parameter_of
from tileweave.errors import BackendError

_MARKER = re.compile(r'# (\d+) "((?:[^"\\]|\\.)*)"([ \d]*)$')
_COORDINATES = {
    "threadIdx": "::tw::thread_index()", "blockIdx": "::tw::block_index()", "blockDim": "::tw::block_extent()",
    "gridDim": "::tw::grid_extent()",
}  # fmt: skip
_WORDS = {
    "__global__": "", "__device__": "", "__host__": "", "__constant__": "", "__managed__": "", "__grid_constant__": "",
    "__forceinline__": "inline __attribute__((always_inline))", "__noinline__": "__attribute__((noinline))",
}  # fmt: skip
_TEXTURES = (
    "textures other than objects of one and two dimensions",
    "cudaTextureObject_t with tex1Dfetch, tex1D, tex2D",
)
_GRAPHS = ("graphs made node by node", "a graph captured from a stream")
_REFUSED = {
    **dict.fromkeys(
        ("cudaMalloc3DArray", "cudaMallocMipmappedArray", "cudaBindTexture", "cudaBindTextureToArray", "tex3D",
         "tex2DLayered", "surf3Dread"), _TEXTURES),
    **dict.fromkeys(("cudaGraphCreate", "cudaGraphAddKernelNode", "cudaGraphAddNode"), _GRAPHS),
}  # fmt: skip
#: What the generated code marks as its own: no access of it is followed. Macros are expanded before.
_WITH_ASM = "/include/mma.h"
"""The header of ours whose asm statements are translated as a program's are."""
PLAIN = '__attribute__((no_sanitize("thread", "alignment", "bounds")))'


@dataclass(frozen=True, slots=True)
class KernelSignature:
    """A kernel of a text: its name, its parameters, how many parameters it has as a template."""

    name: str
    declared: tuple[Parameter, ...]
    template: int

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names of the parameters."""
        return tuple(parameter.name for parameter in self.declared)


@dataclass(frozen=True, slots=True)
class Translation:
    """What a source became: C++ for g++, its kernels, and asm statements that do not say that they touch memory."""

    text: str
    kernels: tuple[KernelSignature, ...]
    unordered: tuple[tuple[str, str], ...]


def translate(preprocessed: str, main: str) -> Translation:
    """Rewrites preprocessed CUDA C++.

    Args:
        preprocessed: the output of ``g++ -E``, with its line markers.
        main: the name of the main file in the markers.

    Raises:
        BackendError: an asm statement that has no meaning here; names file and line.
    """
    translator = _Translator()
    out: list[str] = []
    started = False
    for file, header, lines in _regions(preprocessed):
        system = header and not file.endswith(_WITH_ASM)
        if not (system or started or file.startswith("<")) and lines:  # the first region that may hold asm
            started, head = True, len(out)
        if not lines:
            continue
        first, last = min(lines), max(lines)
        text = "\n".join(lines.get(n, "") for n in range(first, last + 1))
        out.append(f'# {first} "{file}"{" 3" if system else ""}')
        out.append(text if system or not text.strip() else translator.region(text, file, first))
    if started:
        out[head:head] = ['# 1 "<tables>"', *translator.tables.text]
    return Translation("\n".join(out) + "\n", tuple(translator.kernels), tuple(translator.emitter.unordered))


def signatures(text: str) -> tuple[KernelSignature, ...]:
    """The kernels of a text as it is written, macros unexpanded.

    Example:
        >>> signatures("__global__ void f(float* x, int n) {}")[0].parameters
        ('x', 'n')
    """
    translator = _Translator()
    translator.aliases = aliases_of(text)
    tokens = [m.group(0) for m in TOKEN.finditer(text)]
    for i, token in enumerate(tokens):
        if token == "__global__":
            translator.note_kernel(tokens, i)
    return tuple(translator.kernels)


def _regions(preprocessed: str) -> list[tuple[str, bool, dict[int, str]]]:
    """Stretches of one file: its name, whether it is a system header, and the text of each line.

    Where a macro of a system header is used, the preprocessor breaks the line; the parts are joined again.
    """
    regions: list[tuple[str, bool, dict[int, str]]] = []
    file, number, system = "", 1, True
    lines: dict[int, str] = {}
    for line in preprocessed.split("\n"):
        match = _MARKER.match(line)
        if not match:
            lines[number] = f"{lines[number]} {line}" if number in lines else line
            number += 1
            continue
        flags = match.group(3).split()
        if match.group(2) != file or "1" in flags or "2" in flags:
            regions.append((file, system, lines))
            file, lines, system = match.group(2), {}, "3" in flags
        number = int(match.group(1))
    return [*regions, (file, system, lines)]


class _Translator:
    def __init__(self) -> None:
        self.tables = AtomTables()
        self.emitter = Emitter(self.tables)
        self.kernels: list[KernelSignature] = []
        self.overloaded: set[str] = set()
        self.aliases: dict[str, str] = {}
        self.clusters: dict[str, str] = {}
        self.scopes: list[bool] = []  # whether each open brace belongs to a namespace
        self.shadows: dict[str, int] = {}
        self.globals: dict[str, str] = {}
        self.count = 0
        self.file, self.line = "", 0

    def region(self, text: str, file: str, line: int) -> str:
        self.file, self.line = file, line
        self.aliases |= aliases_of(text)
        tokens = [m.group(0) for m in TOKEN.finditer(text)]
        return "".join(self._rewrite(tokens))

    def _where(self) -> str:
        return f"{self.file}:{self.line}"

    def _rewrite(self, tokens: list[str]) -> list[str]:
        out: list[str] = []
        i = 0
        while i < len(tokens):
            token = tokens[i]
            if token in ("asm", "__asm__", "__asm") and asm_opens(tokens, i):
                i = self._asm(tokens, i, out)
                continue
            if token == "__shared__":
                i = self._shared(tokens, i + 1, out)
                continue
            if token == "<" and three_marks(tokens, i, "<"):
                i = self._launch(tokens, i, out)
                continue
            if token in ("__launch_bounds__", "__cluster_dims__"):
                end = closing(tokens, skip_space(tokens, i + 1))
                if token == "__cluster_dims__":
                    self._pending_cluster = "".join(tokens[skip_space(tokens, i + 1) : end + 1])
                out.append("\n" * "".join(tokens[i : end + 1]).count("\n"))
                self.line += out[-1].count("\n")
                i = end + 1
                continue
            if token == "__global__":
                self.note_kernel(tokens, i)
            if token in ("cudaLaunchKernel", "cudaLaunchCooperativeKernel"):
                i = self._uncast(tokens, i, out)
                continue
            out.append(self._word(tokens, i, out))
            self.line += token.count("\n")
            i += 1
        return out

    _pending_cluster = ""

    def _word(self, tokens: list[str], i: int, out: list[str]) -> str:
        token = tokens[i]
        if token == "{":
            before = [t for t in out[-40:] if not t.isspace()]
            tail = before[-4:]
            space = bool(tail) and (
                "namespace" in tail or (len(tail) > 1 and tail[-2] == "extern" and tail[-1].startswith('"'))
            )
            self.scopes.append(space)
        elif token == "}" and self.scopes:
            self.scopes.pop()
            self.shadows = {name: depth for name, depth in self.shadows.items() if depth <= len(self.scopes)}
        elif token == ";":
            self.shadows = {name: depth for name, depth in self.shadows.items() if depth <= len(self.scopes)}
        if token in _WORDS:
            return _WORDS[token]
        member = last_word(out) in (".", "->", "::")
        if token in _REFUSED and not member:
            what, instead = _REFUSED[token]
            raise BackendError(
                "cuda check", f"{what} have no emulation: {token}", inputs={"at": self._where()}, legal=instead
            )
        if token in _COORDINATES and not member:
            declared = declared_inside(out)
            if declared is not None:  # a variable of that name
                self.shadows[token] = len(self.scopes) + declared
            if token not in self.shadows:
                return _COORDINATES[token]
        if token in ("malloc", "free") and not member and "(" in tokens[(j := skip_space(tokens, i + 1)) : j + 1]:
            return f"::tw::{token}"  # in a kernel, of the heap of kernels
        if token in self.globals and not member:
            return self.globals[token]
        return token

    def _asm(self, tokens: list[str], i: int, out: list[str]) -> int:
        start = i
        i = skip_space(tokens, i + 1)
        while tokens[i] != "(":
            i = skip_space(tokens, i + 1)
        end = closing(tokens, i)
        body = "".join(self._nested(tokens[i + 1 : end]))
        out.append(self.emitter.block(parse_asm(body, self._where())))
        newlines = "".join(tokens[start : end + 1]).count("\n")
        out.append("\n" * newlines)
        self.line += newlines
        return end + 1

    def _nested(self, tokens: list[str]) -> list[str]:
        line = self.line
        result = self._rewrite(tokens)
        self.line = line
        return result

    def note_kernel(self, tokens: list[str], i: int) -> None:
        """Notes the signature of a kernel whose ``__global__`` stands at i."""
        j, name = i + 1, ""
        while j < len(tokens) and tokens[j] not in ("{", ";"):
            if tokens[j] == "(":
                if name in ("__launch_bounds__", "__cluster_dims__", "__attribute__", "__align__"):
                    if name == "__cluster_dims__":
                        self._pending_cluster = "".join(tokens[j : closing(tokens, j) + 1])
                    j = closing(tokens, j)
                else:
                    break
            elif re.match(r"[A-Za-z_]", tokens[j]):
                name = tokens[j]
            j += 1
        else:
            return
        end = closing(tokens, j)
        inner = tokens[j + 1 : end]
        parts = [part[: part.index("=")] if "=" in part else part for part in split_commas(inner)]
        declared = [p for part in parts if (p := parameter_of(part, self.aliases)) is not None]
        back = [t for t in tokens[max(0, i - 60) : i] if not t.isspace()]
        for k in range(len(back) - 1, -1, -1):
            if back[k] in (";", "}"):
                back = back[k + 1 :]
                break
        if self._pending_cluster:
            self.clusters[name] = self._pending_cluster
            self._pending_cluster = ""
        generic = len(split_commas(back[back.index("template") + 2 :])) if "template" in back else 0
        signature = KernelSignature(name, tuple(declared), generic)
        same = next((k for k in self.kernels if k.name == name), None)
        if same is None:
            self.kernels.append(signature)
        elif [p.text for p in same.declared] != [p.text for p in declared]:
            self.overloaded.add(name)

    def _launch(self, tokens: list[str], i: int, out: list[str]) -> int:
        callee = take_callee(out)
        mark = callee.index("<") if "<" in callee else len(callee)
        plain, given = callee[:mark], split_commas(callee[mark + 1 : -1]) if callee[mark:] else []
        name = next((t for t in reversed(plain) if re.match(r"[A-Za-z_]", t)), "kernel")  # behind its namespaces
        config_start = i
        opened = 0
        while opened < 3:
            opened += tokens[i] == "<"
            i += 1
        start, depth = i, 0
        while not (depth == 0 and tokens[i] == ">" and three_marks(tokens, i, ">")):
            depth += (tokens[i] in "([{") - (tokens[i] in ")]}")
            i += 1
            if i >= len(tokens):
                raise BackendError("translate", "a launch <<< that does not end", inputs={"at": self._where()})
        config = "".join(self._nested(tokens[start:i]))
        closed = 0
        while closed < 3:
            closed += tokens[i] == ">"
            i += 1
        i = skip_space(tokens, i)
        end = closing(tokens, i)
        arguments = "".join(self._nested(tokens[i + 1 : end]))
        kernel = "".join(callee).strip()
        known = next((k for k in self.kernels if k.name == name), None)
        one = name not in self.overloaded and (known is None or len(given) >= known.template)
        address = f"::tw::address_of({kernel})" if one else "nullptr"  # also of a pointer to a kernel
        cluster = f"dim3{self.clusters[name]}" if name in self.clusters else "dim3(1,1,1)"
        arguments = f", {arguments}" if arguments.strip() else ""
        out.append(
            f'::tw_launched(::tw::Launch("{name}", {cluster}, {config}).of({address}).run([=](auto&&... '
            f"tw_a) TW_PLAIN {{ {kernel}(tw_a...); }}{arguments}))"
        )
        missing = "".join(tokens[config_start : end + 1]).count("\n") - out[-1].count("\n")
        out.append("\n" * max(0, missing))
        self.line += out[-1].count("\n") + out[-2].count("\n")
        return end + 1

    def _uncast(self, tokens: list[str], i: int, out: list[str]) -> int:
        """Drops the cast to ``void*`` of a kernel, which would lose the types of its parameters."""
        opening = skip_space(tokens, i + 1)
        out += tokens[i : opening + 1]
        first = skip_space(tokens, opening + 1)
        if tokens[opening] == "(" and tokens[first] == "(":
            end = closing(tokens, first)
            if "void" in tokens[first:end] and "*" in tokens[first:end]:
                return end + 1
        return opening + 1

    def _shared(self, tokens: list[str], i: int, out: list[str]) -> int:
        end, depth = i, 0
        while tokens[end] != ";" or depth:
            depth += (tokens[end] in "([{") - (tokens[end] in ")]}")
            end += 1
        before, extern = [], False
        while True:
            previous = last_word(out)
            if previous not in ("extern", "static", "volatile", "const"):
                break
            while out.pop() != previous:
                pass
            extern |= previous == "extern"
            if previous == "volatile":
                before.append("volatile ")
        raw = "".join(tokens[i : end + 1])
        items, align = take_alignment([*before, *tokens[i:end]])
        extern |= "extern" in items
        items = [t for t in items if t not in ("extern", "static", "__device__")]
        outside = all(self.scopes)
        text = []
        base: list[str] = []
        for n, part in enumerate(split_commas(items)):
            kind, name, suffix = declarator(part)
            if n:
                kind = base + kind
            else:
                base = [t for t in kind if t not in ("*", "&")]
            text.append(
                self._variable(
                    "".join(self._nested(kind)).strip(), name, "".join(self._nested(suffix)), align, extern, outside
                )
            )
        out.append(" ".join(text))
        out.append("\n" * raw.count("\n"))
        self.line += raw.count("\n")
        return end + 1

    def _variable(self, kind: str, name: str, suffix: str, align: str, extern: bool, outside: bool) -> str:
        self.count += 1
        if extern:
            value = f'::tw::dynamic<{kind}>("{name}", {align})'
            if outside:
                self.globals[name] = f"({value})"
                return ""
            return f"{kind}* const {name} = {value};"
        key, typed = f"tw_key_{self.count}", f"tw_type_{self.count}"
        value = f'::tw::shared<{key}, {typed}>("{name}", {align})'
        declared = f"struct {key}; typedef {kind} {typed}{suffix};"
        if outside:
            self.globals[name] = f"({value})"
            return declared
        return f"{declared} auto& {name} = {value};"
