"""A directory whose streams ran before: each goes on from its state, and its results are the batch's."""

from __future__ import annotations

from pathlib import Path

from conftest import times
from kits.basics.places import GOLDEN
from kits.engines.running_streams import STOPPED, STREAMS, compare, extract, go_on, open_streams

from penstock.mnode.catalog.catalog import Catalog
from penstock.mnode.coordinator import stored_plan

ARCHIVE = GOLDEN / "running_streams" / f"stored_plans_{stored_plan._FORMAT}.tar.xz"


def test_streams_of_another_time_go_on(tmp_path: Path) -> None:
    """None starts anew, none reads its state for another's; opened once more they still do."""
    data = extract(ARCHIVE, tmp_path)
    with open_streams(data, STOPPED) as bed:
        assert bed.rows("SELECT stream_name, reason FROM information_schema.ins_streams WHERE state <> 'RUNNING'") == []
        assert len(bed.rows("SHOW STREAMS")) == len(STREAMS)
        bed.checkpoint()
    with open_streams(data, STOPPED) as bed:
        go_on(bed, times(8, 1))
        for name in STREAMS:
            found, wanted = compare(bed, name)
            assert found == wanted, name
            assert found, name


def test_plans_of_the_present_form_are_read(tmp_path: Path) -> None:
    """What stored plans are made of isn't changed without raising their format.

    If this fails, raise `stored_plan._FORMAT` and run scripts/write_format.py with stored_plans_ and its number.
    """
    catalog = Catalog(extract(ARCHIVE, tmp_path) / "catalog")
    kept = [stream.plan for stream in catalog.streams.all()]
    catalog.close()
    assert len(kept) == len(STREAMS)
    for text in kept:
        assert stored_plan.encode(stored_plan.decode(text)) == text
