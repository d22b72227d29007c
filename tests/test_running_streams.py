"""A directory whose streams ran in an earlier version: each goes on from its state, and its results are the batch's."""

from __future__ import annotations

from pathlib import Path

import pytest
from running_streams import STOPPED, STREAMS, compare, extract, go_on, open_streams

ARCHIVES = sorted((Path(__file__).parent / "golden" / "running_streams").glob("*.tar.xz"))


@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda path: path.name.partition(".")[0])
def test_streams_of_an_earlier_version_go_on(archive: Path, tmp_path: Path) -> None:
    """None starts anew, none reads its state for another's; opened once more they still do."""
    data = extract(archive, tmp_path)
    with open_streams(data, STOPPED) as bed:
        assert bed.rows("SELECT stream_name, reason FROM information_schema.ins_streams WHERE state <> 'RUNNING'") == []
        assert len(bed.rows("SHOW STREAMS")) == len(STREAMS)
        bed.checkpoint()
    with open_streams(data, STOPPED) as bed:
        go_on(bed)
        for name in STREAMS:
            found, wanted = compare(bed, name)
            assert found == wanted, name
            assert found, name
