"""A module may state why it adds no variant of a name; whoever selects that name reads it."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.execution.isolation.variants import discover_isolated
from harness.model.discovery import discover
from harness.support.errors import UsageError

TEXT = """
def register(registry):
    registry.leave_out("needy", "it needs a package: pip install package")
"""


@pytest.mark.parametrize("find", [discover, discover_isolated])
def test_the_reason_comes_from_the_module(find: object, tmp_path: Path) -> None:
    """In this process, and from another one."""
    plugin = tmp_path / "needy.py"
    plugin.write_text(TEXT)
    found = find([plugin])  # type: ignore[operator]
    assert "needy" not in {variant.name for variant in found.registry}
    assert found.registry.left_out["needy"] == "it needs a package: pip install package"
    with pytest.raises(UsageError, match="variant 'needy' is not available: it needs a package: pip install package"):
        found.registry.select("needy")
