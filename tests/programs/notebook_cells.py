"""A notebook without its pages: runs cells, which come as a JSON list, and prints what each one shows, as a JSON list.

The tools' packages come behind Penstock's own, as if all had been installed together.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys


def main(tools: str, cells: str) -> None:
    sys.path.append(tools)
    from IPython.core.interactiveshell import InteractiveShell

    notebook = InteractiveShell.instance()
    shown = []
    for cell in json.loads(cells):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            outcome = notebook.run_cell(cell)
        if outcome.error_before_exec is not None:
            raise outcome.error_before_exec
        error = outcome.error_in_exec
        shown.append(str(error) if error is not None else "" if outcome.result is None else str(outcome.result))
    print(json.dumps(shown))


if __name__ == "__main__":
    main(*sys.argv[1:])
