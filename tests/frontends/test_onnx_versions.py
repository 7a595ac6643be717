"""What older versions of ONNX's operators mean, and what no version allows."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

import tileweave as tw
from tileweave.errors import GraphError, StorageError

X = np.arange(9, dtype=np.float32).reshape(3, 3) + 1


def model(kind, arrays, opset, **attributes):
    """A model of one node on arrays."""
    names = [f"x{k}" for k in range(len(arrays))]
    infos = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in zip(names, arrays, strict=True)
    ]
    node = helper.make_node(kind, names, ["y"], **attributes)
    graph = helper.make_graph([node], "g", infos, [helper.make_empty_tensor_value_info("y")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])


def value(kind, *arrays, opset, **attributes):
    return tw.load(model(kind, arrays, opset, **attributes))(*arrays)["y"]


@pytest.mark.parametrize("kind", ["Add", "Sub", "Mul", "Div", "Pow", "Less"])
def test_the_second_operand_lies_where_its_axis_says(kind):
    function = {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": np.divide, "Pow": np.power}
    row = np.array([1, 2, 3], np.float32)
    for axis, shape in ((0, (3, 1)), (1, (1, 3))):
        got = value(kind, X, row, opset=6, axis=axis, broadcast=1)
        np.testing.assert_allclose(got, function.get(kind, np.less)(X, row.reshape(shape)), rtol=1e-6)
    both = np.ones((3, 3, 2, 2), np.float32)
    got = value("Mul", both, X, opset=6, axis=0, broadcast=1)
    np.testing.assert_array_equal(got, both * X[:, :, None, None])


def test_first_versions():
    image = X.reshape(1, 1, 3, 3)
    got = value("Upsample", image, opset=1, height_scale=2.0, width_scale=1.0)
    np.testing.assert_array_equal(got, image.repeat(2, 2))
    np.testing.assert_array_equal(value("Pad", X, opset=1, paddings=[0, 1, 0, 2]), np.pad(X, [(0, 0), (1, 2)]))
    np.testing.assert_array_equal(value("Cast", X + 0.5, opset=5, to="INT32"), X.astype(np.int32))
    np.testing.assert_array_equal(value("Concat", X, X, opset=3), np.concatenate([X, X], 1))


def test_no_element_has_no_share():
    assert value("Softmax", X[:, :0], opset=13).shape == (3, 0)


@pytest.mark.parametrize(
    ("kind", "arrays", "attributes"),
    [
        ("ArgMax", [X], {"axis": 2}),
        ("ArgMax", [np.float32(1).reshape(())], {}),
        ("Gather", [X, np.array([0])], {"axis": -3}),
        ("Gather", [np.float32(1).reshape(()), np.array([0])], {}),
        ("Concat", [X, X], {"axis": 5}),
        ("ScatterElements", [X, np.zeros((3, 3), np.int64), X], {"axis": 2}),
        ("Hardmax", [X], {"axis": 4}),
        ("LayerNormalization", [X, X[0]], {"axis": 3}),
        ("Split", [X], {"axis": 2, "num_outputs": 1}),
    ],
)
def test_axes_that_a_tensor_does_not_have_are_refused(kind, arrays, attributes):
    with pytest.raises(GraphError, match=rf"node 'y' \({kind}\): float32\[.*\] has no axis"):
        tw.load(model(kind, arrays, 18, **attributes))


def test_statistics_of_each_place_are_refused():
    rows = [X[:, :, None], *[X] * 4]
    with pytest.raises(GraphError, match="spatial=0"):
        tw.load(model("BatchNormalization", rows, 7, spatial=0))


def test_data_beside_bytes_are_refused(tmp_path):
    import onnx
    from onnx import numpy_helper

    weights = [numpy_helper.from_array(np.ones((3, 300), np.float32), "w")]
    info = [helper.make_tensor_value_info(n, TensorProto.FLOAT, (3, k)) for n, k in (("x", 3), ("y", 300))]
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", info[:1], info[1:], weights)
    path = tmp_path / "m.onnx"
    onnx.save(helper.make_model(graph), path, save_as_external_data=True, size_threshold=0, location="w.bin")
    assert tw.load(path)(X)["y"].shape == (3, 300)
    with pytest.raises(StorageError, match=r"'w' lie in a file 'w\.bin', and bytes have no folder"):
        tw.load(path.read_bytes())


def test_a_scalar_beside_the_file_is_read(tmp_path):
    import onnx
    from onnx import numpy_helper

    info = [helper.make_tensor_value_info(n, TensorProto.FLOAT, (3, 3)) for n in ("x", "y")]
    weights = [numpy_helper.from_array(np.array(k, np.float32), n) for n, k in (("a", 3.5), ("b", -0.25))]
    nodes = [helper.make_node("Mul", ["x", "a"], ["h"]), helper.make_node("Add", ["h", "b"], ["y"])]
    path = tmp_path / "m.onnx"
    model = helper.make_model(helper.make_graph(nodes, "g", info[:1], info[1:], weights))
    onnx.save(model, path, save_as_external_data=True, size_threshold=0, location="w.bin")
    np.testing.assert_array_equal(tw.load(path)(X)["y"], X * 3.5 - 0.25)


@pytest.mark.parametrize(
    ("kind", "arrays", "attributes"),
    [
        ("Expand", [X, np.array([2, 3])], {}),
        ("Conv", [X[None, None], X[None, None]], {"pads": [1, 1, 1]}),
        ("MaxPool", [X[None, None]], {}),
        ("MatMul", [X], {}),
        ("Shape", [], {}),
        ("Cast", [X], {"to": 0}),
        ("LSTM", [X, X, X], {"hidden_size": 3}),
        ("Gather", [X, np.array([7])], {}),
    ],
)
def test_nodes_whose_inputs_and_attributes_do_not_fit_are_refused(kind, arrays, attributes):
    bind = {f"x{k}": array for k, array in enumerate(arrays)}
    with pytest.raises(GraphError, match=rf"node 'y' \({kind}\): "):
        tw.load(model(kind, arrays, 13, **attributes), bind=bind)


def test_a_call_names_the_inputs_that_it_lacks():
    info = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ("batch", 3)) for n in ("a", "b", "y")]
    graph = helper.make_graph([helper.make_node("Add", ["a", "b"], ["y"])], "g", info[:2], info[2:])
    read = tw.load(helper.make_model(graph))
    with pytest.raises(GraphError, match=r"no array for b float32\[batch, 3\]"):
        read(a=X)
