"""Tries a release as its users will: installs the wheel alone into a new environment, and shows what happens there.

Builds the wheel unless one is named. What is installed comes from where pip is configured to look. Everything is made
in a temporary folder, and servers listen on this machine alone. Ends with 1 at the first thing that goes wrong.
"""

from __future__ import annotations

import socket
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from kits.basics.wheels import IMPORT_ALL, IMPORT_EXTRAS, Installed, build  # noqa: E402
from kits.pages.examples import shown_in  # noqa: E402
from programs.release_clients import PACKAGES  # noqa: E402

#: Extras that only this repository has a use for.
_OF_DEVELOPERS = ("dev", "demo")
_PASSWORD = "correct-horse"
_FIRST_STREAM = """
CREATE DATABASE plant VGROUPS 1;
CREATE TABLE plant.ovens (ts TIMESTAMP, heat DOUBLE);
CREATE MATERIALIZED VIEW plant.hottest AS SELECT max(heat) heat FROM plant.ovens;
INSERT INTO plant.ovens VALUES ('2024-05-01 10:00:00', 180) ('2024-05-01 10:01:00', 220);
SELECT count(*) ovens FROM plant.ovens;
SHOW STREAMS\\G
"""
_DB_API = """
import sys, penstock
with penstock.connect(host="127.0.0.1", port=int(sys.argv[1]), user="ada", password=sys.argv[2]) as con:
    con.execute("CREATE DATABASE power")
    con.execute("CREATE TABLE power.visits (ts TIMESTAMP, family VARCHAR(16))")
    con.execute("INSERT INTO power.visits VALUES ('2024-05-01 10:00:00', 'db_api')")
    print(f"db_api: {con.execute('SELECT count(*) FROM power.visits').fetchone()}")
"""


def main() -> None:
    """Takes the path of a wheel, or none."""
    with tempfile.TemporaryDirectory(prefix="ps-") as name:
        place = Path(name)
        wheel = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else build(place / "dist", place)[0]
        say("the wheel", f"{wheel.name}, {wheel.stat().st_size:,} bytes")
        ours = Installed(place / "ours")
        ours.install(str(wheel))
        try_alone(ours)
        theirs = Installed(place / "theirs")
        theirs.install("--constraint", str(versions(place, "requirements.lock", "tests/clients.lock")), *PACKAGES)
        try_clients(ours, theirs)
        extras = sorted(set(metadata_extras(ours)) - set(_OF_DEVELOPERS))
        ours.install(f"penstock[{','.join(extras)}] @ {wheel.as_uri()}")
        say("extras", ours.run("python", "-c", IMPORT_EXTRAS, *_OF_DEVELOPERS))
        say("modules", ours.run("python", "-c", IMPORT_ALL, "penstock"))


def try_alone(ours: Installed) -> None:
    """The README's session, the shell with a first stream, the configuration and a check of what they left."""
    readme = ROOT / "README.md"
    say("penstock --version", ours.run("penstock", "--version"))
    (ours.folder / "minutes.py").write_text(shown_in(readme, "python")[0], "utf-8")
    found = ours.run("python", "minutes.py")
    say("the README's session", found)
    assert found == shown_in(readme, "text")[0]
    say("penstock", ours.run("penstock", "--data", "plant", stdin=_FIRST_STREAM))
    say("penstock fsck", ours.run("penstock", "fsck", "plant", "--no-progress"))


def try_clients(ours: Installed, theirs: Installed) -> None:
    """A server, and clients of each family, of which only DB-API's is ours."""
    (ours.folder / "user.sql").write_text(f"CREATE USER ada PASS '{_PASSWORD}' ROLE admin;\n", "utf-8")
    with served(ours) as (flight, postgres, taos):
        at = f"unix:{ours.folder / 'served' / 'penstock.sock'}"
        say("a user", ours.run("penstock", "--host", at, "-f", "user.sql"))
        say("clients", ours.run("python", "-c", _DB_API, str(flight), _PASSWORD))
        program = (ROOT / "tests" / "programs" / "release_clients.py").read_text("utf-8")
        say("", theirs.run("python", "-c", program, "--flight", str(flight), "--postgres", str(postgres), "--taos",
                           str(taos), "--user", "ada", "--password", _PASSWORD))


@contextmanager
def served(ours: Installed) -> Iterator[tuple[int, int, int]]:
    """Gives the ports of a server: Flight SQL's, PostgreSQL's, that of TDengine's adapter; ends it in order."""
    with ExitStack() as held:
        ports = [held.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1] for _ in range(3)]
    keys = ("flightPort", "postgresPort", "taosAdapterPort")
    options = [word for key, port in zip(keys, ports, strict=True) for word in ("--set", f"{key}={port}")]
    process = ours.start("penstock", "--data", "served", *options, "serve")
    assert process.stdout is not None
    say("penstock serve", process.stdout.readline())
    try:
        yield ports[0], ports[1], ports[2]
    finally:
        process.terminate()
        say("SIGTERM", process.communicate(timeout=120)[0])
    assert process.returncode == 0, process.returncode


def metadata_extras(ours: Installed) -> list[str]:
    """Returns the names of the extras that the installed wheel has."""
    said = "from importlib import metadata; print(*metadata.metadata('penstock').get_all('Provides-Extra'))"
    return ours.run("python", "-c", said).split()


def versions(place: Path, *locks: str) -> Path:
    """Returns a file of the versions that locks name, without hashes: one for each package, that of the last lock."""
    found = {}
    for lock in locks:
        for line in (ROOT / lock).read_text("utf-8").splitlines():
            if line[:1].isalnum():
                entry = line.removesuffix(" \\")
                found[entry.partition("==")[0]] = entry
    path = place / "versions.txt"
    path.write_text("\n".join(found.values()) + "\n", "utf-8")
    return path


def say(what: str, answer: str) -> None:
    """Shows what was done and what came of it."""
    heading = f"\n# {what}\n" if what else ""
    sys.stdout.write(heading + answer.rstrip("\n") + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
