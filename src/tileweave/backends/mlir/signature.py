"""The kernels of a text: names, parameters and their types, read from ``gpu.func``."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from tileweave.errors import BackendError

_DTYPES = {
    "f16": "float16", "f32": "float32", "f64": "float64", "i1": "bool", "i8": "int8", "i16": "int16", "i32": "int32",
    "i64": "int64", "bf16": "bfloat16",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class FunctionParameter:
    """A parameter of a kernel.

    Args:
        name: without the percent sign.
        type: as written.
    """

    name: str
    type: str

    @property
    def is_memref(self) -> bool:
        """Whether it is an array."""
        return self.type.startswith("memref<")

    @property
    def shape(self) -> tuple[int | None, ...]:
        """The extents of an array; None where one is known at run time only."""
        words = self.type[len("memref<") :].split(",")[0].rstrip(">").split("x")[:-1]
        return tuple(None if word == "?" else int(word) for word in words)

    @property
    def element(self) -> str:
        """The element type of an array."""
        return self.type[len("memref<") :].split(",")[0].rstrip(">").split("x")[-1]

    def check(self, value: Any, where: str) -> None:
        """Refuses an array that is not what the type says.

        Raises:
            BackendError: another dtype, shape or rank, no array, or a type with a layout of its own.
        """
        if "strided<" in self.type or "affine_map" in self.type:
            legal = "memref<4x8xf32>, memref<?xf32>: rows after rows"
            raise BackendError(where, f"{self.name} has a layout, {self.type}", legal=legal)
        if not isinstance(value, np.ndarray):
            raise BackendError(where, f"{self.name} is a {type(value).__name__}", legal=f"an array, {self.type}")
        name = _DTYPES.get(self.element, self.element)
        same = value.dtype.name == name or (self.element == "bf16" and value.dtype == np.uint16)
        same |= value.dtype.kind == "u" and value.dtype.name == f"u{name}"
        shape = self.shape
        fits = len(shape) == value.ndim and all(n in (None, m) for n, m in zip(shape, value.shape, strict=True))
        flat = len(shape) == 1 and shape[0] in (None, value.size)
        if not same or not (fits or flat):
            inputs = {self.name: f"{value.dtype.name} {value.shape}"}
            raise BackendError(where, f"{self.name} does not fit its type", inputs=inputs, legal=self.type)

    def descriptor(self, value: Any, pointer: str) -> list[str]:
        """The C++ arguments of a launch where some array of the module is no bare pointer."""
        shape = value.shape if len(self.shape) == value.ndim else (value.size,)
        strides = [prod(shape[k + 1 :]) for k in range(len(shape))]
        return [pointer, pointer, "0", *map(str, (*shape, *strides))]


@dataclass(frozen=True, slots=True)
class GpuFunction:
    """A ``gpu.func`` with the attribute ``kernel``."""

    name: str
    parameters: tuple[FunctionParameter, ...]

    @property
    def bare(self) -> bool:
        """Whether its arrays are bare pointers."""
        return all(None not in p.shape for p in self.parameters if p.is_memref)


def kernels_of(text: str) -> dict[str, GpuFunction]:
    """The kernels of a text by name.

    Example:
        >>> kernels_of("gpu.func @f(%x: memref<8xf32>, %n: index) kernel {")["f"].parameters[0].shape
        (8,)
    """
    plain = re.sub(r"//[^\n]*", "", text)
    found = {}
    for match in re.finditer(r"gpu\.func\s+@(\w+)\s*\(", plain):
        body = _inside(plain, match.end() - 1)
        parts = [part.split(":", 1) for part in _commas(body) if ":" in part]
        parameters = tuple(FunctionParameter(name.strip().lstrip("%"), _bare_type(kind)) for name, kind in parts)
        found[match[1]] = GpuFunction(match[1], parameters)
    return found


def merged(texts: Mapping[str, str]) -> str:
    """One module with the kernels of several texts of one kernel each, every kernel under its text's key.

    Example:
        >>> f = "module { gpu.module @k { gpu.func @f() kernel { gpu.return } } }"
        >>> list(kernels_of(merged({"a": f, "b": f})))
        ['a', 'b']

    Raises:
        BackendError: a text has no kernel, or several.
    """
    bodies = []
    for name, text in texts.items():
        found = list(kernels_of(text))
        opened = re.search(r"gpu\.module\s+@\w+[^{]*", text)
        if len(found) != 1 or opened is None:
            raise BackendError("merged(texts)", f"the text of {name} has {len(found)} kernels", legal="one")
        body = _inside(text, opened.end(), "{", "}").strip("\n")
        bodies.append(re.sub(rf"@{found[0]}\b", f"@{name}", body))
    inner = "\n".join(bodies)
    return f"module {{\n  gpu.module @kernels {{\n{inner}\n  }}\n}}\n"


def _bare_type(text: str) -> str:
    return re.sub(r"\s*(\{.*\}|loc\(.*\))\s*$", "", text.strip()).strip()


def _inside(text: str, at: int, opening: str = "(<{[", closing: str = ")>}]") -> str:
    """What stands between the bracket at a position and the one that closes it; an arrow is no bracket."""
    depth = 0
    for i in range(at, len(text)):
        arrow = text[i] == ">" and text[i - 1] == "-"
        depth += (text[i] in opening) - (text[i] in closing and not arrow)
        if not depth:
            return text[at + 1 : i]
    return text[at + 1 :]


def _commas(text: str) -> Sequence[str]:
    parts, depth, start = [], 0, 0
    for i, letter in enumerate(text):
        depth += (letter in "(<{[") - (letter in ")>}]")
        if letter == "," and not depth:
            parts.append(text[start:i])
            start = i + 1
    return [*parts, text[start:]]
