"""Operations by name: what naming one costs, and that a name may be sent to another process."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from harness.model.operation import operation_named, operation_names

ROOT = Path(__file__).resolve().parents[2]


def test_to_name_one_imports_nothing_and_to_use_one_imports_no_hypothesis():
    program = (
        "import sys; from harness.model.operation import operation_named;"
        "operation = operation_named('attention');"
        "assert operation.name == 'attention' and 'numpy' not in sys.modules;"
        "assert operation.regimes and 'numpy' in sys.modules and 'hypothesis' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)


@pytest.mark.parametrize("name", operation_names())
def test_every_operation_has_its_folders_name_and_survives_pickling(name: str):
    operation = operation_named(name)
    assert operation.name == operation.problem.operation == name
    assert pickle.loads(pickle.dumps(operation)) is operation


def test_what_is_no_field_is_an_error_of_its_own():
    with pytest.raises(AttributeError, match="'Operation' object has no attribute 'answers'"):
        _ = operation_named("softmax").answers
