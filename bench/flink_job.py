"""Runs queries on Apache Flink's embedded cluster; a program for a Python that has apache-flink, started by flink_peer.

Standard input: one JSON line per run, with the SQL to execute: inserts, or one CREATE TABLE AS.
Standard output: `begin` and `end` around each.
"""

from __future__ import annotations

import json
import sys
from importlib.metadata import version
from typing import Any


def main() -> None:
    """Executes runs until standard input ends."""
    _say({"version": version("apache-flink")})
    for line in sys.stdin:
        run = json.loads(line)
        environment = _environment(run["settings"])
        for statement in run["tables"]:
            environment.execute_sql(statement)
        statements = environment.create_statement_set()
        for statement in run.get("inserts", ()):
            statements.add_insert_sql(statement)
        _say("begin")
        (statements.execute() if "inserts" in run else environment.execute_sql(run["create_as"])).wait()
        _say("end")


def _environment(settings: dict[str, str]) -> Any:
    from pyflink.table import EnvironmentSettings, TableEnvironment

    environment = TableEnvironment.create(EnvironmentSettings.in_streaming_mode())
    for key, value in settings.items():
        environment.get_config().set(key, value)
    return environment


def _say(message: object) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
