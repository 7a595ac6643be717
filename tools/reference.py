"""Reference pages from the docstrings of the public packages: ``docs/reference/<package>.md``.

``python tools/reference.py write`` writes them (make docs), ``check`` says which are stale.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "docs" / "reference"

MODULES = {"layout": ("axe", "cute", "lego", "f2", "analysis", "analysis.svg")}
"""Modules with public names of their own, beside those of the package itself."""

SECTION = re.compile(r"^(Args|Returns|Yields|Raises|Example|Source):[ ]?(.*)$")


def packages() -> list[str]:
    """The packages of tileweave with public names, in order of the alphabet."""
    found = []
    for path in sorted((ROOT / "src" / "tileweave").iterdir()):
        init = path / "__init__.py"
        if init.exists() and "__all__" in init.read_text():
            found.append(path.name)
    return found


def page(package: str) -> str:
    """The reference page of a package."""
    names = [f"tileweave.{package}", *(f"tileweave.{package}.{name}" for name in MODULES.get(package, ()))]
    seen: dict[int, str] = {}
    parts = [f"# Reference: `tileweave.{package}`\n", "Made from the docstrings by `make docs`; edit those.\n"]
    for name in names:
        parts += module_part(name, seen)
    return re.sub(r"\n{3,}", "\n\n", "\n".join(parts)).rstrip() + "\n"


def module_part(name: str, seen: dict[int, str]) -> Iterator[str]:
    """The section of one module: what it is, a table of its names, then each name that no section before has."""
    module = importlib.import_module(name)
    entries = {public: getattr(module, public) for public in sorted(module.__all__, key=lambda n: (n.lower(), n))}
    yield f"\n## `{name}`\n"
    yield rendered(inspect.getdoc(module) or "") + "\n"
    yield "| name | what it is |\n|---|---|"
    fresh = {}
    for public, value in entries.items():
        described = inspect.isroutine(value) or inspect.isclass(value)
        known = seen.get(id(value)) if described else None
        comment = "" if described or inspect.ismodule(value) else comment_of(public, module)
        first = f"as `{known}`" if known else summary(value, comment)
        yield f"| `{public}` | {first.replace('|', '&#124;')} |"
        if described and not known:
            seen[id(value)] = f"{name.removeprefix('tileweave.')}.{public}"
            fresh[public] = value
    yield ""
    for public, value in fresh.items():
        yield f"### `{public}{signature(value)}`\n"
        yield rendered(inspect.getdoc(value) or "") + "\n"
        if inspect.isclass(value):
            yield from members(value)


def members(cls: type) -> Iterator[str]:
    """One line for each public method and property of a class, those of private bases included."""
    bases = [base for base in reversed(cls.__mro__) if base is cls or base.__name__.startswith("_")]
    for name, member in sorted({k: v for base in bases for k, v in vars(base).items()}.items()):
        if name.startswith("_") and name != "__call__":
            continue
        plain = member.__func__ if isinstance(member, classmethod | staticmethod) else member
        if not callable(plain) and not isinstance(plain, property) and not hasattr(plain, "func"):
            continue
        shown = (
            name if isinstance(plain, property) or hasattr(plain, "func") else name + signature(plain, drop_first=True)
        )
        yield f"- `{shown.replace('__call__', '')}`: {summary(plain)}"
    yield ""


def signature(value: object, *, drop_first: bool = False) -> str:
    """Parameters as written; addresses of objects left out."""
    try:
        found = inspect.signature(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return ""
    kept = [p for p in list(found.parameters.values())[drop_first:] if not p.name.startswith("_")]
    bare = [p.replace(annotation=Written(p.annotation) if p.annotation is not p.empty else p.empty) for p in kept]
    back = found.return_annotation
    result = found.empty if back in (found.empty, None, "None") else Written(back)
    return re.sub(r" at 0x[0-9a-f]+", "", str(found.replace(parameters=bare, return_annotation=result)))


class Written:
    """An annotation that prints as it is written."""

    def __init__(self, annotation: object) -> None:
        self.text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)

    def __repr__(self) -> str:
        return self.text


def summary(value: object, comment: str = "") -> str:
    """The first sentence of a docstring, or the comment under a constant."""
    kinds = inspect.isroutine, inspect.isclass, inspect.ismodule, inspect.isdatadescriptor
    own = any(kind(value) for kind in kinds) or hasattr(value, "func")
    text = (inspect.getdoc(value) or "" if own else comment).split("\n\n")[0]
    return " ".join(text.replace("``", "`").split())


def comment_of(name: str, module: object) -> str:
    """The string under the assignment of a name, in the module or where it takes the name from."""
    tree = ast.parse(inspect.getsource(module))  # type: ignore[arg-type]
    for one, two in zip(tree.body, [*tree.body[1:], ast.Pass()], strict=True):
        if isinstance(one, ast.ImportFrom) and (one.module or "").startswith("tileweave."):
            for alias in one.names:
                if (alias.asname or alias.name) == name and importlib.import_module(str(one.module)) is not module:
                    return comment_of(alias.name, importlib.import_module(str(one.module)))
        targets = one.targets if isinstance(one, ast.Assign) else [one.target] if isinstance(one, ast.AnnAssign) else []
        text = two.value.value if isinstance(two, ast.Expr) and isinstance(two.value, ast.Constant) else ""
        if isinstance(text, str) and text and any(isinstance(t, ast.Name) and t.id == name for t in targets):
            return text
    return ""


def rendered(text: str) -> str:
    """A docstring as Markdown: arguments as a list, examples as a session, the rest as it is."""
    out: list[str] = []
    head, *rest = re.split(r"(?m)^(?=(?:Args|Returns|Yields|Raises|Example|Source):)", text)
    out.append(plain(head))
    for part in rest:
        first, _, body = part.partition("\n")
        found = SECTION.match(first)
        if not found:
            out.append(plain(part))
            continue
        title, after = found.groups()
        body = dedent(body).strip("\n")
        if title == "Example":
            session, _, more = body.partition("\n\n\n")
            out.append(f"```pycon\n{session}\n```\n{plain(more)}")
        elif title == "Args":
            out.append("\n".join(f"- {item}" for item in items(body)))
        else:
            out.append(plain(f"**{title}**: {' '.join((after + ' ' + body).split())}"))
    return "\n\n".join(part.strip("\n") for part in out if part.strip())


def items(body: str) -> list[str]:
    """``name: what it is`` entries, each as one line."""
    out: list[str] = []
    for line in body.splitlines():
        if line[:1].strip():
            out.append(re.sub(r"^([\w*, ]+):", r"`\1`:", line))
        elif out:
            out[-1] += " " + line.strip()
    return out


def plain(text: str) -> str:
    """Paragraphs; indented blocks are fenced, so that they keep their lines."""
    out: list[str] = []
    for block in text.strip("\n").split("\n\n"):
        shown = re.sub(r"``(.+?)``", r"`\1`", block, flags=re.DOTALL).replace("::", ":")
        lines = block.splitlines()
        out.append("```text\n" + dedent(block) + "\n```" if lines and lines[0].startswith("    ") else shown)
    return "\n\n".join(out)


def pages() -> dict[Path, str]:
    """Every page of the reference, by its path."""
    found = {OUT / f"{package}.md": page(package) for package in packages()}
    links = "\n".join(f"- [`tileweave.{path.stem}`]({path.name})" for path in found)
    found[OUT / "README.md"] = (
        f"# Reference\n\nEvery public name, from its docstring; made by `make docs`.\n\n{links}\n"
    )
    found[OUT.parent / "array_api.md"] = importlib.import_module("tileweave.graph.array_api").page()
    return found


def stale() -> list[str]:
    """The pages that differ from what the docstrings say, or should not be there."""
    want = pages()
    there = set(OUT.glob("*.md")) if OUT.exists() else set()
    differing = {path for path, text in want.items() if not path.exists() or path.read_text() != text}
    return sorted(str(path.relative_to(ROOT)) for path in differing | (there - set(want)))


def main(command: str) -> int:
    """Run a command; the exit status."""
    if command == "write":
        OUT.mkdir(parents=True, exist_ok=True)
        want = pages()
        for path in set(OUT.glob("*.md")) - set(want):
            path.unlink()
        for path, text in want.items():
            path.write_text(text)
        return 0
    old = stale()
    print("\n".join(f"{path} is stale: make docs" for path in old) or "the reference is up to date")
    return 1 if old else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else "check"))
