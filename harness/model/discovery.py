"""Finds variants: modules in `variants/`, files given with `--plugin`, and entry points of installed packages.

All three provide a function `register(registry)`. Only the command line loads variants.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.metadata
import importlib.util
import itertools
import pkgutil
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from harness.model.variant import PLUGIN_ORIGIN, Registry, Variant
from harness.support.errors import PluginError
from harness.support.exception_place import raise_interrupt, where_and_what

ENTRY_POINT_GROUP = "attention_sandbox.variants"
REPOSITORY_ROOT = Path(__file__).resolve().parents[2]

_plugin_numbers = itertools.count()

Check = Callable[[Variant], None]
"""Function for further checks of a variant. Raises `PluginError`."""


def _accept(variant: Variant) -> None:
    pass


MODULE, PACKAGE, PLUGIN = "module", "package", "plugin"
"""Kinds of origins: a module of `variants/`, an entry point of an installed package, a file given by the user."""


@dataclass(frozen=True)
class Origin:
    """A source of variants, which can be located without running it."""

    kind: str
    """`MODULE`, `PACKAGE` or `PLUGIN`."""
    name: str
    """Short name of a module, such as `attention.fa2`, name of an entry point, or path of a file."""
    package: str = ""
    """Package of a module; empty if it is not in one."""
    folder: str = ""
    """Folder of a module's package, if this process would import another one. A process uses only one such folder."""

    def load(self, registry: Registry, check: Check = _accept) -> None:
        """Import it and add its variants. Raises `PluginError` on any error, and then adds nothing."""
        if self.kind == MODULE:
            _look_first_in(self.folder)
            _add_module_of_package(registry, self.package, self.name, check)
        elif self.kind == PLUGIN:
            _add_plugin_file(registry, Path(self.name), check)
        else:
            found = [e for e in importlib.metadata.entry_points(group=ENTRY_POINT_GROUP) if e.name == self.name]
            for entry_point in sorted(found):
                _add_entry_point(registry, entry_point, check)


@dataclass(frozen=True)
class BrokenModule:
    """A module or package that could not be loaded and was not named on the command line."""

    name: str
    """Short name, such as `my_idea` for variants/my_idea.py."""
    reason: str
    """What went wrong and where, in one line."""


@dataclass(frozen=True)
class Discovery:
    """The variants that were found, and what could not be loaded."""

    registry: Registry
    """All variants."""
    broken: tuple[BrokenModule, ...]
    """Modules of `variants/` and installed packages that could not be loaded. The others still work."""
    origins: Mapping[str, Origin] = field(default_factory=dict)
    """Origin of each variant, by name."""
    files: tuple[str, ...] = ()
    """Files of the modules that were loaded, except those of the interpreter and of installed packages."""


def named_origin(target: str) -> Origin:
    """Return the origin for a path of a plugin file, or for the name of an importable module."""
    if target.endswith(".py") or "/" in target or Path(target).exists():
        return Origin(PLUGIN, target)
    package, _, name = target.rpartition(".")
    return Origin(MODULE, name, package)


def plugin_file(origin: Origin) -> str:
    """Return the file to pass to `--plugin` for this origin, such as a module's file."""
    if origin.kind == PLUGIN:
        return origin.name
    full_name = f"{origin.package}.{origin.name}" if origin.package else origin.name
    spec = importlib.util.find_spec(full_name)
    return full_name if spec is None or spec.origin is None else spec.origin


def modules_in(folder: str, package: str = "variants") -> list[Origin]:
    """Return every module of the `package` in this folder, without running it."""
    _look_first_in(folder)
    return [Origin(MODULE, name, package, folder) for name in _modules_of(package)]


def _look_first_in(folder: str) -> None:
    if folder and folder not in sys.path:
        sys.path.insert(0, folder)


def origins(plugins: Iterable[Path] = (), package: str = "variants") -> list[Origin]:
    """Return the origins of all variants: modules of `package`, entry points of the group, plugin files. Runs none."""
    packages = dict.fromkeys(e.name for e in sorted(importlib.metadata.entry_points(group=ENTRY_POINT_GROUP)))
    return [
        *(Origin(MODULE, name, package) for name in _modules_of(package)),
        *(Origin(PACKAGE, name) for name in packages),
        *(Origin(PLUGIN, str(path)) for path in plugins),
    ]


def discover(plugins: Iterable[Path] = (), package: str = "variants", check: Check = _accept) -> Discovery:
    """Load every module of `package`, every entry point of the group, and the plugin files, in this order.

    `check` is called with each variant. If it raises `PluginError`, the variant's origin counts as broken.

    Raises `PluginError` if a plugin file cannot be loaded or registers a name that is in use, because the user named
    that file. Broken modules of `package` and broken entry points are listed in `Discovery.broken`.
    """
    registry = Registry()
    broken: list[BrokenModule] = []
    found: dict[str, Origin] = {}
    for origin in origins(plugins, package):
        try:
            origin.load(registry, check)
        except PluginError as error:
            if origin.kind == PLUGIN:
                raise
            broken.append(BrokenModule(origin.name, str(error)))
        found |= {variant.name: origin for variant in registry if variant.name not in found}
    return Discovery(registry, tuple(broken), found)


def loaded_files() -> list[str]:
    """Return the files of loaded modules that users may edit, which excludes installed packages and the harness."""
    installed = (sys.prefix, sys.base_prefix, str(REPOSITORY_ROOT / "harness"))
    # Any access to a lazy module (importlib.util.LazyLoader), including `vars`, imports it. CuPy's `cupy.testing` is
    # one and would import pytest. `object.__getattribute__` reads its current content without that.
    held = [object.__getattribute__(m, "__dict__") for m in [*sys.modules.values()] if issubclass(type(m), ModuleType)]
    found = {names.get("__file__") for names in held}
    return sorted(path for path in found if isinstance(path, str) and not path.startswith(installed))


def load_variant(origin: Origin, name: str) -> Variant:
    """Load a single variant by loading only its origin. Raises what `Origin.load` raises."""
    registry = Registry()
    origin.load(registry)
    return registry.get(name)


def _modules_of(package: str) -> list[str]:
    """Return the names of modules and packages in `package` and its folders, except those that start with `_`.

    Folders without `__init__.py` only group variants, as `attention` does, and are not packages.
    """
    root = str(REPOSITORY_ROOT)
    if root not in sys.path:
        # The harness may run from another folder. Appended last, so that it does not shadow the user's modules.
        sys.path.append(root)
    spec = importlib.util.find_spec(package)
    if spec is None or spec.submodule_search_locations is None:
        return []
    locations = [Path(location) for location in spec.submodule_search_locations]
    folders = {
        folder.name: str(folder)
        for location in locations
        if location.is_dir()
        for folder in sorted(location.iterdir())
        if folder.is_dir() and folder.name.isidentifier() and not (folder / "__init__.py").exists()
    }
    searched = [("", [str(location) for location in locations]), *((f"{n}.", [path]) for n, path in folders.items())]
    return sorted(
        f"{prefix}{module.name}"
        for prefix, paths in searched
        for module in pkgutil.iter_modules(paths)
        if not f".{prefix}{module.name}".count("._")
    )


def _add_module_of_package(registry: Registry, package: str, name: str, check: Check) -> None:
    full_name = f"{package}.{name}" if package else name
    origin = f"module {full_name}"
    module = _importing(origin, lambda: importlib.import_module(full_name))
    _add(registry, origin, _register_of(module, origin), check)


def _add_entry_point(registry: Registry, entry_point: importlib.metadata.EntryPoint, check: Check) -> None:
    package = entry_point.dist.name if entry_point.dist is not None else entry_point.value
    origin = f"installed package {package}"
    register = _importing(f"{origin} ({entry_point.value})", entry_point.load)
    if not callable(register):
        raise PluginError(f"{origin}: its entry point {entry_point.value} is not a function register(registry)")
    _add(registry, origin, register, check)


def _add_plugin_file(registry: Registry, path: Path, check: Check) -> None:
    origin = f"{PLUGIN_ORIGIN}{path}"
    if path.is_dir():
        path = path / "__init__.py"
    if not path.exists():
        tried = "" if path.is_absolute() else f"; tried {path.absolute()}"
        raise PluginError(f"{origin}: there is no such file{tried}")
    if path.suffix != ".py":
        raise PluginError(f"{origin}: a plugin is a Python file with a function register(registry); this is not a .py")
    module = _importing(origin, lambda: _import_file(path))
    _add(registry, origin, _register_of(module, origin), check)


def _import_file(path: Path) -> ModuleType:
    # The number distinguishes plugins of the same file name, and the prefix avoids names of installed modules.
    name = f"attention_sandbox_plugin_{next(_plugin_numbers)}_{path.stem}"
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        # As for a script, modules in the same folder can be imported.
        sys.path.append(folder)
    return load_module(name, path.resolve())


def load_module(name: str, path: Path) -> ModuleType:
    """Import a file, or a package by its `__init__.py`, as the module `name`. Raises what the import raises."""
    is_package = path.name == "__init__.py"
    spec = importlib.util.spec_from_file_location(
        name, path, submodule_search_locations=[str(path.parent)] if is_package else None
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


MOVED = ("harness.variant", "harness.problem", "harness.errors")
"""Modules from which older plugins import."""


def _importing(origin: str, load: Callable[[], Any]) -> Any:
    try:
        return load()
    except ModuleNotFoundError as error:
        if error.name not in MOVED:
            raise PluginError(f"{origin} could not be imported: {where_and_what(error)}") from error
        raise PluginError(
            f"{origin} imports {error.name}, which has moved; write: "
            "from harness import Buffer, Launch, Numerics, Plan, PlanError, Problem, Traffic, Variant"
        ) from error
    except BaseException as error:
        raise_interrupt(error)
        raise PluginError(f"{origin} could not be imported: {where_and_what(error)}") from error


def _register_of(module: ModuleType, origin: str) -> Callable[[Registry], object]:
    register = getattr(module, "register", None)
    if not callable(register):
        raise PluginError(
            f"{origin} has no function register(registry); it has to call registry.add(Variant(...)) in one"
        )
    return register  # type: ignore[no-any-return]


def _add(registry: Registry, origin: str, register: Callable[[Registry], object], check: Check) -> None:
    """Register all variants of an origin, or none if there is any error."""
    own = Registry()
    own.origin = origin
    try:
        register(own)
        for variant in own:
            check(variant)
    except PluginError as error:
        raise PluginError(str(error) if str(error).startswith(origin) else f"{origin}: {error}") from error
    except BaseException as error:
        raise_interrupt(error)
        raise PluginError(f"{origin}: register() failed: {where_and_what(error)}") from error
    if not len(own) and not own.left_out:
        raise PluginError(
            f"{origin} registers no variant; its register(registry) has to call registry.add(Variant(...))"
        )
    taken = {variant.name for variant in registry}
    for variant in own:
        if variant.name in taken:
            raise PluginError(
                f"{origin} registers variant {variant.name!r}, but {registry.origin_of(variant.name)} has registered "
                "that name already; choose another name"
            )
    registry.origin = origin
    for variant in own:
        registry.add(variant)
    for name, reason in own.left_out.items():
        registry.leave_out(name, reason)
