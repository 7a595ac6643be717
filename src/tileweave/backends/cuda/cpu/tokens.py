"""Tokens of C++: brackets, commas, declarators, the names of kernels before a launch."""

from __future__ import annotations

import re

from tileweave.errors import BackendError

TOKEN = re.compile(
    r'\s+|R"([^(\s]*)\(.*?\)\1"|"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])*\'|[A-Za-z_$][\w$]*|\.?\d(?:[eEpP][+-]|[\w.\'])*|->|::|[^\w\s]',
    re.S,
)


def skip_space(tokens: list[str], i: int) -> int:
    """The index of the next token that is no white space."""
    while i < len(tokens) and tokens[i].isspace():
        i += 1
    return i


def last_word(out: list[str]) -> str:
    """The last token of an output that is no white space."""
    for token in reversed(out):
        if token and not token.isspace():
            return token
    return ""


def declared_inside(out: list[str]) -> int | None:
    """Whether the output stands before the name of a variable of type ``dim3``: 0 in a declaration, 1 in a list of
    parameters; None: elsewhere."""
    depth, words = 0, []
    for token in reversed(out):
        if not token or token.isspace():
            continue
        if depth == 0 and token in (";", "{", "}"):
            break
        depth += (token in (")", "}", "]")) - (token in ("(", "{", "["))
        if depth < 0:
            break
        if depth == 0:
            words.append(token)
    kinds = [word for word in words if word in ("dim3", "uint3")]
    if not kinds or not words or (words[0] not in ("dim3", "uint3", "&") and words[0] != ","):
        return None
    if words[0] == "," and depth < 0:
        return None  # the next argument of a call
    return int(depth < 0)


def closing(tokens: list[str], i: int) -> int:
    """The index of the bracket that closes the one at i."""
    depth = 0
    for j in range(i, len(tokens)):
        depth += (tokens[j] in ("(", "[", "{")) - (tokens[j] in (")", "]", "}"))
        if not depth:
            return j
    raise BackendError("translate", "a bracket that does not close")


def asm_opens(tokens: list[str], i: int) -> bool:
    """Whether the asm at i is a statement with operands in parentheses."""
    i = skip_space(tokens, i + 1)
    while i < len(tokens) and tokens[i] in ("volatile", "__volatile__", "inline", "goto"):
        i = skip_space(tokens, i + 1)
    return i < len(tokens) and tokens[i] == "("


def three_marks(tokens: list[str], i: int, mark: str) -> bool:
    """Whether three marks follow one another; the preprocessor may have put spaces between them."""
    for _ in range(3):
        i = skip_space(tokens, i)
        if i >= len(tokens) or tokens[i] != mark:
            return False
        i += 1
    return True


def split_commas(tokens: list[str]) -> list[list[str]]:
    """Splits at commas outside brackets and template arguments."""
    parts: list[list[str]] = [[]]
    depth = 0
    for k, token in enumerate(tokens):
        depth += (token in "([{") - (token in ")]}")
        if token == "<" and k and re.match(r"[A-Za-z_]", tokens[k - 1]):
            depth += 1
        elif token == ">" and depth:
            depth -= 1
        if token == "," and not depth:
            parts.append([])
        else:
            parts[-1].append(token)
    return parts


def take_callee(out: list[str]) -> list[str]:
    """Removes the expression that names a kernel from the end of the output."""
    i = len(out) - 1
    while i >= 0 and (not out[i] or out[i].isspace()):
        i -= 1
    if i >= 0 and out[i] == ">":
        depth = 0
        while i >= 0:
            depth += (out[i] == ">") - (out[i] == "<")
            i -= 1
            if not depth:
                break
        while i >= 0 and (not out[i] or out[i].isspace()):
            i -= 1
    elif i >= 0 and out[i] == ")":
        depth = 0
        while i >= 0:
            depth += (out[i] == ")") - (out[i] == "(")
            i -= 1
            if not depth:
                break
        i += 1
    while i >= 2 and out[i - 1] == "::":
        i -= 2
    if i >= 1 and out[i - 1] == "::":
        i -= 1
    callee = out[i:]
    del out[i:]
    return callee


def take_alignment(tokens: list[str]) -> tuple[list[str], str]:
    """Takes ``alignas(n)`` and ``__attribute__((aligned(n)))`` out of a declaration."""
    kept, align, i = [], "1", 0
    while i < len(tokens):
        if tokens[i] in ("alignas", "__attribute__", "__align__"):
            opening = skip_space(tokens, i + 1)
            end = closing(tokens, opening)
            inner = "".join(tokens[opening : end + 1])
            match = re.search(r"aligned\s*\((.*)\)\)\)$", inner)
            align = f"({match.group(1)})" if match else inner
            i = end + 1
            continue
        kept.append(tokens[i])
        i += 1
    return kept, align


def declarator(tokens: list[str]) -> tuple[list[str], str, list[str]]:
    """The type, the name and the array extents of one declarator."""
    depth, name = 0, -1
    for i, token in enumerate(tokens):
        if token == "[":
            break
        if token == "=":
            break
        depth += (token in ("<", "(")) - (token in (">", ")"))
        if not depth and re.match(r"[A-Za-z_]", token):
            name = i
    suffix = tokens[name + 1 :]
    if "=" in suffix:
        suffix = suffix[: suffix.index("=")]
    return tokens[:name], tokens[name], suffix
