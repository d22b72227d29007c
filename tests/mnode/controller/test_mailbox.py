"""The controller's thread: events in their order, answers to who asked, defects that stay with one event."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from penstock.common.clock import SystemClock
from penstock.common.errors import NotFoundError, UnavailableError
from penstock.mnode.controller.mailbox import Mailbox
from penstock.mnode.controller.runtime_environment import Threads


@pytest.fixture
def mailbox() -> Iterator[Mailbox]:
    mailbox = Mailbox(SystemClock(), Threads())
    mailbox.open(lambda: None, lambda: None)
    yield mailbox
    mailbox.close()
    mailbox.end_helpers()


def refuse() -> None:
    raise NotFoundError("there is no such stream")


def defect() -> None:
    raise ZeroDivisionError


def test_events_are_handled_in_their_order_on_one_thread(mailbox: Mailbox) -> None:
    """Whoever posts them, one thread handles them, none before those that came first."""
    seen: list[tuple[int, str]] = []
    for number in range(100):
        mailbox.post(lambda number=number: seen.append((number, threading.current_thread().name)))
    mailbox.ask(lambda: None)
    assert seen == [(number, "stream controller") for number in range(100)]


def test_an_answer_is_what_the_question_returns_or_raises(mailbox: Mailbox) -> None:
    """Errors reach who asked, and nobody else."""
    assert mailbox.ask(lambda: 7) == 7
    with pytest.raises(NotFoundError):
        mailbox.ask(refuse)
    assert mailbox.ask(lambda: 8) == 8


def test_a_defect_in_one_event_leaves_the_others(mailbox: Mailbox) -> None:
    """What an event raises is logged; the next one is handled."""
    mailbox.post(defect)
    assert mailbox.ask(lambda: 7) == 7


def test_what_takes_long_is_done_elsewhere(mailbox: Mailbox) -> None:
    """A helper's work doesn't hold up the thread, and comes back by a post."""
    let_go, done = threading.Event(), threading.Event()

    def work() -> None:
        let_go.wait(30)
        mailbox.post(done.set)

    mailbox.helper(work)
    assert mailbox.ask(done.is_set) is False
    let_go.set()
    assert done.wait(30)


def test_what_is_due_is_done_without_an_event() -> None:
    """The thread wakes by itself at the next deadline."""
    clock, ticks = SystemClock(), threading.Semaphore(0)
    mailbox = Mailbox(clock, Threads())
    due = clock.monotonic() + 0.05
    mailbox.open(lambda: ticks.release() if clock.monotonic() >= due else None,
                 lambda: due if clock.monotonic() < due else None)
    assert ticks.acquire(timeout=30)
    mailbox.close()
    mailbox.end_helpers()


def test_a_closed_mailbox_answers_nothing(mailbox: Mailbox) -> None:
    """Questions to a closed engine are refused, not left waiting."""
    mailbox.close()
    with pytest.raises(UnavailableError, match="closed"):
        mailbox.ask(lambda: 7)
