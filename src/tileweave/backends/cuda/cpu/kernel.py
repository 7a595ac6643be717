"""Kernels on the fibers: a main that reads their arrays from files, launches them in order, and writes back."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from tileweave.backends import folders
from tileweave.backends.cuda.arguments import DeviceArray, Extent, Launch, Multicast, Peers, PerDevice, TensorMap
from tileweave.backends.cuda.cpu.build import build_program
from tileweave.backends.cuda.cpu.child import ChildOutcome, Finding, run_program
from tileweave.backends.cuda.cpu.source import KernelSignature, Translation
from tileweave.backends.cuda.parameters import check_launch, host_array
from tileweave.errors import BackendError

MAIN = """
namespace tw {{
void* argument_array(const char*, const char*, size_t, int);
void* multicast_array(const char*, size_t, void* const*, size_t);
void write_arguments();
}}
struct tw_any {{
  void* pointer; long long whole; double real; int kind;
  template <class T> TW_PLAIN operator T*() const {{ return (T*)pointer; }}
  template <class T, class = decltype((T)0.0)> TW_PLAIN operator T() const {{ return kind == 2 ? (T)real : (T)whole; }}
}};
int main() {{
{body}
  cudaDeviceSynchronize();
  tw::write_arguments();
  return 0;
}}
"""


def extent(value: Extent, what: str) -> tuple[int, int, int]:
    """Three extents, x first."""
    values = (value,) if isinstance(value, int) else tuple(value)
    if not 1 <= len(values) <= 3 or any(not isinstance(v, int) or v < 1 for v in values):
        raise BackendError(
            "run(text, grid, block, ..)", f"{what} {value!r}", legal="an int, or up to three, each at least 1"
        )
    return (*values, 1, 1, 1)[:3]  # type: ignore[return-value]


MOST_THREADS, MOST_SHARED = 1024, 227 << 10
"""Threads of a block, and bytes of its shared memory on the target that has most."""


def check_size(launch: Launch) -> None:
    """Refuses a launch that no device takes, with the number that is too large."""
    grid, block, cluster = (extent(getattr(launch, what), what) for what in ("grid", "block", "cluster"))
    problem, legal = "", ""
    if prod(block) > MOST_THREADS:
        problem, legal = f"blocks of {prod(block)} threads", f"at most {MOST_THREADS}"
    elif launch.shared > MOST_SHARED:
        problem, legal = (
            f"{launch.shared} bytes of shared memory",
            f"at most {MOST_SHARED}: smaller tiles, fewer stages",
        )
    elif any(g % c for g, c in zip(grid, cluster, strict=True)):
        problem, legal = f"clusters of {cluster} blocks do not divide a grid of {grid}", "a cluster that divides it"
    if problem:
        raise BackendError("run(text, ..)", f"the launch is refused: {problem}", legal=legal)


def choose_kernel(kernels: Sequence[KernelSignature], name: str | None) -> tuple[str, KernelSignature]:
    """The kernel to launch, as C++ names it, and its signature."""
    wanted = (name or "").split("<")[0].strip()
    found = [k for k in kernels if not name or k.name == wanted]
    if len(found) != 1:
        names = " | ".join(k.name for k in kernels) or "a __global__ function"
        problem = f"the text has no kernel {wanted!r}" if name else f"the text has {len(kernels)} kernels: name one"
        raise BackendError("run(text, .., kernel=)", problem, legal=names)
    return name or found[0].name, found[0]


class Arguments:
    """The files of a launch and the C++ that reads them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files: list[tuple[np.ndarray[Any, Any], Path]] = []
        self.lines: list[str] = []
        self.known: dict[tuple[int, int], str] = {}
        self.count = 0

    def array(self, value: np.ndarray[Any, Any], name: str, device: int) -> str:
        """The C++ pointer to an array's copy on a device; memory is copied once, whoever shows it."""
        key = value.ctypes.data, value.nbytes
        if key in self.known:
            return self.known[key]
        path = self.folder / f"array{len(self.files)}.bin"
        path.write_bytes(_memory(value).tobytes())
        self.files.append((value, path))
        variable = f"tw_array_{len(self.files)}"
        self.lines.append(
            f'  void* {variable} = tw::argument_array("{name}", "{path}", {_memory(value).nbytes}, {device});'
        )
        self.known[key] = variable
        return variable

    def value(self, value: object, name: str, device: int) -> str:
        """The C++ expression of one argument."""
        if isinstance(value, PerDevice):
            return self.value(value.values[device], name, device)
        if isinstance(value, Peers):
            pointers = [self.array(a, f"{name}[{d}]", d) for d, a in enumerate(value.arrays)]
            table = np.zeros(len(pointers), np.uint64)
            variable = self.array(table, name, device)
            self.lines += [f"  ((void**){variable})[{d}] = {p};" for d, p in enumerate(pointers)]
            return f"tw_any{{{variable}, 0, 0, 0}}"
        if isinstance(value, Multicast):
            return f"tw_any{{{self._multicast(value, name)}, 0, 0, 0}}"
        if isinstance(value, TensorMap):
            return self._map(value, name, device)
        if value is None:
            return "tw_any{nullptr, 0, 0, 0}"
        if hasattr(value, "__dlpack__") and not isinstance(value, np.ndarray | np.generic):
            value = host_array(value, name)
        if isinstance(value, np.ndarray) and value.ndim:
            return f"tw_any{{{self.array(value, name, device)}, 0, 0, 0}}"
        if isinstance(value, (bool, int, np.integer, np.bool_)):
            whole = int(value)
            return f"tw_any{{nullptr, (long long){whole}{'ull' if whole >= 0 else 'll'}, 0, 1}}"
        if isinstance(value, (float, np.floating)) or np.ndim(value) == 0:  # type: ignore[arg-type]
            return f"tw_any{{nullptr, 0, __builtin_bit_cast(double, {int(np.float64(value).view(np.uint64))}ull), 2}}"  # type: ignore[arg-type]
        raise BackendError(
            "run(text, .., arrays)",
            f"{name} is a {type(value).__name__}",
            legal="an array, a number, TensorMap, Peers, Multicast or PerDevice",
        )

    def _multicast(self, value: Multicast, name: str) -> str:
        """One address for all devices, whichever launch asks for it."""
        key = value.arrays[0].ctypes.data, -1
        if key not in self.known:
            pointers = [self.array(a, f"{name}[{d}]", d) for d, a in enumerate(value.arrays)]
            self.known[key] = f"tw_multicast_{len(self.known)}"
            made, given = self.known[key], f'"{name}", {value.arrays[0].nbytes}'
            self.lines += [
                f"  void* {made}_of[] = {{{', '.join(pointers)}}};",
                f"  void* {made} = tw::multicast_array({given}, {made}_of, {len(pointers)});",
            ]
        return self.known[key]

    def _map(self, value: TensorMap, name: str, device: int) -> str:
        if isinstance(value.array, DeviceArray):
            raise BackendError(
                "run(text, .., on='cpu')",
                f"{name}: memory of device {value.array.device}",
                legal="on='cuda', or a copy",
            )
        pointer = self.array(value.array, name, device)
        self.count += 1
        v, variable = value.values(), f"tw_map_{self.count}"
        lists = {key: ", ".join(map(str, v[key])) for key in ("dim", "stride", "box", "element_stride")}
        swizzle = {0: 0, 32: 1, 64: 2, 128: 3}[value.swizzle]
        self.lines.append(
            f"  CUtensorMap {variable}; {{ cuuint64_t d[] = {{{lists['dim']}}}, s[] = "
            f"{{{lists['stride'] or 0}}}; cuuint32_t b[] = {{{lists['box']}}}, "
            f"e[] = {{{lists['element_stride']}}}; if (cuTensorMapEncodeTiled(&{variable}, "
            f"(CUtensorMapDataType){value.kind}, {v['rank']}, {pointer}, d, s, b, e, "
            f"(CUtensorMapInterleave)0, (CUtensorMapSwizzle){swizzle}, (CUtensorMapL2promotion)0, "
            f"(CUtensorMapFloatOOBfill){int(value.nan_fill)})) return 98; }}"
        )
        return variable

    def write(self) -> None:
        """The files get what the arrays hold now."""
        for value, path in self.files:
            path.write_bytes(_memory(value).tobytes())

    def read_back(self) -> None:
        """The arrays get what the kernel wrote."""
        for value, path in self.files:
            if value.flags.writeable:
                flat = np.frombuffer(path.read_bytes(), np.uint8)
                _memory(value)[...] = flat


def _memory(value: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The bytes of an array, which must lie in one piece."""
    if not value.flags.c_contiguous:
        raise BackendError(
            "run(text, .., arrays)",
            "an array that is not contiguous",
            inputs={"strides": value.strides},
            legal="np.ascontiguousarray(a)",
        )
    return value.reshape(-1).view(np.uint8)


def launch_on_cpu(
    text: str, launches: Sequence[Launch], *, devices: int, order: str | int, window: int, seconds: int, check: bool,
    optimise: bool = True, include: Sequence[str] = (), source: Path | None = None,
) -> tuple[ChildOutcome, tuple[Finding, ...]]:  # fmt: skip
    """Compiles a text once and launches its kernels one after the other; the arrays are updated in place."""
    with folders.scratch() as scratch:
        folder = Path(scratch)
        path = source or folder / "kernel.cu"
        if source is None:
            path.write_text(text)
        arguments = Arguments(folder)

        def main(translation: Translation) -> str:
            lines = [_launch_line(translation, arguments, one, d, devices) for one in launches for d in range(devices)]
            return MAIN.format(body="\n".join(arguments.lines + lines))

        program, _ = build_program(path, folder, instrumented=check, optimise=optimise, include=include, extra=main)
        outcome = run_program(
            program, [], folder=folder, scratch=folder, order=order, checking=check, devices=devices, window=window,
            seconds=seconds,
        )  # fmt: skip
        if outcome.status == 0:
            arguments.read_back()
        return outcome, outcome.findings


def _launch_line(translation: Translation, arguments: Arguments, one: Launch, device: int, devices: int) -> str:
    """The C++ of one launch on one device."""
    found, signature = choose_kernel(translation.kernels, one.kernel)
    check_launch(signature.name, signature.declared, one, devices)
    check_size(one)
    extents = ((one.cluster, "cluster"), (one.grid, "grid"), (one.block, "block"))
    dims = ", ".join(f"dim3({', '.join(map(str, extent(v, w)))})" for v, w in extents)
    values = ", ".join(["0", *(arguments.value(one.arguments[p], p, device) for p in signature.parameters)])
    return (
        f'  cudaSetDevice({device}); {{ ::tw::Launch l("{signature.name}", {dims}, {one.shared}); '
        f"l.options.cooperative = {int(one.cooperative)}; "
        f"if (l.run([](int, auto&&... a) TW_PLAIN {{ {found}(a...); }}, {values})) return 97; }}"
    )
