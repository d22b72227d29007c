"""Java's classes as Spark needs them, parsed and checked once: with that archive Java starts in half of the time.

It is what Java calls class data sharing. The archive is kept per user and machine, in a directory that nobody else can
write: whoever reads it runs it. Java itself looks whether it fits (its own version, size and time of each jar) and is
whole, and starts without it if not. Where there is none yet, a process of its own makes it, once per version.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path

from penstock.common.logging import logger
from penstock.common.private import cache_directory, make_private, open_private, writable_by_others, write_private

_log = logger(__name__)

_ARCHIVE, _LOG, _LOCK = "classes.jsa", "spark.log", "lock"
#: Why no archive could be made, so that it isn't tried with each start; and the paths of Java and of Spark's jars.
_FAILED, _MADE_FOR = "failed", "made_for.json"
_MAKING_NICE = 10
#: Seconds that Java may take to write the archive when it ends: a few on an idle machine.
_WRITING_MAX_S = 300.0


def sharing_options(configured: str) -> list[str]:
    """Returns the options by which Java uses the archive, none if there is none; what is `configured` counts."""
    directory = _directory() if _wanted(configured) else None
    if directory is None or not (directory / _ARCHIVE).exists() or _of_others(directory):
        return []
    # What doesn't fit isn't told on standard output, which may be a program's.
    return [f"-XX:SharedArchiveFile={directory / _ARCHIVE}", "-XX:+VerifySharedSpaces",
            "-Xlog:cds=off,cds+dynamic=off"]


def have_made(configured: str) -> None:
    """Has another process make the archive, unless there is one or it has failed before; returns at once."""
    directory = _directory() if _wanted(configured) else None
    if directory is None or (directory / _ARCHIVE).exists() or (directory / _FAILED).exists():
        return
    if directory.exists() and _of_others(directory):
        return  # the other process would make none, at each start
    try:
        subprocess.Popen([sys.executable, "-m", "penstock.tasks.worker.java_classes"], stdin=subprocess.DEVNULL,
                         stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    except OSError as error:
        _log.info("Java's classes stay as they are: no process could be started: %s", error)


def make() -> bool:
    """Makes the archive by starting Spark once, in ten seconds of the processor's time; returns whether there is one.

    Does nothing while another process is at it.
    """
    directory = _made_directory()
    if directory is None:
        return False
    with open_private(directory / _LOCK, "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        if (directory / _ARCHIVE).exists():
            return True
        _remove_stale(directory)
        written = directory / f"{_ARCHIVE}.{os.getpid()}"
        try:
            _start_and_end_spark(written)
            if written.exists():
                written.rename(directory / _ARCHIVE)
                return True
            reason = "Java has written none"
        except Exception as error:  # noqa: BLE001 - Spark raises many kinds
            reason = str(error)
        finally:
            written.unlink(missing_ok=True)
        write_private(directory / _FAILED, f"{reason}\n".encode())
        _log.info("Java's classes stay as they are: %s", reason)
        return False


def _start_and_end_spark(archive: Path) -> None:
    from penstock.common.config import CONF_DIRECTORY, load_config
    from penstock.tasks.worker.spark_runtime import DRIVERS_JAVA, SparkRuntime

    properties = {**load_config({"spark.master": "local[2]"}).spark_properties(),
                  DRIVERS_JAVA: f"-XX:ArchiveClassesAtExit={archive} -Xshare:auto"}
    runtime = SparkRuntime(properties, CONF_DIRECTORY, archive.parent / _LOG)
    try:
        context = runtime.context()
        context.parallelize(range(2), 2).barrier().mapPartitions(lambda places: places).count()
        runtime.executors()
    finally:
        runtime.stop(_WRITING_MAX_S)


def _remove_stale(directory: Path) -> None:
    """Removes what was made for a Java or Spark that is no longer there, and what a process left that was killed."""
    for left in directory.glob(f"{_ARCHIVE}.*"):
        left.unlink()
    for made_for in directory.parent.glob(f"*/{_MADE_FOR}"):
        other = made_for.parent
        try:
            java, jars = (Path(path) for path in json.loads(made_for.read_bytes()))
            if other.name == _fingerprint(java, jars):
                continue
        except FileNotFoundError:
            pass  # one of both is gone
        except (OSError, ValueError, TypeError) as error:
            _log.info("%s can't be read: %s", made_for, error)
            continue
        for name in (_ARCHIVE, _LOG, _LOCK, _FAILED, _MADE_FOR):
            (other / name).unlink(missing_ok=True)


def _wanted(configured: str) -> bool:
    return "SharedArchive" not in configured and "-Xshare" not in configured


def _directory() -> Path | None:
    """Returns the directory of the archive, whether it is there or not; None where no Java or no Spark is."""
    made_for = _made_for()
    try:
        return None if made_for is None else cache_directory("java") / _fingerprint(*made_for)
    except (OSError, RuntimeError) as error:
        _log.info("there is no directory for Java's classes: %s", error)
        return None


def _made_directory() -> Path | None:
    """Makes the directory of the archive if it isn't there; returns None where there can be none."""
    directory, made_for = _directory(), _made_for()
    if directory is None or made_for is None:
        return None
    try:
        make_private(directory)
        if not (directory / _MADE_FOR).exists():
            write_private(directory / _MADE_FOR, json.dumps([str(path) for path in made_for]).encode())
    except OSError as error:
        _log.info("there is no directory for Java's classes: %s", error)
        return None
    return None if _of_others(directory) else directory


def _of_others(directory: Path) -> bool:
    """Returns whether others can write what whoever reads it would run."""
    try:
        shared = writable_by_others(directory)
    except OSError as error:
        _log.info("Java's classes stay as they are: %s", error)
        return True
    if shared is not None:
        _log.info("others may write %s, in which Java's classes would be", shared)
    return shared is not None


def _made_for() -> tuple[Path, Path] | None:
    """Returns the paths of Java and of Spark's jars, None if one of them isn't there."""
    java, spark = _java(), find_spec("pyspark")
    if java is None or spark is None or spark.origin is None:
        return None
    return java, Path(spark.origin).parent / "jars"


def _java() -> Path | None:
    """Returns the program that Spark starts, as it does: of JAVA_HOME, else of the path."""
    home = os.environ.get("JAVA_HOME")
    found = Path(home) / "bin" / "java" if home else shutil.which("java")
    return Path(found).resolve() if found is not None and Path(found).exists() else None


def _fingerprint(java: Path, jars: Path) -> str:
    """Names what the archive depends on: Java and Spark. Whatever else may differ, Java sees."""
    parts = [str(java), str(java.stat().st_mtime_ns), str(jars), str(jars.stat().st_mtime_ns)]
    return sha256("\0".join(parts).encode()).hexdigest()[:24]


if __name__ == "__main__":
    os.nice(_MAKING_NICE)
    sys.exit(0 if make() else 1)
