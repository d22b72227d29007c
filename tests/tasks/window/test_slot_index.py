"""The index of slots: a table, or a hash table, whichever is smaller for what there is, and the same answers."""

from __future__ import annotations

from itertools import groupby

import numpy as np
import pytest
from kits.basics.loops_of_both import loops

from penstock.tasks.compute.growing_arrays import _MAPPED_MIN
from penstock.tasks.window import slot_index
from penstock.tasks.window.line_cells import LineCells
from penstock.tasks.window.slot_index import SlotIndex


@pytest.mark.parametrize("seed", range(2))
def test_it_answers_as_a_dictionary_does(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever comes and goes, in a table of several chunks, and where it becomes a hash table and a table again."""
    monkeypatch.setattr(slot_index, "_SPARE_CELLS", 600)
    monkeypatch.setattr(slot_index, "_CHUNK_BITS", 7)
    random = np.random.default_rng(seed)
    index, model, forms, next_slot = SlotIndex(), {}, [], 0
    for step in range(120):
        lines, groups = random.integers(0, 8, 60), random.integers(0, 50 if step < 40 else 3_000, 60)
        fresh = sorted({*zip(lines.tolist(), groups.tolist(), strict=True)} - model.keys())
        slots = np.arange(next_slot, next_slot + len(fresh))
        next_slot += len(fresh)
        with loops(compiled=step % 3 != seed):  # either goes on with what the other wrote
            index.put(*np.array(fresh, np.int64).reshape(-1, 2).T.copy(), slots)
        model |= zip(fresh, slots.tolist(), strict=True)
        forms.append(index._cells is not None)
        if step % 30 == 29:
            line = int(lines[0])
            _, gone, theirs = index.members(np.array([line]))
            gone, theirs = gone[::2].copy(), theirs[::2].copy()  # compiled loops take arrays in one piece
            index.remove(line, gone, theirs)
            for group in gone.tolist():
                del model[line, group]
        if step in (60, 110):
            numbers = random.permutation(next_slot)
            index.renumber(numbers)
            model = {key: int(numbers[slot]) for key, slot in model.items()}
        if step % 8 == 0:
            for compiled in (True, False):
                with loops(compiled=compiled):
                    _compare(index, model, random)
    assert [form for form, _ in groupby(forms)] == [True, False, True]


def test_more_groups_move_nothing() -> None:
    """A table that has memory pages of its own keeps them when groups are added."""
    index = SlotIndex()
    groups = np.arange(2 * _MAPPED_MIN // 4 // 8)
    for line in range(8):
        index.put(np.full(len(groups), line), groups, groups + line * len(groups))
    flat = index._flat
    assert flat is not None
    memory = flat.base.obj
    del flat
    index.put(np.array([3]), np.array([2 * len(groups)]), np.array([8 * len(groups)]))
    assert index._flat is not None
    assert index._flat.base.obj is memory
    assert index.find(np.array([7]), groups[-1:]).tolist() == [8 * len(groups) - 1]
    assert index.find(np.array([3, 3]), np.array([2 * len(groups), 5 * len(groups)])).tolist() == [8 * len(groups), -1]


def test_lines_that_went_give_their_memory_back() -> None:
    """However many lines came and went, tables have no more than a few times what is in use."""
    cells, groups = LineCells(), np.arange(0, 30_000, 3)
    for line in range(20):
        cells.put(np.full(len(groups), line), groups, groups)
        if line:
            cells.remove(line - 1, groups)
    assert cells.members(np.arange(20))[1].tolist() == groups.tolist()
    assert len(cells._cells) < 20 * len(groups)


def _compare(index: SlotIndex, model: dict[tuple[int, int], int], random: np.random.Generator) -> None:
    lines, groups = random.integers(0, 50, 40), random.integers(0, 7_000, 40)
    known = np.array([*model], np.int64)[-40:]
    lines, groups = np.concatenate([lines, known[:, 0]]), np.concatenate([groups, known[:, 1]])
    wanted = [model.get(key, -1) for key in zip(lines.tolist(), groups.tolist(), strict=True)]
    assert index.find(lines, groups).tolist() == wanted
    asked = np.unique(lines[-5:])
    places, members, slots = index.members(asked)
    own = sorted((key, slot) for key, slot in model.items() if key[0] in asked)
    assert [*zip(asked[places].tolist(), members.tolist(), strict=True)] == [key for key, _ in own]
    assert slots.tolist() == [slot for _, slot in own]
    assert [index.count(line) for line in asked.tolist()] == [
        sum(key[0] == line for key, _ in own) for line in asked]
    assert all(index.holds(line) == any(key[0] == line for key in model) for line in range(50))
    assert sorted(index.slots().tolist()) == sorted(model.values())
    assert index.used == len(model)
