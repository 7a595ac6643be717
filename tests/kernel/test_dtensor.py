"""Layouts of PyTorch's DTensors: what each process holds is what the layout says, element by element."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import product
from math import prod
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tileweave import kernel as tk
from tileweave.errors import VerifyError
from tileweave.layout import Coord, Iter, Layout, parse


def disagreements(tensor, layout, axes, coordinate, logical) -> int:
    """Elements of a process's memory that are not those that the layout puts there, by enumeration."""
    size, local = logical.size, tensor.to_local().detach().numpy()
    base = np.lib.stride_tricks.as_strided(local, (1 + sum((n - 1) * s // local.itemsize for n, s in zip(
        local.shape, local.strides, strict=True)),), (local.itemsize,))  # fmt: skip
    me, held, wrong = dict(zip(axes, coordinate, strict=True)), set(), 0
    for x in range(layout.size):
        for at in layout.set_at(x):
            if all(at[axis] == me[axis] for axis in axes):
                held.add(at["m"])
                wrong += base[at["m"]] != logical.reshape(-1)[x % size]
    return int(wrong) + abs(len(held) - local.size)


class Fake:
    """A mesh without processes: what each rank would hold."""

    def __init__(self, shape, names):
        self.torch = pytest.importorskip("torch", reason="make test-gpu installs torch")
        self.dist = pytest.importorskip("torch.distributed")
        self.shape, self.names = shape, names

    def ranks(self):
        """The mesh, as each rank sees it."""
        from torch.distributed.device_mesh import init_device_mesh
        from torch.testing._internal.distributed.fake_pg import FakeStore

        for rank in range(prod(self.shape)):
            if self.dist.is_initialized():
                self.dist.destroy_process_group()
            self.dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=prod(self.shape))
            yield init_device_mesh("cpu", self.shape, mesh_dim_names=self.names)


@pytest.fixture(autouse=True)
def _no_group_left():
    yield
    if "torch.distributed" in sys.modules and sys.modules["torch.distributed"].is_initialized():
        sys.modules["torch.distributed"].destroy_process_group()


def placed(array, mesh, placements):
    """The array as a DTensor, without a message."""
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(array, mesh, placements, src_data_rank=None)


@pytest.mark.filterwarnings("ignore")
def test_all_placements_on_a_mesh_of_two_axes_hold_what_their_layouts_say():
    fake = Fake((2, 3), ("dp", "tp"))
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.placement_types import _StridedShard

    logical = fake.torch.arange(12 * 6).reshape(12, 6)
    kinds = [Shard(0), Shard(1), Replicate()]
    cases = [*product(kinds, kinds), (_StridedShard(0, split_factor=3), Shard(0))]
    layouts, checked = [set() for _ in cases], 0
    for mesh in fake.ranks():
        for k, placements in enumerate(cases):
            for source in (logical, logical.T.contiguous().T):
                tensor = placed(source, mesh, placements)
                layout = tk.dtensor_layout(tensor)
                assert not disagreements(tensor, layout, fake.names, mesh.get_coordinate(), logical.numpy()), placements
                tk.check_dtensor(tensor, layout)
                layouts[k].add(str(tk.dtensor_layout(placed(logical, mesh, placements))))
                if mesh.get_coordinate() == [1, 2]:  # the comparison sees a layout of other devices
                    other = Layout(layout.shard, layout.replica, {"dp": 1})
                    assert disagreements(tensor, other, fake.names, mesh.get_coordinate(), logical.numpy())
                checked += 1
    assert checked == 6 * 10 * 2 and all(len(found) == 1 for found in layouts)
    assert layouts[1] == {"(2:1@dp, 6:2@m, 3:1@tp, 2:1@m)"}


@pytest.mark.filterwarnings("ignore")
def test_every_other_layout_is_refused_with_its_axis_and_dimension():
    fake = Fake((2, 2), ("dp", "tp"))
    from torch.distributed.tensor import Partial, Replicate, Shard

    array = fake.torch.arange(32).reshape(4, 8)
    mesh = next(fake.ranks())
    kinds = [Shard(0), Shard(1), Replicate(), Partial()]
    tensors = {case: placed(array, mesh, case) for case in product(kinds, kinds)}
    refused = 0
    for (a, one), (b, other) in product(tensors.items(), tensors.items()):
        if a == b:
            tk.check_dtensor(one, tk.dtensor_layout(other))
            continue
        with pytest.raises(VerifyError) as caught:
            tk.check_dtensor(one, tk.dtensor_layout(other))
        refused += 1
        differing = [n for n, p, q in zip(fake.names, a, b, strict=True) if p != q]
        if len(differing) == 1 and Partial() not in (*a, *b):
            assert caught.value.axis == differing[0], str(caught.value)
            assert f"mesh axis {differing[0]}" in str(caught.value)
    assert refused == 16 * 15
    own = tensors[Shard(0), Replicate()]
    for text, part, axis, dimension in [
        ("(2:1@dp, 2:8, 8:1) + [2:1@tp]", "", "", None),
        ("(2:1@dp, 2:8, 8:1)", "mesh axis tp: the tensor has copies [2:1@tp], the layout has no copies", "tp", None),
        ("(2:1@dp, 2:8, 8:1) + [2:1@tp] + 1@tp", "the layout has copies [2:1@tp] + 1@tp", "tp", None),
        ("(2:1@dp, 2:1, 8:2) + [2:1@tp]", "memory, dimension 0: the tensor has (2:1@dp, 2:8@m)", "m", 0),
        ("(4:8, 2:1@dp, 4:1) + [2:1@tp]", "mesh axis dp, dimension 0: the tensor has (2:1@dp, 2:8@m), the", "dp", 0),
        ("(2:8, 2:1@dp, 8:1) + [2:1@tp]", "mesh axis dp, dimension 0", "dp", 0),
        ("(2:1@dp, 2:8, 8:1) + [2:1@pp]", "axis pp is none of the mesh", "pp", None),
        ("(2:1@dp, 2:8, 4:1) + [2:1@tp]", "the layout has 16 logical indices, the tensor 32 elements", "", None),
        ("(32:1@dp)", "mesh axis dp, dimension 0", "dp", 0),
        ("(3:1, 3:3)", "9 logical indices", "", None),
    ]:
        if not part:
            tk.check_dtensor(own, text)
            continue
        with pytest.raises(VerifyError) as caught:
            tk.check_dtensor(own, text)
        assert part in str(caught.value), str(caught.value)
        assert (caught.value.axis, caught.value.dimension) == (axis, dimension)


@pytest.mark.filterwarnings("ignore")
def test_figure_8_of_axe():
    """Shape (4, 64, 64), sharded over its first dimension; the sums over it are sharded again."""
    fake = Fake((4,), None)
    from torch.distributed.tensor import DTensor, Partial, Shard

    for mesh in fake.ranks():
        x = placed(fake.torch.zeros(4, 64, 64), mesh, [Shard(0)])
        y = placed(fake.torch.zeros(64, 64), mesh, [Shard(0)])
        terms = DTensor.from_local(fake.torch.zeros(64, 64), mesh, [Partial()])
        tk.check_dtensor(x, "(4:1@gpu, 64:64, 64:1)")
        tk.check_dtensor(y, "(4:1@gpu, 16:64, 64:1)")
        tk.check_dtensor(terms, "(4:1@gpu, 64:64, 64:1)")
        with pytest.raises(VerifyError) as caught:
            tk.check_dtensor(placed(fake.torch.zeros(4, 64, 64), mesh, [Shard(1)]), "(4:1@gpu, 64:64, 64:1)")
        assert str(caught.value) == (
            "check_dtensor(tensor, layout): mesh axis gpu, dimension 0: the tensor has none of it there, the layout "
            "(4:1@gpu)\n"
            "  tensor  (4, 64, 64), gpu 4 S(1): (4:1024@m, 4:1@gpu, 16:64@m, 64:1@m)\n"
            "  layout  (4:1@gpu, 64:64@m, 64:1@m)\n"
            "  legal   (4:1024@m, 4:1@gpu, 16:64@m, 64:1@m), or tensor.redistribute(..) first"
        )


@pytest.mark.filterwarnings("ignore")
def test_what_no_layout_says_is_refused():
    fake = Fake((4,), None)
    from torch.distributed.tensor import DTensor, Partial, Shard

    mesh = next(fake.ranks())
    for tensor, part in [
        (placed(fake.torch.zeros(10, 3), mesh, [Shard(0)]), "mesh axis gpu, dimension 0: 10 is not cut evenly into 4"),
        (DTensor.from_local(fake.torch.zeros(3), mesh, [Shard(0)], shape=fake.torch.Size([16]), stride=(1,)),
         "dimension 0: the local tensor has 3 of 16, its placements say 4"),
        (placed(fake.torch.zeros(0, 4), mesh, [Shard(1)]), "an empty tensor"),
        (fake.torch.zeros(3), "Tensor is no DTensor"),
    ]:  # fmt: skip
        with pytest.raises(VerifyError) as caught:
            tk.dtensor_layout(tensor)
        assert part in str(caught.value), str(caught.value)
    terms = DTensor.from_local(fake.torch.zeros(3), mesh, [Partial("max")])
    with pytest.raises(VerifyError, match="mesh axis gpu: terms are combined by max, not by sum"):
        tk.check_dtensor(terms, "(4:1@gpu, 3:1)")
    tk.check_dtensor(terms, "(4:1@gpu, 3:1)", combine="max")
    with pytest.raises(VerifyError, match="int is no layout"):
        tk.check_dtensor(terms, 3, combine="max")


class Placement:
    """A placement as a DTensor has it."""

    def __init__(self, dim):
        self.dim = dim


Shard, Replicate, Partial = (
    type(name, (Placement,), {"reduce_op": "sum"}) for name in ("Shard", "Replicate", "Partial")
)


def described(shape, mesh, placements, transposed=False, order=()):
    """What the layout needs of a DTensor; without PyTorch."""
    local = [n // prod(m for m, p in zip(mesh, placements, strict=True) if type(p) is Shard and p.dim == d)
             for d, n in enumerate(shape)]  # fmt: skip
    strides = [prod(local[d + 1 :]) for d in range(len(local))]
    if transposed:
        strides = [prod(local[:d]) for d in range(len(local))]
    spec = SimpleNamespace(shard_order=tuple(SimpleNamespace(mesh_dims=one) for one in order))
    return SimpleNamespace(
        shape=shape, placements=placements, device_mesh=SimpleNamespace(shape=mesh, mesh_dim_names=("a", "b")),
        to_local=lambda: SimpleNamespace(shape=tuple(local), stride=lambda d: strides[d]), _spec=spec,
    )  # fmt: skip


def test_names_and_order_of_the_mesh_are_the_tensors_or_the_callers():
    tensor = described((6, 5), (2, 4), (Shard(0), Replicate(0)))
    assert tk.dtensor_layout(tensor) == parse("(2:1@a, 3:5, 5:1) + [4:1@b]")
    assert tk.dtensor_layout(tensor, ("x", "y")).replica == parse("() + [4:1@y]").replica
    with pytest.raises(VerifyError, match="are no names of the 2 axes"):
        tk.dtensor_layout(tensor, ("x", "m"))
    cut = described((24,), (2, 3), (Shard(0), Shard(0)))
    assert tk.dtensor_layout(cut) == parse("(2:1@a, 3:1@b, 4:1)")
    other = described((24,), (2, 3), (Shard(0), Shard(0)), order=((1, 0),))
    assert tk.dtensor_layout(other) == parse("(3:1@b, 2:1@a, 4:1)")


def test_random_layouts_are_accepted_exactly_if_they_are_equal_point_by_point():
    seed = 7
    random = np.random.default_rng(seed)
    kinds = [Shard(0), Shard(1), Replicate(0), Partial(0)]
    accepted = 0
    for case in range(400):
        mesh = (2, int(random.integers(1, 4)))
        tensor = described(
            (12, 12), mesh, tuple(kinds[k] for k in random.integers(0, 4, 2)), bool(random.integers(0, 2))
        )  # fmt: skip
        own = tk.dtensor_layout(tensor)
        shard, replica, offset = list(own.shard), list(own.replica), own.offset
        for _ in range(random.integers(0, 3)):
            k = int(random.integers(0, len(shard)))
            match int(random.integers(0, 5)):
                case 0:
                    j = int(random.integers(0, len(shard)))
                    shard[k], shard[j] = shard[j], shard[k]
                case 1 if shard[k].extent % 2 == 0 and shard[k].extent > 2:
                    step = shard[k].stride
                    half = shard[k].extent // 2
                    shard[k : k + 1] = [Iter(2, half * step), Iter(half, step)]
                case 2:
                    shard[k] = Iter(shard[k].extent, shard[k].stride + Coord((("a", 1),)))
                case 3 if replica:
                    replica.pop()
                case 4:
                    offset = Coord(((str(random.choice(["a", "m"])), 1),))
        given = Layout(tuple(shard), tuple(replica), offset)
        equal = all(own.set_at(x) == given.set_at(x) for x in range(own.size))
        try:
            tk.check_dtensor(tensor, given)
            found = True
        except VerifyError as error:
            assert error.rule == "dtensor"
            found = False
        assert found == equal, f"seed {seed}, case {case}: {own} and {given}"
        accepted += equal
    assert 100 < accepted < 300


def test_two_processes_over_gloo(tmp_path):
    torch = pytest.importorskip("torch", reason="make test-gpu installs torch")
    if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
        pytest.skip("this PyTorch has no gloo")
    for attempt in range(
        3
    ):  # again only after a signal: gloo's native threads may abort a process, no check of ours does
        command = [sys.executable, str(Path(__file__).resolve()), str(tmp_path / f"store{attempt}")]
        ranks = [subprocess.Popen([*command, str(rank)], stdout=-1, stderr=-2, text=True) for rank in range(2)]
        try:
            outputs = [one.communicate(timeout=240)[0] for one in ranks]
        finally:
            for one in ranks:
                one.kill()
        if all(one.returncode >= 0 for one in ranks):
            break
    assert [one.returncode for one in ranks] == [0, 0], "\n".join(outputs)
    assert all("holds" in one for one in outputs), "\n".join(outputs)


def main(store: str, rank: int) -> None:
    """One of two processes: a reduce-scatter as in figure 8, with the check on both sides."""
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Partial, Shard, distribute_tensor

    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    terms = torch.arange(2 * 6 * 4).reshape(2, 6, 4)
    x = distribute_tensor(terms, mesh, [Shard(0)])
    tk.check_dtensor(x, "(2:1@gpu, 6:4, 4:1)")
    partial = DTensor.from_local(terms[rank].clone(), mesh, [Partial()])
    tk.check_dtensor(partial, "(2:1@gpu, 6:4, 4:1)")
    y = partial.redistribute(mesh, [Shard(0)])
    tk.check_dtensor(y, "(2:1@gpu, 3:4, 4:1)")
    whole = y.redistribute(mesh, [Shard(1)])
    for tensor, logical in ((x, terms), (y, terms.sum(0)), (whole, terms.sum(0))):
        layout = tk.dtensor_layout(tensor)
        assert not disagreements(tensor, layout, ("gpu",), (rank,), logical.numpy()), layout
    print("holds", flush=True)
    dist.barrier()  # neither leaves while the other may still read from it
    os._exit(0)  # tearing the group down is not what is tested, and the rank that is later may abort in it


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
