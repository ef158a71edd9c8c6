from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest

from shard_gym.cli import main


class Outcome(NamedTuple):
    code: int
    out: str
    err: str


Run = Callable[..., Outcome]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Calls main with the arguments given, 80 columns wide unless `columns` says otherwise."""

    def call(*args: object, columns: int = 80) -> Outcome:
        monkeypatch.setenv("COLUMNS", str(columns))
        try:
            code = main([str(arg) for arg in args])
        except SystemExit as ended:
            code = int(str(ended.code))
        return Outcome(code, *capsys.readouterr())

    return call
