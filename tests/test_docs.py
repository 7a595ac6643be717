"""The documentation tells the truth: its Python runs, its links lead somewhere, the pictures it shows exist."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")])


def code_blocks(page: Path) -> str:
    """The Python of a page, in order, as one program; blocks marked ``python no-run`` are left out."""
    return "\n\n".join(re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL))


@pytest.mark.parametrize("page", [p for p in PAGES if code_blocks(p)], ids=lambda p: p.name)
def test_the_python_of_a_page_runs(page, tmp_path):
    program = tmp_path / "page.py"
    program.write_text(code_blocks(page))
    done = subprocess.run([sys.executable, program], cwd=tmp_path, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_local_links_lead_somewhere(page):
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)  # code has no links
    links = re.findall(r"\]\((?!https?:|#|mailto:)([^)\s#]+)", text)
    missing = [link for link in links if not (page.parent / link).exists()]
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_files_that_a_page_names_exist(page):
    named = re.findall(
        r"`((?:src|docs|examples|bench|tests)/[\w/.-]+\.(?:py|md|json|jsonl|svg|toml))`", page.read_text()
    )
    missing = [name for name in named if not (ROOT / name).exists()]
    assert not missing
