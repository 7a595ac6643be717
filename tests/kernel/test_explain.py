"""`explain` of every example on three targets: each choice has its reason, and accesses are those of all lanes."""

import re
import sys
from functools import partial
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from tileweave import kernel as tk
from tileweave.errors import BackendError

sys.path[:0] = [str(Path(__file__).resolve().parents[2] / "examples" / "kernels"), str(Path(__file__).parent)]
from example_kernels import SPEC, examples, found  # noqa: E402


def explained(name, arguments, arch):
    return found(name).explain(*arguments, arch=arch)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_100a"])
@pytest.mark.parametrize(("name", "arguments"), list(examples()), ids=lambda x: x if isinstance(x, str) else "")
def test_every_choice_has_a_reason(name, arguments, arch):
    """What is taken for an operator stands below it with a reason, so does what is not; or the target is refused."""
    try:
        rows = explained(name, arguments, arch).splitlines()
    except BackendError as error:
        assert str(error).startswith(f"dispatch(kernel, arch): {arch} has no ") and f"{name.split('.')[0]}.py:" in str(
            error
        )
        return
    end = next(k for k, row in enumerate(rows) if row.startswith("estimate: "))
    asked = None
    taken: dict[int, list[bool]] = {}
    for k, row in enumerate(rows[1:end]):
        if re.match(r"  \w+\.py:\d+  ", row):
            asked = k
            taken[k] = []
        elif asked is not None:
            reason = re.match(r"      \S.* (yes|no): (\S.*)$", row)
            assert reason, row
            taken[asked].append(reason[1] == "yes")
    assert taken and all(any(one) for one in taken.values())
    assert not re.search(r"\b1 (passes|sectors|blocks resident|warpgroups)\b", "\n".join(rows))


#: Kernel of the page of kernels -> the tensor whose layout it shows.
PICTURES = {
    "softmax.softmax": "r", "norms.layernorm": "r", "transpose.transpose": "s", "stencil.stencil": "s",
    "reduction.column_sums": "t_1", "matmul.matmul": "acc", "gemm_cp_async.gemm_cp_async": "acc",
    "tensor_memory.matmul_tensor": "acc", "clusters.row_sums": "r", "gemm_gelu.gemm_gelu": "acc",
    "fp8_gemm.fp8_gemm": "part", "mx_gemm.mx_gemm": "fa",
    "attention.attention": "dot", "attention_tensor.attention_tensor": "s",
    "grouped_gemm.grouped_gemm": "acc", "moe.moe": "acc", "gemm_reduce_scatter.gemm_rs": "P",
    "copy_views.block_view": "t",
}  # fmt: skip


def test_the_pictures_of_the_page_are_of_the_layouts_that_dispatch_chose(golden):
    known = dict(examples())
    for name, tensor in PICTURES.items():
        module, _, kernel = name.partition(".")
        arch = "sm_100a" if "tensor" in module or "mx" in module else "sm_90a"
        drawn = getattr(import_module(module), kernel).pictures(*known[name], arch=arch)
        golden(f"../../docs/images/kernels/{module}-{kernel}.svg", drawn[tensor])
    matrices = [SPEC(s, "f32") for s in ((256, 128), (256, 512), (128, 512))]
    golden("../../docs/images/kernels/trainium-matmul.svg", import_module("trainium").matmul.pictures(*matrices)["acc"])
    kernel, arguments, _, _ = import_module("collectives").case("all-to-all", 4, 52, 36)
    golden("../../docs/images/kernels/collectives-all-to-all.svg", kernel.pictures(*arguments)["x"])
    shards = [[np.zeros(s, np.float16)] * 4 for s in ((4, 16), (16, 16), (16, 16))]
    kernel = import_module("gather_gemm").on(4)
    golden("../../docs/images/kernels/gather_gemm-gather_gemm.svg", kernel.pictures(*shards)["gathered"])
    page = (Path(__file__).resolve().parents[2] / "docs" / "kernels.md").read_text()
    files = {path.name for path in Path(import_module("softmax").__file__).parent.glob("*.py")}
    assert all(f"`examples/kernels/{file}`" in page for file in files)


def test_both_views_of_a_copy_access_memory_alike():
    """Figures 4 and 5: the view of a thread and of a block make the same vector loads and stores."""
    rows = [explained(f"copy_views.{one}", [SPEC((32, 128), "f32"), SPEC((16, 64), "f32")], "sm_90a") for one in
            ("thread_view", "block_view")]  # fmt: skip
    thread, block = ([row.split("  ")[-1] for row in text.split("one warp:")[1].splitlines()[1:]] for text in rows)
    assert thread == block == [
        "ld.global c, 16 B a lane: 32 sectors, 2.0 times what is needed",
        "st.global out, 16 B a lane: 32 sectors, 2.0 times what is needed",
    ]  # fmt: skip


def test_tiles_of_trainium_are_refused_on_a_gpu():
    matrices = [SPEC(s, "f32") for s in ((256, 128), (256, 512), (128, 512))]
    with pytest.raises(BackendError, match="sm_90a has no sbuf") as refused:
        import_module("trainium").matmul.explain(*matrices)
    assert 'text("nki")' in str(refused.value) and "trainium.py:" in str(refused.value)


def test_a_copy_between_devices_has_its_own_reason():
    @tk.kernel(mesh={"gpu": 2})
    def fetched(k, x, y):
        m, n = k.grid(1, 1)
        there = k.symmetric((2, *x.shape), dtype=x.dtype)
        with k.cta(threads=64) as cta:
            s = k.shared(x.shape, like=x)
            cta.copy(there[k.gpu], x)
            cta.signal(there, m, n)
            cta.wait(there, m, n, device=1 - k.gpu)
            cta.copy_async(s, there[1 - k.gpu])
            cta.commit()
            cta.wait_group(0)
            cta.sync()
            cta.copy(y, s)

    table = fetched.explain(tk.spec((16, 32), "f16"), tk.spec((16, 32), "f16"), arch="sm_90a")
    assert "cp.async     no: not from global to shared memory" in table


@pytest.mark.parametrize("arch", ["nonsense", "sm_91", "sm_80a", "SM_90", ""])
def test_an_unknown_architecture_is_refused_wherever_one_is_named(arch):
    softmax = import_module("softmax").softmax
    x = np.zeros((3, 70), np.float32)
    y = x.copy()
    asked = [partial(getattr(softmax, verb), x, y, arch=arch) for verb in ("explain", "expand", "pictures")]
    asked += [lambda: softmax.tune({}, x, y, arch=arch)]
    if arch:  # empty: the target's own
        asked += [lambda: softmax.check(x, y, arch=arch), lambda: softmax.run(x, y, arch=arch)]
        asked += [partial(softmax.text, t, x, y, arch=arch) for t in ("ir", "cuda", "triton", "gluon", "mlir", "nki")]
        asked += [partial(softmax.run, x, y, on=on, arch=arch) for on in ("cpu", "mlir", "triton", "nki")]
    for ask in asked:
        with pytest.raises(BackendError, match="is no architecture"):
            ask()
