"""How Sphinx makes a site of these pages: scripts/docs."""

import os
import re
import sys
from pathlib import Path

from sphinx.application import Sphinx

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

project = "Attention Sandbox"
html_title = project
html_theme = "furo"
html_theme_options = {
    "light_css_variables": {"code-font-size": "11px"},
    "dark_css_variables": {"code-font-size": "11px"},
}
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.intersphinx"]
exclude_patterns = ["inventories"]

myst_heading_anchors = 3
default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints = "description"

# Links into others' documentation need their inventories. Offline builds do without: an inventory is fetched where
# SPHINX_INTERSPHINX=1 asks for it, and read where it lies in docs/inventories/NAME.inv or where Debian puts it.
_MANUALS = {
    "python": ("https://docs.python.org/3", "/usr/share/doc/python3/html/objects.inv"),
    "numpy": ("https://numpy.org/doc/stable", None),
    "numba": ("https://numba.readthedocs.io/en/stable", None),
    "cupy": ("https://docs.cupy.dev/en/stable", None),
    "hypothesis": (
        "https://hypothesis.readthedocs.io/en/latest",
        "/usr/share/doc/python-hypothesis-doc/html/objects.inv",
    ),
}


def _inventory(name: str, packaged: str | None) -> str | None:
    files = [HERE / "inventories" / f"{name}.inv", *([Path(packaged)] if packaged else [])]
    return next((str(file) for file in files if file.exists()), None)


_INCLUDED = re.compile(r"```{include} (\S+)\n```\n")
_LINK = re.compile(r"(!?)\[([^\]]+)\]\(([^):#]+)((?:#[^)]*)?)\)")


def _with_links_from(folder: Path, text: str, written_in: Path) -> str:
    """Text of a page that was written in another folder, with links that lead to the same places from `folder`.

    A link to the page of an algorithm leads to that of the site, and one to another file outside of docs/ to the file.
    """

    def linked(link: re.Match[str]) -> str:
        target = (written_in / link[3]).resolve()
        shown = (HERE / folder / f"{target.parent.name}.md" for folder in ("algorithms", "path"))
        of_site = next((page for page in shown if page.exists()), None)
        if target.name == "README.md" and of_site is not None:
            target = of_site
        elif written_in == folder:
            return link[0]
        path = os.path.relpath(target, folder)
        if link[1] or target.is_relative_to(HERE):
            return f"{link[1]}[{link[2]}]({path}{link[4]})"
        return f"{{download}}`{link[2].replace('`', '')} <{path}>`"

    return _LINK.sub(linked, text)


def _show_algorithm_pages(app: Sphinx, page: str, source: list[str]) -> None:
    """A page of docs/algorithms/ shows the README.md that it includes."""
    folder = (HERE / page).parent

    def included(directive: re.Match[str]) -> str:
        readme = (folder / directive[1]).resolve()
        return _with_links_from(folder, readme.read_text(), readme.parent)

    source[0] = _INCLUDED.sub(included, _with_links_from(folder, source[0], folder))


_OUTSIDE = re.compile(r"\[([^\]]+)\]\((\.\./[^)#]+\.md)\)")


def _offer_pages_that_lie_elsewhere(app: Sphinx, page: str, source: list[str]) -> None:
    """A link to a page outside of docs/ leads to the file."""
    source[0] = _OUTSIDE.sub(lambda link: f"{{download}}`{link[1].replace('`', '')} <{link[2]}>`", source[0])


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("source-read", _show_algorithm_pages)
    app.connect("source-read", _offer_pages_that_lie_elsewhere)


intersphinx_mapping = {
    name: (address, _inventory(name, packaged))
    for name, (address, packaged) in _MANUALS.items()
    if _inventory(name, packaged) or os.environ.get("SPHINX_INTERSPHINX") == "1"
}
