"""Plays seeds in processes of their own, whose hashes are the same every time, and tells which commit it was."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import subprocess
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import TypeVar

from kits.basics.places import ROOT

T = TypeVar("T")

_PENDING = 40


def play(run: Callable[[range], Iterable[T]], seeds: range, jobs: int, chunk_size: int) -> Iterator[T]:
    """Yields the outcomes of seeds as they come. `run` plays some of them, and goes to the processes by pickle."""
    os.environ["PYTHONHASHSEED"] = "0"
    context = multiprocessing.get_context("spawn")
    chunks = iter([seeds[at:at + chunk_size] for at in range(0, len(seeds), chunk_size)])
    with ProcessPoolExecutor(jobs, mp_context=context, max_tasks_per_child=200) as pool:
        running = {pool.submit(run, chunk) for chunk in itertools.islice(chunks, _PENDING)}
        try:
            while running:
                ended = next(as_completed(running))
                running.remove(ended)
                chunk = next(chunks, None)
                if chunk is not None:
                    running.add(pool.submit(run, chunk))
                yield from ended.result()
        except KeyboardInterrupt:
            for child in multiprocessing.active_children():
                child.kill()
            raise


def commit() -> str:
    """Returns the commit of the working tree, with a mark if something is changed."""
    answer = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True,
                            check=False)
    return answer.stdout.strip() or "unknown"
