"""Which allocator a server's Arrow takes."""

from __future__ import annotations

import subprocess
import sys

import pytest
from kits.engines.serve_kit import clean_environment

BACKEND = """
import sys
import penstock.shell.main
from penstock.common.allocators import share_heaps_between_threads
assert "pyarrow" not in sys.modules, "too late: Arrow has chosen its allocator when it is imported"
share_heaps_between_threads()
import pyarrow
print(pyarrow.default_memory_pool().backend_name)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="nothing is chosen there")
@pytest.mark.parametrize(("environment", "backend"), [
    ({}, "jemalloc"),
    ({"ARROW_DEFAULT_MEMORY_POOL": "system"}, "system")])
def test_arrow_takes_the_shared_heaps_unless_told_otherwise(environment: dict[str, str], backend: str) -> None:
    """jemalloc, unless the environment names another, which stays."""
    inherited = {name: value for name, value in clean_environment().items() if name != "ARROW_DEFAULT_MEMORY_POOL"}
    answer = subprocess.run([sys.executable, "-c", BACKEND], capture_output=True, text=True, check=False,
                            env=inherited | environment)
    assert (answer.stdout.strip(), answer.stderr) == (backend, "")
