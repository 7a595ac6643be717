"""ONNX models that `models` makes for its rows: quantised by onnxruntime's own quantiser, and recurrent.

Weights are random but for the quantised detector, recogniser and angle classifier, whose wheels bring them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["made"]

WIDTH, HEADS, INNER, PLACES = 256, 4, 1024, 128
RECURRENT = {"one layer": (64, 128, 1, 1, 50), "two layers, both ways": (128, 256, 2, 2, 64)}
"""Name -> features in, hidden, directions, layers, steps."""


class Writer:
    """Collects nodes and weights of a graph."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.weights: list[Any] = []
        self.random = np.random.default_rng(0)

    def held(self, array: Any) -> str:
        """The name of a constant."""
        from onnx import numpy_helper

        self.weights.append(numpy_helper.from_array(np.asarray(array), f"c{len(self.weights)}"))
        return f"c{len(self.weights) - 1}"

    def drawn(self, *shape: int) -> str:
        """The name of random weights; the last but one dimension is summed over."""
        return self.held((self.random.standard_normal(shape) / shape[-2] ** 0.5).astype(np.float32))

    def node(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """The name of what a node makes."""
        from onnx import helper

        out = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [out], name=f"n{out}", **attributes))
        return out

    def linear(self, x: str, wide: int, narrow: int) -> str:
        """A product with weights and a bias."""
        return self.node("Add", self.node("MatMul", x, self.drawn(wide, narrow)), self.held(np.ones(narrow, "f4") / 9))

    def normed(self, x: str, y: str) -> str:
        """A layer norm of a sum."""
        scale, shift = self.held(np.ones(WIDTH, "f4")), self.held(np.zeros(WIDTH, "f4"))
        return self.node("LayerNormalization", self.node("Add", x, y), scale, shift, axis=-1)

    def model(self, shape: Sequence[int | str], out: str) -> Any:
        """The model of one input ``x``."""
        from onnx import TensorProto, helper

        x = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
        y = helper.make_tensor_value_info(out, TensorProto.FLOAT, None)
        graph = helper.make_graph(self.nodes, "made", [x], [y], self.weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def encoder() -> Any:
    """Two layers of an encoder as in BERT."""
    w, x = Writer(), "x"
    for _ in range(2):
        split = w.held([0, -1, HEADS, WIDTH // HEADS])
        parts = [w.node("Reshape", w.linear(x, WIDTH, WIDTH), split) for _ in range(3)]
        orders = ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3])
        q, k, v = (w.node("Transpose", part, perm=order) for part, order in zip(parts, orders, strict=True))
        scores = w.node("Mul", w.node("MatMul", q, k), w.held(np.float32((WIDTH // HEADS) ** -0.5)))
        mixed = w.node("Transpose", w.node("MatMul", w.node("Softmax", scores, axis=-1), v), perm=[0, 2, 1, 3])
        x = w.normed(x, w.linear(w.node("Reshape", mixed, w.held([0, -1, WIDTH])), WIDTH, WIDTH))
        up = w.linear(x, WIDTH, INNER)
        half = w.node("Add", w.node("Erf", w.node("Div", up, w.held(np.float32(2**0.5)))), w.held(np.float32(1)))
        up = w.node("Mul", w.node("Mul", up, half), w.held(np.float32(0.5)))
        x = w.normed(x, w.linear(up, INNER, WIDTH))
    return w.model(["batch", "places", WIDTH], x)


def recurrent(kind: str, features: int, hidden: int, directions: int, layers: int) -> Any:
    """Layers of LSTM or GRU."""
    w, x, gates = Writer(), "x", {"LSTM": 4, "GRU": 3}[kind]
    both = {"linear_before_reset": 1} if kind == "GRU" else {}
    both |= {"direction": "bidirectional"} if directions == 2 else {}
    for layer in range(layers):
        wide = hidden * directions if layer else features
        weights = [w.drawn(directions, gates * hidden, n) for n in (wide, hidden)]
        bias = w.held(np.full((directions, 2 * gates * hidden), 0.1, np.float32))
        y = w.node(kind, x, *weights, bias, hidden_size=hidden, **both)
        x = w.node("Reshape", w.node("Transpose", y, perm=[0, 2, 1, 3]), w.held([0, 0, -1]))
    return w.model(["steps", "batch", features], x)


def made(folder: Path, images: dict[str, tuple[Path, tuple[int, ...]]]) -> Iterator[tuple[str, str, Path, Any]]:
    """(kind of row, name, file, batch -> shape of the input) of each model.

    Args:
        folder: where files are written.
        images: name -> a model of images in float32, and its input's shape without the batch.
    """
    import onnx
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_dynamic, quantize_static

    logging.getLogger().setLevel(logging.ERROR)  # the quantiser advises at length

    class Drawn(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self, name: str, shape: Sequence[int]) -> None:
            draw = np.random.default_rng(1)
            self.left = [{name: draw.random((1, *shape), np.float32)} for _ in range(2)]

        def get_next(self) -> Any:
            return self.left.pop() if self.left else None

    for name, (path, shape) in images.items():
        model = onnx.load(path)
        constants = [
            node for node in model.graph.node if node.op_type == "Constant" and node.attribute[0].HasField("t")
        ]
        for node in constants:  # the quantiser takes weights among the initializers only
            node.attribute[0].t.name = node.output[0]
            model.graph.initializer.append(node.attribute[0].t)
            model.graph.node.remove(node)
        path, key = folder / "plain.onnx", model.graph.input[0].name
        onnx.save(model, path)
        for how in ("QDQ", "dynamic"):
            file = folder / f"{name} {how}.onnx"
            if how == "QDQ":
                quantize_static(str(path), str(file), Drawn(key, shape), quant_format=QuantFormat.QDQ)
            else:
                quantize_dynamic(str(path), str(file))
            yield "quantised", file.stem, file, lambda batch, shape=shape: (batch, *shape)
    plain, file = folder / "plain.onnx", folder / "encoder dynamic.onnx"
    onnx.save(encoder(), plain)
    quantize_dynamic(str(plain), str(file))
    yield "quantised", file.stem, file, lambda batch: (batch, PLACES, WIDTH)
    for kind in ("LSTM", "GRU"):
        for size, (features, hidden, directions, layers, steps) in RECURRENT.items():
            file = folder / f"{kind} {size}.onnx"
            onnx.save(recurrent(kind, features, hidden, directions, layers), file)
            yield "recurrent", file.stem, file, lambda batch, n=steps, f=features: (n, batch, f)
