"""A directory whose streams ran in an earlier version: each goes on from its state, and its results are the batch's."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import profile, times
from kits.basics.places import GOLDEN
from kits.engines.running_streams import STOPPED, STREAMS, compare, extract, go_on, open_streams

from penstock.mnode.catalog.catalog import Catalog
from penstock.mnode.coordinator import stored_plan

ARCHIVES = sorted((GOLDEN / "running_streams").glob("*.tar.xz"))
#: The oldest and the newest; all of them by night.
PLAYED = [*ARCHIVES[:1], *ARCHIVES[-1:]] if profile() == "default" else ARCHIVES


def _name(archive: Path) -> str:
    return archive.name.partition(".")[0]


def _plans(archive: Path, directory: Path) -> list[str | None]:
    catalog = Catalog(extract(archive, directory) / "catalog")
    kept = [stream.plan for stream in catalog.streams.all()]
    catalog.close()
    return kept


@pytest.mark.parametrize("archive", PLAYED, ids=_name)
def test_streams_of_an_earlier_version_go_on(archive: Path, tmp_path: Path) -> None:
    """None starts anew, none reads its state for another's; opened once more they still do."""
    data = extract(archive, tmp_path)
    with open_streams(data, STOPPED) as bed:
        assert bed.rows("SELECT stream_name, reason FROM information_schema.ins_streams WHERE state <> 'RUNNING'") == []
        assert len(bed.rows("SHOW STREAMS")) == len(STREAMS)
        bed.checkpoint()
    with open_streams(data, STOPPED) as bed:
        go_on(bed, times(4, 1))
        for name in STREAMS:
            found, wanted = compare(bed, name)
            assert found == wanted, name
            assert found, name


@pytest.mark.parametrize("archive", ARCHIVES[2:], ids=_name)
def test_plans_of_an_earlier_version_are_read(archive: Path, tmp_path: Path) -> None:
    """Those since format 2; what was stored before is planned anew from the streams' statements."""
    kept = _plans(archive, tmp_path)
    assert len(kept) == len(STREAMS)
    for text in kept:
        assert text is not None
        assert stored_plan.decode(text).plan is not None


def test_plans_of_the_present_form_are_read(tmp_path: Path) -> None:
    """What stored plans are made of isn't changed without raising their format.

    If this fails, raise `stored_plan._FORMAT` and run scripts/write_format.py with stored_plans_ and its number.
    """
    kept = _plans(ARCHIVES[0].with_name(f"stored_plans_{stored_plan._FORMAT}.tar.xz"), tmp_path)
    assert len(kept) == len(STREAMS)
    for text in kept:
        assert text is not None
        assert stored_plan.encode(stored_plan.decode(text)) == text
