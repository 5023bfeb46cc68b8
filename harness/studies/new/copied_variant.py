"""Copies a variant of variants/ under a new name, as a plugin whose own files can be edited freely.

Code that variants share, in the folders of variants/ that start with `_`, is not copied: the copy uses it in place.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from pathlib import Path

from harness.model.discovery import MODULE, REPOSITORY_ROOT, Discovery, plugin_file
from harness.model.variant import Variant
from harness.support.errors import UsageError

SOURCE_SUFFIXES = (".py", ".cu", ".cuh")
_SHARED = re.compile(r"\bvariants[./](_\w+)")
_CUDA, _NUMBA = "cupy", "numba"
_REGISTER = re.compile(r"^def register\(", re.MULTILINE)


def copied_files(name: str, variant: Variant, found: Discovery) -> Mapping[Path, str]:
    """The files of a copy of `variant` that is called `name`, by path relative to the plugin's folder.

    A variant in a file of its own becomes the single file `NAME.py`; one in a folder, the folder `NAME/`. Raises
    `UsageError` if the variant has no kernel of its own that could be copied.
    """
    origin = found.origins.get(variant.name)
    in_place = f"edit it in place and run compare --variants {variant.name} --against HEAD"
    if origin is None or origin.kind != MODULE:
        raise UsageError(f"{variant.name} is not one of variants/, whose files --from copies; copy its file yourself")
    path = Path(plugin_file(origin))
    stem = name.replace("-", "_")
    if path.name != "__init__.py":
        return {Path(f"{stem}.py"): _renamed(path.read_text(), name, variant.name)}
    folder = path.parent
    sources = [each for each in sorted(folder.iterdir()) if each.suffix in SOURCE_SUFFIXES]
    if variant.backend == "cute":
        raise UsageError(f"the kernel of {variant.name} is in an installed package; --from copies files of variants/")
    if sources == [path]:
        raise UsageError(f"the kernels of {variant.name} are in folders that other variants share; {in_place}")
    place = str(folder.relative_to(REPOSITORY_ROOT / "variants"))
    return {
        Path(stem, each.name): _renamed(text, name, variant.name) if each == path else text
        for each in sources
        if not _is_of_another_language(each, variant.backend)
        for text in [_moved(each.read_text(), place)]
    }


def shared_folders(files: Mapping[Path, str]) -> list[str]:
    """The folders of shared code that the files name, such as `variants/_tiles`, which are used in place."""
    named = {found for text in files.values() for found in _SHARED.findall(text)}
    return [f"variants/{name}" for name in sorted(named) if (REPOSITORY_ROOT / "variants" / name).is_dir()]


def _is_of_another_language(path: Path, backend: str) -> bool:
    if path.suffix == ".py":
        return path.name.startswith("numba_") and backend != _NUMBA
    return backend != _CUDA


def _moved(text: str, place: str) -> str:
    """The text of a file of variants/`place`, with references to that folder made relative to the file itself."""
    package = f"variants.{place.replace('/', '.')}"
    text = re.sub(rf"^(\s*from ){re.escape(package)}(\.\w+)? import ", _relative_import, text, flags=re.MULTILINE)
    here = text.replace(f'"{place}"', "HERE")
    if here != text:
        text = _after_imports(here, 'HERE = str(Path(__file__).resolve().parent)\n"""Folder of the kernels."""\n')
        text = _with_import(text, "from pathlib import Path")
    return re.sub(r"(?<![\w/.])((?:\.\./)?README\.md)", lambda found: _page(place, found[1]), text)


def _relative_import(found: re.Match[str]) -> str:
    return f"{found[1]}{found[2] or '.'} import "


def _page(place: str, page: str) -> str:
    folder = place.rpartition("/")[0] if page.startswith("..") else place
    return f"variants/{folder}/README.md"


def _renamed(text: str, name: str, original: str) -> str:
    """The text of a module, with a `register` that adds a single variant: `original`, as `name`."""
    text = _REGISTER.sub("def register_originals(", text, count=1)
    if not re.search(r"\bRegistry\b", text):
        text = _with_import(text, "from harness import Registry")
    return f'''{_with_import(text, "import dataclasses").rstrip()}


def register(registry: Registry) -> None:
    """Add `{name}`, a copy of `{original}`."""
    originals = Registry()
    register_originals(originals)
    copied = originals.get("{original}")
    registry.add(dataclasses.replace(copied, name="{name}", algorithm="{name}", idea="copy of {original}"))
'''


def _with_import(text: str, line: str) -> str:
    """The text with one more import, before its others."""
    if re.search(rf"^{re.escape(line)}$", text, re.MULTILINE):
        return text
    first = re.search(r"^(?:from (?!__future__)|import )", text, re.MULTILINE)
    at = first.start() if first else 0
    return f"{text[:at]}{line}\n{text[at:]}"


def _after_imports(text: str, lines: str) -> str:
    """The text with these lines behind the imports of its top level."""
    imports = [each for each in ast.parse(text).body if isinstance(each, ast.Import | ast.ImportFrom)]
    end = max((each.end_lineno or 0 for each in imports), default=0)
    own = text.splitlines(keepends=True)
    return "".join([*own[:end], "\n", lines, *own[end:]])
