from __future__ import annotations

import pytest

from harness.options import workers
from harness.options.workers import parse_workers, require_distributed
from harness.support.errors import UsageError

pytestmark = pytest.mark.compiles(False)


@pytest.mark.parametrize(
    ("text", "meant"),
    [("1", 1), ("16", 16), ("tcp://10.0.0.1:8786", "tcp://10.0.0.1:8786"), ("tls://host:1/", "tls://host:1")],
)
def test_a_number_or_an_address(text: str, meant: int | str):
    assert parse_workers(text) == meant


@pytest.mark.parametrize(
    "text", ["", "0", "-1", "2.5", "1025", "host:8786", "tcp://host", "http://host:1", "tcp://a b:1"]
)
def test_what_is_neither_is_one_line(text: str):
    with pytest.raises(UsageError) as caught:
        parse_workers(text)
    assert "\n" not in str(caught.value)


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(workers.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match="pip install distributed"):
        require_distributed()
