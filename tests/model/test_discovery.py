from __future__ import annotations

import functools
import importlib
import importlib.metadata
import importlib.util
import re
import sys
from pathlib import Path

import pytest

import variants
from harness.model.discovery import discover, loaded_files
from harness.support.errors import PluginError

ONE = """
from harness.model.plan import Plan
from harness.model.variant import Variant

def register(registry):
    registry.add(Variant(name={name!r}, plan=lambda problem: Plan(())))
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Path:
    """An empty package of variants under a name of its own; modules stay imported for the process."""
    folder = tmp_path / f"variants_of_{abs(hash(request.node.name))}"
    folder.mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [])
    return folder


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def names(found) -> list[str]:
    return [variant.name for variant in found.registry]


def test_modules_and_packages_are_found_in_order_and_private_ones_are_not(package: Path):
    write(package / "b.py", ONE.format(name="b"))
    write(package / "a" / "__init__.py", ONE.format(name="a"))
    write(package / "_shared.py", "raise RuntimeError('never imported')")
    found = discover(package=package.name)
    assert names(found) == ["a", "b"]
    assert found.registry.origin_of("a") == f"module {package.name}.a"
    assert found.broken == ()


def test_a_package_that_is_not_there_is_empty():
    assert names(discover(package="no_such_package_of_variants")) == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("import no_such_module\n", "bad.py:1: ModuleNotFoundError: No module named 'no_such_module'"),
        ("x = 1\n\ndef f(:\n", "bad.py:3: SyntaxError"),
        ("\nraise SystemExit('enough')\n", "bad.py:2: SystemExit: enough"),
        ("x = 1\n", "has no function register(registry)"),
        ("register = 3\n", "has no function register(registry)"),
        ("def register(registry):\n    pass\n", "registers no variant"),
        ("def register(registry):\n    1 / 0\n", "register() failed:"),
        ("def register(registry):\n    1 / 0\n", "bad.py:2: ZeroDivisionError"),
        (ONE.format(name="a b"), "'a b' is not usable"),
        (ONE.format(name="good"), "registers variant 'good', but module"),
        (ONE.format(name="x") + "    " + ONE.format(name="x").splitlines()[-1].strip(), "registers variant 'x', but"),
    ],
)
def test_a_broken_module_is_skipped_and_a_broken_plugin_is_an_error(
    package: Path, tmp_path: Path, text: str, words: str
):
    write(package / "good.py", ONE.format(name="good"))
    write(package / "zzz_bad.py", text)
    found = discover(package=package.name)
    assert names(found) == ["good"]
    assert [broken.name for broken in found.broken] == ["zzz_bad"]
    assert words in found.broken[0].reason
    assert "\n" not in found.broken[0].reason

    (package / "zzz_bad.py").unlink()
    plugin = write(tmp_path / "bad.py", text)
    with pytest.raises(PluginError) as caught:
        discover([plugin], package=package.name)
    assert words in str(caught.value)
    assert str(caught.value).startswith(f"plugin {plugin}")
    assert "\n" not in str(caught.value)


def test_a_missing_plugin_names_the_path_that_was_tried(package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(PluginError, match=re.escape(f"there is no such file; tried {tmp_path / 'none.py'}")):
        discover([Path("none.py")], package=package.name)


def test_what_fails_half_way_registers_nothing(package: Path):
    write(package / "half.py", ONE.format(name="half") + "    raise ValueError\n")
    found = discover(package=package.name)
    assert names(found) == []
    assert len(found.broken) == 1


def test_plugins_may_share_a_file_name_and_import_their_neighbours(package: Path, tmp_path: Path):
    first = write(tmp_path / "one" / "mine.py", ONE.format(name="first"))
    write(tmp_path / "two" / "neighbour_of_mine.py", "NAME = 'second'\n")
    second = write(
        tmp_path / "two" / "mine.py", "from neighbour_of_mine import NAME\n" + ONE.replace("{name!r}", "NAME")
    )
    before = set(sys.modules)
    found = discover([first, second], package=package.name)
    assert names(found) == ["first", "second"]
    assert found.registry.origin_of("second") == f"plugin {second}"
    assert "mine" not in set(sys.modules) - before


def test_a_folder_can_be_a_plugin(package: Path, tmp_path: Path):
    write(tmp_path / "idea" / "names.py", "NAME = 'inside'\n")
    write(tmp_path / "idea" / "__init__.py", "from .names import NAME\n" + ONE.replace("{name!r}", "NAME"))
    assert names(discover([tmp_path / "idea"], package=package.name)) == ["inside"]


@pytest.mark.parametrize(("name", "words"), [("none.py", "no such file"), ("kernel.cu", "not a .py")])
def test_a_plugin_is_a_python_file_that_exists(package: Path, tmp_path: Path, name: str, words: str):
    write(tmp_path / "kernel.cu", "")
    with pytest.raises(PluginError, match=words):
        discover([tmp_path / name], package=package.name)


def test_entry_points_of_installed_packages_register_too(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    site = tmp_path / "site"
    write(site / "nice_kernels.py", ONE.format(name="installed"))
    write(site / "sad_kernels.py", "import no_such_module\n")
    write(
        site / "nice_kernels-1.0.dist-info" / "entry_points.txt",
        "[attention_sandbox.variants]\nnice = nice_kernels:register\nsad = sad_kernels:register\n",
    )
    write(site / "nice_kernels-1.0.dist-info" / "METADATA", "Metadata-Version: 2.1\nName: nice-kernels\nVersion: 1.0\n")
    monkeypatch.undo()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.syspath_prepend(site)
    found = discover(package=package.name)
    assert names(found) == ["installed"]
    assert found.registry.origin_of("installed") == "installed package nice-kernels"
    assert [broken.name for broken in found.broken] == ["sad"]
    assert "no_such_module" in found.broken[0].reason


def test_variants_are_the_same_once_all_their_modules_are_imported():
    # A submodule becomes an attribute of its package, in the place of whatever had that name there.
    def parts(made: object) -> object:
        if not isinstance(made, functools.partial):
            return made
        named = {name: parts(each) for name, each in made.keywords.items()}
        return made.func, [parts(each) for each in made.args], named

    before = {variant.name: parts(variant.plan) for variant in discover().registry}
    folder = Path(variants.__file__).parent
    for file in folder.glob("*/*/[!_]*.py"):
        importlib.import_module(".".join(("variants", *file.relative_to(folder).with_suffix("").parts)))
    assert {variant.name: parts(variant.plan) for variant in discover().registry} == before


def test_looking_at_the_loaded_files_imports_no_lazy_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Such as `cupy.testing`, which may fail where a file of the user's folder hides what it needs."""
    (tmp_path / "lazy_and_broken.py").write_text("raise AttributeError('somebody looked')\n")
    spec = importlib.util.spec_from_file_location("lazy_and_broken", tmp_path / "lazy_and_broken.py")
    spec.loader = importlib.util.LazyLoader(spec.loader)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "lazy_and_broken", module)
    spec.loader.exec_module(module)
    assert str(tmp_path / "lazy_and_broken.py") in loaded_files()
