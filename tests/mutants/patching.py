"""Mutants: the true variants with one mistake planted, each a few words of patch on the true text.

A mutant is not a copy. Its folder below variants/ and what it shares with others are read as they are now, patched, and
loaded as a package of its own; where a kernel's text has moved on, the patch does not apply and says so.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import functools
import hashlib
import importlib
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.model.operation import operation_names
from harness.model.variant import Registry, Variant
from tests.mutants.importing import digested, mutants_folder

VARIANTS = Path(__file__).resolve().parents[2] / "variants"
SHARED = (
    "_features",
    "_tiles",
    "_mma",
    "_mma_backward",
    "_hopper",
    "_blackwell",
    "_cute",
    "_rows",
    "_warps",
    "_paged",
    "_mla",
    "_ring",
)
"""Folders that variants have in common."""
SUFFIXES = (".py", ".cu", ".cuh")
"""Of texts that kernels are made of."""
BACKWARD = "bwd-"
"""How the names of algorithms of attention-backward begin."""


@dataclass(frozen=True)
class Patch:
    """One replacement in one file below variants/."""

    file: str
    """Such as `attention/fa2/kernel.cu`."""
    old: str
    """Occurs in the file exactly once."""
    new: str

    def apply(self, text: str) -> str:
        """The patched text. Raises `ValueError` where the file does not hold what is to be replaced."""
        found = text.count(self.old)
        if found != 1:
            raise ValueError(f"{self.file} has {self.old!r} {found} times, not once: renew this patch")
        return text.replace(self.old, self.new)


def hyphenated(bug: str) -> str:
    """The words of a bug as a part of a name."""
    return re.sub("[^a-z0-9]+", "-", bug.lower()).strip("-")


def folder_of(algorithm: str) -> str:
    """Of an algorithm, below variants/: `fa2` -> attention/fa2, `softmax-online` -> softmax/online.

    `bwd-fa2` -> attention_backward/fa2.
    """
    if algorithm.startswith(BACKWARD):
        return f"attention_backward/{algorithm.removeprefix(BACKWARD).replace('-', '_')}"
    folders = (f"{name}/{algorithm.removeprefix(f'{name}-')}".replace("-", "_") for name in operation_names())
    return next(folder for folder in folders if (VARIANTS / folder).is_dir())


@dataclass(frozen=True)
class Mutant:
    """One planted mistake."""

    bug: str
    """Its class: the same words for the same mistake wherever it is planted."""
    variant: str
    """The true variant's name."""
    patches: tuple[Patch, ...]
    sanitize: bool = False
    """Whether its campaign runs under the sanitizer: the answer may be right in the schedule that the emulator has."""

    @property
    def name(self) -> str:
        """Of the mutated variant, such as `fa2-cupy~m-not-carried`."""
        return f"{self.variant}~{hyphenated(self.bug)}"

    @property
    def folder(self) -> str:
        """Of the true variant, below variants/."""
        own = self.backend == "triton"  # a folder of its own, beside that of CUDA and Numba
        return folder_of(self.variant if own else self.variant.rpartition("-")[0])

    @property
    def backend(self) -> str:
        """`cupy`, `numba` or `triton`."""
        return self.variant.rpartition("-")[2]


def patched_files(mutant: Mutant) -> dict[str, str]:
    """Every text file of the folders that the mutant is made of, patched; paths are relative to variants/."""
    texts = {
        f"{folder}/{path.name}": path.read_text()
        for folder in dict.fromkeys((*SHARED, mutant.folder, *_folders_of(mutant.folder)))
        for path in sorted((VARIANTS / folder).iterdir())
        if path.suffix in SUFFIXES
    }
    for patch in mutant.patches:
        texts[patch.file] = patch.apply(texts[patch.file])
    return texts


def _folders_of(folder: str) -> list[str]:
    """The folders of other algorithms whose modules a variant in `folder` imports, such as attention/fa2 of a ring."""
    found = {file.rpartition("/")[0] for file in files_of(folder)}
    return sorted(each for each in found if each.count("/") == 1)


@functools.cache
def files_of(folder: str) -> frozenset[str]:
    """What a variant in `folder` may be made of, below variants/.

    All files there, what their modules import, and what these do; CUDA sources whose names such a module has, and
    kernel.cu of folders whose names it has. A name that a module formats, such as f"{name}.cuh", may be of any such
    source in its own folder.
    """
    sources: dict[str, list[str]] = {}
    for shared in SHARED:
        for path in (VARIANTS / shared).glob("*.cu*"):
            sources.setdefault(path.name, []).append(f"{shared}/{path.name}")
    for path in VARIANTS.glob("*/*/kernel.cu"):
        kernel = str(path.relative_to(VARIANTS))
        sources[kernel.removesuffix("/kernel.cu")] = [kernel]
    found: set[str] = set()
    unread = {f"{folder}/{path.name}" for path in (VARIANTS / folder).iterdir() if path.suffix in SUFFIXES}
    while unread:
        found |= unread
        named: set[str] = set()
        for file in unread:
            if file.endswith(".py"):
                named |= _named_in(file, sources)
        unread = named - found
    return frozenset(found)


def _named_in(module: str, sources: Mapping[str, list[str]]) -> set[str]:
    """Files that a module of Python, below variants/, imports or names."""
    path, found = VARIANTS / module, set[str]()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.JoinedStr) and node.values and isinstance(node.values[-1], ast.Constant):
            ending = str(node.values[-1].value)
            if ending in (".cu", ".cuh"):
                found |= {str(source.relative_to(VARIANTS)) for source in path.parent.glob(f"*{ending}")}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.update(sources.get(node.value, ()))
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == VARIANTS.name:
            place = (node.module or "").split(".")[1:]
            for names in (place, *([*place, alias.name] for alias in node.names)):
                found |= {"/".join([*names[:depth], "__init__.py"]) for depth in range(1, len(names) + 1)}
                found.add("/".join(names) + ".py")
    return {file for file in found if (VARIANTS / file).is_file()}


def digest_of(mutant: Mutant) -> str:
    """Another one where any text has changed that the mutant's kernels may be made of."""
    files = files_of(mutant.folder)

    def may_be_in_it(path: str) -> bool:
        name = path.rpartition("/")[2]
        other = name.endswith((".cu", ".cuh")) if mutant.backend == "numba" else name.startswith("numba_")
        return path in files and not other

    texts = [each for each in sorted(patched_files(mutant).items()) if may_be_in_it(each[0])]
    return hashlib.sha256(repr(texts).encode()).hexdigest()[:16]


def mutated_variant(mutant: Mutant) -> Variant:
    """The variant with the mistake in it, under the mutant's name. It claims no bytes: those are not asked about."""
    texts = patched_files(mutant)
    # The same text is the same package, in whatever process: what was compiled of it is found again.
    package = digested("mutant", hashlib.sha256(repr(sorted(texts.items())).encode()).hexdigest())
    root = mutants_folder()
    if not (root / package).exists():
        with tempfile.TemporaryDirectory(dir=root) as beginning:
            _write(Path(beginning, package), texts)
            # Another process may have been quicker, with the same.
            with contextlib.suppress(OSError):
                Path(beginning, package).rename(root / package)
    importlib.invalidate_caches()
    registry = Registry()
    importlib.import_module(f"{package}.{mutant.folder.replace('/', '.')}").register(registry)
    return dataclasses.replace(registry.get(mutant.variant), name=mutant.name, claim=None)


def _write(root: Path, texts: Mapping[str, str]) -> None:
    """A package of its own: where it imports `variants`, it means itself."""
    for path, text in texts.items():
        target = root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.suffix == ".py":
            text = text.replace("from variants.", f"from {root.name}.").replace("from variants ", f"from {root.name} ")
        target.write_text(text)
    (root / "__init__.py").write_text("")
