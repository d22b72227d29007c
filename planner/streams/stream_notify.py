"""NOTIFY: who is told of windows that open and close, and which streams can tell."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import urlsplit

from penstock.common.errors import InvalidStreamError, NotSupportedError
from penstock.planner.task_plans.stream_plan import NotifyPlan, TimePlan, Trigger, WindowType
from penstock.sql.tree.statements import (
    CountWindow,
    CreateStream,
    EventWindow,
    IntervalWindow,
    SessionWindow,
    StateWindow,
    Window,
)

URLS_MAX = 16
NOTIFY_TRIGGERS = "TRIGGER WINDOW_CLOSE and CONTINUOUS_WINDOW_CLOSE write windows when they close, and can tell of it"
_SCHEMES = ("http", "https", "ws", "wss")
_TYPES: dict[type[Window], WindowType] = {
    IntervalWindow: "Time", StateWindow: "State", SessionWindow: "Session", EventWindow: "Event", CountWindow: "Count",
}


def plan_notify(
    statement: CreateStream, trigger: Trigger, time: TimePlan, starts: Sequence[int], ends: Sequence[int]
) -> NotifyPlan | None:
    """Returns the plan of NOTIFY, None where there is none.

    `starts` and `ends`: which result columns are the window's start and end, as timestamps.

    Raises InvalidStreamError for URLs that can't be used and streams without windows, NotSupportedError for triggers
    whose results don't say that a window has closed.
    """
    notify, window = statement.notify, statement.select.window
    if notify is None:
        return None
    _check_urls(notify.urls)
    if window is None:
        raise InvalidStreamError("NOTIFY tells of windows, and this stream has none", hint="leave NOTIFY out")
    if trigger not in ("window_close", "continuous_window_close") and statement.calculation is None:
        raise NotSupportedError(f"NOTIFY doesn't go with TRIGGER {trigger.upper()}", hint=NOTIFY_TRIGGERS)
    if 0 not in starts:
        raise InvalidStreamError("NOTIFY needs _wstart as the primary timestamp of the target",
                                 hint="of the same precision as the source's database")
    end = next(iter(ends), None)
    if end is None and not isinstance(window, IntervalWindow):
        raise InvalidStreamError("NOTIFY needs _wend among the columns: nothing else tells where such a window ends",
                                 hint="add _wend to the list")
    skips = statement.options.fill_history and not notify.history
    does, kind = statement.calculation, _TYPES[type(window)]
    if does is not None and kind == "Time":
        kind = "Sliding" if does.slides else "Interval"
    return NotifyPlan(notify.urls, notify.events, notify.on_failure, kind,
                      None if isinstance(window, IntervalWindow) else end, time.created if skips else None)


def plan_period_notify(statement: CreateStream) -> NotifyPlan | None:
    """Returns the plan of NOTIFY of a stream that the clock fires, None where there is none."""
    notify = statement.notify
    if notify is None:
        return None
    _check_urls(notify.urls)
    return NotifyPlan(notify.urls, notify.events, notify.on_failure, "Period", 1)


def _check_urls(urls: Sequence[str]) -> None:
    for url in urls:
        _check_url(url)
    if len(set(urls)) < len(urls) or len(urls) > URLS_MAX:
        raise InvalidStreamError(f"NOTIFY takes up to {URLS_MAX} different URLs")


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        good = parts.scheme in _SCHEMES and bool(parts.hostname) and parts.port != 0 and url.isprintable()
    except ValueError:
        good = False
    if not good:
        raise InvalidStreamError("NOTIFY takes URLs such as 'https://host/path' or 'ws://host:8080/path'",
                                 hint=f"they begin with {', '.join(_SCHEMES)}")
    if parts.username is not None or parts.password is not None:
        raise InvalidStreamError("a user and a password don't belong into a URL of NOTIFY",
                                 hint="the statement is shown to everybody who may look at streams")
