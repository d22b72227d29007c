"""Connections to external servers: which kinds there are, which options each has, and how secrets get into them.

A connection is neither a source nor a sink by itself. As the catalog keeps it (`Connection`), secrets are references,
`env:NAME` or `file:/path`. With the secrets read (`OpenedConnection`) it lives in memory only, and tells nobody.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args
from urllib.parse import SplitResult, urlsplit

from penstock.common.errors import InvalidStatementError, SecretMissingError
from penstock.common.quantities import read_duration
from penstock.common.suggestions import alternatives, did_you_mean

ConnectionKind = Literal["mqtt", "kafka", "postgres", "files", "webhook"]
KINDS: tuple[ConnectionKind, ...] = get_args(ConnectionKind)

Options = tuple[tuple[str, str], ...]
"""(name, value) pairs by name; each name once."""

_REFERENCE = re.compile(r"env:[A-Za-z_][A-Za-z0-9_]*|file:/.+", re.DOTALL)
_REFERENCE_HINT = "write where it is: env:NAME for a variable of the engine's environment, file:/path for a file"
HIDDEN = "***"


@dataclass(frozen=True, slots=True)
class OptionRule:
    """What an option may be. `default` None: there is none. `choices` empty: any text that `check` takes.

    `check` raises ValueError that says what is expected. A `secret` is given by reference only.
    """

    default: str | None = None
    required: bool = False
    secret: bool = False
    choices: tuple[str, ...] = ()
    check: Callable[[str], object] | None = None


def _port(text: str) -> int:
    if not text.isdigit() or not 1 <= int(text) <= 65_535:
        raise ValueError("expected a port, 1 to 65535")
    return int(text)


def _timeout(text: str) -> float:
    seconds = read_duration(text)
    if not 0.1 <= seconds <= 600:
        raise ValueError("expected 100ms to 10m")
    return seconds


def _url(*schemes: str) -> Callable[[str], object]:
    """Returns the check of a URL of a server with one of these schemes."""
    expected = f"expected a URL such as {' or '.join(f'{scheme}://host:1234' for scheme in schemes)}"

    def check(text: str) -> object:
        parts = _url_parts(text, expected)
        if parts.scheme not in schemes or not parts.hostname:
            raise ValueError(expected)
        return parts
    return check


def _place(text: str) -> object:
    return _url_parts(text, "expected a URL such as file:///var/data or s3://bucket/folder")


def _url_parts(text: str, expected: str) -> SplitResult:
    """Returns the parts of a URL. The ValueErrors are ours: those of urllib quote what may be a password."""
    try:
        parts = urlsplit(text)
        whole = "://" in text and parts.port != 0
    except ValueError:
        raise ValueError(expected) from None
    if parts.username is not None or parts.password is not None:
        raise ValueError("user and password are not allowed in it: use their options")
    if not whole:
        raise ValueError(expected)
    return parts


_TIMEOUT = OptionRule("10s", check=_timeout)
_SECRET = OptionRule(secret=True)
_REQUIRED = OptionRule(required=True)

RULES: Mapping[ConnectionKind, Mapping[str, OptionRule]] = {
    "kafka": {
        "servers": _REQUIRED,
        "security": OptionRule("plaintext", choices=("plaintext", "ssl", "sasl_plaintext", "sasl_ssl")),
        "mechanism": OptionRule("PLAIN", choices=("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")),
        "username": OptionRule(),
        "password": _SECRET,
        "tls_ca": OptionRule(),
        "timeout": _TIMEOUT,
    },
    "mqtt": {
        "url": OptionRule(required=True, check=_url("mqtt", "mqtts")),
        "username": OptionRule(),
        "password": _SECRET,
        "client_id": OptionRule(),
        "tls_ca": OptionRule(),
        "version": OptionRule("5", choices=("5", "3.1.1")),
        "timeout": _TIMEOUT,
    },
    "postgres": {
        "host": _REQUIRED,
        "port": OptionRule("5432", check=_port),
        "database": _REQUIRED,
        "username": _REQUIRED,
        "password": _SECRET,
        "sslmode": OptionRule("prefer", choices=("disable", "allow", "prefer", "require", "verify-ca", "verify-full")),
        "tls_ca": OptionRule(),
        "timeout": _TIMEOUT,
    },
    "files": {
        "url": OptionRule(required=True, check=_place),
        "endpoint": OptionRule(check=_url("http", "https")),
        "region": OptionRule(),
        "key": _SECRET,
        "secret": _SECRET,
        "timeout": _TIMEOUT,
    },
    "webhook": {
        "url": OptionRule(required=True, check=_url("http", "https")),
        "token": _SECRET,
        "tls_ca": OptionRule(),
        "timeout": _TIMEOUT,
    },
}
"""Every option of every kind: the one place that knows them."""


@dataclass(frozen=True, slots=True)
class ExternalConnection:
    """A connection as the catalog keeps it. `options`: those that were given, by name; secrets are references.

    `version` counts from 1 and goes up with every ALTER CONNECTION.
    """

    name: str
    kind: ConnectionKind
    options: Options
    version: int = 1


@dataclass(frozen=True, slots=True, repr=False)
class OpenedConnection:
    """A connection with its secrets read and its defaults filled in. It must never be written anywhere.

    It travels to workers inside messages. Neither repr nor str shows more than name and kind.
    """

    name: str
    kind: ConnectionKind
    options: Mapping[str, str]
    version: int

    def __repr__(self) -> str:
        return f"OpenedConnection({self.name}, {self.kind})"

    @property
    def timeout_s(self) -> float:
        """How long a call may take, in seconds."""
        return read_duration(self.options["timeout"])

    @property
    def address(self) -> str:
        """The URL as texts may show it: what is behind `?` may be a key."""
        return self.options["url"].partition("?")[0]

    def hidden(self, text: str) -> str:
        """Returns a text, such as a library's error, without the secrets that it may quote."""
        rules = RULES[self.kind]
        secrets = {value for name, value in self.options.items() if rules[name].secret and value}
        for secret in sorted(secrets, key=len, reverse=True):
            text = text.replace(secret, HIDDEN)
        return text


def checked_kind(kind: str) -> ConnectionKind:
    """Returns the kind that a statement names. Raises InvalidStatementError."""
    if kind not in KINDS:
        raise InvalidStatementError(f"{kind!r} is not a connection type",
                                    hint=did_you_mean(kind, KINDS) or f"there are {', '.join(KINDS)}")
    return kind


def checked_options(kind: ConnectionKind, given: Sequence[tuple[str, str]]) -> Options:
    """Returns the options of a connection in the order of their names.

    Raises InvalidStatementError that lists everything that is wrong at once; it never quotes the value of a secret.
    """
    rules = RULES[kind]
    problems: list[str] = []
    hints: list[str] = []
    names = [name for name, _ in given]
    problems += [f"{name} is given twice" for name in dict.fromkeys(names) if names.count(name) > 1]
    for name, value in given:
        rule = rules.get(name)
        if rule is None:
            problems.append(f"{name} is unknown")
            hints.append(did_you_mean(name, rules) or f"the options of {kind} are {', '.join(rules)}")
        elif rule.secret and not _REFERENCE.fullmatch(value):
            problems.append(f"{name} is a secret, which is not written into statements")
            hints.append(_REFERENCE_HINT)
        elif (problem := _problem(rule, value)) is not None:
            problems.append(f"{name}: {problem}")
    problems += [f"{name} is missing" for name in rules if name not in names and _is_needed(name, kind, dict(given))]
    if problems:
        raise InvalidStatementError(f"options of a connection of type {kind}: {'; '.join(dict.fromkeys(problems))}",
                                    hint="; ".join(dict.fromkeys(hints)) or None)
    return tuple(sorted(given))


def opened(
    connection: ExternalConnection, environ: Mapping[str, str], read_text: Callable[[str], str]
) -> OpenedConnection:
    """Returns the connection with its secrets. `read_text` returns the text of a file, or raises OSError.

    Raises SecretMissingError that names each variable and file that isn't there; the administrator's task.
    """
    rules = RULES[connection.kind]
    values = {name: rule.default for name, rule in rules.items() if rule.default is not None}
    missing: list[str] = []
    for name, value in connection.options:
        if rules[name].secret:
            secret, problem = read_secret(value, environ, read_text)
            if problem is not None:
                missing.append(f"{name}: {problem}")
            values[name] = secret
        else:
            values[name] = value
    if missing:
        raise SecretMissingError(f"connection {connection.name} lacks secrets: {'; '.join(missing)}",
                                 hint="the operator must set them; variables before the engine starts")
    return OpenedConnection(connection.name, connection.kind, values, connection.version)


def _is_needed(name: str, kind: ConnectionKind, given: Mapping[str, str]) -> bool:
    if name == "username" and "password" in given:
        return True
    if kind == "kafka" and name in ("username", "password"):
        return given.get("security", "").startswith("sasl")
    return RULES[kind][name].required


def _problem(rule: OptionRule, value: str) -> str | None:
    if not value or not value.isprintable():
        return "it must not be empty, and must be printable"
    if rule.choices and value not in rule.choices:
        return f"expected {alternatives(rule.choices)}"
    if rule.check is not None:
        try:
            rule.check(value)
        except ValueError as error:
            return str(error)
    return None


def read_secret(
    reference: str, environ: Mapping[str, str], read_text: Callable[[str], str]
) -> tuple[str, str | None]:
    """Returns the secret that `env:NAME` or `file:/path` refers to, and what is wrong with that.

    `read_text` returns the text of a file, or raises OSError or UnicodeDecodeError.
    """
    scheme, _, place = reference.partition(":")
    if scheme == "env":
        secret = environ.get(place, "")
        return secret, None if secret else f"the environment variable {place} is not set"
    try:
        secret = read_text(place).rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not valid UTF-8"
        return "", f"the file {place} cannot be read: {reason}"
    return secret, None if secret else f"the file {place} is empty"
