"""Which rows are late doesn't depend on how a stream reads: blocks, speeds, other vnodes' inserts, restarts."""

from __future__ import annotations

from pathlib import Path

from programs.lateness_runs import disordered, exact, run, tables_of, ways


def test_every_run_keeps_what_the_row_exact_answer_keeps(tmp_path: Path) -> None:
    """Ten ways to read 20,000 rows, of which 5 % are late, keep and count the same rows in every window."""
    tables = tables_of(2, tmp_path / "tables")
    data = [disordered(10_000, found, seed) for seed, found in enumerate(tables)]
    answers = [exact(rows) for rows in data]
    expected: dict[int, int] = {}
    for windows, _ in answers:
        for start, count in windows.items():
            expected[start] = expected.get(start, 0) + count
    late = tuple(count for _, count in answers)
    assert min(late) > 20
    for way in ways(10, 2):
        answer = run(tmp_path / str(way.seed), data, way)
        assert answer.late == late, way
        assert answer.kept == expected, way
