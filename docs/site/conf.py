"""`make site`: README, docs/ and examples/ as one searchable site, made by Sphinx.

The project's root is what Sphinx reads, so that every page and link is what it is in the
repository. A page that no section below names, and a link that leads nowhere, fail the build.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sphinx.application import Sphinx

project = "Ottla"
root_doc = "README"
include_patterns = [
    "*.md",
    "docs/**.md",
    "deploy/README.md",
    "examples/README.md",
    "examples/pipelines/README.md",
    "tests/README.md",
]
exclude_patterns = [".*", "**/.*", "**/node_modules", "build", "data", "dist", "src"]

SECTIONS = {
    "Using it": [
        "docs/quickstart",
        "docs/concepts",
        "docs/delivery",
        "docs/coming-from",
        "docs/testing",
        "docs/spark",
        "docs/tools",
        "examples/README",
        "examples/pipelines/README",
        "docs/glossary",
    ],
    "Pipelines": ["docs/pipelines/*", "docs/pipelines/sinks/*"],
    "Running it": [
        "docs/operations",
        "deploy/README",
        "docs/reliability",
        "docs/verify",
        "docs/performance",
        "docs/compatibility",
        "docs/broker-behaviour",
        "CHANGELOG",
    ],
    "Sources of pipelines": ["docs/pipelines/sources/*"],
    "Reference": ["docs/reference/*"],
    "Changing it": [
        "CONTRIBUTING",
        "ARCHITECTURE",
        "tests/README",
        "docs/internals/*",
        "docs/adr/README",
        "docs/adr/*",
    ],
}

extensions = ["myst_parser", "sphinx_copybutton"]
myst_heading_anchors = 4
html_theme = "furo"
html_title = "Ottla"
html_extra_path = ["index.html"]
html_copy_source = False
html_show_sphinx = False
copybutton_prompt_text = "$ "


def add_sections(app: Sphinx, page: str, source: list[str]) -> None:
    """The side bar of the site. Only Sphinx sees it, since GitHub would show it as code."""
    if page != root_doc:
        return
    for title, pages in SECTIONS.items():
        lines = [":hidden:", ":glob:", ":titlesonly:", f":caption: {title}", "", *pages]
        source[0] += "\n".join(["\n\n```{toctree}", *lines, "```\n"])


def setup(app: Sphinx) -> None:
    app.connect("source-read", add_sections)
