"""Verification, lowering to PTX and machine code, and the errors of missing tools."""

import shutil
from pathlib import Path

import pytest

from tileweave.backends import mlir
from tileweave.backends.mlir import tools
from tileweave.errors import BackendError

PRODUCT = (Path(__file__).parent / "product.mlir").read_text("utf-8")


def test_a_rule_of_a_dialect_is_named_with_line_and_text():
    with pytest.raises(BackendError) as caught:
        mlir.verify(PRODUCT.replace("%fa, %fb", "%fa, %fa"))
    assert "line 37" in str(caught.value) and "expects different type" in str(caught.value)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_the_product_becomes_ptx_with_its_instructions(arch):
    made = mlir.assemble(PRODUCT, arch)
    for opcode in ("ldmatrix.sync.aligned.m8n8.x4.shared.b16", "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"):
        assert made.ptx.count(opcode) == 1
    if shutil.which("ptxas"):
        assert made.cubin[:4] == b"\x7fELF" and made.registers > 0 and made.spills == 0


@pytest.mark.parametrize("arch", ["sm_42", "gfx942", "", None])
def test_an_unknown_architecture_is_refused(arch):
    with pytest.raises(BackendError, match="unknown architecture"):
        mlir.assemble(PRODUCT, arch)


def test_two_gpu_modules_are_refused():
    text = "module {\n  gpu.module @a {}\n  gpu.module @b {}\n}"
    with pytest.raises(BackendError, match="2 GPU modules"):
        mlir.lowered(text)


def test_missing_tools_are_named_with_how_to_get_them(monkeypatch):
    monkeypatch.setenv("TILEWEAVE_MLIR_OPT", "no-such-mlir-opt")
    tools._tool.cache_clear()
    try:
        assert "apt install mlir-22-tools" in mlir.installed()
        with pytest.raises(BackendError, match="mlir-opt 22 is not installed"):
            mlir.verify(PRODUCT)
    finally:
        tools._tool.cache_clear()
