"""The structure of the package, read from its own imports and definitions.

    python tools/structure.py census             lines and modules per package, beside the sizes that are aimed at
    python tools/structure.py layers FILE.svg    packages and sub-packages, an arrow from each to what it imports
    python tools/structure.py check              exit 1 where a rule of the structure is broken

Imports inside functions count; imports for types alone (``if TYPE_CHECKING``) do not.
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from tileweave.draw import BoxNode, Edge
from tileweave.draw import layers as drawing

SOURCE = Path(__file__).parents[1] / "src" / "tileweave"
MOST_MODULES = 12
"""A folder with more modules is divided into sub-packages that layer."""
LONG_FILE = 600
"""Lines of a file that hardly reads top-down in one sitting."""
AIMS = {
    "layout": 8000,
    "index": 3300,
    "teir": 6000,
    "graph": 6500,
    "backends/cpu": 6500,
    "planner": 3500,
    "runtime": 3500,
    "cli": 2000,
    "kernel": 5000,
    "frontends": 1200,
}
"""Source lines per package as the design sets them: a mirror, not a fence. `runtime` includes `lower`."""
PUBLIC_MODULES = {
    "version", "layout.axe", "layout.convert", "layout.cute", "layout.lego", "layout.analysis.conflicts",
    "layout.analysis.memory", "layout.analysis.movement", "layout.analysis.svg", "graph.array_api", "runtime.api",
    "backends.base", "backends.host", "backends.triton.printer", "teir.ir.examples",
}  # fmt: skip
"""Modules that users import themselves: beside packages, they alone have an ``__all__``."""


def main(arguments: list[str]) -> int:
    """One verb; the exit status."""
    match arguments:
        case ["census"]:
            print(census())
        case ["layers", path]:
            Path(path).write_text(picture(), "utf-8")
        case ["check"]:
            found = [*crowded(), *cycles(), *namesakes(), *exporting()]
            print("\n".join(found) or "the structure holds")
            return 1 if found else 0
        case _:
            print(__doc__)
            return 2
    return 0


def modules() -> dict[str, Path]:
    """Dotted name below tileweave -> file; a package stands for its ``__init__``."""
    found = {}
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(name: str, path: Path, known: dict[str, Path]) -> set[str]:
    """The modules of the package that a module imports, functions included."""
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    found = set()
    for node in _running(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.removeprefix("tileweave").lstrip(".") for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*start, *([node.module] if node.module else [])])
            if not node.level:
                if base.split(".")[0] != "tileweave":
                    continue
                base = base.removeprefix("tileweave").lstrip(".")
            names = {f"{base}.{alias.name}".lstrip(".") for alias in node.names}
            found |= {full if full in known else base for full in names}
    return {each for each in found if each in known and each not in (name, "")}


def _running(tree: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a tree that run, which leaves out what only a type checker reads."""
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        yield child
        yield from _running(child)


def unit(name: str) -> str:
    """The package or sub-package of a module, as the picture shows it."""
    parts = name.split(".")
    path = SOURCE.joinpath(*parts)
    return ".".join(parts if path.is_dir() else parts[:-1]) or parts[0]


def census() -> str:
    """Physical lines, statements and modules per package."""
    rows: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    for name, path in modules().items():
        parts = name.split(".")
        package = "/".join(parts[:2]) if parts[0] == "backends" and len(parts) > 1 else parts[0]
        package = package if (SOURCE / package).is_dir() and package else "(top)"
        package = "runtime" if package == "lower" else package
        text = path.read_text("utf-8")
        statements = sum(isinstance(node, ast.stmt) for node in ast.walk(ast.parse(text)))
        rows[package] = [a + b for a, b in zip(rows[package], (text.count("\n"), statements, 1), strict=True)]
    lines = [f"{'package':<16}{'lines':>8}{'aim':>8}{'statements':>12}{'modules':>9}"]
    lines += [
        f"{name:<16}{row[0]:>8,}{AIMS.get(name, 0) or '':>8}{row[1]:>12,}{row[2]:>9}"
        for name, row in sorted(rows.items())
    ]
    total = [sum(column) for column in zip(*rows.values(), strict=True)]
    lines.append(f"{'all':<16}{total[0]:>8,}{'':>8}{total[1]:>12,}{total[2]:>9}")
    long = [(path.read_text("utf-8").count("\n"), name) for name, path in modules().items()]
    lines += [f"long file: {name} {size}" for size, name in sorted(long, reverse=True) if size > LONG_FILE]
    return "\n".join(lines)


def crowded() -> list[str]:
    """Folders with too many modules, and those that are no packages, which the linter of imports passes over."""
    count: dict[Path, int] = defaultdict(int)
    for path in modules().values():
        count[path.parent] += path.name != "__init__.py"
    return [
        f"{folder.relative_to(SOURCE.parent)}: {number} modules, at most {MOST_MODULES}"
        for folder, number in count.items()
        if number > MOST_MODULES
    ] + [
        f"{folder.relative_to(SOURCE.parent)} has no __init__.py"
        for folder in count
        if not (folder / "__init__.py").exists()
    ]


def cycles() -> list[str]:
    """Modules that import one another, functions' imports included: one line per strongly connected set."""
    known = modules()
    edges = {name: imports(name, path, known) for name, path in known.items() if path.name != "__init__.py"}
    return [" <-> ".join(sorted(group)) for group in _connected(edges) if len(group) > 1]


def _connected(edges: dict[str, set[str]]) -> list[list[str]]:
    """Strongly connected sets, by Tarjan's algorithm."""
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found = []

    def visit(node: str) -> None:
        order[node] = low[node] = len(order)
        stack.append(node)
        for other in edges.get(node, ()):
            if other not in edges:
                continue
            if other not in order:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], order[other])
        if low[node] == order[node]:
            at = stack.index(node)
            found.append(stack[at:])
            del stack[at:]

    for node in sorted(edges):
        if node not in order:
            visit(node)
    return found


def namesakes() -> list[str]:
    """Public classes of one name in different modules: one concept should have one name, and the reverse."""
    homes = defaultdict(list)
    for name, path in modules().items():
        for node in ast.parse(path.read_text("utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].append(name)
    return [f"class {name}: {', '.join(where)}" for name, where in sorted(homes.items()) if len(where) > 1]


def exporting() -> list[str]:
    """Modules with an ``__all__`` that are no packages and not known to be public."""
    return [
        f"{name} has an __all__"
        for name, path in sorted(modules().items())
        if path.name != "__init__.py" and name not in PUBLIC_MODULES and "\n__all__" in path.read_text("utf-8")
    ]


def picture() -> str:
    """Packages and sub-packages from the top of the system to its ground; arrows that others imply are left out."""
    known = modules()
    raw: dict[str, set[str]] = {unit(name): set() for name in known if name}
    for name, path in known.items():
        if name and path.name != "__init__.py":
            raw[unit(name)] |= {unit(other) for other in imports(name, path, known)}
    together = {name: "\n".join(sorted(group)) for group in _connected(raw) for name in group}
    size: dict[str, int] = defaultdict(int)
    edges: dict[str, set[str]] = defaultdict(set)
    for name, path in known.items():
        if name:
            size[together[unit(name)]] += path.read_text("utf-8").count("\n")
    for name, others in raw.items():
        edges[together[name]] |= {together[other] for other in others} - {together[name]}
    reach: dict[str, set[str]] = {}

    def below(node: str) -> set[str]:
        if node not in reach:
            reach[node] = set()
            for other in edges[node]:
                reach[node] |= {other} | below(other)
        return reach[node]

    units = [name for name in sorted(size) if size[name] > 2 * MOST_MODULES or edges[name]]
    arrows = [
        Edge(name, other)
        for name in units
        for other in sorted(edges[name])
        if other in units and not any(other in below(third) for third in edges[name] - {other})
    ]
    boxes = [BoxNode(name, tuple(name.replace(".", "/").split("\n"))) for name in units]
    return drawing(boxes, arrows, title="Packages and sub-packages; an arrow points to what is imported")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
