"""``tileweave codegen``: a kernel's text from a template and its layouts, and what can be checked of it here."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tileweave.backends import cuda, mlir, triton
from tileweave.backends.cuda import templates as cuda_templates
from tileweave.backends.triton.trials import run_trial
from tileweave.errors import BackendError, LayoutError

DTYPE = "fp16"
CUDA_ARCHITECTURES = ("sm_80", "sm_90a", "sm_100a")
MLIR_ARCHITECTURES = ("sm_80", "sm_90a", "sm_100a")

Options = dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Target:
    """A language: its kernels with their options, and for a kernel's name and options the text and its check.

    Args:
        kernels: name -> the options' names.
        text: the text, its explanation.
        check: says on standard error what it ran; how many checks failed.
    """

    kernels: Callable[[], Mapping[str, Sequence[str]]]
    text: Callable[[str, Options], tuple[str, str]]
    check: Callable[[str, Options], int]


def codegen(arguments: argparse.Namespace) -> int:
    """Run the command; the exit status.

    Raises:
        LayoutError: no such kernel or option.
    """
    wanted = [arguments.target] if arguments.target else list(TARGETS)
    if arguments.list:
        if arguments.template or arguments.set or arguments.output or arguments.check or arguments.explain:
            raise LayoutError("tileweave codegen --list", "it lists kernels and makes none", legal="--target alone")
        for name in wanted:
            for kernel, names in TARGETS[name].kernels().items():
                print(f"{kernel:<18} {name:<7} {', '.join(names)}")
        return 0
    target = TARGETS[_target_of(arguments.template, wanted)]
    options = _options(arguments.set)
    text, explanation = target.text(arguments.template, options)
    if arguments.output is not None:
        if not arguments.output:
            raise LayoutError("tileweave codegen -o", "the name of the file is empty", legal="-o FILE")
        Path(arguments.output).write_text(text, encoding="utf-8")
    elif not arguments.explain:
        sys.stdout.write(text)
    if arguments.explain:
        print(explanation)
    return 1 if arguments.check and target.check(arguments.template, options) else 0


def _target_of(kernel: str | None, wanted: Sequence[str]) -> str:
    """The first language that has a kernel of the name."""
    names = {name: tuple(TARGETS[name].kernels()) for name in wanted}
    everything = "; ".join(f"{name}: {', '.join(kernels)}" for name, kernels in names.items())
    if kernel is None:
        raise LayoutError("tileweave codegen", "no kernel is named", legal=f"--list, or {everything}")
    for name, kernels in names.items():
        if kernel in kernels:
            return name
    raise LayoutError("tileweave codegen", f"no kernel {kernel!r}", legal=everything)


def _options(words: Sequence[str]) -> Options:
    out: Options = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name.isidentifier():
            raise LayoutError("tileweave codegen --set", f"{word!r}", legal="NAME=VALUE, such as M=4096 or b=col")
        if name in out:
            raise LayoutError("tileweave codegen --set", f"{name} is set twice", legal="each name once")
        number = value.removeprefix("-")
        out[name] = int(value) if number.isascii() and number.isdigit() else value
    return out


def _say(words: str) -> None:
    print(words, file=sys.stderr)


# -- Triton --------------------------------------------------------------------------------------------------


def _triton_text(name: str, options: Options) -> tuple[str, str]:
    filled = triton.kernel(name).template(**options).fill("triton")
    return filled.text, filled.explain()


def _check_triton(name: str, options: Options) -> int:
    """Run in Triton's interpreter, in a child process, against NumPy; compile for every architecture."""
    entry = triton.kernel(name)
    filled = entry.template(**options).fill("triton")
    compile(filled.text, name, "exec")
    _say("checked: the text is Python")
    failed = 0
    if triton.installed():
        _say(f"not checked: values; {triton.installed()}")
    else:
        try:
            trial, off = run_trial(name, filled, options)
        except BackendError as error:
            failed += 1
            _say(f"failed: in Triton's interpreter: {error.problem}")
        else:
            wrong = not off <= trial.tolerance
            failed += wrong
            sizes = ", ".join(f"{size} = {n}" for size, n in trial.sizes.items()) or f"{len(trial.wanted)} problems"
            _say(f"{'failed' if wrong else 'checked'}: interpreted against NumPy: {sizes}, worst difference {off:.3g}")
    missing = triton.installed(interpreter=False)
    if missing:
        _say(f"not checked: compilation; {missing}")
        return failed
    pairs = [(architecture, DTYPE) for architecture in triton.ARCHITECTURES]
    if name == "matmul":
        pairs += [(architecture, dtype) for dtype, architecture in triton.FP8.values()]
    for architecture, dtype in pairs:
        try:
            stages = triton.compiled(filled.text, name, entry.signature(dtype, filled.arguments), architecture)
        except BackendError as error:
            failed += 1
            _say(f"failed: {architecture}, {dtype}: {error.problem}")
        else:
            _say(f"checked: compiles for {architecture}, {dtype} ({', '.join(stages)})")
    return failed


# -- CUDA ----------------------------------------------------------------------------------------------------


def _cuda_text(name: str, options: Options) -> tuple[str, str]:
    text = cuda_templates.kernel(name).text(**options)
    return text.text, text.explain()


def _check_cuda(name: str, options: Options) -> int:
    """Run on the CPU with every access followed, against NumPy; compile for devices."""
    entry = cuda_templates.kernel(name)
    text = entry.text(**options)
    failed = _ran(lambda: cuda_templates.run_trial(entry, text, options, check=True))
    for architecture in CUDA_ARCHITECTURES:
        try:
            made = cuda.compile(text.text, architecture)
        except BackendError as error:
            if "neither nvcc nor NVRTC" in error.problem:
                _say(f"not checked: compilation; {error.problem}")
                break
            failed += 1
            _say(f"failed: {architecture}: {error.problem}")
        else:
            used = "; ".join(f"{use.registers} registers, {use.spill_bytes} spilled" for use in made.kernels.values())
            _say(f"checked: compiles for {architecture} with {made.compiler}{f' ({used})' if used else ''}")
    return failed


def _ran(trial: Callable[[], cuda_templates.Trial]) -> int:
    """Whether a run on the CPU failed, having said how far its answer is off."""
    if shutil.which("g++") is None:
        _say("not checked: values; g++ is not on PATH")
        return 0
    try:
        done = trial()
    except BackendError as error:
        _say(f"failed: on the CPU: {error.problem}")
        return 1
    wrong = not done.difference() <= done.tolerance
    found = f"{done.sizes}, {len(done.launches)} launches, largest difference {done.difference():.3g}"
    _say(f"{'failed' if wrong else 'checked'}: run on the CPU against NumPy: {found}")
    return int(wrong)


# -- MLIR ----------------------------------------------------------------------------------------------------


def _mlir_text(name: str, options: Options) -> tuple[str, str]:
    filled = mlir.kernel(name).fill(**options)
    return filled.text, filled.explain()


def _check_mlir(name: str, options: Options) -> int:
    """Verify, run on the CPU with every access followed, against NumPy; lower to PTX and machine code."""
    entry = mlir.kernel(name)
    filled = entry.fill(**options)
    missing = mlir.installed()
    if missing:
        _say(f"not checked: {missing}")
        return 0
    mlir.verify(filled.text)
    _say("checked: mlir-opt accepts the text")
    failed = _ran(lambda: mlir.run_trial(entry, filled, options, check=True))
    for architecture in MLIR_ARCHITECTURES:
        try:
            made = mlir.assemble(filled.text, architecture)
        except BackendError as error:
            failed += 1
            _say(f"failed: {architecture}: {error.problem}")
        else:
            used = f"PTX and machine code ({made.registers} registers, {made.spills} spilled)"
            _say(
                f"checked: lowers to {used if made.cubin else 'PTX; not checked: ptxas is not on PATH'}, {architecture}"
            )
    return failed


TARGETS = {
    "triton": _Target(lambda: {n: k.options for n, k in triton.KERNELS.items()}, _triton_text, _check_triton),
    "cuda": _Target(lambda: {n: k.options for n, k in cuda_templates.KERNELS.items()}, _cuda_text, _check_cuda),
    "mlir": _Target(lambda: {n: k.options for n, k in mlir.KERNELS.items()}, _mlir_text, _check_mlir),
}
