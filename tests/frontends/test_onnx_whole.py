"""Operators that are computed whole, on random cases beside the onnx package's own reference."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import tileweave as tw
from tileweave.errors import GraphError


@pytest.fixture
def rng():
    """Random numbers, whose seed is printed."""
    seed = int(np.random.default_rng().integers(1 << 32))
    print(f"seed {seed}")
    return np.random.default_rng(seed)


def one_node(kind, inputs, outputs, domain="", opset=22, **attributes):
    """A model of one node; inputs and outputs are (name, element type, shape)."""
    node = helper.make_node(kind, [i[0] for i in inputs], [o[0] for o in outputs], domain=domain, **attributes)
    infos = [[helper.make_tensor_value_info(*each) for each in group] for group in (inputs, outputs)]
    imports = [helper.make_opsetid("", opset)] + ([helper.make_opsetid(domain, 5)] if domain else [])
    return helper.make_model(helper.make_graph([node], "g", *infos), opset_imports=imports)


def test_boxes_without_overlap(rng):
    for _ in range(30):
        batch, kinds, boxes = (int(n) for n in rng.integers(1, [3, 4, 20]))
        center = int(rng.integers(2))
        arrays = {
            "boxes": rng.uniform(0, 1, (batch, boxes, 4)).astype(np.float32),
            "scores": rng.permutation(batch * kinds * boxes).reshape(batch, kinds, boxes).astype(np.float32),
            "most": np.asarray([rng.integers(0, 12)], np.int64),
            "overlap": np.asarray([rng.uniform()], np.float32),
            "least": np.asarray([rng.integers(-3, boxes)], np.float32),
        }
        types = dict.fromkeys(arrays, TensorProto.FLOAT) | {"most": TensorProto.INT64}
        inputs = [(name, types[name], array.shape) for name, array in arrays.items()]
        outputs = [("places", TensorProto.INT64, (None, 3))]
        model = one_node("NonMaxSuppression", inputs, outputs, center_point_box=center)
        (expected,) = ReferenceEvaluator(model).run(None, arrays)
        got = tw.load(model, bind=arrays)()["places"]
        assert got.dtype == expected.dtype and got.tolist() == expected.tolist()


def forest(rng, features, targets, trees, nodes):
    """The attributes of random trees, whose nodes have one parent each."""
    roots, true, false, true_leaf, false_leaf, leaves = [], [], [], [], [], 0
    for _ in range(trees):
        first = len(true)
        roots.append(first)
        free = []
        for k in range(first, first + nodes):
            if k > first:
                side, parent = free.pop(int(rng.integers(len(free))))
                (true if side else false)[parent] = k
                (true_leaf if side else false_leaf)[parent] = 0
            for part in (true, false, true_leaf, false_leaf):
                part.append(-1 if part is true or part is false else 1)
            free += [(True, k), (False, k)]
        for side, parent in free:
            (true if side else false)[parent] = leaves
            leaves += 1
    count = len(true)
    modes = rng.integers(0, 7, count).astype(np.uint8)
    sets = [np.append(rng.integers(-2, 3, int(rng.integers(1, 4))), np.nan) for _ in range(int((modes == 6).sum()))]
    members = {"membership_values": np.concatenate(sets).astype(np.float32)} if sets else {}
    tensors = {
        "nodes_modes": modes,
        "nodes_splits": rng.integers(-2, 3, count).astype(np.float32),
        "leaf_weights": rng.standard_normal(leaves).astype(np.float32),
    } | members
    return {
        "tree_roots": roots,
        "nodes_featureids": rng.integers(0, features, count).tolist(),
        "nodes_truenodeids": true,
        "nodes_falsenodeids": false,
        "nodes_trueleafs": true_leaf,
        "nodes_falseleafs": false_leaf,
        "nodes_missing_value_tracks_true": rng.integers(0, 2, count).tolist(),
        "leaf_targetids": rng.integers(0, targets, leaves).tolist(),
        "n_targets": targets,
    } | {name: numpy_helper.from_array(array) for name, array in tensors.items()}


def test_trees(rng):
    for _ in range(30):
        rows, features, targets, trees, nodes = (int(n) for n in rng.integers(1, [9, 5, 4, 5, 9]))
        x = rng.integers(-3, 4, (rows, features)).astype(np.float32)
        x[rng.uniform(size=x.shape) < 0.1] = np.nan
        attributes = forest(rng, features, targets, trees, nodes) | {"post_transform": int(rng.integers(0, 2))}
        inputs, outputs = [("x", TensorProto.FLOAT, x.shape)], [("y", TensorProto.FLOAT, (rows, targets))]
        model = one_node("TreeEnsemble", inputs, outputs, "ai.onnx.ml", **attributes)
        got = tw.load(model)(x)["y"]
        np.testing.assert_allclose(got, by_hand(attributes, x), 1e-5, 1e-6)


def by_hand(attributes, x):
    """Every row down every tree, one step at a time."""
    splits, weights, modes = (
        numpy_helper.to_array(attributes[name]) for name in ("nodes_splits", "leaf_weights", "nodes_modes")
    )
    sets, members = [[]], attributes.get("membership_values")
    for value in numpy_helper.to_array(members) if members is not None else ():
        sets[-1].append(value)
        if np.isnan(value):
            sets.append([])
    out = np.zeros((len(x), attributes["n_targets"]))
    for row, values in enumerate(x):
        for node in attributes["tree_roots"]:
            leaf = False
            while not leaf:
                value, split, mode = values[attributes["nodes_featureids"][node]], splits[node], modes[node]
                tests = (value <= split, value < split, value >= split, value > split, value == split, value != split)
                holds = tests[mode] if mode < 6 else value in sets[int((modes[:node] == 6).sum())]
                holds = holds or (np.isnan(value) and attributes["nodes_missing_value_tracks_true"][node])
                side = "true" if holds else "false"
                leaf, node = attributes[f"nodes_{side}leafs"][node], attributes[f"nodes_{side}nodeids"][node]
            out[row, attributes["leaf_targetids"][node]] += weights[node]
    if attributes["post_transform"]:
        out = np.exp(out - out.max(1, keepdims=True))
        out /= out.sum(1, keepdims=True)
    return out


def test_trees_that_lead_nowhere_are_refused(rng):
    attributes = forest(rng, 2, 1, 1, 3) | {"nodes_featureids": [0, 5, 1]}
    inputs, outputs = [("x", TensorProto.FLOAT, (2, 2))], [("y", TensorProto.FLOAT, (2, 1))]
    with pytest.raises(GraphError, match="a feature, a node or a leaf"):
        tw.load(one_node("TreeEnsemble", inputs, outputs, "ai.onnx.ml", **attributes))


def test_runs_of_integers_are_counted(rng):
    for _ in range(30):
        rows, width = (int(n) for n in rng.integers(1, [4, 12]))
        x = rng.integers(0, 4, (rows, width)).astype(np.int64)
        levels = [{tuple(run) for run in rng.integers(0, 4, (int(rng.integers(1, 6)), n))} for n in (1, 2, 3)]
        pool = [int(k) for level in levels for run in sorted(level) for k in run]
        starts = np.cumsum([0, *(n * len(level) for n, level in enumerate(levels, 1))])[:3].tolist()
        count = sum(map(len, levels))
        shortest = int(rng.integers(1, 4))
        attributes = {
            "pool_int64s": pool,
            "ngram_counts": starts,
            "ngram_indexes": (places := rng.permutation(count)).tolist(),
            "mode": str(rng.choice(["TF", "IDF", "TFIDF"])),
            "min_gram_length": shortest,
            "max_gram_length": int(rng.integers(shortest, 4)),
            "max_skip_count": int(rng.integers(0, 4)),
        }
        inputs, outputs = [("x", TensorProto.INT64, x.shape)], [("y", TensorProto.FLOAT, (rows, count))]
        weights = rng.uniform(size=count)
        # By the text and in onnxruntime a weight belongs to a run; in the reference, to the place that the run is put.
        by_run, by_place = (
            one_node("TfIdfVectorizer", inputs, outputs, weights=each.tolist(), **attributes)
            for each in (weights, weights[np.argsort(places)])
        )
        (expected,) = ReferenceEvaluator(by_place).run(None, {"x": x})
        np.testing.assert_allclose(tw.load(by_run)(x)["y"], expected, 1e-6)


def test_a_sequence_gives_an_output_for_each_element():
    inputs = [("x", TensorProto.FLOAT, (5, 2))]
    model = one_node("SplitToSequence", inputs, [("y", TensorProto.FLOAT, None)], keepdims=1)
    x = np.arange(10, dtype=np.float32).reshape(5, 2)
    got = tw.load(model)(x)
    assert list(got) == [f"y[{k}]" for k in range(5)]
    assert all(got[f"y[{k}]"].tolist() == x[k : k + 1].tolist() for k in range(5))


@pytest.mark.parametrize("corners", [0, 1])
def test_grids_of_one_point(rng, corners):
    for size in ((1, 1, 1, 1), (2, 3, 1, 4), (1, 2, 5, 1), (1, 1, 1, 3, 2), (2, 1, 2, 1, 1)):
        rank = len(size) - 2
        arrays = {"theta": rng.standard_normal((size[0], rank, rank + 1)).astype(np.float32), "size": np.asarray(size)}
        inputs = [("theta", TensorProto.FLOAT, arrays["theta"].shape), ("size", TensorProto.INT64, (rank + 2,))]
        model = one_node("AffineGrid", inputs, [("y", TensorProto.FLOAT, None)], align_corners=corners)
        with np.errstate(divide="ignore"):
            (expected,) = ReferenceEvaluator(model).run(None, arrays)
        got = tw.load(model, bind={"size": arrays["size"]})(theta=arrays["theta"])["y"]
        np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5)


def test_operators_of_onnxruntime(rng):
    """What onnxruntime writes into models, beside the same in NumPy; its own kernels judge it in tests/models."""
    a, b = rng.standard_normal((2, 4, 3)), rng.standard_normal((2, 4, 5))
    types = [(name, TensorProto.DOUBLE, array.shape) for name, array in (("a", a), ("b", b))]
    model = one_node("FusedMatMul", types, [("y", TensorProto.DOUBLE, None)], "com.microsoft", transA=1, alpha=0.5)
    np.testing.assert_allclose(tw.load(model)(a=a, b=b)["y"], 0.5 * a.swapaxes(1, 2) @ b)
    x, skip = a, a[:, ::-1].copy()
    inputs = [(name, TensorProto.DOUBLE, x.shape) for name in ("x", "skip")] + [("gamma", TensorProto.DOUBLE, (3,))]
    out = [("y", TensorProto.DOUBLE, None)]
    model = one_node("SkipSimplifiedLayerNormalization", inputs, out, "com.microsoft", epsilon=0.5)
    total = x + skip
    expected = total / np.sqrt((total * total).mean(-1, keepdims=True) + 0.5) * 3.0
    np.testing.assert_allclose(tw.load(model)(x=x, skip=skip, gamma=np.full(3, 3.0))["y"], expected)
    packed = rng.integers(0, 256, (5, 2, 8), dtype=np.uint8)
    scales, rows = rng.random((5, 2)).astype(np.float32), rng.standard_normal((3, 32)).astype(np.float32)
    inputs = [("a", TensorProto.FLOAT, (3, 32)), ("b", TensorProto.UINT8, (5, 2, 8)), ("s", TensorProto.FLOAT, (5, 2))]
    sizes = {"K": 32, "N": 5, "bits": 4, "block_size": 16}
    model = one_node("MatMulNBits", inputs, [("y", TensorProto.FLOAT, None)], "com.microsoft", **sizes)
    weights = (np.stack([packed & 15, packed >> 4], -1).reshape(5, 2, 16) - 8.0) * scales[..., None]
    expected = rows @ weights.reshape(5, 32).T
    np.testing.assert_allclose(tw.load(model)(a=rows, b=packed, s=scales)["y"], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("by_equal", [False, True])
def test_products_that_pick_rows_read_them(rng, by_equal):
    places, weights = rng.integers(-9, 12, (2, 5)).astype(np.int32), rng.standard_normal((6, 4)).astype(np.float32)
    constants = {"line": np.arange(6, dtype=np.int32).reshape(1, 1, 6), "w": weights}
    if by_equal:
        nodes = [helper.make_node("Unsqueeze", ["x", "last"], ["i"]), helper.make_node("Equal", ["i", "line"], ["e"])]
        nodes.append(helper.make_node("Cast", ["e"], ["h"], to=TensorProto.FLOAT))
        constants["last"] = np.asarray([-1])
    else:
        nodes = [helper.make_node("OneHot", ["x", "depth", "values"], ["h"])]
        constants |= {"depth": np.asarray(6), "values": np.asarray([0, 1], np.float32)}
    nodes.append(helper.make_node("MatMul", ["h", "w"], ["y"]))
    x = helper.make_tensor_value_info("x", TensorProto.INT32, (2, 5))
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    for broken in (False, True):  # zero times infinity is no number, and stays none
        constants["w"] = np.where(broken & (weights == weights.max()), np.inf, weights).astype(np.float32)
        held = [numpy_helper.from_array(array, name) for name, array in constants.items()]
        model = helper.make_model(helper.make_graph(nodes, "g", [x], [y], held))
        with np.errstate(invalid="ignore"):
            (expected,) = ReferenceEvaluator(model).run(None, {"x": places})
        loaded = tw.load(model)
        np.testing.assert_array_equal(loaded(x=places)["y"], expected)
        names = {node.operator for node in loaded.graph.operations}
        assert ("take" in names) is not broken and ("matmul" in names) is broken


def test_what_onnxruntime_has_on_devices_alone_is_refused():
    shape = [("x", TensorProto.FLOAT, (2, 3))]
    model = one_node("BiasSplitGelu", shape, [("y", TensorProto.FLOAT, (2, 3))], "com.microsoft")
    with pytest.raises(GraphError, match=r"there is no operator com.microsoft.BiasSplitGelu"):
        tw.load(model)


@pytest.mark.parametrize("axis", [1, 2, 3])
def test_the_greatest_of_axes_together_in_older_versions(rng, axis):
    """Before version 13 the axes from one on are one, as onnxruntime has it; the reference has the newer meaning."""
    x = rng.normal(size=(3, 2, 4, 5)).astype(np.float32)
    info = ("x", TensorProto.FLOAT, x.shape), ("y", TensorProto.FLOAT, x.shape)
    got = tw.load(one_node("Hardmax", [info[0]], [info[1]], opset=11, axis=axis))(x)["y"]
    rows = x.reshape(int(np.prod(x.shape[:axis])), -1)
    np.testing.assert_array_equal(got.reshape(rows.shape), np.arange(rows.shape[1]) == rows.argmax(1)[:, None])


def test_sizes_that_a_scale_makes_in_float32():
    """0.4 is a little more than that in float32, and five times it still two: the last place is the last element."""
    node = helper.make_node("Resize", ["x", "", "s"], ["y"], mode="nearest", nearest_mode="floor",
                            coordinate_transformation_mode="align_corners")  # fmt: skip
    types = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 1, k]) for n, k in (("x", 5), ("y", 2))]
    scales = numpy_helper.from_array(np.asarray([1, 1, 0.4], np.float32), "s")
    graph = helper.make_graph([node], "g", types[:1], types[1:], [scales])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)])
    assert tw.load(model)(np.arange(5, dtype=np.float32).reshape(1, 1, 5))["y"].tolist() == [[[0, 4]]]
