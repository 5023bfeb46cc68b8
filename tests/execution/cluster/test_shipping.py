"""A client's plugin files, at workers that have them and at workers that have not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.execution.cluster.shipping import load_of, receive, shipment
from harness.execution.cluster.worker_side import end_all
from harness.model.discovery import PLUGIN, Origin
from harness.support.errors import UsageError

pytestmark = pytest.mark.compiles(False)

PLUGIN_TEXT = """
from neighbour import NAME
from pathlib import Path
from harness import Plan, Variant

def register(registry):
    assert (Path(__file__).parent / "kernels" / "k.cu").read_text() == "text"
    registry.add(Variant(name=NAME, plan=lambda problem: Plan(()), idea="none"))
"""


@pytest.fixture
def plugin(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "of the client"
    (folder / "kernels").mkdir(parents=True)
    (folder / "neighbour.py").write_text("NAME = 'shipped'")
    (folder / "kernels" / "k.cu").write_text("text")
    path = folder / "plugin.py"
    path.write_text(PLUGIN_TEXT)
    yield path
    end_all()


def files_of(plugin: Path) -> list[str]:
    return [str(path) for path in plugin.parent.rglob("*") if path.is_file() and path.suffix in (".py", ".cu")]


def test_a_worker_on_the_same_disk_uses_the_very_file(plugin: Path):
    receive(shipment(files_of(plugin)))
    assert load_of(Origin(PLUGIN, str(plugin)), "shipped").here().origin.name == str(plugin)


@pytest.mark.parametrize("there", ["nothing", "another text"])
def test_elsewhere_it_is_written_as_it_lies_with_what_is_beside_it(plugin: Path, there: str):
    load = load_of(Origin(PLUGIN, str(plugin)), "shipped")
    sent = shipment(files_of(plugin))
    if there == "nothing":
        plugin.parent.rename(plugin.parent.with_name("moved"))
    else:
        (plugin.parent / "kernels" / "k.cu").write_text("of somebody else")
    receive(sent)
    here = load.here()
    assert here.origin.name != str(plugin)
    assert here().name == "shipped"
    end_all()
    assert not Path(here.origin.name).exists()


def test_a_relative_path_is_the_clients(plugin: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(plugin.parent)
    assert load_of(Origin(PLUGIN, "plugin.py"), "shipped").origin.name == str(plugin)


def test_files_that_are_too_large_are_refused(plugin: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("harness.execution.cluster.shipping.LARGEST_BYTES", 10)
    with pytest.raises(UsageError, match="larger than"):
        shipment(files_of(plugin))
