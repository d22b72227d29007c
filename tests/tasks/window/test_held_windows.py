"""Windows that come back in parts: whole only when every input has sent them again, whatever is forgotten meanwhile."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from penstock.tasks.window.held_windows import HeldWindows

STEP = 10
STARTS = range(0, 100, STEP)
start = st.sampled_from(list(STARTS))
EVENT = st.one_of(
    st.tuples(st.just("clear"), st.integers(0, 2), start, start), st.tuples(st.just("want"), start, st.integers(0, 3)),
    st.tuples(st.just("forget"), st.integers(0, 110)), st.tuples(st.just("restart")))


class Model:
    """The same by a set per input."""

    def __init__(self, inputs: int) -> None:
        self.returned: list[set[int]] = [set() for _ in range(inputs)]
        self.until = 0

    def whole(self, at: int) -> bool:
        return all(at in one for one in self.returned)

    def in_part(self, at: int) -> bool:
        return any(at in one for one in self.returned) and not self.whole(at)


@given(events=st.lists(EVENT, max_size=30), inputs=st.integers(1, 3))
def test_what_has_come_back_is_known_by_input(events: list[Any], inputs: int) -> None:
    """After any clearing, forgetting and restart; what was wanted stays so until it is whole, and is asked for once."""
    model = Model(inputs)

    def make() -> HeldWindows:
        return HeldWindows(inputs, STEP, lambda at: at + STEP <= model.until)

    held = make()
    wanted: dict[int, set[int]] = {}
    for kind, *parts in events:
        match kind:
            case "clear":
                input, first, last = parts[0] % inputs, min(parts[1:]), max(parts[1:])
                held.clear(input, first, last, {})
                assert held.replaces(input)
                model.returned[input] |= {at for at in STARTS if first <= at <= last}
                freed = held.settle(input)
                done = {at: groups for at, groups in wanted.items() if at + STEP > model.until or model.whole(at)}
                assert {at: set(groups.tolist()) for at, groups in freed.items()} == done
                wanted = {at: groups for at, groups in wanted.items() if at not in done}
            case "want":
                at, group = parts
                if at + STEP <= model.until and not model.whole(at):
                    assert held.want({at: [group]}) == ([] if at in wanted else [at])
                    wanted.setdefault(at, set()).add(group)
            case "forget":
                keeps = held.forget()
                model.until = max(model.until, parts[0])
                assert [keeps(at) for at in STARTS] == [model.in_part(at) for at in STARTS]
                model.returned = [{at for at in one if model.in_part(at)} for one in _copies(model)]
            case "restart":
                saved = held.save(lambda group: group + 100)
                held = make()
                held.restore(saved, lambda gids: np.array([gid - 100 for gid in gids], np.int64))
        for input, starts in enumerate(model.returned):
            assert held.returned(np.array(STARTS), input).tolist() == [at in starts for at in STARTS]
        assert held.wanted == sorted(wanted)


def test_what_is_being_sent_again_is_not_forgotten() -> None:
    """A barrier that isn't aligned may come between another input's Cleared and Settled: the window stays."""
    held = HeldWindows(2, STEP, lambda at: at < 50)
    assert held.want({0: [7]}) == [0]
    held.clear(1, 0, 0, {})
    assert held.settle(1) == {}
    held.clear(0, 0, 0, {})
    keeps = held.forget()
    assert keeps(0)
    assert {at: groups.tolist() for at, groups in held.settle(0).items()} == {0: [7]}
    assert held.wanted == []
    assert not held.forget()(0)


def _copies(model: Model) -> list[set[int]]:
    return [set(one) for one in model.returned]
