"""Does what deploy/Dockerfile says in new roots of Debian, without a daemon, and lets the image's server answer.

Needs root, debootstrap and the wheel in dist/ (`make dist`). FROM makes a root with debootstrap, RUN runs in it by
chroot, COPY copies. In the end the server starts as the image's user, with a read-only root and an empty folder as its
data, until its health check answers. Not checked is what only a daemon does: volumes, limits, capabilities.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from kits.basics.dockerfiles import Instruction, read, stages  # noqa: E402
from kits.basics.waiting import wait_until  # noqa: E402

#: Debian's names of the releases whose images a Dockerfile may begin with.
_RELEASES = {"12": "bookworm", "13": "trixie"}
#: Where debootstrap gets packages from; without it, from where it does by itself.
_MIRROR = os.environ.get("DEBIAN_MIRROR")
_ANSWERS_S = 120.0


class Root:
    """A root below a folder, and what instructions have said so far."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.environment = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
        self.user = "root"
        self.folder = "/"
        self.said: dict[str, Instruction] = {}

    def run(self, *words: str, **options: str) -> subprocess.CompletedProcess[bytes]:
        """Runs a command in the root, as its present user."""
        return subprocess.run(self.command(*words), check=True, env=self.environment | options)

    def command(self, *words: str, mounts: Sequence[Sequence[str]] = ()) -> list[str]:
        """Returns the words that run a command in the root, as its present user, with /proc and /dev.

        `mounts` are commands that mount more; nobody else sees what is mounted.
        """
        inside = f"cd {shlex.quote(self.folder)} && exec {shlex.join(words)}"
        enter = ["/usr/sbin/chroot", f"--userspec={self.user}", str(self.place), "/bin/sh", "-c", inside]
        seen = [*mounts, ["mount", "--types", "proc", "proc", str(self.place / "proc")],
                ["mount", "--rbind", "/dev", str(self.place / "dev")]]
        begin = " && ".join([*map(shlex.join, seen), f"exec {shlex.join(enter)}"])
        return ["unshare", "--mount", "/bin/sh", "-c", begin]


def main() -> None:
    """Builds all stages, and tries the last."""
    with tempfile.TemporaryDirectory(prefix="ps-image-", dir=os.environ.get("TMPDIR", "/var/tmp")) as name:
        bases: dict[str, Path] = {}
        built: dict[str, Root] = {}
        for number, stage in enumerate(stages(read(ROOT / "deploy" / "Dockerfile"))):
            image, *alias = stage[0].words
            root = Root(Path(name) / f"stage-{number}")
            if image not in bases:
                bases[image] = base(image, Path(name))
            subprocess.run(["cp", "-a", str(bases[image]), str(root.place)], check=True)
            built[alias[1] if alias else ""] = root
            for instruction in stage[1:]:
                say(f"{instruction.line}: {instruction.name} {instruction.rest[:100]}")
                perform(instruction, root, built)
        try_server(built[""])


def base(image: str, folder: Path) -> Path:
    """Returns a root of a release of Debian, as debootstrap makes it."""
    release = _RELEASES[image.partition(":")[2].partition(".")[0]]
    place = folder / release
    subprocess.run(["debootstrap", "--variant=minbase", release, str(place), *filter(None, [_MIRROR])], check=True,
                   stdout=subprocess.DEVNULL)
    # As an image is run: the machine's names and its trust.
    shutil.copy("/etc/resolv.conf", place / "etc" / "resolv.conf")
    return place


def perform(instruction: Instruction, root: Root, built: dict[str, Root]) -> None:
    """Does what an instruction says."""
    match instruction.name:
        case "RUN":
            root.run("/bin/sh", "-c", instruction.rest, **outside(root))
        case "COPY":
            source = built[instruction.options["from"]].place if "from" in instruction.options else ROOT
            *patterns, target = instruction.words
            into = root.place / target.lstrip("/")
            into.parent.mkdir(parents=True, exist_ok=True)
            if target.endswith("/"):
                into.mkdir(exist_ok=True)
            for path in (found for pattern in patterns for found in sorted(source.glob(pattern.lstrip("/")))):
                subprocess.run(["cp", "-a", "--no-preserve=ownership", str(path), str(into)], check=True)
        case "ENV":
            pairs = dict(word.partition("=")[::2] for word in shlex.split(instruction.rest))
            root.environment |= pairs
        case "USER":
            root.user = instruction.rest
        case "WORKDIR":
            root.folder = instruction.rest
        case _:
            root.said[instruction.name] = instruction


def outside(root: Root) -> dict[str, str]:
    """Returns by which certificates a build reaches packages, on a machine that says so."""
    trust = os.environ.get("PIP_CERT")
    if trust is not None:
        shutil.copy(trust, root.place / "tmp" / "trust.pem")
        return {"PIP_CERT": "/tmp/trust.pem"}
    return {}


def try_server(root: Root) -> None:
    """Starts the image's command in a root that can't be written, but for its volume and /tmp; asks for its health."""
    password = root.place / "run" / "secrets" / "penstock_admin"
    password.parent.mkdir(parents=True, exist_ok=True)
    password.write_text("correct-horse\n", "utf-8")
    health = root.said["HEALTHCHECK"].rest
    check = root.command(*Instruction("CMD", health[health.index("["):], 0).words)
    words = [*root.said["ENTRYPOINT"].words, *root.said["CMD"].words]
    data = root.place / "var" / "lib" / "penstock"
    owner = data.stat()
    volume = f"mode=0700,uid={owner.st_uid},gid={owner.st_gid}"
    mounts = [
        ["mount", "--bind", str(root.place), str(root.place)],
        ["mount", "--options", "remount,bind,ro", str(root.place)],
        ["mount", "--types", "tmpfs", "tmpfs", str(root.place / "tmp")],
        ["mount", "--types", "tmpfs", "--options", volume, "tmpfs", str(data)],
    ]
    server = subprocess.Popen(root.command(*words, mounts=mounts), env=root.environment)

    def answers() -> bool:
        assert server.poll() is None, f"the server has ended with {server.returncode}"
        asked = subprocess.run(check, env=root.environment, check=False, stderr=subprocess.DEVNULL)
        return asked.returncode == 0

    try:
        wait_until(answers, _ANSWERS_S, "the server doesn't answer")
        say("the server answers its health check")
    finally:
        server.terminate()
        code = server.wait(120)
    say(f"SIGTERM has ended it with {code}")
    assert code == 0


def say(what: str) -> None:
    """Shows what is done."""
    sys.stdout.write(f"# {what}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
