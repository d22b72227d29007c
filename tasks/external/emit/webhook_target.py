"""Webhooks as targets."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from penstock.common.errors import ContentRefusedError, RowRefusedError
from penstock.planner.task_plans.external_rows import IDENTITY
from penstock.tasks.external.connectors.webhook import Poster
from penstock.tasks.external.emit.async_sink_writer import Delivery
from penstock.tasks.external.emit.result_events import ExternalRows, ResultEvent, json_text


class WebhookTarget:
    """An address to which rows are posted as JSON: `{"stream": name, "rows": [...]}`. At least once."""

    def __init__(self, poster: Poster, rows: ExternalRows, stream: str) -> None:
        self._rows = rows
        self._stream = stream
        self._poster = poster

    def deliver(self, delivery: Delivery) -> None:
        self._post(list(self._rows.events(delivery.rows)), 0)

    def close(self) -> None:
        self._poster.close()

    def _post(self, events: Sequence[ResultEvent], first: int) -> None:
        """Posts events; what is refused is posted in halves, until it is known which one it is for."""
        body = json_text({"stream": self._stream, "rows": [event.named for event in events]})
        identity = hashlib.blake2b("".join(event.id for event in events).encode(), digest_size=16).hexdigest()
        try:
            self._poster.send(identity, body)
        except ContentRefusedError as error:
            if len(events) == 1:
                raise RowRefusedError(f"{error.message}; the row with {IDENTITY} {events[0].id}", row=first) from None
            half = len(events) // 2
            self._post(events[:half], first)
            self._post(events[half:], first + half)
