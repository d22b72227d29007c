"""SQLAlchemy's own tests of dialects, in a process of their own: they are a plugin of pytest that takes it over."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from conftest import profile
from kits.basics.places import ROOT

import penstock

SUITE = ROOT / "tests" / "programs" / "sqlalchemy_suite"
#: All take minutes, mostly for tables that they make and drop; these are of each kind one.
SOME = ("CompoundSelectTest or EnumTest or DateTimeMicrosecondsTest or FetchLimitOffsetTest or InsertBehaviorTest or "
        "test_get_multi_pk or NumericTest or TableViaSelectTest or test_get_view or HasTableTest")
LEAST = {"nightly": 280, "ci": 70}


def test_the_suite_passes(tmp_path: Path) -> None:
    """No test fails; what is skipped, `requirements.py` says with reasons."""
    with penstock.connect(tmp_path / "data", {"timezone": "UTC"}) as connection:
        for database in ("test", "test_schema"):
            connection.execute(f"CREATE DATABASE {database} VGROUPS 1 PRECISION 'us' KEEP 36500")
    nightly = profile() == "nightly"
    address = f"penstock_keyed:///{tmp_path / 'data'}?database=test&timezone=UTC"
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-c", "setup.cfg", "--rootdir", ".", "-q", "suite.py",
         *([] if nightly else ["-k", SOME]), "--dburi", address],
        cwd=SUITE, env={**os.environ, "PYTHONPATH": str(ROOT / "tests")}, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout[-5000:] + run.stderr[-2000:]
    passed = re.search(r"(\d+) passed", run.stdout)
    assert passed is not None
    print(run.stdout.splitlines()[-1])
    assert int(passed[1]) >= LEAST["nightly" if nightly else "ci"]
