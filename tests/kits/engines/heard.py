"""What streams of engines in sandboxes tell by NOTIFY, instead of sending it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.common.connection import OpenedConnection
from penstock.tasks.worker.local_environment import LocalEnvironment
from penstock.tasks.worker.worker_environment import notifier_of

Event = dict[str, Any]


class Heard:
    """Takes what would be sent, in order."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def send(self, identity: str, text: str) -> None:
        for stream in json.loads(text)["streams"]:
            self.events += stream["events"]

    def close(self) -> None:
        return

    def taken(self) -> list[Event]:
        """Returns what has come since it was asked last."""
        events, self.events = self.events, []
        return events


def hearing(patch: pytest.MonkeyPatch) -> Heard:
    """Returns what takes all that streams tell from now on."""
    ear = Heard()

    def opened(_: OpenedConnection) -> Heard:
        return ear

    patch.setattr(LocalEnvironment, "notifier", lambda self, task, deployment: notifier_of(
        deployment, self.clock, self.wake, opened))
    return ear
