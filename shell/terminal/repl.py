"""The interactive prompt: several lines until `;`, history, colours, completion."""

from __future__ import annotations

import re
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.auto_suggest import AutoSuggestFromHistory
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.input import Input
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.lexers import PygmentsLexer
from prompt_toolkit.output import Output
from prompt_toolkit.styles import Style

from penstock.common.private import make_private, open_private
from penstock.shell.terminal.complete import ShellCompleter
from penstock.shell.terminal.lexer import PenstockLexer
from penstock.shell.terminal.script import is_complete, left_open
from penstock.shell.terminal.shell_session import Quit, ShellSession

_NAMED_MAX = 10_000
_PASSWORD = re.compile(r"\buser\b.*\bpass\b|\bconnection\b.*\b(password|token|key|secret)\b", re.IGNORECASE | re.DOTALL)
_STYLE = Style.from_dict({
    "pygments.keyword": "bold ansiblue",
    "pygments.name.function": "ansicyan",
    "pygments.name.builtin": "ansimagenta",
    "pygments.literal.string": "ansigreen",
    "pygments.literal.number": "ansiyellow",
    "pygments.comment": "italic ansibrightblack",
    "prompt": "bold",
})


def run_prompt(
    session: ShellSession, history_file: Path, *, terminal_in: Input | None = None, terminal_out: Output | None = None
) -> None:
    """Reads and runs statements until the user leaves. The terminal is an argument for tests."""
    completer = ShellCompleter(session.query, lambda: session.connection.session.database)
    session.names_changed = completer.forget_names
    prompt: PromptSession[str] = PromptSession(
        history=_open_history(history_file),
        lexer=PygmentsLexer(PenstockLexer),
        completer=completer,
        complete_in_thread=True,
        complete_while_typing=False,
        auto_suggest=AutoSuggestFromHistory(),
        key_bindings=_key_bindings(),
        multiline=True,
        prompt_continuation=lambda width, line, wrapped: _continuation(
            prompt.default_buffer.text, width, line, wrapped),
        style=_STYLE,
        include_default_pygments_style=False,
        input=terminal_in,
        output=terminal_out,
    )
    while True:
        try:
            text = prompt.prompt([("class:prompt", _prompt_text(session.connection.session.database))])
        except KeyboardInterrupt:
            continue
        except EOFError:
            return
        try:
            session.run_text(text)
        except Quit:
            return


def _prompt_text(database: str | None) -> str:
    return f"penstock:{database}> " if database else "penstock> "


def _continuation(text: str, width: int, line: int, wrapped: int) -> str:
    """What stands in front of a line after the first: `->`, and which quote or parenthesis is open there."""
    plain = wrapped or len(text) > _NAMED_MAX  # it is asked anew for each line at each key
    opened = None if plain else left_open("\n".join(text.split("\n")[:line]))
    return ("-> " if opened is None else f"{opened} open -> ").rjust(width)


class _DiscreetHistory(FileHistory):
    """Keeps what was typed, without what may hold a password."""

    def store_string(self, string: str) -> None:
        if _PASSWORD.search(string) is None:
            super().store_string(string)


def _open_history(path: Path) -> History:
    """Returns the history in `path`, or one that is forgotten at the end if the file cannot be written."""
    try:
        make_private(path.parent)
        open_private(path, "ab").close()
    except OSError:
        return InMemoryHistory()
    return _DiscreetHistory(str(path))


def _key_bindings() -> KeyBindings:
    bindings = KeyBindings()

    @bindings.add("enter")
    def run_or_continue(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if is_complete(buffer.text):
            buffer.validate_and_handle()
        else:
            buffer.insert_text("\n")

    return bindings
