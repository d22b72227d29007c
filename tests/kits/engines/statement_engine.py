"""An engine in a process of its own that executes statements: for tests that take away what it needs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kits.engines.engine_process import EngineProcess


class StatementEngine(EngineProcess):
    """statement_child.py on a data directory."""

    def __init__(self, data: Path, config: Mapping[str, Any]) -> None:
        super().__init__("statement_child.py", data, json.dumps(config))
        assert self.next() == "ready", self.errors()

    def run(self, text: str) -> list[list[str]]:
        """Returns the rows of a statement, which must not fail."""
        rows, problem = self.attempt(text)
        assert not problem, problem
        return rows

    def attempt(self, text: str) -> tuple[list[list[str]], str]:
        """Returns the rows of a statement and the text of its error, of which one is empty."""
        self.tell(json.dumps(text))
        answer = json.loads(self.next())
        return answer.get("rows", []), answer.get("error", "")
