from __future__ import annotations

from pathlib import Path

import pytest

from harness.model.discovery import MOVED, discover
from harness.support.errors import PluginError


@pytest.mark.parametrize("module", MOVED)
def test_a_plugin_of_old_is_told_in_one_line_what_to_write(module: str, tmp_path: Path):
    plugin = tmp_path / "old.py"
    plugin.write_text(f"from {module} import Variant\n")
    with pytest.raises(PluginError, match=f"{module}, which has moved; write: from harness import Buffer") as caught:
        discover([plugin], package="no_such_package_of_variants")
    assert "\n" not in str(caught.value)


def test_what_it_is_told_to_write_can_be_imported(tmp_path: Path):
    plugin = tmp_path / "new.py"
    plugin.write_text(
        "from harness import Buffer, Launch, Numerics, Plan, PlanError, Problem, Traffic, Variant\n"
        "def register(registry):\n    registry.add(Variant(name='it', plan=lambda problem: Plan(())))\n"
    )
    found = discover([plugin], package="no_such_package_of_variants")
    assert [variant.name for variant in found.registry] == ["it"]
