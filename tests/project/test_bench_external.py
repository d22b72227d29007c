"""The benchmark from a broker into PostgreSQL, with few messages and an engine without Spark."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from kits.basics.external_servers import Kafka, Mosquitto, Postgres

from bench.external import Run, passwords
from penstock.mnode.admin.sandbox import Sandbox


class PlantHere:
    """An engine in this process, whose time moves while the run waits."""

    def __init__(self) -> None:
        self.box = Sandbox()

    def execute(self, *statements: str) -> None:
        for statement in statements:
            self.box.execute(statement)

    def rows(self, statement: str) -> list[tuple[Any, ...]]:
        table = self.box.execute(statement).table
        assert table is not None
        return list(zip(*(column.to_pylist() for column in table.columns), strict=True))

    def wait(self, seconds: float) -> None:
        self.box.advance(0.1)

    def kill_worker(self) -> None:
        """Kills all tasks, which begin anew from their last checkpoint, here from their beginning."""
        self.box.kill()

    def kill_engine(self) -> None:
        self.box.checkpoint()
        self.box.kill()


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.mark.parametrize("kind", ["kafka", "mqtt"])
def test_results_equal_those_of_all_messages(
    kind: str, postgres: Postgres, stack: ExitStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Through each broker, with kills on the way; what is lost or changed afterwards is found."""
    broker: Kafka | Mosquitto
    if kind == "kafka":
        broker = Kafka(1)
        stack.callback(broker.close)
    else:
        broker = Mosquitto(tmp_path)
        broker.start()
        stack.callback(broker.stop)
    for name, secret in passwords(postgres, broker).items():
        monkeypatch.setenv(name, secret)
    plant = PlantHere()
    stack.callback(plant.box.close)
    with postgres.connect() as store:
        store.execute("DROP TABLE IF EXISTS hot")
    run = Run(plant, postgres, broker, stack, Namespace(broker=kind, messages=2_200, windows=2, no_kills=False))
    with postgres.connect() as store:
        assert run.run() == 0
        [said] = map(json.loads, capsys.readouterr().out.splitlines())
        assert {name: said[name] for name in ("broker", "messages", "results", "wrong")} == {
            "broker": kind, "messages": 2_200, "results": 40, "wrong": 0}
        store.execute("UPDATE hot SET heat = heat + 1 WHERE site = 3 AND _wstart = (SELECT min(_wstart) FROM hot)")
        assert run.wrong_results() == (40, 1)
    plant.execute("DELETE FROM plant.meters WHERE ts = 1700000000001")
    assert run.lost_rows(patience_s=0)
