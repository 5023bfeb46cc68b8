"""Finds variants: modules in `variants/`, files given with `--plugin`, and entry points of installed packages.

All three hand over one function, `register(registry)`. Only the command line loads variants.
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

from harness.model.registry import Registry
from harness.model.variant import Variant
from harness.support.errors import PluginError
from harness.support.exception_place import raise_interrupt, where_and_what

ENTRY_POINT_GROUP = "attention_sandbox.variants"
REPOSITORY_ROOT = Path(__file__).resolve().parents[2]

_plugin_numbers = itertools.count()

Check = Callable[[Variant], None]
"""What more is asked of a variant than its own fields can tell. Raises `PluginError`."""


def _accept(variant: Variant) -> None:
    pass


MODULE, PACKAGE, PLUGIN = "module", "package", "plugin"
"""Kinds of origins: a module of `variants/`, an entry point of an installed package, a file that the user names."""


@dataclass(frozen=True)
class Origin:
    """One place that variants come from, which can be looked for without running it."""

    kind: str
    """`MODULE`, `PACKAGE` or `PLUGIN`."""
    name: str
    """A module's short name, such as `attention.fa2`; an entry point's; a file's path."""
    package: str = ""
    """The package that a module is in, if it is in one."""
    folder: str = ""
    """The folder that a module's package lies in, where this process would find another; a
    process takes modules from one such folder only."""

    def load(self, registry: Registry, check: Check = _accept) -> None:
        """Import it and add its variants. Raises `PluginError`, and adds nothing, where anything is wrong with it."""
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
    """A module or package that nobody named on the command line and that could not be loaded."""

    name: str
    """Its short name, such as `my_idea` for variants/my_idea.py."""
    reason: str
    """One line: what went wrong, and where."""


@dataclass(frozen=True)
class Discovery:
    """The variants that were found, and what could not be loaded."""

    registry: Registry
    """All variants."""
    broken: tuple[BrokenModule, ...]
    """Broken modules of `variants/` and broken installed packages: the others still work."""
    origins: Mapping[str, Origin] = field(default_factory=dict)
    """Where each variant, by name, is loaded from."""
    files: tuple[str, ...] = ()
    """The modules that were loaded for it, those of the interpreter and of installed packages left out."""


def named_origin(target: str) -> Origin:
    """Where somebody's variants come from: a plugin file by its path, or a module that can be imported by its name."""
    if target.endswith(".py") or "/" in target or Path(target).exists():
        return Origin(PLUGIN, target)
    package, _, name = target.rpartition(".")
    return Origin(MODULE, name, package)


def plugin_file(origin: Origin) -> str:
    """The file that `--plugin` takes for the variants of one origin, the module's where it is one."""
    if origin.kind == PLUGIN:
        return origin.name
    full_name = f"{origin.package}.{origin.name}" if origin.package else origin.name
    spec = importlib.util.find_spec(full_name)
    return full_name if spec is None or spec.origin is None else spec.origin


def modules_in(folder: str, package: str = "variants") -> list[Origin]:
    """Every module of the `package` that lies in this folder; none is run."""
    _look_first_in(folder)
    return [Origin(MODULE, name, package, folder) for name in _modules_of(package)]


def _look_first_in(folder: str) -> None:
    if folder and folder not in sys.path:
        sys.path.insert(0, folder)


def origins(plugins: Iterable[Path] = (), package: str = "variants") -> list[Origin]:
    """Every module of `package`, every entry point of the group, and the plugin files, in this order; none is run."""
    packages = dict.fromkeys(e.name for e in sorted(importlib.metadata.entry_points(group=ENTRY_POINT_GROUP)))
    return [
        *(Origin(MODULE, name, package) for name in _modules_of(package)),
        *(Origin(PACKAGE, name) for name in packages),
        *(Origin(PLUGIN, str(path)) for path in plugins),
    ]


def discover(plugins: Iterable[Path] = (), package: str = "variants", check: Check = _accept) -> Discovery:
    """Load every module of `package`, every entry point of the group, and the plugin files, in this order.

    `check` is called with each variant; where it raises `PluginError`, what registers the variant counts as broken.

    Raises `PluginError` where a plugin file cannot be loaded or registers a name that is taken: the user asked for
    that very file. A broken module of `package` or a broken entry point is reported in `Discovery.broken`.
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
    """The files of this process's modules that somebody may be working on: none of an installation, nor the harness."""
    installed = (sys.prefix, sys.base_prefix, str(REPOSITORY_ROOT / "harness"))
    # A lazy module (importlib.util.LazyLoader) is imported by any access to it, `vars` among them, such as CuPy's
    # `cupy.testing`, which imports pytest. What it holds so far is read without that.
    held = [object.__getattribute__(m, "__dict__") for m in [*sys.modules.values()] if issubclass(type(m), ModuleType)]
    found = {names.get("__file__") for names in held}
    return sorted(path for path in found if isinstance(path, str) and not path.startswith(installed))


def load_variant(origin: Origin, name: str) -> Variant:
    """One variant, with nothing loaded but where it is from. Raises as `Origin.load` does."""
    registry = Registry()
    origin.load(registry)
    return registry.get(name)


def _modules_of(package: str) -> list[str]:
    """Names of the modules and packages in `package` and in its folders; those that start with `_` are not variants.

    A folder is no package: it has no `__init__.py`, and only keeps together what belongs together, as `attention` does.
    """
    root = str(REPOSITORY_ROOT)
    if root not in sys.path:
        # The harness may have been started from elsewhere; last, so that nothing of the user's is shadowed.
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
    origin = f"plugin {path}"
    if path.is_dir():
        path = path / "__init__.py"
    if not path.exists():
        raise PluginError(f"{origin}: there is no such file")
    if path.suffix != ".py":
        raise PluginError(f"{origin}: a plugin is a Python file with a function register(registry); this is not a .py")
    module = _importing(origin, lambda: _import_file(path))
    _add(registry, origin, _register_of(module, origin), check)


def _import_file(path: Path) -> ModuleType:
    # A number in the name: two plugins may have the same file name, and neither may hide an installed module.
    name = f"attention_sandbox_plugin_{next(_plugin_numbers)}_{path.stem}"
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        # As when a script is run: its neighbours can be imported.
        sys.path.append(folder)
    is_package = path.name == "__init__.py"
    spec = importlib.util.spec_from_file_location(
        name, path.resolve(), submodule_search_locations=[folder] if is_package else None
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
"""Modules that plugins used to import from."""


def _importing(origin: str, load: Callable[[], Any]) -> Any:
    try:
        return load()
    except ModuleNotFoundError as error:
        if error.name not in MOVED:
            raise PluginError(f"{origin} does not import: {where_and_what(error)}") from error
        raise PluginError(
            f"{origin} imports {error.name}, which has moved; write: "
            "from harness import Buffer, Launch, Numerics, Plan, PlanError, Problem, Traffic, Variant"
        ) from error
    except BaseException as error:
        raise_interrupt(error)
        raise PluginError(f"{origin} does not import: {where_and_what(error)}") from error


def _register_of(module: ModuleType, origin: str) -> Callable[[Registry], object]:
    register = getattr(module, "register", None)
    if not callable(register):
        raise PluginError(
            f"{origin} has no function register(registry); it has to call registry.add(Variant(...)) in one"
        )
    return register  # type: ignore[no-any-return]


def _add(registry: Registry, origin: str, register: Callable[[Registry], object], check: Check) -> None:
    """Register all that one origin has, or, where anything is wrong with it, nothing."""
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
    if not len(own):
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
