"""`override` of Python 3.12's `typing`, for older Pythons: mypy checks it, and nothing happens when it runs.

A method that is marked so needs no docstring: the method that it overrides has one (`[tool.ruff.lint.pydocstyle]`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from typing_extensions import override as override
else:
    Method = TypeVar("Method")

    def override(method: Method) -> Method:
        """The method itself."""
        return method
