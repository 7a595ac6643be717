"""The page about graphs prints what it shows, and its figures are what its programs draw."""

import contextlib
import io
import re
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "graphs.md"

FIGURES = {
    "add": "figure_add",
    "add-sharded": "figure_add_sharded",
    "linear": "figure_linear",
    "linear-batch": "by_batch",
    "linear-out": "by_out",
    "linear-in": "by_in",
    "conv-sharded": "by_rows",
    "conv-dense": "figure_conv_dense",
}
"""Figure -> the name, in the page's program, of its picture or of the graph that it shows."""


@pytest.fixture(scope="module")
def page():
    text = PAGE.read_text("utf-8")
    names: dict[str, object] = {}
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec("\n".join(re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)), names)
    return text, names, printed.getvalue()


def test_the_page_shows_what_it_prints(page):
    text, _, printed = page
    shown = re.findall(r"^```text\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert len(shown) == 9
    assert "".join(shown) == printed


@pytest.mark.parametrize("figure", FIGURES)
def test_a_figure_is_what_the_program_draws(page, golden, figure):
    text, names, _ = page
    assert f"images/graph-{figure}.svg" in text
    drawn = names[FIGURES[figure]]
    golden(f"../../docs/images/graph-{figure}.svg", drawn if isinstance(drawn, str) else drawn._repr_svg_())


def test_no_figure_is_left_over():
    found = {path.stem.removeprefix("graph-") for path in (PAGE.parent / "images").glob("graph-*.svg")}
    assert found == set(FIGURES)
