"""A connection that knows several hosts: it finds the active node, and says what it can't know."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest

from penstock.common.clock import ManualClock
from penstock.common.errors import (
    CancelledError,
    InvalidValueError,
    NoAnswerError,
    NotActiveError,
    PenstockError,
    ReplicasMissingError,
    UnavailableError,
)
from penstock.mnode.access.session import Result, SessionState
from penstock.shell.flight_sql import several_hosts
from penstock.shell.flight_sql.several_hosts import SeveralHosts, may_be_repeated, read_hosts


class HurriedClock(ManualClock):
    """Waiting takes no time, and the clock goes on meanwhile."""

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        self.advance(timeout_s)
        return event.is_set()


@dataclass
class FakeNode:
    """A node; `errors` are what its next statements end with."""

    role: str | None = "standby"
    answers: bool = True
    answers_nobody: bool = False
    errors: list[PenstockError] = field(default_factory=list)
    done: list[str] = field(default_factory=list)
    resumed: list[Any] = field(default_factory=list)
    hangs: threading.Event | None = None


class FakeEngine:
    """A session with a node."""

    def __init__(self, node: FakeNode) -> None:
        self.node = node

    def execute(self, text: str, state: SessionState) -> Result:
        if not self.node.answers:
            raise NoAnswerError("it is gone")
        if "ins_cluster" in text:
            return Result((), pa.table({"role": pa.array([self.node.role], pa.string())}), 1)
        if self.node.hangs is not None:
            assert self.node.hangs.wait(60)
            raise CancelledError("the call was cancelled")
        if self.node.errors:
            raise self.node.errors.pop(0)
        self.node.done.append(text)
        return Result(affected=1)

    def resume(self, *what: Any) -> None:
        self.node.resumed.append(what)

    def close(self) -> None:
        """Nothing is open."""

    def let_go(self) -> None:
        """Whoever waits for an answer gets none."""
        if self.node.hangs is not None:
            self.node.hangs.set()


class Hosts:
    """Three nodes, of which the first is active, and a connection that knows them all."""

    def __init__(self) -> None:
        self.nodes = [FakeNode("active"), FakeNode(), FakeNode()]
        self.state = SessionState("UTC")
        self.state.database = "d"
        self.connection = SeveralHosts([("node", place) for place in range(3)], self.connect, HurriedClock())

    def connect(self, host: str, port: int) -> Any:
        if not self.nodes[port].answers or self.nodes[port].answers_nobody:
            raise NoAnswerError("nobody is there")
        return FakeEngine(self.nodes[port])

    def run(self, text: str) -> None:
        self.connection.execute(text, self.state)

    def take_over(self) -> None:
        self.nodes[0].role, self.nodes[2].role = "standby", "active"


def test_the_active_node_is_found_wherever_it_is() -> None:
    """What a node refused is done by the one that is active by then, in a session like the one before."""
    hosts = Hosts()
    for text in ("SET queryTimeout '9s'", "SET ansiQuotes ON", "SET queryTimeout '5s'"):
        hosts.run(text)
    hosts.run("CREATE TABLE t (ts TIMESTAMP)")
    hosts.take_over()
    hosts.nodes[0].errors.append(NotActiveError("follows"))
    hosts.run("CREATE TABLE u (ts TIMESTAMP)")
    assert hosts.nodes[0].done[2:] == ["SET queryTimeout '5s'", "CREATE TABLE t (ts TIMESTAMP)"]
    assert hosts.nodes[2].done == ["CREATE TABLE u (ts TIMESTAMP)"]
    assert hosts.nodes[2].resumed == [("d", None, ["SET queryTimeout '5s'", "SET ansiQuotes ON"])]
    assert hosts.nodes[1].done == []


@pytest.mark.parametrize("error", [NoAnswerError("it is gone"), ReplicasMissingError("active no more")])
def test_rows_that_nobody_confirmed_are_sent_again(error: PenstockError) -> None:
    """Rows with times of their own are upserts: they are there once, whatever became of the first try."""
    hosts = Hosts()
    hosts.take_over()
    hosts.nodes[0].role = "active"
    hosts.connection = SeveralHosts([("node", 0), ("node", 2)], hosts.connect, HurriedClock())
    hosts.nodes[0].errors.append(error)
    hosts.nodes[0].role = "standby"
    hosts.run("INSERT INTO t VALUES (1, 2)")
    assert hosts.nodes[2].done == ["INSERT INTO t VALUES (1, 2)"]


def test_what_must_not_be_done_twice_is_left_to_the_user() -> None:
    """The error says that nobody knows; the next statement goes to the node that is active."""
    hosts = Hosts()
    hosts.take_over()
    hosts.nodes[0].role = "active"
    hosts.connection = SeveralHosts([("node", 0), ("node", 2)], hosts.connect, HurriedClock())
    hosts.nodes[0].errors.append(NoAnswerError("it is gone"))
    hosts.nodes[0].role = "standby"
    with pytest.raises(NoAnswerError, match="it is unknown whether"):
        hosts.run("INSERT INTO t VALUES (NOW, 2)")
    assert hosts.nodes[2].done == []
    hosts.run("INSERT INTO t VALUES (NOW, 3)")
    assert hosts.nodes[2].done == ["INSERT INTO t VALUES (NOW, 3)"]


def test_a_node_that_stands_still_is_given_up() -> None:
    """It takes connections no more and says nothing: the row is sent to the node that has taken over."""
    hosts = Hosts()
    hosts.take_over()
    hosts.nodes[0].role = "active"
    hosts.connection = SeveralHosts([("node", 0), ("node", 2)], hosts.connect, HurriedClock(), silence_s=0.02)
    hosts.nodes[0].hangs = threading.Event()
    hosts.nodes[0].answers_nobody = True
    hosts.run("INSERT INTO t VALUES (1, 2)")
    assert hosts.nodes[2].done == ["INSERT INTO t VALUES (1, 2)"]
    hosts.connection.close()


def test_a_host_that_says_nothing_keeps_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others are asked again, until one of them is active; what the silent one says later is of no use."""
    monkeypatch.setattr(several_hosts, "_REST_S", 0.02)
    hosts, answers = Hosts(), threading.Event()
    asked = list[int]()

    def connect(host: str, port: int) -> Any:
        asked.append(port)
        if port == 0:
            assert answers.wait(60)
        elif len(asked) > 6:
            hosts.nodes[2].role = "active"
        return hosts.connect(host, port)

    hosts.nodes[0].role = "standby"
    connection = SeveralHosts([("node", place) for place in range(3)], connect, HurriedClock())
    answers.set()
    connection.execute("DROP TABLE t", hosts.state)
    assert hosts.nodes[2].done == ["DROP TABLE t"]


def test_missing_replicas_are_told_while_the_node_stays_active() -> None:
    """Nobody else would do better."""
    hosts = Hosts()
    hosts.nodes[0].errors.append(ReplicasMissingError("REPLICA 2 needs 2 nodes"))
    with pytest.raises(ReplicasMissingError, match="needs 2 nodes"):
        hosts.run("INSERT INTO t VALUES (1, 2)")


def test_it_gives_up_when_nobody_is_active() -> None:
    """After a minute, with the names of all."""
    hosts = Hosts()
    hosts.nodes[0].answers = False
    with pytest.raises(NoAnswerError, match="it is unknown whether"):
        hosts.run("DROP TABLE t")
    with pytest.raises(UnavailableError, match="none of node:1, node:2, node:0 is the active node"):
        hosts.run("DROP TABLE t")


def test_hosts_are_read() -> None:
    """Names, addresses, and ports where they differ."""
    assert read_hosts("alpha, beta:8816,[::1]:8817,::1", 8815) == [
        ("alpha", 8815), ("beta", 8816), ("::1", 8817), ("::1", 8815)]
    with pytest.raises(InvalidValueError):
        read_hosts("alpha,,beta", 8815)


@pytest.mark.parametrize(("text", "twice"), [
    ("SELECT * FROM t", True), ("INSERT INTO t VALUES (1, 2)", True), ("INSERT INTO t VALUES (1, 'now')", False),
    ("insert into t values (now, 2)", False), ("INSERT INTO t SELECT * FROM u", False), ("DROP TABLE t", False),
    ("DELETE FROM t", False), ("INSERT INTO t FILE 'x.csv'", False)])
def test_what_may_be_repeated(text: str, twice: bool) -> None:
    """What leaves the same when it is done twice; in doubt it isn't."""
    assert may_be_repeated(text) is twice
