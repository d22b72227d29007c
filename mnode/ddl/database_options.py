"""The options of CREATE and ALTER DATABASE: which exist, what they may be, which can be changed later.

It reads and checks values; what an option does is decided where it is used. Options that change nothing in Penstock
are checked all the same and kept, so that SHOW CREATE DATABASE gives back what was asked for.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal, cast

from penstock.common.errors import InvalidStatementError
from penstock.common.suggestions import did_you_mean
from penstock.mnode.cluster.synchronous_set import LogReplicas
from penstock.sql.schema import DatabaseOptions
from penstock.sql.types import Precision

Value = str | int
Unit = Literal["", "d", "h"]
"""What a bare number of an option means: a plain number, days, or hours."""

_MINUTES = {"m": 1, "h": 60, "d": 1440}
_INVALID = 0x2617


@dataclass(frozen=True, slots=True)
class OptionSpec:
    """One option: `default` as shown, the range of numbers (durations: in minutes), or the allowed words."""

    default: str
    low: int = 0
    high: int = 2**63 - 1
    words: tuple[str, ...] = ()
    unit: Unit = ""
    alterable: bool = False
    free_text: bool = False
    numbers: tuple[int, ...] = ()


SPECS: Mapping[str, OptionSpec] = {
    "VGROUPS": OptionSpec("2", 1, 1024),
    "PRECISION": OptionSpec("ms", words=("ms", "us", "ns")),
    "REPLICA": OptionSpec("1", numbers=(1, 2, 3), alterable=True),
    "REPLICA_MISSING": OptionSpec("wait", words=("wait", "continue"), alterable=True),
    "BUFFER": OptionSpec("256", 3, 16384, alterable=True),
    "PAGES": OptionSpec("256", 64, 2**31 - 1, alterable=True),
    "PAGESIZE": OptionSpec("4", 1, 16384),
    "TSDB_PAGESIZE": OptionSpec("4", 1, 16384),
    "CACHEMODEL": OptionSpec("none", words=("none", "last_row", "last_value", "both"), alterable=True),
    "CACHESIZE": OptionSpec("1", 1, 65536, alterable=True),
    "COMP": OptionSpec("2", 0, 2),
    "DURATION": OptionSpec("10d", 60, 3650 * 1440, unit="d"),
    "KEEP": OptionSpec("3650d", 1440, 365_000 * 1440, unit="d", alterable=True),
    "KEEP_TIME_OFFSET": OptionSpec("0", 0, 23, unit="h", alterable=True),
    "MAXROWS": OptionSpec("4096", 200, 10_000),
    "MINROWS": OptionSpec("100", 10, 1000, alterable=True),
    "STT_TRIGGER": OptionSpec("2", 1, 16, alterable=True),
    "SINGLE_STABLE": OptionSpec("0", numbers=(0, 1)),
    "TABLE_PREFIX": OptionSpec("0", -191, 191),
    "TABLE_SUFFIX": OptionSpec("0", -191, 191),
    "STRICT": OptionSpec("on", words=("on", "off", "1", "0")),
    "RETENTIONS": OptionSpec("", free_text=True),
    "DNODES": OptionSpec("", free_text=True),
    "ENCRYPT_ALGORITHM": OptionSpec("none", words=("none", "sm4")),
    "WAL_LEVEL": OptionSpec("1", numbers=(1, 2), alterable=True),
    "WAL_FSYNC_PERIOD": OptionSpec("3000", 0, 180_000, alterable=True),
    "WAL_RETENTION_PERIOD": OptionSpec("3600", -1, alterable=True),
    "WAL_RETENTION_SIZE": OptionSpec("0", -1, alterable=True),
    "WAL_ROLL_PERIOD": OptionSpec("0", 0, alterable=True),
    "WAL_SEGMENT_SIZE": OptionSpec("0", 0, alterable=True),
    "SS_CHUNKPAGES": OptionSpec("131072", 131072, 1048576),
    "SS_KEEPLOCAL": OptionSpec("365d", 1440, 365_000 * 1440, unit="d", alterable=True),
    "SS_COMPACT": OptionSpec("1", numbers=(0, 1), alterable=True),
    "COMPACT_INTERVAL": OptionSpec("0d", 0, 365_000 * 1440, unit="d", alterable=True),
    "COMPACT_TIME_OFFSET": OptionSpec("0", 0, 23, unit="h", alterable=True),
}

_RESOLVED: Mapping[str, tuple[str, Callable[[DatabaseOptions, int], DatabaseOptions]]] = {
    "VGROUPS": ("vgroups", lambda options, value: replace(options, vgroups=value)),
    "WAL_LEVEL": ("wal_level", lambda options, value: replace(options, wal_level=value)),
    "WAL_FSYNC_PERIOD": ("wal_fsync_period_ms", lambda options, value: replace(options, wal_fsync_period_ms=value)),
    "WAL_RETENTION_PERIOD": (
        "wal_retention_period_s", lambda options, value: replace(options, wal_retention_period_s=value)),
    "WAL_RETENTION_SIZE": (
        "wal_retention_size_kb", lambda options, value: replace(options, wal_retention_size_kb=value)),
}
"""Options that DatabaseOptions has a field for: its name, and how it is set."""


def resolve_options(given: Iterable[tuple[str, Value]], nodes: int = 1) -> DatabaseOptions:
    """Returns the options of a new database. `InvalidStatementError` for unknown, repeated or bad ones.

    `nodes`: how many there are to have replicas.
    """
    return _apply(DatabaseOptions(), list(given), nodes)


def change_options(
    current: DatabaseOptions, given: Iterable[tuple[str, Value]], nodes: int = 1
) -> DatabaseOptions:
    """Returns a database's options after ALTER DATABASE. `InvalidStatementError` for what cannot be changed."""
    changes = list(given)
    for name, _ in changes:
        if not _spec(name).alterable:
            raise InvalidStatementError(f"option {name} cannot be changed after CREATE DATABASE", code=_INVALID)
    return _apply(current, changes, nodes)


def log_replicas(options: DatabaseOptions) -> LogReplicas:
    """Returns what a database asks of a cluster for the logs of its vnodes."""
    other = dict(options.other)
    return LogReplicas(int(other.get("REPLICA", 1)), options.wal_level, other.get("REPLICA_MISSING") == "continue")


def effective_options(options: DatabaseOptions) -> dict[str, str]:
    """Returns every option with its value as text, in the order of SPECS; what TDengine doesn't have if it was given.
    """
    values = {name: spec.default for name, spec in SPECS.items() if name != "REPLICA_MISSING"}
    values.update(options.other)
    values["PRECISION"] = options.precision
    for name, (attribute, _) in _RESOLVED.items():
        values[name] = str(getattr(options, attribute))
    values.setdefault("KEEP", f"{options.keep_minutes}m")
    return values


def _apply(options: DatabaseOptions, given: list[tuple[str, Value]], nodes: int) -> DatabaseOptions:
    other = dict(options.other)
    seen: set[str] = set()
    for name, value in given:
        spec = _spec(name)
        if name in seen:
            raise InvalidStatementError(f"option {name} is given twice", code=_INVALID)
        seen.add(name)
        if name == "PRECISION":
            options = replace(options, precision=cast(Precision, _word(name, value, spec)))
        elif name == "KEEP":
            minutes = _keep(value)
            options = replace(options, keep_minutes=minutes[-1])
            other["KEEP"] = ",".join(f"{m // 1440}d" if m % 1440 == 0 else f"{m}m" for m in dict.fromkeys(minutes))
        elif name in _RESOLVED:
            options = _RESOLVED[name][1](options, _number(name, value, spec))
        elif spec.unit == "d":
            minutes_of = _duration(name, value, spec)
            other[name] = f"{minutes_of // 1440}d" if minutes_of % 1440 == 0 else f"{minutes_of}m"
        elif spec.words:
            other[name] = _word(name, value, spec)
        elif spec.free_text:
            other[name] = str(value)
        else:
            other[name] = str(_number(name, value, spec))
    _check_together(other, nodes)
    return replace(options, other=tuple(sorted(other.items())))


def _check_together(other: Mapping[str, str], nodes: int) -> None:
    duration = _minutes("DURATION", other.get("DURATION", SPECS["DURATION"].default))
    keep = [_minutes("KEEP", part) for part in other.get("KEEP", SPECS["KEEP"].default).split(",")]
    if min(keep) < 3 * duration:
        raise InvalidStatementError(
            f"KEEP must be at least three times DURATION ({duration} minutes), not {min(keep)} minutes", code=_INVALID)
    replicas = int(other.get("REPLICA", "1"))
    if replicas > nodes:
        words = {1: "one", 2: "two", 3: "three"}
        raise InvalidStatementError(
            f"REPLICA {replicas} needs {words[replicas]} dnodes; this engine has {words[nodes]}", code=0x0386,
            hint="clusterNodes lists the nodes" if nodes > 1 else None)
    if int(other.get("MINROWS", "100")) >= int(other.get("MAXROWS", "4096")):
        raise InvalidStatementError("MINROWS must be smaller than MAXROWS", code=_INVALID)


def _spec(name: str) -> OptionSpec:
    spec = SPECS.get(name)
    if spec is None:
        raise InvalidStatementError(f"unknown database option {name}", code=_INVALID, hint=did_you_mean(name, SPECS))
    return spec


def _number(name: str, value: Value, spec: OptionSpec) -> int:
    if isinstance(value, str) and spec.unit == "h" and re.fullmatch(r"\d+h", value):
        value = int(value[:-1])
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidStatementError(f"option {name} needs an integer, not {value!r}", code=_INVALID)
    if spec.numbers and value not in spec.numbers:
        allowed = ", ".join(map(str, spec.numbers))
        raise InvalidStatementError(f"option {name} must be one of {allowed}, not {value}", code=_INVALID)
    if not spec.low <= value <= spec.high:
        raise InvalidStatementError(
            f"option {name} must be between {spec.low} and {spec.high}, not {value}", code=_INVALID)
    return value


def _word(name: str, value: Value, spec: OptionSpec) -> str:
    word = str(value).lower()
    if word not in spec.words:
        allowed = ", ".join(spec.words)
        raise InvalidStatementError(f"option {name} must be one of {allowed}, not {value!r}", code=_INVALID,
                                    hint=did_you_mean(word, spec.words))
    return word


def _minutes(name: str, value: Value) -> int:
    """Returns a duration in minutes; a bare number means days."""
    if isinstance(value, int):
        return value * 1440
    match = re.fullmatch(r"(\d+)([mhd])", value.strip())
    if match is None:
        raise InvalidStatementError(
            f"option {name} needs a number of days or a duration in m, h or d, not {value!r}", code=_INVALID)
    return int(match[1]) * _MINUTES[match[2]]


def _duration(name: str, value: Value, spec: OptionSpec) -> int:
    minutes = _minutes(name, value)
    if not spec.low <= minutes <= spec.high:
        raise InvalidStatementError(
            f"option {name} must be between {spec.low}m and {spec.high // 1440}d, not {value}", code=_INVALID)
    return minutes


def _keep(value: Value) -> list[int]:
    """Returns KEEP's one to three durations in minutes; they may not fall."""
    parts: list[Value] = [value]
    if isinstance(value, str) and "," in value:
        parts = [int(part) if re.fullmatch(r"\s*\d+\s*", part) else part for part in value.split(",")]
    if len(parts) > 3:
        raise InvalidStatementError("option KEEP takes at most three values", code=_INVALID)
    minutes = [_duration("KEEP", part, SPECS["KEEP"]) for part in parts]
    if minutes != sorted(minutes):
        raise InvalidStatementError("the values of KEEP must not decrease", code=_INVALID)
    return minutes
