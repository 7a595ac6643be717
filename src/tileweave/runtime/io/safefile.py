"""The safetensors format: a header that says where each tensor's bytes lie, judged against the file, and a memory map.

A checkpoint of several files has an index beside them, ``*.safetensors.index.json``, that names each tensor's file.

Source: own; the format is the one that https://github.com/huggingface/safetensors describes.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from functools import cache
from math import prod
from pathlib import Path
from typing import IO, Any

import numpy as np

from tileweave.errors import StorageError
from tileweave.graph.ir.dtypes import narrow_type
from tileweave.runtime.io.mapped import Header, MappedReader
from tileweave.runtime.io.npyfile import opened

INDEX = ".safetensors.index.json"
LARGEST_HEADER = 100 << 20
"""Bytes of a header; the format allows no more."""
_DTYPES = {
    "BOOL": "bool", "F16": "float16", "F32": "float32", "F64": "float64", "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2",
    **{f"{kind}{n}": f"{name}{n}" for kind, name in (("I", "int"), ("U", "uint")) for n in (8, 16, 32, 64)},
}  # fmt: skip
_LEGAL = "a file in the safetensors format"


def _header(file: IO[bytes], where: str) -> tuple[dict[str, Any], int]:
    """What the header says of each tensor, and where the first byte of their data lies."""
    size = os.fstat(file.fileno()).st_size
    length = int.from_bytes(file.read(8), "little")
    if size < 8 or length > min(size - 8, LARGEST_HEADER):
        raise StorageError(where, "the file is truncated, or has no header", legal=_LEGAL)
    try:
        found = json.loads(file.read(length))
    except (ValueError, RecursionError) as error:
        raise StorageError(where, f"the header is no JSON: {error}", legal=_LEGAL) from None
    if not isinstance(found, dict):
        raise StorageError(where, "the header names no tensors", legal=_LEGAL)
    found.pop("__metadata__", None)
    return found, 8 + length


@cache
def names() -> dict[np.dtype[Any], str]:
    """Element type -> the format's name of it."""
    return {narrow_type(word) or np.dtype(word): name for name, word in _DTYPES.items()}


def members_of(path: str, where: str) -> list[str]:
    """The names of the tensors in a file, or in all files of an index, in order."""
    if path.endswith(INDEX):
        return list(_index(path, where))
    with opened(path, where) as file:
        return list(_header(file, where)[0])


def _index(path: str, where: str) -> dict[str, str]:
    """Tensor -> file."""
    with opened(path, where) as file:
        try:
            found = json.loads(file.read())["weight_map"]
            return {str(name): str(Path(path).parent / str(file)) for name, file in found.items()}
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise StorageError(where, "the file is no index of tensors", legal='{"weight_map": {..}}') from None


def file_of(path: str, key: str, where: str) -> str:
    """The file that holds a tensor."""
    return _index(path, where)[key] if path.endswith(INDEX) else path


def open_safe(path: str, key: str, where: str) -> MappedReader:
    """A reader of one tensor of a file."""
    with opened(path, where) as file:
        entries, start = _header(file, where)
        if key not in entries:
            raise StorageError(where, f"there is no member {key!r}", legal=f"{len(entries)} others")
        try:
            entry = entries[key]
            kind, shape, (begin, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
            others = {name: one["data_offsets"] for name, one in entries.items() if name != key}
            shared = [name for name, (first, stop) in others.items() if first < end and begin < stop]
        except (KeyError, TypeError, ValueError):
            raise StorageError(where, f"member {key!r} has no type, shape and place", legal=_LEGAL) from None
        numbers = (*shape, begin, end)
        if kind not in _DTYPES or not all(type(n) is int and n >= 0 for n in numbers):
            problem = f"member {key!r} has elements of type {kind!r}, shape {shape} and bytes {begin}..{end}"
            raise StorageError(where, problem, legal=", ".join(_DTYPES))
        dtype = narrow_type(_DTYPES[kind]) or np.dtype(_DTYPES[kind]).newbyteorder("<")
        there = os.fstat(file.fileno()).st_size - start
        if end - begin != prod(shape) * dtype.itemsize or end > there:
            problem = f"member {key!r} lies in bytes {begin}..{end} of {there}"
            raise StorageError(where, problem, legal=f"{prod(shape) * dtype.itemsize} bytes inside the file")
        if shared:
            problem = f"member {key!r} has bytes of {shared[0]!r}"
            raise StorageError(where, problem, legal="tensors that lie one behind the other")
        return MappedReader(file, Header(shape, dtype, False, start + begin))


def write_safe(_: Path, path: Path, members: Mapping[str, MappedReader]) -> None:
    """Writes tensors one behind the other, the header padded to eight bytes; a tensor without a name is ``data``."""
    header, at = {}, 0
    for key, array in members.items():
        offsets = [at, at + array.type.size_bytes]
        header[key or "data"] = {
            "dtype": names()[array.type.dtype],
            "shape": list(array.type.shape),
            "data_offsets": offsets,
        }
        at = offsets[1]
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for array in members.values():
            for part in array.stream():
                file.write(part)
