"""Copies of vnodes between nodes: asked for piece by piece, whatever is lost or doubled on the way."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.common.clock import ManualClock
from penstock.common.errors import InvalidValueError, UnavailableError
from penstock.common.fs import OsFs
from penstock.mnode.cluster.cluster_messages import CopyAnswer
from penstock.mnode.dnode import vnode_copies
from penstock.mnode.dnode.vnode_copies import FILES, CopyReception, CopySource, CopySources
from penstock.vnode.store.vnode_options import VnodeOptions
from penstock.vnode.vnode import Vnode

TABLE, VGROUP = 7, 2
SCHEMA = pa.schema([("ts", pa.timestamp("ms")), ("v", pa.int64())])


def opened(folder: Path) -> Vnode:
    return Vnode.open(folder, VnodeOptions(VGROUP, replicated=True), fs=OsFs(), clock=ManualClock())


def write(vnode: Vnode, first: int, end: int) -> None:
    numbers = list(range(first, end))
    vnode.write(TABLE, pa.RecordBatch.from_arrays(
        [pa.array([1] * len(numbers), pa.uint64()), pa.array(numbers, pa.timestamp("ms")), pa.array(numbers)],
        ["_tuid", "ts", "v"]))
    vnode.copying.acknowledge(vnode.copying.written_version)


def no_catalog(node: int) -> CopySource:
    raise AssertionError(f"node {node} asks for a vnode")


@pytest.fixture
def source(tmp_path: Path) -> Vnode:
    """A vnode with rows in parts, and some in its log only."""
    vnode = opened(tmp_path / "source")
    vnode.tables.define(TABLE, SCHEMA, 1)
    write(vnode, 0, 1000)
    vnode.flush()
    write(vnode, 1000, 1100)
    return vnode


def test_what_arrives_is_the_vnode(source: Vnode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers come twice, late or never: the copy has all rows, and the source lets go of it at the end."""
    monkeypatch.setattr(vnode_copies, "_PIECE_BYTES", 700)
    sources = CopySources(lambda: {VGROUP: source}, no_catalog, ManualClock())
    reception = CopyReception(VGROUP, 5, tmp_path / "copy", OsFs())
    chance, late = random.Random(3), list[CopyAnswer]()
    while not reception.is_whole:
        answer = sources.answer(1, reception.request())
        assert answer is not None
        late.append(answer)
        if chance.random() < 0.6:
            assert reception.take(answer)
        for old in chance.sample(late, min(2, len(late))):
            reception.take(old)
    folder = reception.finish()
    assert "copy-1" in source.reader.stats().pins
    assert sources.answer(1, reception.request()) is None
    assert "copy-1" not in source.reader.stats().pins
    copy = opened(folder)
    copy.copying.acknowledge(copy.copying.written_version)
    assert sorted(copy.reader.snapshot(TABLE).to_arrow(["v"]).column("v").to_pylist()) == list(range(1100))
    copy.close()
    source.close()


def test_a_copy_that_the_active_has_forgotten_is_begun_anew(source: Vnode, tmp_path: Path) -> None:
    """Who asks for nothing for a while holds nothing back; one that isn't there is told so."""
    clock = ManualClock()
    sources = CopySources(lambda: {VGROUP: source}, no_catalog, clock)
    reception = CopyReception(VGROUP, 5, tmp_path / "copy", OsFs())
    first = sources.answer(1, reception.request())
    assert first is not None
    assert reception.take(first)
    clock.advance(61.0)
    sources.end_idle()
    assert source.reader.stats().pins == {}
    second = sources.answer(1, reception.request())
    assert second is not None
    with pytest.raises(UnavailableError, match="this copy has ended"):
        reception.take(second)
    missing = sources.answer(1, replace(reception.request(), log=9, file=FILES))
    assert missing is not None
    assert "no vnode 9" in missing.problem
    source.close()


@pytest.mark.parametrize("names", [("../wal/x", "store/MANIFEST"), ("store/MANIFEST", "store/MANIFEST"), ()])
def test_names_that_no_vnode_has_are_refused(tmp_path: Path, names: tuple[str, ...]) -> None:
    """What another node says is checked before anything is written."""
    reception = CopyReception(VGROUP, 5, tmp_path / "copy", OsFs())
    with pytest.raises(InvalidValueError):
        reception.take(CopyAnswer(VGROUP, 5, FILES, 0, files=tuple((name, 3) for name in names)))
    assert not (tmp_path / "copy").exists()
