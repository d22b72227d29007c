"""Runs golden scripts: files of blocks, each a statement, a line `---` and the output that is expected for it.

Blocks are separated by blank lines; lines that begin with `#` are comments of the block that follows. With
PENSTOCK_UPDATE_GOLDEN=1 in the environment the files are rewritten with what came out, to be read before they are
committed. `render` prints statements and other dataclasses readably: fields that have their default are left out.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path

from sqlglot import exp

from penstock.common.errors import PenstockError
from penstock.sql.tree.expression_nodes import expression_sql
from penstock.sql.tree.node import Node
from penstock.sql.tree.statements import Duration, Name, PartitionItem, SelectItem
from penstock.sql.types import DataType

# Taken out of the environment, since PENSTOCK_* there are keys of the configuration for engines that tests open.
UPDATE = os.environ.pop("PENSTOCK_UPDATE_GOLDEN", "") == "1"


@dataclasses.dataclass
class Block:
    """One example of a golden script; `line` is where it starts."""

    line: int
    comments: list[str]
    statement: str
    expected: str


def read_blocks(path: Path) -> list[Block]:
    """Returns the blocks of a script."""
    blocks: list[Block] = []
    lines = [*path.read_text().splitlines(), ""]
    start = 0
    for number, line in enumerate(lines):
        if line.strip():
            continue
        chunk = lines[start:number]
        if chunk:
            comments = [text for text in chunk if text.startswith("#")]
            rest = [text for text in chunk if not text.startswith("#")]
            split = rest.index("---") if "---" in rest else len(rest)
            blocks.append(Block(start + 1, comments, "\n".join(rest[:split]), "\n".join(rest[split + 1:])))
        start = number + 1
    return blocks


def run_golden(path: Path, evaluate: Callable[[str], str]) -> None:
    """Compares what `evaluate` makes of each statement with the script; a PenstockError becomes its text."""
    blocks = read_blocks(path)
    outputs = [_evaluate(evaluate, block.statement) for block in blocks]
    if UPDATE:
        path.write_text("\n\n".join(
            "\n".join([*block.comments, *([block.statement, "---", output] if block.statement else [])])
            for block, output in zip(blocks, outputs, strict=True)
        ) + "\n")
        return
    for block, output in zip(blocks, outputs, strict=True):
        assert output == block.expected, (
            f"{path}:{block.line}: {block.statement}\n--- got\n{output}\n--- expected\n{block.expected}"
        )


def _evaluate(evaluate: Callable[[str], str], statement: str) -> str:
    if not statement:
        return ""
    try:
        output = evaluate(statement)
    except PenstockError as error:
        output = f"{type(error).__name__}: {error}"
    return "\n".join(line for line in output.splitlines() if line.strip())


def render(value: object, indent: int = 0) -> str:
    """Returns a stable text of a dataclass tree: one field per line, expressions as SQL."""
    pad = "  " * (indent + 1)
    if isinstance(value, DataType):
        return value.sql()
    if isinstance(value, Duration | Name):
        return str(value)
    if isinstance(value, SelectItem | PartitionItem):
        alias = "" if value.alias is None else f" AS {value.alias}"
        return f"{render(value.expression)}{alias}  [{value.text}]"
    if isinstance(value, tuple | list):
        if all(isinstance(item, str | int) for item in value):
            return repr(value)
        return "".join(f"\n{pad}- {render(item, indent + 1)}" for item in value)
    if isinstance(value, exp.Expression) and not isinstance(value, Node):
        return expression_sql(value)
    if not isinstance(value, Node) and (not dataclasses.is_dataclass(value) or isinstance(value, type)):
        return repr(value)
    lines = [type(value).__name__]
    for field in value.parts.values() if isinstance(value, Node) else dataclasses.fields(value):
        content = getattr(value, field.name)
        if content is not None and content != field.default:
            text = render(content, indent + 1)
            lines.append(f"{pad}{field.name}:{text}" if text.startswith("\n") else f"{pad}{field.name}: {text}")
    return "\n".join(lines)
