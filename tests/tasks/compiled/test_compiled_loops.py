"""Compiled code is loaded from a place that nobody else can write, or not at all, and the reason is told."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from kits.basics.waiting import wait_until

from penstock.tasks.compiled import compiled_loops, loops

CHILD = """
import sys
from penstock.tasks.compiled import compiled_loops
print(compiled_loops.load(), compiled_loops.why_not(), "numba" in sys.modules)
"""

FEW_LOOPS = """
from penstock.tasks.compiled import loops
loops.SIGNATURES = dict(list(loops.SIGNATURES.items())[:2])
"""


@pytest.fixture(autouse=True)
def nothing_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled_loops._Here, "loops", None)


def test_each_loop_has_a_signature() -> None:
    """What isn't compiled beforehand would be compiled when rows come."""
    functions = {name for name, value in vars(loops).items()
                 if callable(value) and getattr(value, "__module__", "") == loops.__name__}
    assert {name for name in functions if not name.startswith("_")} == {*loops.SIGNATURES}


def test_another_process_compiles_and_this_one_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is loaded before all is compiled; what was compiled is loaded by whoever comes later."""
    pytest.importorskip("numba")
    monkeypatch.setenv(compiled_loops.DIRECTORY_VARIABLE, str(tmp_path / "compiled"))
    # Two loops, here and there: all of them take seconds.
    few = tmp_path / "few"
    few.mkdir()
    (few / "sitecustomize.py").write_text(FEW_LOOPS)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(few), os.environ.get("PYTHONPATH")])))
    monkeypatch.setattr(loops, "SIGNATURES", dict(list(loops.SIGNATURES.items())[:2]))
    compiled_loops.load_or_have_compiled()
    assert compiled_loops.why_not() == "they are being compiled"
    stopping = threading.Event()
    compiled_loops.load_when_compiled(stopping)
    wait_until(lambda: not compiled_loops.why_not(), 280)  # seconds, of a process of low priority
    monkeypatch.setattr(compiled_loops._Here, "loops", None)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
    compiled_loops.load_or_have_compiled()
    assert compiled_loops.why_not() == ""
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()} == before


def test_two_threads_load_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Several workers are threads of one process in tests: what one of them uses isn't replaced by another's."""
    monkeypatch.setattr(compiled_loops, "_usable_directory", lambda: tmp_path)
    made: list[object] = []

    def compile_while_another_comes(directory: Path) -> object:
        made.append(object())
        if len(made) == 1:
            other.start()
            other.join(0.2)  # only a thread that isn't held up has ended by then
        return made[-1]

    other = threading.Thread(target=compiled_loops.load)
    monkeypatch.setattr(compiled_loops, "_compiled_in", compile_while_another_comes)
    assert compiled_loops.load()
    other.join()
    assert compiled_loops.row_loops() is made[0]
    assert len(made) == 1


def test_a_directory_of_others_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Code that others can replace isn't run, be it that they can write the directory or one above."""
    pytest.importorskip("numba")
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    monkeypatch.setenv(compiled_loops.DIRECTORY_VARIABLE, str(shared / "compiled"))
    assert not compiled_loops.load()
    assert compiled_loops.why_not() == f"others may write {shared}, in which compiled code would be"
    shared.chmod(0o700)
    (own,) = (shared / "compiled").iterdir()
    own.chmod(0o777)
    assert not compiled_loops.load()
    assert compiled_loops.why_not() == f"others may write {own}, in which compiled code would be"


def test_without_numba_or_a_directory_the_reason_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of what may be missing has its words."""
    monkeypatch.setenv(compiled_loops.OFF_VARIABLE, "1")
    assert not compiled_loops.load()
    assert compiled_loops.why_not() == "NUMBA_DISABLE_JIT is set"
    monkeypatch.delenv(compiled_loops.OFF_VARIABLE)
    monkeypatch.setenv(compiled_loops.DIRECTORY_VARIABLE, str(tmp_path / "file" / "compiled"))
    (tmp_path / "file").write_text("")
    if importlib.util.find_spec("numba") is not None:
        assert not compiled_loops.load()
        assert compiled_loops.why_not().startswith("there is no directory for compiled code: ")
    monkeypatch.setattr(compiled_loops.importlib.util, "find_spec", lambda name: None)
    assert not compiled_loops.load()
    assert compiled_loops.why_not() == "numba is not installed"


def test_numba_that_fails_is_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever it says, streams run on."""
    pytest.importorskip("numba")
    monkeypatch.setenv(compiled_loops.DIRECTORY_VARIABLE, str(tmp_path))
    monkeypatch.setitem(loops.SIGNATURES, "find", ["i8(no_such_type)"])
    assert not compiled_loops.load()
    assert compiled_loops.why_not().startswith("numba cannot compile here: ")


def test_nothing_imports_numba_by_itself() -> None:
    """It costs a third of a second: only who loads the loops pays."""
    found = subprocess.run(
        [sys.executable, "-c",
         "import sys, penstock, penstock.tasks.worker.task_builder; print('numba' in sys.modules)"],
        capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"
    off = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True, check=True,
                         env={compiled_loops.OFF_VARIABLE: "1"})
    assert off.stdout.split()[0] == "False"
    assert off.stdout.split()[-1] == "False"
