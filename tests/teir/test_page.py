"""The page about TEIR prints what it shows, and its figures are what its programs draw."""

import contextlib
import io
import re
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "teir.md"
UNTIL = "## Compile and time"
"""Beyond it the page times compiled code; the tests of the documentation run it as well."""


@pytest.fixture(scope="module")
def page():
    text = PAGE.read_text("utf-8").partition(UNTIL)[0]
    names: dict[str, object] = {}
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec("\n".join(re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)), names)
    return text, names, printed.getvalue()


def test_the_page_shows_what_it_prints(page):
    text, _, printed = page
    shown = re.findall(r"^```text\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert len(shown) == 3
    assert "".join(shown) == printed


def test_the_figures_are_what_the_programs_draw(page, golden):
    _, names, _ = page
    assert "images/teir-gemm.svg" in page[0]
    golden("../../docs/images/teir-gemm.svg", names["gemm"]._repr_svg_())
    assert "images/teir-fused.svg" in page[0]
    golden("../../docs/images/teir-fused.svg", names["fused"]._repr_svg_())
