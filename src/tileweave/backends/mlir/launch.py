"""``run``: the kernels of an MLIR text on arrays, on the CPU.

mlir-opt lowers the text to NVVM, mlir-translate to LLVM IR, llvmlite to machine code of the host; its threads are the
fibers that run CUDA text, and its instructions the same emulation (`backends.cuda.cpu`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from tileweave.backends import folders
from tileweave.backends.cuda.arguments import Extent, Launch
from tileweave.backends.cuda.cpu.build import build_program
from tileweave.backends.cuda.cpu.child import ChildOutcome, run_program
from tileweave.backends.cuda.cpu.kernel import MAIN, Arguments, extent
from tileweave.backends.mlir.device_ir import (
    HostModule,
    SharedArray,
    host_module,
    library,
    refuse_unknown,
    shared_arrays,
)
from tileweave.backends.mlir.intrinsics import KNOWN, LIBRARY, ROUNDED, function_of, shared_function
from tileweave.backends.mlir.signature import GpuFunction, kernels_of
from tileweave.backends.mlir.tools import lowered, translated
from tileweave.errors import BackendError

Order = str | int
_WHERE = "run(text, grid, block, arrays)"
_SLOTS = {
    "ptr": ("void*", "(void*)a[{}]"), "i64": ("long long", "a[{}]"), "i32": ("int", "(int)a[{}]"),
    "i16": ("short", "(short)a[{}]"), "i8": ("signed char", "(signed char)a[{}]"), "i1": ("bool", "a[{}] & 1"),
    "float": ("float", "*(const float*)(a + {})"), "double": ("double", "*(const double*)(a + {})"),
}  # fmt: skip
"""LLVM type -> its C++ type, and how a kernel reads it from a slot of 8 bytes."""
_GO = """
static int tw_go(const char* name, dim3 grid, dim3 block, int shared, void (*call)(const long long*),
                 const long long* a) {
  ::tw::Launch l(name, dim3(1, 1, 1), grid, block, shared);
  return l.run([](void (*f)(const long long*), const long long* row) TW_PLAIN { tw_start(f, row); }, call, a);
}
"""


def run(
    text: str,
    grid: Extent,
    block: Extent,
    arrays: Mapping[str, Any],
    *,
    kernel: str | None = None,
    shared: int = 0,
    order: Order | Sequence[Order] = "forward",
    window: int = 8,
    seconds: int = 60,
    check: bool = False,
) -> None:
    """Runs one kernel of an MLIR text on the CPU; arrays are read and written in place.

    Args:
        text: a module with one ``gpu.module``.
        grid: blocks, x first.
        block: threads of a block, x first.
        arrays: a value for each parameter, by name.
        kernel: the name where the text has several kernels.
        shared: bytes of dynamic shared memory.
        order: of fibers and blocks: ``"forward"``, ``"reversed"``, the seed of a random one; several of them run one
            after another on the same input and must agree bit for bit.
        window: how many blocks are resident at once.
        seconds: the time limit of a run.
        check: whether every access is followed (races, initialisation); slower.

    Raises:
        BackendError: tools are missing, the text is refused, or a rule was broken: ``error.findings`` lists each with
            ``kernel.mlir:LINE``.

    Example::

        run(text, grid=(2, 3), block=(32, 8), arrays={"src": a, "dst": b}, order=("forward", "reversed", 7))

    Source: own.
    """
    one = Launch(grid, block, arrays, kernel, shared)
    run_all(text, [one], order=order, window=window, seconds=seconds, check=check)


def run_all(
    text: str,
    launches: Sequence[Launch],
    *,
    order: Order | Sequence[Order] = "forward",
    window: int = 8,
    seconds: int = 60,
    check: bool = False,
) -> None:
    """Runs launches of the kernels of one text, one after another, in one program; `run` for several.

    Raises:
        BackendError: as `run`.
    """
    found = kernels_of(text)
    launches = [replace(launch, kernel=_chosen(launch.kernel, found)) for launch in launches]
    for launch in launches:
        _check_arguments(launch, found[launch.kernel or ""])
    module, shared, code = _compiled(text, check)
    orders = (order,) if isinstance(order, str | int) else tuple(order)
    if not orders:
        raise BackendError(_WHERE, "no order", legal='"forward", "reversed", or seeds')
    arrays = {id(v): v for launch in launches for v in launch.arguments.values() if isinstance(v, np.ndarray)}
    before = {key: value.copy() for key, value in arrays.items()}
    with folders.scratch() as scratch:
        folder = Path(scratch)
        (folder / "kernels.o").write_bytes(code)
        (folder / "kernel.mlir").write_text(text)
        source = folder / "kernel.cu"
        source.write_text(_device_text(module, shared))
        arguments = Arguments(folder)
        body = _body(launches, module, found, arguments)
        program, _ = build_program(
            source,
            folder,
            instrumented=False,
            extra=lambda _: _GO + MAIN.format(body=body),
            objects=[folder / "kernels.o"],
        )
        first: list[bytes] = []
        for number, one in enumerate(orders):
            if number:
                for key, value in arrays.items():
                    value[...] = before[key]
                arguments.write()
            outcome = run_program(
                program, [], folder=folder, scratch=folder, order=one, checking=check, window=window, seconds=seconds
            )
            _refuse(outcome, module, text, one)
            arguments.read_back()
            results = [value.tobytes() for value in arrays.values()]
            if number and results != first:
                raise BackendError(
                    _WHERE, f"the result depends on the order of threads: {orders[0]!r} and {one!r} differ",
                    facts={"source": text},
                )  # fmt: skip
            first = results


def _chosen(name: str | None, found: Mapping[str, GpuFunction]) -> str:
    """The kernel of that name, or the only one."""
    chosen = name or (next(iter(found)) if len(found) == 1 else "")
    if chosen not in found:
        problem = f"the text has no kernel {name!r}" if name else f"the text has {len(found)} kernels: name one"
        raise BackendError(_WHERE, problem, legal=" | ".join(found) or "a gpu.func with the attribute kernel")
    return chosen


def _check_arguments(launch: Launch, kernel: GpuFunction) -> None:
    extent(launch.grid, "grid"), extent(launch.block, "block")
    names = [p.name for p in kernel.parameters]
    missing = [name for name in names if name not in launch.arguments]
    unknown = [name for name in launch.arguments if name not in names]
    if missing or unknown:
        problem = f"no value for {', '.join(missing)}" if missing else f"no parameter {', '.join(unknown)}"
        inputs = {"kernel": kernel.name}
        raise BackendError(_WHERE, problem, inputs=inputs, legal=", ".join(names) or "no parameters")
    for parameter in kernel.parameters:
        if parameter.is_memref:
            parameter.check(launch.arguments[parameter.name], _WHERE)


@lru_cache(maxsize=16)
def _compiled(text: str, check: bool) -> tuple[HostModule, tuple[SharedArray, ...], bytes]:
    """Host IR, shared variables and machine code of a text."""
    module = lowered(text, where=_WHERE, debug=True)
    shared, edits = shared_arrays(module)
    host = host_module(translated(module, edits, where=_WHERE), checked=check)
    refuse_unknown(_WHERE, host, KNOWN, text, LIBRARY)
    return host, shared, _machine_code(host.text, text)


def _machine_code(ir: str, source: str) -> bytes:
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    try:
        module = llvm.parse_assembly(ir)
        module.verify()
    except RuntimeError as error:
        facts = {"source": source, "ir": ir}
        raise BackendError(_WHERE, "llvmlite does not accept the IR", inputs={"log": error}, facts=facts) from None
    machine = llvm.Target.from_default_triple().create_target_machine(opt=2, reloc="pic", codemodel="default")
    module.triple, module.data_layout = machine.triple, str(machine.target_data)
    tuning = llvm.create_pipeline_tuning_options(speed_level=1)
    passes = llvm.create_pass_builder(machine, tuning)
    passes.getModulePassManager().run(module, passes)
    return bytes(machine.emit_object(module))


_HEAD = (
    "namespace tw { [[noreturn]] void fail(const char*, const void*, const char*, ...); }",
    'extern "C" void tw_aligned(const void* p, long long n) {',
    "  if ((unsigned long long)p % n)",
    '    ::tw::fail("misaligned", __builtin_return_address(0), "thread (%u,%u,%u) of block (%u,%u,%u) accesses an '
    'address that is no multiple of %lld", threadIdx.x, threadIdx.y, threadIdx.z, blockIdx.x, blockIdx.y, '
    "blockIdx.z, n);",
    "}",
)
_FIRST = len(_HEAD) + 1
"""The line of the first instruction's function in the CUDA text."""


def _device_text(module: HostModule, shared: Sequence[SharedArray]) -> str:
    """The CUDA text around the machine code: instructions, shared variables, and a kernel that calls each kernel."""
    lines = [
        *_HEAD,
        *(function_of(intrinsic) for intrinsic in module.intrinsics),
        *(shared_function(array) for array in shared),
        *(LIBRARY[name] for name in library(module)),
        *([ROUNDED] if "bfloat" in module.text else []),
    ]
    for name, types in module.kernels.items():
        kinds = [_SLOTS.get(kind) for kind in types]
        if None in kinds:
            kind = types[kinds.index(None)]
            raise BackendError(_WHERE, f"kernel {name} takes a {kind}", legal=f"memref, index, {', '.join(_SLOTS)}")
        formal = ", ".join(kind[0] for kind in kinds if kind)
        actual = ", ".join(kind[1].format(k) for k, kind in enumerate(kinds) if kind)
        lines.append(f'extern "C" void tw_kernel_{name}({formal});')
        lines.append(f"__device__ void tw_call_{name}(const long long* a) {{ tw_kernel_{name}({actual}); }}")
    lines.append("__global__ void tw_start(void (*call)(const long long*), const long long* a) { call(a); }")
    return "\n".join(lines) + "\n"


def _body(
    launches: Sequence[Launch], module: HostModule, found: Mapping[str, GpuFunction], arguments: Arguments
) -> str:
    """The launches as C++: each a row of arguments, in slots of 8 bytes."""
    bare = all(kernel.bare for kernel in found.values())
    rows = []
    for number, launch in enumerate(launches):
        name = launch.kernel or ""
        values: list[str] = []
        for parameter in found[name].parameters:
            value = launch.arguments[parameter.name]
            if parameter.is_memref:
                pointer = f"(long long){arguments.array(value, parameter.name, 0)}"
                values += [pointer] if bare else parameter.descriptor(value, pointer)
            else:
                values.append(_slot(parameter.name, value, module.kernels[name][len(values)]))
        dims = ", ".join(
            f"dim3({', '.join(map(str, extent(v, w)))})" for v, w in ((launch.grid, "grid"), (launch.block, "block"))
        )
        rows.append(f"  static const long long tw_row_{number}[] = {{{', '.join([*values, '0'])}}};")
        rows.append(f'  if (tw_go("{name}", {dims}, {launch.shared}, tw_call_{name}, tw_row_{number})) return 97;')
    return "\n".join([*arguments.lines, *rows])


def _slot(name: str, value: Any, kind: str) -> str:
    """The bits of a number of an LLVM type as a C++ number."""
    if kind in ("float", "double"):
        if not isinstance(value, int | float | np.integer | np.floating):
            raise BackendError(_WHERE, f"{name} is a {type(value).__name__}", legal="a number")
        bits = (
            np.array(value, np.float32).view(np.uint32)
            if kind == "float"
            else np.array(value, np.float64).view(np.int64)
        )
        return f"{int(bits)}LL"
    if not isinstance(value, int | np.integer | np.bool_):
        raise BackendError(_WHERE, f"{name} is a {type(value).__name__}", legal=f"an integer, {kind}")
    return f"{int(value)}LL"


def _refuse(outcome: ChildOutcome, module: HostModule, text: str, order: Order) -> None:
    wrong = [finding for finding in outcome.findings if not finding.note]
    if not wrong and not outcome.status:
        return
    names = {_FIRST + k: intrinsic.name for k, intrinsic in enumerate(module.intrinsics)}

    def place(match: re.Match[str]) -> str:
        name = names.get(int(match[1]), "")
        lines = "|".join(map(str, module.places.get(name, ())))
        return f"kernel.mlir:{lines}: {name}" if name else match[0]

    shown = [re.sub(r"\S*/kernel\.cu:(\d+)", place, str(finding)) for finding in wrong]
    refused = "the launch is refused: more than 1024 threads, or too much shared memory"
    status = refused if outcome.status == 97 else f"the program ended with status {outcome.status}"
    inputs: dict[str, object] = {f"also {k}": finding for k, finding in enumerate(shown[1:6], 1)}
    inputs["order"] = order
    if outcome.errors:
        inputs["output"] = outcome.errors[-500:]
    raise BackendError(
        _WHERE, shown[0] if shown else status, inputs=inputs,
        facts={"findings": tuple(outcome.findings), "source": text, "log": outcome.errors},
    )  # fmt: skip
