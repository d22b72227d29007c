"""The first process of a container: makes users of the secrets that it finds, and becomes `penstock`.

A file `penstock_ROLE` in /run/secrets is the password of a user called as its role: admin, write or read. Users that
are there stay as they are. A server that listens beyond its own container needs one. Other commands than `serve` run
as they are.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import penstock

DATA = Path("/var/lib/penstock")
SECRETS = Path("/run/secrets")
ROLES = ("admin", "write", "read")
"""The first user must be an admin."""


def make_users(data: Path, secrets: Path) -> None:
    """Makes those users that there is a secret for and that don't exist yet; no stream runs meanwhile."""
    passwords = {role: (secrets / f"penstock_{role}").read_text("utf-8").strip()
                 for role in ROLES if (secrets / f"penstock_{role}").is_file()}
    if not passwords:
        return
    with penstock.connect(str(data), {"disableStream": True}) as owner:
        for role, password in passwords.items():
            literal = password.replace("\\", "\\\\").replace("'", "\\'")
            owner.execute(f"CREATE USER IF NOT EXISTS {role} PASS '{literal}' ROLE {role}")


def main(words: list[str]) -> None:
    """Runs `penstock` with a container's data directory and the words of its command."""
    if words[:1] == ["serve"]:
        make_users(DATA, SECRETS)
    command = [sys.executable, "-m", "penstock", "--data", str(DATA), *words]
    os.execv(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
