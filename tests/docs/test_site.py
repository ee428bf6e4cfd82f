"""`make site`: all pages as one site, built as the Makefile builds it, without a single warning."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    recipe = re.search(r"^site:.*\n\t(.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert recipe is not None
    line = recipe[1].replace(".cache", str(folder)).replace("$(BIN)", f"{sys.prefix}/bin")
    # A page that no section names and a link that leads nowhere are warnings, and so failures.
    built = subprocess.run(
        shlex.split(line), cwd=ROOT, capture_output=True, text=True, timeout=250, check=False
    )
    assert built.returncode == 0, built.stderr
    return folder / "site"


def test_every_page_is_on_the_site(site: Path) -> None:
    pages = ["README.md", "CHANGELOG.md", "examples/README.md", "examples/pipelines/README.md"]
    pages += [path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")]
    for page in pages:
        assert (site / page).with_suffix(".html").is_file(), page
    assert 'url=README.html"' in (site / "index.html").read_text()


def test_the_site_can_be_searched(site: Path) -> None:
    script = (site / "searchindex.js").read_text()
    index = json.loads(re.fullmatch(r"Search\.setIndex\((.*)\)", script, re.DOTALL)[1])
    found = index["terms"]["tombston"]  # as the search shortens it
    assert index["docnames"].index("docs/glossary") in found


def test_the_site_needs_nothing_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        fetched = re.findall(
            r'<(?:script|link|img)[^>]*(?:src|href)="(https?://[^"]*)"', page.read_text()
        )
        assert not fetched, f"{page.name} fetches {fetched}"
