"""JSON: the same bytes after reading and writing, and refusals that say where."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tileweave.errors import VerifyError
from tileweave.teir import (
    Axis,
    Invocation,
    Primitive,
    Program,
    TensorSpec,
    as_document,
    as_tileweave,
    from_json,
    schema,
    to_json,
)
from tileweave.teir.ir import examples

E = {"a": 2, "b": 3, "c": 4, "d": 5, "p": 4, "q": 2, "r": 3, "s": 5, "t": 2, "u": 6, "m": 3, "n": 4, "k": 5}
PROGRAM = examples.guarded_reduction(E)
TEXT = to_json(PROGRAM)

GOLDEN = """{
  "format": "tileweave.teir",
  "version": 1,
  "name": "guarded_reduction",
  "profile": "document",
  "tensors": [
    {"name": "in0", "dtype": "FP32", "role": "in", "size_bytes": 0},
    {"name": "in1", "dtype": "FP32", "role": "in", "size_bytes": 0},
    {"name": "out", "dtype": "FP32", "role": "out", "size_bytes": 0}
  ],
  "axes": [
    {"id": "m", "extent": 3, "strides": [20, 0, 16], "offsets": [0, 0, 0]},
    {"id": "n", "extent": 4, "strides": [0, 4, 4], "offsets": [0, 0, 0]},
    {"id": "k", "extent": 5, "strides": [4, 16, 0], "offsets": [0, 0, 0]}
  ],
  "roots": ["k"],
  "nodes": [
    {"kind": "iteration", "id": "k", "axis": "k", "policy": "sequential", "children": ["zero", "contraction", "relu"], \
"guard": null},
    {"kind": "invocation", "id": "zero", "primitive": "zero_prim", "guard": [{"first": "k"}]},
    {"kind": "invocation", "id": "contraction", "primitive": "contraction_prim", "guard": null},
    {"kind": "invocation", "id": "relu", "primitive": "relu_prim", "guard": [{"last": "k"}]}
  ],
  "primitives": [
    {"id": "zero_prim", "operation": "Zero", "axes": {"M": ["m"], "N": ["n"]}, "operands": [], \
"metadata": {"data_type": "FP32"}},
    {"id": "contraction_prim", "operation": "Contraction", "axes": {"M": ["m"], "N": ["n"], "K": []}, "operands": [], \
"metadata": {"data_type": "FP32"}},
    {"id": "relu_prim", "operation": "ReLU", "axes": {"M": ["m"], "N": ["n"]}, "operands": [], \
"metadata": {"data_type": "FP32"}}
  ]
}
"""


def test_golden():
    assert TEXT == GOLDEN


@pytest.mark.parametrize("name", examples.__all__)
def test_round_trip_of_the_examples(name):
    text = to_json(getattr(examples, name)(E))
    assert to_json(from_json(text)) == text
    assert from_json(text) == getattr(examples, name)(E)
    assert from_json(text.encode()) == getattr(examples, name)(E)


def test_shapes_are_written_where_they_are_stated():
    tensors = (replace(PROGRAM.tensors[0], shape=(3, 5)), PROGRAM.tensors[1], replace(PROGRAM.tensors[2], shape=()))
    stating = replace(PROGRAM, tensors=tensors)
    text = to_json(stating)
    assert '"size_bytes": 0, "shape": [3, 5]}' in text and text.count("shape") == 2
    assert from_json(text, check=False) == stating
    assert as_document(replace(as_tileweave(PROGRAM), tensors=tensors)) == PROGRAM


def test_round_trip_of_random_programs(wild):
    for seed in range(100):
        program = wild(seed, parallel=0.5)
        assert from_json(to_json(program)) == program


ids = st.one_of(st.text(max_size=5), st.integers())
scalars = st.one_of(st.text(max_size=5), st.integers(), st.booleans(), st.floats(allow_nan=False, allow_infinity=False))


@given(st.lists(ids, max_size=3), st.dictionaries(st.text(max_size=4), scalars, max_size=4))
def test_round_trip_of_any_identifiers_and_metadata(names, metadata):
    axes = tuple(Axis(name, 3, (), ()) for name in names)
    primitive = Primitive("p", "Zero", (("M", tuple(names)),), (), tuple(metadata.items()))
    program = Program((), axes, tuple(names), (Invocation("i", "p"),), (primitive,))
    text = to_json(program)
    read = from_json(text, check=False)
    assert read == program
    assert to_json(read) == text
    assert [type(v) for _, v in read.primitives[0].metadata] == [type(v) for v in metadata.values()]


def edited(path: str, value: object) -> str:
    data = json.loads(TEXT)
    *way, last = path.split("/")
    place = data
    for key in way:
        place = place[int(key) if isinstance(place, list) else key]
    if value is KeyError:
        del place[last]
    else:
        place[int(last) if isinstance(place, list) else last] = value
    return json.dumps(data)


@pytest.mark.parametrize(
    ("text", "path", "reason"),
    [
        ("", "$", "it is not JSON"),
        ("[1, 2", "$", "it is not JSON"),
        ("[]", "$", r"\[\] is not an object with the keys"),
        ("[" * 100_000, "$", "nests too deeply|not JSON"),
        (b"\xff\xfe{", "$", "it is not JSON"),
        ('{"format": "x", "format": "y"}', "$", "repeat"),
        ('{"format": NaN}', "$", "NaN is no JSON number"),
        (edited("format", "onnx"), "$.format", '"onnx" is not'),
        (edited("version", 2), "$.version", "2 is not version 1"),
        (edited("version", True), "$.version", "true is not version 1"),
        (edited("extra", 1), "$", 'unknown key "extra"'),
        (edited("axes", KeyError), "$", "the key 'axes' is missing"),
        (edited("axes/0/extent", "3"), "$.axes[0].extent", '"3" is not an integer'),
        (edited("axes/0/extent", 3.5), "$.axes[0].extent", "3.5 is not an integer"),
        (edited("axes/1/strides/2", True), "$.axes[1].strides[2]", "true is not an integer"),
        (edited("axes/1/id", None), "$.axes[1].id", "null is not a string or an integer"),
        (edited("axes/1/__class__", "os.system"), "$.axes[1]", "unknown key"),
        (edited("tensors/0/dtype", "FP8"), "$.tensors[0].dtype", "is not one of"),
        (edited("nodes/0/kind", "loop"), "$.nodes[0].kind", "is not one of iteration, invocation"),
        (edited("nodes/0/policy", 3), "$.nodes[0].policy", "3 is not a string"),
        (edited("nodes/1/guard/0", {"middle": "k"}), "$.nodes[1].guard[0]", 'unknown key "middle"'),
        (edited("nodes/1/guard/0", {"first": "k", "last": "k"}), "$.nodes[1].guard[0]", 'unknown key "first"'),
        (edited("nodes/1/guard", "first(k)"), "$.nodes[1].guard", "is not a list"),
        (edited("primitives/0/axes", []), "$.primitives[0].axes", "is not an object"),
        (edited("primitives/0/metadata/x", [1, None]), "$.primitives[0].metadata.x[1]", "null is not a string"),
        (TEXT.replace('"data_type": "FP32"', '"x": 1e999', 1), "$.primitives[0].metadata.x", "is not a string"),
        (TEXT.replace('"extent": 3', '"extent": ' + "9" * 5000), "$", "it is not JSON"),
    ],
)
def test_refusals_say_where_and_why(text, path, reason):
    with pytest.raises(VerifyError, match=reason) as caught:
        from_json(text)
    assert caught.value.facts["path"] == path
    assert caught.value.facts["rule"] == "json"


def test_a_rule_that_is_broken_is_named():
    with pytest.raises(VerifyError) as caught:
        from_json(edited("axes/0/extent", 0))
    assert caught.value.facts["rule"] == "axis.extent-positive"


@given(st.data())
def test_damaged_texts_are_refused_or_read(data):
    start = data.draw(st.integers(0, len(TEXT) - 1))
    length = data.draw(st.integers(0, 20))
    text = TEXT[:start] + data.draw(st.text(max_size=5)) + TEXT[start + length :]
    try:
        program = from_json(text)
    except VerifyError as error:
        assert error.facts["path"]
    else:
        assert from_json(to_json(program)) == program


def test_what_json_cannot_hold_is_not_written():
    infinite = Primitive("p", "Zero", (), (), (("x", float("inf")),))
    twice = Primitive("p", "Zero", (), (), (("x", 1), ("x", 2)))
    for primitive in (infinite, twice):
        with pytest.raises(VerifyError, match=r"JSON|repeat"):
            to_json(Program((TensorSpec("out", "FP32", "out"),), (), (), (), (primitive,)))


def test_the_schema_states_every_key_of_the_text():
    def keys(value: object) -> set[str]:
        if isinstance(value, dict):
            return set(value) | {key for item in value.values() for key in keys(item)}
        if isinstance(value, list):
            return {key for item in value for key in keys(item)}
        return set()

    def stated(value: object) -> set[str]:
        if isinstance(value, dict):
            own = set(value.get("properties", {}))
            return own | {key for item in value.values() for key in stated(item)}
        if isinstance(value, list):
            return {key for item in value for key in stated(item)}
        return set()

    free = {"M", "N", "K", "data_type"}
    optional = {"shape"}
    assert keys(json.loads(TEXT)) - free == stated(schema()) - optional
    assert json.loads(json.dumps(schema())) == schema()


def test_numbers_without_a_fraction_are_integers_as_in_json_schema():
    assert from_json(edited("axes/0/extent", 3.0)) == from_json(edited("axes/0/extent", 3))


@pytest.mark.parametrize("text", [None, 3, {"format": "tileweave.teir"}])
def test_what_is_no_text_is_refused(text):
    with pytest.raises(VerifyError, match="is no text"):
        from_json(text)


@pytest.mark.parametrize("depth", [100, 990, 100_000])
def test_values_that_nest_deeply_are_refused(depth):
    text = TEXT.replace('"extent": 3', '"extent": ' + "[" * depth + "]" * depth)
    with pytest.raises(VerifyError, match=r"not an integer|nests too deeply"):
        from_json(text)
