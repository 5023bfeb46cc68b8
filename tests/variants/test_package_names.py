"""Names in the packages of variants."""

from __future__ import annotations

import ast
from pathlib import Path

import variants

ROOT = Path(variants.__file__).parent


def test_no_module_hides_a_function_of_its_package():
    """Importing a module sets an attribute of its package, in place of a function of the same name."""
    hidden = {}
    for package in ROOT.rglob("__init__.py"):
        defined = {node.name for node in ast.parse(package.read_text()).body if isinstance(node, ast.FunctionDef)}
        modules = {path.stem for path in package.parent.glob("*.py")}
        if defined & modules:
            hidden[package.relative_to(ROOT).as_posix()] = defined & modules
    assert hidden == {}
