"""Which settings Spark gets, and by which way: what is secret goes where no other account can read it. No PySpark."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from pathlib import Path

from penstock.common.config import AUTHENTICATE, SECRET, SECRET_FILE, is_local, is_secret
from penstock.common.errors import ConfigError

_SECRET_BYTES_MAX = 4096
_SOCKETS = "spark.python.unix.domain.socket.dir"


def on_command_line(settings: Mapping[str, str]) -> dict[str, str]:
    """Returns those that Java may be started with: every account of the machine can read them in the process list.

    The others follow over the gateway, which has a token.
    """
    return {name: value for name, value in settings.items() if not is_secret(name)}


def with_secret(settings: Mapping[str, str]) -> dict[str, str]:
    """Returns the settings with what Spark's processes prove to each other, if they shall: drawn for this run alone
    where all of them are started from here, else what the cluster's own file has.

    Other cluster managers draw their own. Raises ConfigError for a file that can't be used.
    """
    found = dict(settings)
    path = found.pop(SECRET_FILE, None) if settings["spark.master"].startswith("spark://") else None
    if found.get(AUTHENTICATE) != "true" or SECRET in found:
        return found
    if is_local(found["spark.master"]):
        found[SECRET] = secrets.token_hex(32)
    elif path is not None:
        found[SECRET] = _read_secret(Path(path))
    return found


def with_sockets(settings: Mapping[str, str], directory: Path) -> dict[str, str]:
    """Returns the settings with the folder in which Java and Python of this machine meet.

    On other machines that is the temporary folder.
    """
    return {_SOCKETS: str(directory), **settings} if is_local(settings["spark.master"]) else dict(settings)


def _read_secret(path: Path) -> str:
    try:
        with path.open("rb") as file:
            secret = file.read(_SECRET_BYTES_MAX + 1).decode().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{SECRET_FILE}: {path} cannot be read: {error}") from error
    if not secret or len(secret) > _SECRET_BYTES_MAX:
        raise ConfigError(f"{SECRET_FILE}: {path} must hold 1 to {_SECRET_BYTES_MAX} bytes")
    return secret
