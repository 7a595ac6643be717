"""The onnx package's own 1,884 tests of operators: right, or refused for a reason that is listed; never wrong."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx_cases import bound, cases, differences

import tileweave as tw
from tileweave.errors import TileweaveError
from tileweave.graph import evaluate

PARTS = 8
REASONS = {
    "holds strings": "strings",
    "a constant of strings": "strings",
    "elements of type string": "strings",
    "no tensor": "sequences and optionals as inputs",
    "is an empty optional": "sequences and optionals as outputs",
    "are empty sequences": "sequences and optionals as outputs",
    "input 0 is a sequence": "sequences and optionals as inputs",
    "input 0 is no sequence": "sequences and optionals as inputs",
    "decides a shape": "shapes that depend on values",
    "is not supported": "element types below 8 bits",
    "quantisation to": "element types below 8 bits",
    "elements of type": "element types below 8 bits",
    "random operators are not specified": "values that are not specified",
    "dropout in training mode": "values that are not specified",
    "there is no operator": "operators without a counterpart",
    "is unknown": "sequences and optionals as inputs",
    "the array has shape ()": "sequences and optionals as inputs",
}
LEAST_RIGHT = 1765
SEVERAL = "several operators together"
VERSION = "1.23.2"
"""Of the onnx package whose tests the page counts."""
PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "onnx.md"
INTRODUCTION = (
    f"The tests of operators that come with the onnx package ({VERSION}), as `tests/frontends/test_onnx_nodes.py` runs",
    "them and writes this page (with `UPDATE_GOLDEN=1`): how many give the right outputs, and how many are refused",
    "when the model is loaded, with the reason. None is wrong.",
)


@pytest.fixture(scope="module")
def every():
    """The cases, collected once for this module."""
    return cases()


def outcomes(chosen, compute):
    """Counts by operator and outcome, and what is wrong or fails without a listed reason."""
    counted, bad = Counter(), []
    for case in chosen:
        nodes = case.model.graph.node
        kind = nodes[0].op_type if len(nodes) == 1 else SEVERAL
        for inputs, expected in case.data_sets:
            try:
                model, arrays = bound(case, inputs)
                got = compute(model, arrays)
            except TileweaveError as error:
                reason = next((REASONS[key] for key in REASONS if key in str(error)), "")
                counted[kind, reason] += 1
                bad += [] if reason else [f"{case.name}: {type(error).__name__}: {error}"]
                continue
            wrong = list(differences(got, expected, case))
            counted[kind, "wrong" if wrong else "right"] += 1
            bad += [f"{case.name}: {each}" for each in wrong]
    return counted, bad


def evaluated(model, arrays):
    """By the definition of every operator."""
    given = {tensor.producer: array for tensor, array in model.bind(*arrays).items()}
    return evaluate(list(model.outputs.values()), bind=given)


def planned(model, arrays):
    """By plans for three machines."""
    plan = tw.plan(list(model.outputs.values()), machines=3)
    got = tw.run(plan, bind=model.bind(*arrays))
    return [np.asarray(value) for value in (got if isinstance(got, list) else [got])]


def total(counted, outcome):
    """How many tests of all operators have an outcome."""
    return sum(count for (_, each), count in counted.items() if each == outcome)


def page(counted):
    """The table of the documentation."""
    outcomes_found = sorted({outcome for _, outcome in counted} - {"right"})
    rows = ["# ONNX, operator by operator", "", *INTRODUCTION, "", "| operator | right | refused |", "|---|---|---|"]
    for kind in sorted({kind for kind, _ in counted}, key=lambda kind: (kind == SEVERAL, kind.lower())):
        refused = [f"{counted[kind, each]}: {each}" for each in outcomes_found if counted[kind, each]]
        name = f"`{kind}`" if kind != SEVERAL else kind
        rows.append(f"| {name} | {counted[kind, 'right'] or ''} | {'; '.join(refused)} |")
    refused = [f"{total(counted, each)}: {each}" for each in outcomes_found]
    rows.append(f"| all | {total(counted, 'right')} | {'; '.join(refused)} |")
    return "\n".join(rows) + "\n"


def test_operators_are_right_or_refused(every):
    counted, bad = outcomes(every, evaluated)
    assert bad == []
    assert total(counted, "right") >= LEAST_RIGHT
    if os.environ.get("UPDATE_GOLDEN"):
        PAGE.write_text(page(counted), encoding="utf-8")
    if onnx.__version__ == VERSION:
        assert PAGE.read_text(encoding="utf-8") == page(counted)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_operators_on_three_machines(every, part):
    counted, bad = outcomes(every[part::PARTS], planned)
    assert bad == []
    assert total(counted, "right") >= LEAST_RIGHT // PARTS // 2
