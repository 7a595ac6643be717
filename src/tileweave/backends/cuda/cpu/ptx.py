"""Reads the text of inline PTX: statements, their opcodes and operands, and the operands that C++ binds."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tileweave.errors import BackendError


@dataclass(frozen=True, slots=True)
class Binding:
    """One C++ expression bound to an asm statement: ``"+f"(d[0])``."""

    constraint: str
    expression: str

    @property
    def letter(self) -> str:
        """The class of register: h, r, l, f, d, or n for a constant."""
        return self.constraint.lstrip("=+&%")[:1]

    @property
    def written(self) -> bool:
        """Whether the statement writes it."""
        return self.constraint[:1] in ("=", "+")

    @property
    def read(self) -> bool:
        """Whether its value on entry matters."""
        return self.constraint[:1] != "="


@dataclass(frozen=True, slots=True)
class PtxOperand:
    """An operand of an instruction.

    Args:
        kind: ``register``, ``bound`` (text is the number), ``number``, ``special``, ``memory``, ``vector``, ``none``.
        text: the name, number or digits.
        parts: of a vector its elements; of memory the address, then what follows it.
        offset: bytes added to an address.
        negated: ``!p``.
        predicate: the p of ``d|p``.
    """

    kind: str
    text: str = ""
    parts: tuple[PtxOperand, ...] = ()
    offset: str = ""
    negated: bool = False
    predicate: str = ""


@dataclass(frozen=True, slots=True)
class Statement:
    """One PTX statement: an instruction, a label (opcode ``:``), a declaration (``.reg``)."""

    opcode: str
    operands: tuple[PtxOperand, ...] = ()
    guard: PtxOperand | None = None
    text: str = ""

    @property
    def modifiers(self) -> tuple[str, ...]:
        """The opcode without its dots."""
        return tuple(self.opcode.split("."))


@dataclass(frozen=True, slots=True)
class Asm:
    """An asm statement of a kernel: its PTX, what it binds, what it clobbers."""

    text: str
    bindings: tuple[Binding, ...]
    clobbers: tuple[str, ...]
    where: str


_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", '"': '"', "'": "'", "0": "\0"}


def _split(text: str, separator: str) -> list[str]:
    """Splits at a separator outside strings, brackets and scopes ``::``."""
    parts, depth, start, i = [], 0, 0, 0
    while i < len(text):
        c = text[i]
        if c in "\"'":
            i = _string_end(text, i)
            continue
        if c in "([{":
            depth += 1
        elif c in ")]}":
            depth -= 1
        elif c == separator and not depth:
            if separator == ":" and text[i : i + 2] == "::" and _is_scope(text, i):
                i += 2
                continue
            parts.append(text[start:i])
            start = i + 1
        i += 1
    return [*parts, text[start:]]


def _is_scope(text: str, at: int) -> bool:
    """Whether ``::`` joins names; otherwise it is two empty sections of an asm statement."""
    return bool(re.search(r"[\w>]\s*$", text[:at]) and re.match(r"::\s*[A-Za-z_~]", text[at:]))


def _string_end(text: str, at: int) -> int:
    quote, i = text[at], at + 1
    while i < len(text) and text[i] != quote:
        i += 2 if text[i] == "\\" else 1
    return i + 1


def _literals(text: str) -> str:
    """The value of adjacent string literals."""
    out, i = [], 0
    while i < len(text):
        if text[i] == '"':
            raw = re.search(r"R$", text[:i])
            if raw:
                match = re.match(r'"([^(]*)\((.*?)\)\1"', text[i:], re.S)
                if match:
                    out.append(match.group(2))
                    i += match.end()
                    continue
            end = _string_end(text, i)
            out.append(re.sub(r"\\(.)", lambda m: _ESCAPES.get(m.group(1), m.group(1)), text[i + 1 : end - 1]))
            i = end
        else:
            i += 1
    return "".join(out)


def parse_asm(body: str, where: str) -> Asm:
    """Reads what stands between the parentheses of an asm statement."""
    sections = _split(body, ":")
    text = _literals(sections[0])
    bindings = []
    for section in sections[1:3]:
        for item in _split(section, ","):
            match = re.match(r'\s*(?:\[\w+\]\s*)?"([^"]*)"\s*\((.*)\)\s*$', item, re.S)
            if match:
                bindings.append(Binding(match.group(1), " ".join(match.group(2).split())))
            elif item.strip():
                raise BackendError("asm", f"an operand that cannot be read: {item.strip()}", inputs={"at": where})
    clobbers = tuple(re.findall(r'"([^"]*)"', sections[3])) if len(sections) > 3 else ()
    return Asm(text, tuple(bindings), clobbers, where)


_LABEL = re.compile(r"\s*([A-Za-z_$%][\w$%]*)\s*:(?!:)")


def parse_statements(asm: Asm) -> list[Statement]:
    """The statements of an asm text; braces that open a scope vanish.

    Example:
        >>> [s.opcode for s in parse_statements(Asm("{ .reg .pred p; setp.ne.b32 p, q, 0; }", (), (), "x.cu:1"))]
        ['.reg', 'setp.ne.b32']
    """
    text = re.sub(r"//[^\n]*|/\*.*?\*/", " ", asm.text, flags=re.S)
    statements: list[Statement] = []
    i = 0
    while i < len(text):
        if text[i].isspace() or text[i] in "{};":
            i += 1
            continue
        label = _LABEL.match(text, i)
        if label:
            statements.append(Statement(":", text=label.group(1)))
            i = label.end()
            continue
        depth, end = 0, i
        while end < len(text) and not (text[end] == ";" and not depth):
            depth += (text[end] in "{[") - (text[end] in "}]")
            if depth < 0:
                break
            end += 1
        statements.append(_statement(text[i:end].strip(), asm))
        i = end
    return statements


def _statement(text: str, asm: Asm) -> Statement:
    guard = None
    match = re.match(r"@(!?)\s*(%?[\w$]+)\s+", text)
    if match:
        guard = _operand(("!" if match.group(1) else "") + match.group(2), asm)
        text = text[match.end() :]
    match = re.match(r"([.\w:]+(?:\.\w+)*)\s*(.*)$", text, re.S)
    if not match:
        raise BackendError("asm", f"a statement that cannot be read: {text!r}", inputs={"at": asm.where})
    opcode, rest = match.group(1), match.group(2).strip()
    if opcode.startswith("."):
        return Statement(".reg", text=text)
    operands = tuple(_operand(part.strip(), asm) for part in _split(rest, ",")) if rest else ()
    return Statement(opcode, operands, guard, text)


def _operand(text: str, asm: Asm) -> PtxOperand:
    if text.startswith("{"):
        inner = text[1:-1].strip()
        return PtxOperand("vector", parts=tuple(_operand(p.strip(), asm) for p in _split(inner, ",")) if inner else ())
    if text.startswith("["):
        first, *rest = _split(text[1:-1], ",")
        match = re.match(r"\s*([%\w$.]+)\s*(?:([+-])\s*(.+))?$", first)
        if not match:
            raise BackendError("asm", f"an address that cannot be read: {text}", inputs={"at": asm.where})
        base = _operand(match.group(1), asm)
        offset = (match.group(2) or "") + (match.group(3) or "").strip()
        return PtxOperand("memory", parts=(base, *(_operand(p.strip(), asm) for p in rest)), offset=offset)
    predicate = ""
    if "|" in text:
        text, predicate = (p.strip() for p in text.split("|", 1))
    negated = text.startswith("!")
    text = text.lstrip("!").strip()
    match = re.fullmatch(r"%(\d+)", text)
    if match:
        if int(match.group(1)) >= len(asm.bindings):
            raise BackendError(
                "asm", f"operand %{match.group(1)} is not bound", inputs={"at": asm.where},
                legal=f"%0 to %{len(asm.bindings) - 1}" if asm.bindings else "an asm statement with operands",
            )  # fmt: skip
        return PtxOperand("bound", match.group(1), negated=negated, predicate=predicate)
    if text == "_":
        return PtxOperand("none", predicate=predicate)
    if re.fullmatch(r"%%[a-z]\w*(\.\w+)?|WARP_SZ", text):
        return PtxOperand("special", text.replace("%%", "%"))
    if re.fullmatch(r"-?(0[xXfFdD][0-9a-fA-F]+|\d+[uU]?|\d+\.\d*(e[-+]?\d+)?)", text):
        return PtxOperand("number", text)
    if re.fullmatch(r"%?%?[A-Za-z_$][\w$]*", text):
        return PtxOperand("register", text.lstrip("%"), negated=negated, predicate=predicate)
    raise BackendError("asm", f"an operand that cannot be read: {text!r}", inputs={"at": asm.where})
