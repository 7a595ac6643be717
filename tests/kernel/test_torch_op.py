"""Kernels as operators of PyTorch: equal to PyTorch's own, known to its compiler, without copies."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from tileweave import kernel as tk
from tileweave.backends.cuda.arguments import DeviceArray, TensorMap
from tileweave.backends.cuda.printer import entry
from tileweave.errors import BackendError

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "kernels"))
from matmul import matmul  # type: ignore[import-not-found]
from softmax import softmax  # type: ignore[import-not-found]


@tk.kernel
def double(k, x, y):
    row = k.grid(x.blocks(0, 1))
    with k.cta(threads=32) as cta:
        cta.store(y[row], cta.load(x[row]) * 2)


def test_without_torch_the_error_says_what_to_install():
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from tileweave import kernel as tk\n"
        "from tileweave.errors import BackendError\n"
        "try: tk.kernel(lambda k, x, y: None).torch_op(('y',))\n"
        "except BackendError as error: print(error)\n"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120).stdout
    assert "PyTorch is not installed" in out and "tileweave[gpu]" in out


def test_arrays_on_a_device_reach_parameters_and_tensor_maps_by_their_address():
    x = [DeviceArray(4096 * k, s, np.dtype(np.float16)) for k, s in ((1, (256, 512)), (2, (512, 512)), (3, (256, 512)))]
    kernel = matmul.trace(*(tk.spec(one.shape, "f16") for one in x))
    program = entry.lowered(kernel, "sm_90a").program
    given, after = entry.arguments(kernel, program, dict(zip("ABC", x, strict=True)))
    maps = [value for value in given.values() if isinstance(value, TensorMap)]
    assert {one.array.address for one in maps} >= {4096, 8192} and not after
    assert all(one.values()["stride"] == (1024,) for one in maps)
    for which in (matmul, double):
        with pytest.raises(BackendError, match=r"device 0|is a DeviceArray"):
            which.run(*x[: len(which.tensors)], on="cpu")


class TestTorch:
    """What needs PyTorch."""

    torch = None

    @pytest.fixture(autouse=True)
    def _torch(self):
        type(self).torch = pytest.importorskip("torch", reason="make test-gpu installs torch")

    def test_softmax_equals_torch_and_passes_its_own_check(self):
        torch = self.torch
        into = softmax.torch_op(("y",), "tileweave_tests::softmax_into")
        made = softmax.torch_op({"y": torch.empty_like}, "tileweave_tests::softmax")
        x = torch.randn(3, 37, generator=torch.Generator().manual_seed(0))
        y = torch.empty_like(x)
        assert into(x, y) is None
        torch.testing.assert_close(y, x.softmax(1))
        torch.testing.assert_close(made(x), x.softmax(1))
        for op, given in ((into, (x, y)), (made, (x,))):
            assert set(torch.library.opcheck(op, given).values()) == {"SUCCESS"}

    def test_the_compiler_and_export_see_the_operator_and_its_shapes(self):
        torch = self.torch
        made = double.torch_op({"y": torch.empty_like}, "tileweave_tests::double")
        into = double.torch_op(("y",), "tileweave_tests::double_into")

        def both(x):
            y = torch.zeros_like(x)
            into(x + 1, y)
            return made(x) + y

        x = torch.arange(12.0).reshape(3, 4)
        compiled = torch.compile(both, backend="aot_eager", fullgraph=True)
        torch.testing.assert_close(compiled(x), 4 * x + 2)

        class Module(torch.nn.Module):
            def forward(self, x):
                return made(x)

        program = torch.export.export(Module(), (x,))
        node = next(n for n in program.graph.nodes if n.op == "call_function")
        assert "tileweave_tests.double" in str(node.target) and tuple(node.meta["val"].shape) == (3, 4)

    def test_matmul_of_f16_and_bf16_equals_torch(self):
        torch = self.torch
        for dtype in (torch.float16, torch.bfloat16):

            def empty(a, b):
                return a.new_empty(a.shape[0], b.shape[0])

            op = matmul.torch_op(
                {"C": empty}, f"tileweave_tests::matmul_{str(dtype)[6:]}", arch="sm_80", bm=64, bn=64, bk=32, stages=2
            )
            random = torch.Generator().manual_seed(1)
            a, b = (torch.randn(*s, generator=random).to(dtype) for s in ((50, 40), (70, 40)))
            torch.testing.assert_close(op(a, b), (a.float() @ b.float().T).to(dtype), rtol=0.02, atol=0.02)

    @pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2", "int32", "float64"])
    def test_every_type_is_used_in_place(self, name):
        torch = self.torch
        op = double.torch_op(("y",), f"tileweave_tests::double_{name}")
        x = torch.tensor([[1.0, 2.0, 3.0, -4.0]]).to(getattr(torch, name))
        y = torch.zeros_like(x)
        address = y.data_ptr()
        op(x, y)
        assert y.data_ptr() == address and y.float().tolist() == [[2.0, 4.0, 6.0, -8.0]]
        kind = np.dtype(getattr(ml_dtypes, name, None) or name)
        assert np.asarray(x.view(torch.uint8)).view(kind).astype(float).tolist() == [[1.0, 2.0, 3.0, -4.0]]

    def test_a_second_operator_does_not_take_the_place_of_the_first(self):
        torch = self.torch
        into, made = double.torch_op(("y",)), double.torch_op({"y": torch.empty_like})
        x, y = torch.ones(2, 3), torch.zeros(2, 3)
        into(x, y)
        assert torch.equal(y, 2 * x) and torch.equal(made(x), y)
        double.torch_op(("y",), "tileweave_tests::taken")
        with pytest.raises(BackendError, match="an operator tileweave_tests::taken exists"):
            double.torch_op(("y",), "tileweave_tests::taken")
        with pytest.raises(BackendError, match="the name 'plain'"):
            double.torch_op(("y",), "plain")

    def test_wrong_tensors_and_outputs_are_refused_with_their_names(self):
        torch = self.torch
        x = torch.zeros(4, 4)
        op = double.torch_op(("y",), "tileweave_tests::double_wrong")
        with pytest.raises(BackendError, match=r"x: a tensor that is not contiguous(.|\n)*strides  \(1, 4\)"):
            op(x.T, x)
        with pytest.raises(BackendError, match=r"x: elements of type torch\.complex64"):
            op(x.to(torch.complex64), x)
        with pytest.raises(BackendError, match="'y' names no tensors of the kernel"):
            double.torch_op("y")
        with pytest.raises(BackendError, match=r"names no tensors(.|\n)*some of x, y"):
            double.torch_op(("z",))
        wrong = double.torch_op(("x",), "tileweave_tests::double_undeclared")
        with pytest.raises(BackendError, match="the kernel writes y, too"):
            wrong(x, torch.zeros(4, 4))
