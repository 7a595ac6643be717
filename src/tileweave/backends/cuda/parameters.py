"""Parameters of kernels against what they are given: types, ranges, counts, checked before anything is compiled."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from tileweave.backends.cuda.arguments import BFLOAT16, Launch, Multicast, Peers, PerDevice, TensorMap
from tileweave.errors import BackendError

_WHERE = "run(text, .., arrays)"
_NUMBERS = {
    "bool": "bool", "char": "int8", "signed char": "int8", "unsigned char": "uint8", "short": "int16",
    "unsigned short": "uint16", "int": "int32", "signed": "int32", "unsigned": "uint32", "unsigned int": "uint32",
    "long": "int64", "long long": "int64", "unsigned long": "uint64", "unsigned long long": "uint64",
    "int8_t": "int8", "uint8_t": "uint8", "int16_t": "int16", "uint16_t": "uint16", "int32_t": "int32",
    "uint32_t": "uint32", "int64_t": "int64", "uint64_t": "uint64", "size_t": "uint64", "ptrdiff_t": "int64",
    "float": "float32", "double": "float64", "half": "float16", "__half": "float16", "__nv_bfloat16": "bfloat16",
    "nv_bfloat16": "bfloat16", "__nv_fp8_e4m3": "float8_e4m3fn", "__nv_fp8_e5m2": "float8_e5m2",
    "tw_e8m0": "float8_e8m0fnu",
    "half2": "float16", "__half2": "float16", "__nv_bfloat162": "bfloat16", "nv_bfloat162": "bfloat16",
}  # fmt: skip
"""C++ type -> NumPy type; of a vector, that of its elements."""
_VECTOR = re.compile(r"(u?(?:char|short|int|long|longlong)|float|double)[1-4]")
_DROPPED = {"const", "volatile", "__restrict__", "__restrict", "restrict", "__grid_constant__", "struct", "typename"}
HOST, CUDA, PINNED, MANAGED = 1, 2, 3, 13
"""DLPack's numbers of devices."""
_MAPS = ("CUtensorMap", "tw_map")


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a kernel.

    Args:
        name: its name.
        text: its type as it is written.
        dtype: the NumPy type of the number, or of what the pointer points to; empty where the text does not say.
        pointers: 0 for a value, 1 for a pointer, 2 for a pointer to pointers.
        read_only: whether the memory is declared ``const``.
        vector: whether the pointer is to vectors, through which other types are moved.
    """

    name: str
    text: str
    dtype: str
    pointers: int
    read_only: bool
    vector: bool = False

    @property
    def is_map(self) -> bool:
        """Whether it is a tensor map."""
        return not self.pointers and any(name in self.text for name in _MAPS)


def parameter_of(tokens: Sequence[str], aliases: Mapping[str, str]) -> Parameter | None:
    """A parameter from the tokens of its declaration; None for ``void``.

    Args:
        tokens: as far as the ``=`` of a default.
        aliases: what ``using`` and ``typedef`` name.
    """
    words = [t for t in tokens if not t.isspace()]
    named = [k for k, t in enumerate(words) if re.match(r"[A-Za-z_]", t)]
    if not named or words == ["void"]:
        return None
    name = words[named[-1]]
    kind = words[: named[-1]]
    suffix = words[named[-1] + 1 :]
    stars = kind.count("*") + ("[" in suffix)
    first = kind.index("*") if "*" in kind else len(kind)
    base = [word for word in kind[:first] if word not in _DROPPED]
    known = " ".join(base)
    for _ in range(4):
        if known not in aliases:
            break
        known = aliases[known]
    words_of = sorted(known.split(), key=lambda word: (word not in ("unsigned", "signed"), word == "int"))
    if len(words_of) > 1:
        words_of = [word for word in words_of if word != "int" or words_of[0] == word] or words_of
    plain = " ".join(words_of)
    vector = _VECTOR.fullmatch(known)
    element = re.sub(r"^u(?=[csil])", "unsigned ", vector[1]).replace("longlong", "long long") if vector else plain
    element = element.removesuffix(" int") if element.startswith("long") else element
    text = " ".join(words[: named[-1]]).replace(" *", "*") + ("[]" if "[" in suffix else "")
    return Parameter(name, text, _NUMBERS.get(element, ""), stars, "const" in kind[:first], bool(vector))


def aliases_of(text: str) -> dict[str, str]:
    """The names that ``using A = B;`` and ``typedef B A;`` give to types without templates."""
    found = {name: " ".join(kind.split()) for name, kind in re.findall(r"\busing\s+(\w+)\s*=\s*([\w\s]+);", text)}
    found |= {name: " ".join(kind.split()) for kind, name in re.findall(r"\btypedef\s+([\w\s]+?)\s+(\w+)\s*;", text)}
    return found


def check_launch(kernel: str, parameters: Sequence[Parameter], one: Launch, devices: int = 1) -> None:
    """Whether a launch gives each parameter what it can take.

    Raises:
        BackendError: a missing or unknown name, a wrong type, a number out of range, memory that may not be written,
            two arrays that overlap.
    """
    names = [p.name for p in parameters]
    missing = [name for name in names if name not in one.arguments]
    unknown = [str(name) for name in one.arguments if name not in names]
    if missing or unknown:
        problem = f"no value for {', '.join(missing)}" if missing else f"no parameter {', '.join(unknown)}"
        if missing and unknown:
            problem += f", and no parameter {', '.join(unknown)}"
        legal = ", ".join(names) or "no parameters"
        raise BackendError(_WHERE, problem, inputs={"kernel": kernel}, legal=legal)
    for p in parameters:
        _check(kernel, p, one.arguments[p.name], devices)
    _check_overlap(kernel, parameters, one)


def _refuse(kernel: str, p: Parameter, problem: str, legal: str) -> BackendError:
    return BackendError(
        _WHERE, f"{p.name}: {problem}", inputs={"kernel": kernel, "parameter": f"{p.text} {p.name}"}, legal=legal
    )


def _check(kernel: str, p: Parameter, value: object, devices: int) -> None:
    if isinstance(value, PerDevice):
        if len(value.values) < devices:
            raise _refuse(kernel, p, f"{len(value.values)} values for {devices} devices", "one for each device")
        for inner in value.values:
            _check(kernel, p, inner, devices)
    elif isinstance(value, Peers):
        if p.pointers == 1 or p.is_map:
            raise _refuse(kernel, p, "Peers are a pointer to pointers", "T* const*")
        for array in value.arrays:
            _check_array(kernel, replace(p, pointers=1), array)
    elif isinstance(value, Multicast):
        if p.pointers != 1:
            raise _refuse(kernel, p, "a multicast address is a pointer", "T*")
        if len({array.nbytes for array in value.arrays}) > 1:
            raise _refuse(kernel, p, "arrays of several sizes behind one address", "the same on each device")
        for array in value.arrays:
            _check_array(kernel, p, array)
    elif isinstance(value, TensorMap):
        if p.pointers or (p.dtype and not p.is_map):
            raise _refuse(kernel, p, "a tensor map", "const __grid_constant__ CUtensorMap, or the array")
    elif p.is_map:
        raise _refuse(kernel, p, f"a {type(value).__name__} for a tensor map", "TensorMap(array, box)")
    elif p.pointers:
        if value is None:
            return  # a null pointer
        if np.ndim(value) == 0 and not hasattr(value, "__dlpack__"):  # type: ignore[arg-type]
            raise _refuse(kernel, p, f"{value!r} for a pointer", "an array, or None for a null pointer")
        if p.pointers == 1:
            _check_array(kernel, p, value)
    else:
        _check_number(kernel, p, value)


def _check_array(kernel: str, p: Parameter, value: Any) -> None:
    """Whether the elements are what the pointer says: the same type, or bits of the same size for an unsigned one."""
    dtype = dtype_name(value)
    if dtype is None:
        raise _refuse(kernel, p, f"a {type(value).__name__} for a pointer", "an array of NumPy, or one of DLPack")
    if not isinstance(value, np.ndarray) and on_host(value):
        value = host_array(value, p.name)
    if isinstance(value, np.ndarray):
        if value.dtype.hasobject or value.dtype.kind in "SUMm" or not value.dtype.isnative:
            raise _refuse(kernel, p, f"an array of {value.dtype}", "numbers in the byte order of the machine")
        if not p.read_only and not value.flags.writeable:
            raise _refuse(kernel, p, "the array is read-only, and the kernel may write it", "const T*, or a copy")
    if not p.dtype or not dtype or p.pointers > 1:
        return
    if p.vector and not p.dtype.startswith("float"):
        return  # vectors of integers move bits of any type
    mine, wanted = _kind_of(dtype), _kind_of(p.dtype)
    if mine is None or wanted is None or mine == wanted:
        return
    same_size = mine[1] == wanted[1]
    if dtype == f"complex{16 * wanted[1]}" and p.vector:
        return
    if same_size and {mine[0], wanted[0]} <= {"i", "u"}:
        return  # signs are the kernel's own affair
    if same_size and "u" in (mine[0], wanted[0]) and wanted[1] <= 2:
        return  # bit patterns of the narrow floats
    raise _refuse(kernel, p, f"an array of {dtype} for {p.text}", f"an array of {p.dtype}")


def _kind_of(name: str) -> tuple[str, int] | None:
    """A letter and the bytes of a type; the narrow floats are each of a kind of their own."""
    if name.startswith(("float8", "bfloat")):
        return name, 2 if name == "bfloat16" else 1
    try:
        dtype = np.dtype(name)
    except TypeError:
        return None
    return ("u" if dtype.kind == "b" else dtype.kind), dtype.itemsize


def on_host(value: Any) -> bool:
    """Whether an array of DLPack lies in memory of the host."""
    place = getattr(value, "__dlpack_device__", None)
    return place is not None and int(place()[0]) in (HOST, PINNED)


def host_array(value: Any, name: str) -> np.ndarray[Any, Any]:
    """The memory of an array of DLPack that lies on the host; what a kernel writes to it is seen there.

    Raises:
        BackendError: it lies on a device, or NumPy has no such type.
    """
    try:
        return np.from_dlpack(value)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        problem = f"{name}: NumPy does not take the {type(value).__name__}: {error}"
        raise BackendError(
            _WHERE, problem, legal="an array on the host, of a type that NumPy has; bits as uint16"
        ) from None


def dtype_name(value: Any) -> str | None:
    """The element type of an array by its NumPy name; empty where it does not say; None for what is no array."""
    if isinstance(value, np.ndarray):
        return "bfloat16" if value.dtype == BFLOAT16 else value.dtype.name
    if not hasattr(value, "__dlpack__") and not hasattr(value, "__cuda_array_interface__"):
        return None
    return str(getattr(value, "dtype", "")).rpartition(".")[2]


def _check_number(kernel: str, p: Parameter, value: object) -> None:
    if np.ndim(value) or value is None or isinstance(value, str | bytes):  # type: ignore[arg-type]
        shown = dtype_name(value)
        what = "None" if value is None else f"an array of {shown}" if shown else f"a {type(value).__name__}"
        raise _refuse(kernel, p, f"{what} for a number", p.dtype or "a number")
    try:
        number = value.item() if isinstance(value, np.ndarray | np.generic) else value
        float(number)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        raise _refuse(kernel, p, f"a {type(value).__name__} for a number", p.dtype or "a number") from None
    if not p.dtype or p.dtype.startswith(("float", "bfloat")):
        return
    if isinstance(number, float):
        raise _refuse(kernel, p, f"{number!r} for an integer", p.dtype)
    low, high = (0, 1) if p.dtype == "bool" else (np.iinfo(p.dtype).min, np.iinfo(p.dtype).max)
    if not low <= int(number) <= high:  # type: ignore[arg-type]
        raise _refuse(kernel, p, f"{number} does not fit {p.text}", f"{low} to {high}")


def _check_overlap(kernel: str, parameters: Sequence[Parameter], one: Launch) -> None:
    """Each array is copied to the device whole: two that share a part of their memory would be two there."""
    arrays = [(p, v) for p in parameters if isinstance(v := one.arguments[p.name], np.ndarray) and v.size and v.ndim]
    spans = sorted(((v.ctypes.data, v.ctypes.data + v.nbytes, k) for k, (_, v) in enumerate(arrays)))
    for (low, high, a), (begin, end, b) in pairwise(spans):
        if begin < high and (low, high) != (begin, end):
            (p, x), (q, y) = arrays[a], arrays[b]
            if p.read_only and q.read_only:
                continue
            if not (x.flags.c_contiguous and y.flags.c_contiguous):
                continue  # refused on its own
            raise _refuse(kernel, q, f"it overlaps {p.name} in memory", "the same array, or arrays apart")
