"""The audit log: who came in or was refused, and what was done by statements; never passwords, values or rows.

One JSON object per line, in files that only the engine's account may read.
"""

from __future__ import annotations

import json
import logging
import threading
from collections import OrderedDict, deque
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from penstock.common.clock import Clock
from penstock.common.config import Config
from penstock.common.logging import PrivateLog, logger
from penstock.sql.tree.statements import (
    AnalyzeStream,
    CreateChildTables,
    Delete,
    Describe,
    DropTable,
    Explain,
    Grant,
    Insert,
    KillQuery,
    Name,
    NoteTime,
    Revoke,
    Select,
    SetAnsiQuotes,
    SetOperation,
    SetQueryTimeout,
    Show,
    Statement,
    UseDatabase,
    ValuesQuery,
    VerifyStream,
)

_log = logger(__name__)
_FILE = "audit.log"
_OBJECT_CHARACTERS = 512
_SHOWN = 10_000
_KNOWN_MAX = 1000
_SAME_LOGIN_S = 3600.0
# What reads and writes rows, or looks: so much of it that it is only logged where that is configured.
_DAILY: tuple[type[Statement], ...] = (
    Select, SetOperation, ValuesQuery, Explain, AnalyzeStream, VerifyStream, Show, Describe, UseDatabase,
    SetQueryTimeout, SetAnsiQuotes, Insert, Delete, NoteTime)

Interface = Literal["embedded", "flight", "socket", "http", "postgres"]
Outcome = Literal["allowed", "refused"]


@dataclass(frozen=True, slots=True)
class Origin:
    """By which interface somebody came, and from what address: "" where there is none."""

    interface: Interface = "embedded"
    address: str = ""


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One line. `user` is "" where a login named none that there is; `what` is LOGIN or the kind of a statement."""

    time_ms: int
    user: str
    interface: str
    address: str
    what: str
    on: str
    outcome: str


class Audit:
    """Writes the log; safe for many threads. What can't be written is told to the engine's log, and holds nobody up."""

    def __init__(self, directory: Path, config: Config, clock: Clock) -> None:
        """`auditLog` of the configuration says what is written; the files are those of `directory`."""
        self._level = config.audit_log
        #: whether it has an entry for each INSERT
        self.notes_rows = self._level == "all"
        self._clock = clock
        self._path = directory / _FILE
        self._handler = _AuditFiles(
            self._path, maxBytes=config.log_file_size, backupCount=config.log_files_kept, encoding="utf-8", delay=True)
        self._lock = threading.Lock()
        self._known: OrderedDict[tuple[str, Origin], float] = OrderedDict()

    def login(self, user: str, origin: Origin, *, again: bool = False) -> None:
        """Notes a login. `again`: who sends a password with each request is only noted once an hour."""
        if self._level == "off" or (again and self._is_known(user, origin)):
            return
        self._write(user, origin, "LOGIN", "", "allowed")

    def login_refused(self, origin: Origin) -> None:
        """Notes a login that was refused. As whom isn't told: it may be a password in the wrong field."""
        if self._level != "off":
            self._write("", origin, "LOGIN", "", "refused")

    def statement(self, user: str, origin: Origin, statement: Statement) -> None:
        """Notes a statement that is going to be executed."""
        if self._level == "all" or (self._level == "changes" and not isinstance(statement, _DAILY)):
            self._write(user, origin, words_of(statement), object_of(statement), "allowed")

    def rows(self, user: str, origin: Origin, what: str, on: str) -> None:
        """Notes rows that are going to be written without a statement."""
        if self._level == "all":
            self._write(user, origin, what, on, "allowed")

    def refused(self, user: str, origin: Origin, what: str, on: str) -> None:
        """Notes what somebody must not do."""
        if self._level != "off":
            self._write(user, origin, what, on, "refused")

    def entries(self) -> list[AuditEntry]:
        """Returns the newest entries, the oldest first; lines that are damaged are left out."""
        lines: deque[AuditEntry] = deque(maxlen=_SHOWN)
        for number in range(self._handler.backupCount, -1, -1):
            path = self._path.with_name(f"{_FILE}.{number}") if number else self._path
            lines.extend(_read(path))
        return list(lines)

    def close(self) -> None:
        self._handler.close()

    def _is_known(self, user: str, origin: Origin) -> bool:
        """Tells whether somebody was noted within the last hour, and takes note."""
        now = self._clock.monotonic()
        with self._lock:
            noted = self._known.get((user, origin))
            if noted is not None and now < noted + _SAME_LOGIN_S:
                return True
            self._known[user, origin] = now
            self._known.move_to_end((user, origin))
            while len(self._known) > _KNOWN_MAX:
                self._known.popitem(last=False)
            return False

    def _write(self, user: str, origin: Origin, what: str, on: str, outcome: Outcome) -> None:
        entry = AuditEntry(
            self._clock.now_ms(), user, origin.interface, origin.address, what, on[:_OBJECT_CHARACTERS], outcome)
        line = json.dumps(asdict(entry), ensure_ascii=True)
        self._handler.handle(logging.LogRecord("audit", logging.INFO, "", 0, line, None, None))


def words_of(statement: Statement) -> str:
    """Returns what kind a statement is of, such as CREATE USER."""
    if isinstance(statement, SetOperation | ValuesQuery):
        return "SELECT"
    name = type(statement).__name__
    return "".join(f" {each}" if each.isupper() else each for each in name).strip().upper()


def object_of(statement: Statement) -> str:
    """Returns what a statement is about, as it names it: no values, no options, no conditions."""
    match statement:
        case Grant() | Revoke():
            return f"{', '.join(statement.privileges).upper()} ON {statement.on} TO {statement.user}"
        case DropTable():
            return ", ".join(map(str, statement.names))
        case CreateChildTables(plain=plain) if plain is not None:
            return ", ".join(str(Name(name, plain.child.database)) for name in plain.names)
        case CreateChildTables():
            return ", ".join(str(table.name) for table in statement.tables)
        case Insert():
            return ", ".join(str(target.name) for target in statement.targets)
        case NoteTime():
            return statement.database
        case KillQuery():
            return f"{statement.number:x}"
    return str(getattr(statement, "name", ""))


def _read(path: Path) -> Iterator[AuditEntry]:
    try:
        text = path.read_text("utf-8", errors="replace")
    except FileNotFoundError:
        return
    except OSError as error:
        _log.warning("%s cannot be read: %s", path, error)
        return
    for line in text.splitlines():
        try:
            values: Any = json.loads(line)
            yield AuditEntry(int(values["time_ms"]), *(
                str(values[name]) for name in ("user", "interface", "address", "what", "on", "outcome")))
        except (ValueError, KeyError, TypeError):
            continue


class _AuditFiles(PrivateLog):
    def handleError(self, record: logging.LogRecord) -> None:
        _log.exception("the audit log cannot be written")
