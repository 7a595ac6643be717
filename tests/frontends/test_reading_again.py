"""A model that is read again for further extents is the one that a fresh reading gives, and refuses what that does."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx_random import BINDINGS, model

import tileweave as tw
from tileweave.errors import TileweaveError
from tileweave.frontends.onnx.node import OPERATORS, OnnxNode, operator
from tileweave.graph import ArrayData, Graph, Operation, Selector, Signature, Sink, Source, Tensor
from tileweave.graph.ir.interned import line_of

DIMS = {"b": ("batch", 1, None), "s": ("seq", 2, None)}


def described(graph: Graph) -> list[Any]:
    """Every node by what it is and where what it refers to stands; arrays by their bytes."""
    nodes = graph.nodes()
    place = {node: k for k, node in enumerate(nodes)}
    found: list[Any] = []
    for node in nodes:
        match node:
            case Operation() | Selector():
                inputs = [(name, place[x]) for name, x in node.inputs]
                kind = (
                    (node.operator, node.index, place.get(node.signature)) if isinstance(node, Operation) else node.kind
                )
                found.append((kind, inputs, node.output_types, repr(node.parameters)))
            case Tensor():
                found.append((place[node.producer], node.output, node.type))
            case Source():
                data: Any = node.data
                if isinstance(data, ArrayData):
                    data = data.array.dtype, data.array.shape, data.array.tobytes()
                found.append((data, node.type, node.name, node.placement))
            case Sink():
                found.append((place[node.tensor], node.target, node.placement, node.part))
            case Signature():
                found.append((node.dims, node.inputs, node.outputs, node.reductions, node.costs))
            case _:
                found.append(type(node))
    return found


def read(loaded: Any, extents: dict[str, int]) -> Any:
    """The graph for extents and its inputs' and outputs' places, or the error."""
    try:
        made = loaded.at(**extents)
    except TileweaveError as error:
        return type(error), str(error)
    nodes = made.graph.nodes()
    ends = [
        (name, x in nodes and nodes.index(x), x.type) for one in (made.inputs, made.outputs) for name, x in one.items()
    ]
    return described(made.graph), ends


def compare(load: Any, bindings: list[dict[str, int]], said: str) -> int:
    """Reads one model for all bindings in turn, and a fresh one for each; how many could be read."""
    again, could = load(), 0
    for binding in bindings:
        fresh, known = read(load(), binding), read(again, binding)
        assert known == fresh, f"{said}, at {binding} behind others"
        could += isinstance(fresh[0], list)
    return could


@pytest.mark.parametrize("seed", range(20))
def test_random_models(seed: int) -> None:
    proto, inputs, _ = model(seed)
    used = {n for shape in inputs.values() for n in shape if n in DIMS}
    rng = np.random.default_rng(seed)
    turns = [BINDINGS[k] for k in rng.permutation(len(BINDINGS))[:3]] + [tuple(rng.integers(2, 12, 2).tolist())]
    bindings = [{DIMS[n][0]: binding["bs".index(n)] for n in used} for binding in turns]
    bind = {DIMS[n][0]: tw.dim(*DIMS[n]) for n in used}
    if not used:
        pytest.skip("no dimension of this one is symbolic")
    assert compare(lambda: tw.load(proto, bind=bind), bindings, proto.graph.name)


def models_of(package: str) -> list[Path]:
    spec = importlib.util.find_spec(package)
    return sorted(Path(str(spec.origin)).parent.glob("models/*.onnx")) if spec is not None else []


@pytest.mark.slow
@pytest.mark.parametrize("path", models_of("rapidocr_onnxruntime"), ids=lambda path: path.stem[:20])
def test_models_of_an_installed_package(path: Path) -> None:
    rng = np.random.default_rng(len(path.name))
    dims = list(tw.load(path).dims)
    few = dict.fromkeys(dims[:1], (1, 2)) | dict.fromkeys(dims[1:], (32, 320))
    bindings = [{name: int(rng.integers(low, high)) for name, (low, high) in few.items()} for _ in range(3)]
    bindings += [
        {name: 32 * int(rng.integers(1, 9)) if low > 1 else 1 for name, (low, _) in few.items()} for _ in range(3)
    ]
    bindings += [{name: 1 if low == 1 else 48 + 16 * k for k, (name, (low, _)) in enumerate(few.items())}]
    assert compare(lambda: tw.load(path), bindings, path.name)


def test_operations_have_the_line_of_who_reads_the_model_or_of_a_converter_of_the_users_own() -> None:
    name = "tileweave.test.Twice"
    if name not in OPERATORS:

        @operator(name)
        def twice(node: OnnxNode) -> Any:
            return node.tensor(0) * 2.0

    first, last = (helper.make_tensor_value_info(x, onnx.TensorProto.FLOAT, ["n", 3]) for x in "xz")
    nodes = [helper.make_node("Twice", ["x"], ["y"], domain="tileweave.test"), helper.make_node("Relu", ["y"], ["z"])]
    sets = [helper.make_opsetid("", 17), helper.make_opsetid("tileweave.test", 1)]
    proto = helper.make_model(helper.make_graph(nodes, "g", [first], [last]), opset_imports=sets)
    symbolic = tw.load(proto)
    for n in (4, 5):
        made = symbolic.at(n=n)
        lines = [line_of(operation).rsplit(":", 1) for operation in made.graph.operations]
        assert {file for file, _ in lines} == {__file__}
        assert len({number for _, number in lines}) == 2
