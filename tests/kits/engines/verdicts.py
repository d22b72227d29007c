"""Penstock's own verdict on its streams, a second judge beside the batch queries and models of tests."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from penstock.common.errors import NotSupportedError
from penstock.shell.main import main


def verify_running(rows: Callable[[str], list[tuple[Any, ...]]], names: Iterable[str]) -> dict[str, str]:
    """Has VERIFY STREAM find no difference in running streams; returns why it refuses those that it does.

    `rows` returns the rows of a statement, or raises what the engine does.
    """
    refused: dict[str, str] = {}
    for name in names:
        try:
            told = rows(f"VERIFY STREAM {name}")
        except NotSupportedError as error:
            refused[name] = error.message
        else:
            assert [line[0] for line in told] == ["verified"], f"{name}: {told}"
    return refused


def verify_at_rest(data: Path) -> dict[str, str]:
    """Has `penstock verify` find no difference in a directory; returns why it refuses the streams that it does."""
    with contextlib.redirect_stdout(io.StringIO()) as said, contextlib.redirect_stderr(io.StringIO()) as errors:
        code = main(["verify", "--data", str(data), "--json"])
    assert said.getvalue(), errors.getvalue()
    found = json.loads(said.getvalue())["streams"]
    assert code in (0, 2), found
    assert not [one for one in found if one.get("others")]
    return {one["stream"]: one["error"] for one in found if "error" in one}
