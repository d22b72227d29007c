"""Settings of a session as PostgreSQL's clients ask for them by SHOW and change them by SET, and what they are told."""

from __future__ import annotations

import re
import zoneinfo
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from penstock import __version__
from penstock.common.errors import InvalidValueError
from penstock.common.quantities import seconds_text
from penstock.mnode.access.session import SessionState

SERVER_VERSION = "16.4"
_VERSION_NUMBER = "160004"
VERSION_TEXT = f"PostgreSQL {SERVER_VERSION} (Penstock {__version__})"
"""What `version()` says: a version that clients know, and whose server this is."""

#: Told at the login, and whenever they change.
_REPORTED = ("server_version", "server_encoding", "client_encoding", "application_name", "DateStyle", "IntervalStyle",
             "TimeZone", "integer_datetimes", "standard_conforming_strings", "is_superuser", "session_authorization",
             "default_transaction_read_only", "in_hot_standby")
_FIXED = {
    "server_version": f"{SERVER_VERSION} (Penstock {__version__})", "server_version_num": _VERSION_NUMBER,
    "server_encoding": "UTF8", "client_encoding": "UTF8", "DateStyle": "ISO, YMD", "IntervalStyle": "postgres",
    "integer_datetimes": "on", "standard_conforming_strings": "on", "default_transaction_read_only": "off",
    "in_hot_standby": "off", "transaction_isolation": "read committed", "transaction_read_only": "off",
    "max_identifier_length": "63", "lc_collate": "C", "lc_ctype": "C", "bytea_output": "hex", "is_superuser": "off",
}
#: What is taken; but for statement_timeout it changes nothing: there is nothing here that it would change.
_TAKEN = {
    "application_name": "", "extra_float_digits": "1", "statement_timeout": "0", "lock_timeout": "0",
    "idle_in_transaction_session_timeout": "0", "client_min_messages": "notice", "search_path": "",
    "default_transaction_isolation": "read committed", "row_security": "off", "synchronous_commit": "on",
    "synchronize_seqscans": "on", "default_transaction_deferrable": "off", "jit": "off", "work_mem": "4MB",
    "geqo": "on", "enable_seqscan": "on", "check_function_bodies": "on", "default_tablespace": "",
}
_BY_LOWER_NAME = {name.lower(): name for name in (*_FIXED, *_TAKEN, "TimeZone", "session_authorization")}
_SET = re.compile(
    r"SET\s+(?:(?:SESSION|LOCAL)\s+)?(?:(?P<zone>TIME\s+ZONE)\s+|(?P<names>NAMES)\s+"
    r"|(?P<name>\w+)\s*(?:=|\s+TO\s+|\s+to\s+)\s*)(?P<value>.*)", re.IGNORECASE | re.DOTALL)
_TRANSACTION = re.compile(
    r"SET\s+(?:(?:SESSION\s+CHARACTERISTICS\s+AS|LOCAL)\s+)?TRANSACTION\b.*", re.IGNORECASE | re.DOTALL)
_SHOW = re.compile(r"SHOW\s+(?P<name>\w+|TIME\s+ZONE|TRANSACTION\s+ISOLATION\s+LEVEL|SESSION\s+AUTHORIZATION)",
                   re.IGNORECASE)
_RESET = re.compile(r"RESET\s+(?P<name>\w+|TIME\s+ZONE)", re.IGNORECASE)
_DURATION = re.compile(r"(\d{1,12}(?:\.\d{1,6})?)\s*(us|ms|s|min|h|d)?")
_UNIT_S = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_LONG_NAMES = {"time zone": "timezone", "transaction isolation level": "transaction_isolation",
               "session authorization": "session_authorization"}


@dataclass(frozen=True, slots=True)
class SettingChange:
    """`SET name TO value`; `value` None: back to what it was at first."""

    name: str
    value: str | None


def read_change(text: str) -> SettingChange | None:
    """Returns what SET or RESET changes; None if the statement is none about a setting of PostgreSQL."""
    if _TRANSACTION.fullmatch(text):
        return SettingChange("transaction_isolation", None)
    if (reset := _RESET.fullmatch(text)) is not None:
        name = _known(reset["name"])
        return SettingChange(name or "application_name", None) if name or reset["name"].upper() == "ALL" else None
    found = _SET.fullmatch(text)
    if found is None:
        return None
    name = "TimeZone" if found["zone"] else "client_encoding" if found["names"] else _known(found["name"])
    return None if name is None else SettingChange(name, _plain(found["value"]))


def read_show(text: str) -> str | None:
    """Returns the setting that SHOW asks for; None if it asks for something of the dialect."""
    found = _SHOW.fullmatch(text)
    return None if found is None else _known(found["name"])


def _known(name: str) -> str | None:
    lower = " ".join(name.lower().split())
    return _BY_LOWER_NAME.get(_LONG_NAMES.get(lower, lower))


def _plain(value: str) -> str | None:
    value = value.strip()
    if value.upper() in ("DEFAULT", "LOCAL"):
        return None
    return ",".join(part.strip().strip("'\"`") for part in value.split(","))


class ClientSettings:
    """The settings of one session; those that mean something here change it."""

    def __init__(self, state: SessionState, use: Callable[[str], None], follows: Callable[[], bool]) -> None:
        """`use` has a database in use; `follows` tells whether the server is a node of a cluster that isn't active."""
        self._state = state
        self._follows = follows
        self._use = use
        self._first_zone = state.time_zone
        self._taken = dict(_TAKEN)

    def value(self, name: str) -> str:
        """Returns a known setting's value, by its name as PostgreSQL writes it."""
        match name:
            case "TimeZone":
                return self._state.time_zone
            case "session_authorization":
                return self._state.identity.name
            case "is_superuser":
                return "on" if self._state.identity.role == "admin" else "off"
            case "in_hot_standby" | "transaction_read_only" | "default_transaction_read_only":
                return "on" if self._follows() else "off"
            case "statement_timeout":
                return _duration_text(self._state.query_timeout_s)
            case "search_path":
                return self._state.database or self._taken["search_path"] or "public"
        return self._taken.get(name, _FIXED.get(name, ""))

    def change(self, change: SettingChange) -> str | None:
        """Performs SET, and returns the name if clients are told of it. Raises InvalidValueError, NotFoundError."""
        name, value = change.name, change.value
        if name == "TimeZone":
            self._state.time_zone = _zone(value) if value is not None else self._first_zone
        elif name == "client_encoding":
            if value is not None and value.upper().replace("-", "") not in ("UTF8", "UNICODE"):
                raise InvalidValueError(f"the encoding {value} is not supported; only UTF8 is")
        elif name == "search_path":
            schema = next((each for each in (value or "").split(",") if each not in ("", "public", "$user")), None)
            if schema is not None:
                self._use(schema)
        elif name == "standard_conforming_strings" and value not in (None, "on", "true", "1"):
            raise InvalidValueError("standard_conforming_strings cannot be turned off")
        elif name in self._taken:
            if name == "statement_timeout":
                self._state.query_timeout_s = _seconds(value or "0")
            self._taken[name] = _TAKEN[name] if value is None else value
        return name if name in _REPORTED else None

    def reported(self) -> Iterator[tuple[str, str]]:
        """Yields what a client is told at its login."""
        for name in _REPORTED:
            yield name, self.value(name)

    def all(self) -> dict[str, str]:
        """Returns all settings."""
        return {name: self.value(name) for name in sorted(_BY_LOWER_NAME.values())}


def _seconds(text: str) -> float:
    """Returns a duration as PostgreSQL has it, in milliseconds where it has no unit."""
    found = _DURATION.fullmatch(text)
    if found is None:
        raise InvalidValueError(f"{text!r} is not a duration", hint="write 500, 500ms, 5s, 1min or 1h; 0 is unlimited")
    return float(found[1]) * _UNIT_S[found[2] or "ms"]


def _duration_text(seconds: float) -> str:
    """Returns a duration as PostgreSQL writes it."""
    return re.sub(r"(?<=\d)m$", "min", seconds_text(seconds)) if seconds else "0"


def _zone(name: str) -> str:
    if name.upper() in ("UTC", "GMT", "Z", "0"):
        return "UTC"
    if name not in zoneinfo.available_timezones():
        raise InvalidValueError(f"unknown time zone {name}")
    return name
