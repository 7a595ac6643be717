"""The reference pages are what the docstrings say."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tools"))

import reference


def test_no_page_of_the_reference_is_stale():
    assert not reference.stale(), "make docs"


def test_every_public_name_of_the_layouts_is_on_their_page():
    from tileweave.layout import analysis, axe, cute, lego

    text = reference.page("layout")
    for module in (analysis, axe, cute, lego):
        assert all(f"| `{name}` |" in text for name in module.__all__)


def test_a_docstring_becomes_markdown():
    text = reference.rendered(
        "What it is: ``f(x)``.\n\nArgs:\n    x: a number,\n        from 0.\n\nRaises:\n    LayoutError: x\n"
        "        is no number.\n\nExample:\n    >>> f(1)\n    2\n\nSource: own."
    )
    assert text == (
        "What it is: `f(x)`.\n\n- `x`: a number, from 0.\n\n**Raises**: LayoutError: x is no number.\n\n"
        "```pycon\n>>> f(1)\n2\n```\n\n**Source**: own."
    )
