"""`new NAME --from VARIANT`: every copy plans its own kernels, and a changed copy differs from the original."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from lanes import thorough_unless

from harness.cli import main
from harness.model.discovery import discover
from harness.model.problem import BaseProblem
from harness.operations.attention.problem import Problem
from harness.operations.attention_backward.problem import BackwardProblem
from harness.operations.kv_append.problem import AppendProblem
from harness.operations.mla_decode.problem import MlaProblem
from harness.operations.paged_attention.problem import PagedProblem
from harness.operations.softmax.problem import SoftmaxProblem
from harness.studies.new.copied_variant import copied_files
from harness.support.errors import UsageError

SMALL = {"heads": 1, "q_len": 64, "kv_len": 64, "head_dim": 64}
DTYPES = ("float32", "bfloat16")
PROBLEMS: dict[str, tuple[BaseProblem, ...]] = {
    "attention": tuple(Problem(**SMALL, dtype=dtype) for dtype in DTYPES),
    "attention-backward": tuple(BackwardProblem(**SMALL, dtype=dtype) for dtype in DTYPES),
    "softmax": (SoftmaxProblem(rows=4, columns=64),),
    "kv-append": (AppendProblem(),),
    "mla-decode": (MlaProblem(),),
    "paged-attention": tuple(PagedProblem(head_dim=64, dtype=dtype) for dtype in DTYPES),
}
FOUND = discover()
LANGUAGES = ("cupy", "numba")
REFUSED = tuple(
    f"{name}-{each}"
    for name in ("bwd-mma", "bwd-fa3-ordered", "ring-mma", "ring-fa3", "ring-bwd-mma", "ring-bwd-fa3", "tree-mma")
    for each in LANGUAGES
)
OTHERS_KERNELS = tuple(f"{name}-{each}" for name in ("ring", "ring-bwd", "tree") for each in LANGUAGES)
"""Variants that launch kernels of other algorithms beside their own."""
COPIED = [
    each.name for each in FOUND.registry if each.backend in LANGUAGES and each.name not in (*REFUSED, *OTHERS_KERNELS)
]


def written(name: str, original: str, folder: Path) -> Path:
    """The path of the plugin."""
    files = copied_files(name, FOUND.registry.get(original), FOUND)
    for path, text in files.items():
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_text(text)
    return folder / next(iter(files)).parts[0]


def source_files(kernel: Any) -> set[str]:
    """The files with the kernel's text."""
    if hasattr(kernel, "code"):
        return set(re.findall(r'^#line 1 "(.*)"', kernel.code, re.MULTILINE))
    return {kernel.py_func.__code__.co_filename}


@pytest.mark.parametrize("original", thorough_unless(lambda name: name.endswith("-cupy"), COPIED))
def test_a_copy_has_kernels_of_its_own(original: str, tmp_path: Path) -> None:
    path = written("my-copy", original, tmp_path)
    variant = discover([path], package="no_such_package").registry.get("my-copy")
    problem = next(each for each in PROBLEMS[variant.operation] if variant.supports(each) is None)
    files = {file for launch in variant.plan(problem).launches for file in source_files(launch.kernel)}
    # The text of a kernel in a file of one variant names no file.
    assert path.is_file() or any(path in Path(file).parents for file in files)
    originals = [file for file in files if "variants/" in file and "variants/_" not in file]
    assert not originals
    assert variant.claim is None or variant.claim(problem) == FOUND.registry.get(original).claim(problem)


@pytest.mark.parametrize("original", REFUSED)
def test_what_has_no_kernel_of_its_own_is_not_copied(original: str) -> None:
    with pytest.raises(UsageError, match=f"shared?.*edit it in place and run compare --variants {original} --against"):
        copied_files("my-copy", FOUND.registry.get(original), FOUND)


def test_a_changed_copy_differs_from_its_original(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["new", "my-native", "--from", "native-cupy"]) == 0
    out = capsys.readouterr().out
    assert "Shared code stays in variants/_features and variants/_warps." in out
    (command,) = re.findall(r"python -m harness (compare .*)", out)
    assert command == "compare --variants native-cupy,my-native --plugin my_native"
    kernel = tmp_path / "my_native" / "kernel.cu"
    for added, verdict in (("", "pass"), ("\n#error mine", "error")):
        kernel.write_text(kernel.read_text() + added)
        status = main([*command.split(), "--seq-len", "16", "--heads", "1", "--format", "json"])
        rows = json.loads(capsys.readouterr().out)["rows"]
        assert status == (verdict != "pass")
        assert {row["variant"]: row["verdict"] for row in rows} == {"native-cupy": "pass", "my-native": verdict}
        assert not added or "my_native/kernel.cu" in str(rows)


def test_the_command_chooses_what_the_variant_supports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for original, options in (
        ("fa2-mma-cupy", "--dtype bfloat16 "),
        ("fa4-cupy", "--arch sm_100a --dtype bfloat16 "),
        ("softmax-safe-cupy", "--operation softmax "),
    ):
        name = f"my-{original}"
        assert main(["new", name, "--from", original]) == 0
        assert (
            f"compare {options}--variants {original},{name} --plugin {name.replace('-', '_')}\n"
            in capsys.readouterr().out
        )


def test_bad_input_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, words in (
        (["my-fa2", "--from", "fa2-cupi"], "did you mean 'fa2-cupy'"),
        (["my-fa2", "--from", "fa2-cupy", "--numba"], "leave out --numba"),
    ):
        assert main(["new", *arguments, "--folder", str(tmp_path)]) == 2
        error = capsys.readouterr().err
        assert words in error and error.count("\n") == 1
    assert not list(tmp_path.iterdir())
