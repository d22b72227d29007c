"""Writes measurements of streams into docs/performance.md: `python -m bench.report results.jsonl ... [--docs FILE]`.

The tables stand between two marks, and replace what is there. Of equal measurements the last counts. `--docs -` prints.
"""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

Measurement = Mapping[str, Any]

BEGIN, END = "<!-- bench.report begins -->", "<!-- bench.report ends -->"
_DOCS = Path(__file__).parent.parent / "docs" / "performance.md"
_OWN, _LIMIT = "penstock", "duckdb-batch"
_GROUPS = "groups"
_NAMED = ("part", "measure", "engine", "query", "trigger", "streams", "vgroups", "tables", "late", "updated", "groups",
          "killed", "series", "size", "streamSinkDataRate", "sinkCallsPerSecond", "checkpointInterval", "follow",
          "rows_per_record")
_RATE_OF = ("latency", "recovery")
# What is measured is part of the load average itself: fifty streams on two cores come to 4.6.
_BUSY_FACTOR = 3.0


def main(arguments: Sequence[str] | None = None) -> None:
    """Reads files of JSON lines and writes the tables."""
    parser = argparse.ArgumentParser(prog="python -m bench.report", description=__doc__)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--docs", type=Path, default=_DOCS, help="the file to write into; -: standard output")
    options = parser.parse_args(arguments)
    lines = [line for file in options.files for line in file.read_text("utf-8").splitlines() if line.strip()]
    text = report([json.loads(line) for line in lines])
    if str(options.docs) == "-":
        sys.stdout.write(text)
        return
    options.docs.write_text(replaced(options.docs.read_text("utf-8"), text), "utf-8")


def replaced(document: str, text: str) -> str:
    """Returns the document with `text` between the marks. Raises ValueError if it hasn't both, in order."""
    before, begin, rest = document.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the document has no part between {BEGIN} and {END}")
    return f"{before}{BEGIN}\n\n{text}\n{END}{after}"


def report(measurements: Iterable[Measurement]) -> str:
    """Returns the tables as Markdown; sections without measurements are left out. Ends with one newline."""
    distinct: dict[tuple[object, ...], Measurement] = {}
    failed: list[Measurement] = []
    for each in measurements:
        if "failed" in each:
            failed.append(each)
        else:
            rate = each["rows_per_second"] if each["measure"] in _RATE_OF else None
            distinct[(*(each.get(name) for name in _NAMED), rate)] = each
    known = list(distinct.values())
    sections = [_conditions(known, failed), _peers(known), _own(known), _latency(known), _recovery(known),
                _starts(known), _growth(known), _groups(known), _profiles(known)]
    return "\n".join(section for section in sections if section)


def _conditions(known: Sequence[Measurement], failed: Sequence[Measurement]) -> str:
    loads = [each["load"] for each in known if "load" in each]
    cores = max((each["cores"] for each in known if "cores" in each), default=1)
    versions = sorted({f"{each['engine'].split('-')[0]} {each['version']}" for each in known if "version" in each})
    text = ", ".join([f"{cores} cores", f"Penstock {known[0]['penstock'] if known else '?'}", *versions]) + "."
    if loads and max(loads) > _BUSY_FACTOR * cores:
        text += (f" **Preliminary**: other work kept the machine busy (load average {min(loads):g} to {max(loads):g}), "
                 "so that figures by the clock say little; rows per second of processors depend less on it.")
    if failed:
        text += " Not measured, because it failed: " + ", ".join(sorted(each["title"] for each in failed)) + "."
    return textwrap.fill(text, 120) + "\n"


def _peers(known: Sequence[Measurement]) -> str:
    """Throughput of each query beside the peers' and DuckDB's batch, with the ratio to the best streaming peer."""
    base = [each for each in known if each["measure"] == "throughput" and not each.get("late")
            and not each.get("updated") and each.get("streams", 1) == 1 and "streamSinkDataRate" not in each
            and "checkpointInterval" not in each and "series" not in each]
    peers = sorted({each["engine"] for each in base} - {_OWN, _LIMIT})
    engines = [engine for engine in (_OWN, *peers, _LIMIT) if any(each["engine"] == engine for each in base)]
    if not base:
        return ""
    tables = []
    for title, figure in (("Rows per second", "rows_per_second"),
                          ("Rows per second of processors, all processes", "rows_per_cpu_second")):
        rows = []
        for query in dict.fromkeys(each["query"] for each in base):
            found = {each["engine"]: each for each in base if each["query"] == query}
            best = max((found[peer][figure] for peer in peers if peer in found), default=None)
            ratio = f"{found[_OWN][figure] / best:.1f}" if best and _OWN in found else ""
            figures = [_count(found[engine][figure]) if engine in found else "" for engine in engines]
            rows.append([query, *figures, ratio])
        tables.append(f"{title}:\n\n" + _table(["query", *engines, "ratio to the best peer"], rows))
    memory = [[each["query"], each["engine"], str(each["memory_mib"]["pss"]), str(each["memory_mib"]["rss"])]
              for each in base]
    tables.append("Peak memory of all processes, MiB:\n\n" + _table(["query", "engine", "PSS", "RSS"], memory))
    return "### Catching up, beside peers\n\n" + "\n".join(tables)


def _own(known: Sequence[Measurement]) -> str:
    """Every throughput of ours, with what was special about it."""
    chosen = [each for each in known if each["measure"] in ("throughput", "history") and each["engine"] == _OWN
              and "series" not in each]
    if not chosen:
        return ""
    heads = ["query", "special", "rows", "results", "rows/s", "rows/CPU-s", "first result s", "checkpoint s", "PSS MiB"]
    return "### Catching up, in detail\n\n" + _table(heads, [
        [each["query"], _special(each), _count(each["rows"]), _count(each["result_rows"]),
         _count(each["rows_per_second"]), _count(each["rows_per_cpu_second"]), f"{each['first_result_seconds']:.2f}",
         f"{each['checkpoint_seconds']:.2f}", str(each["memory_mib"]["pss"])] for each in chosen])


def _latency(known: Sequence[Measurement]) -> str:
    chosen = [each for each in known if each["measure"] == "latency"]
    if not chosen:
        return ""
    shares = ("p50", "p95", "p99", "p99.9", "max")
    heads = ["query", "engine", "trigger", "rows/s", "special", *shares, "p99 from schedule", "rows/CPU-s"]
    return "### From arrival to result, ms\n\n" + _table(heads, [
        [each["query"], each["engine"], each["trigger"], _count(each["rows_per_second"]), _special(each),
         *(f"{each['latency_ms'][share]:.1f}" for share in shares),
         f"{each['latency_from_schedule_ms']['p99']:.1f}" if "latency_from_schedule_ms" in each else "",
         _count(each["rows_per_cpu_second"])] for each in chosen])


def _recovery(known: Sequence[Measurement]) -> str:
    chosen = [each for each in known if each["measure"] == "recovery"]
    if not chosen:
        return ""
    return "### From kill -9 to results\n\n" + _table(["killed", "query", "rows/s", "seconds"], [
        [each["killed"], each["query"], _count(each["rows_per_second"]), f"{each['seconds']:.2f}"] for each in chosen])


def _starts(known: Sequence[Measurement]) -> str:
    chosen = [each for each in known if each["measure"] == "start"]
    if not chosen:
        return ""
    heads = ["streams", "CREATE STREAM until it runs, s", "slowest", "INSERT until its result, ms", "slowest"]
    return "### From CREATE STREAM to results, medians\n\n" + _table(heads, [
        [str(each["times"]), f"{each['start_seconds']:.2f}", f"{each['start_seconds_max']:.2f}",
         f"{1000 * each['result_seconds']:.1f}", f"{1000 * each['result_seconds_max']:.1f}"] for each in chosen])


def _growth(known: Sequence[Measurement]) -> str:
    """A table and a picture of memory per series: what more streams, groups, windows or vnodes cost."""
    chosen = [each for each in known if each.get("series", _GROUPS) != _GROUPS]
    sections = []
    for series in dict.fromkeys(each["series"] for each in chosen):
        points = sorted((each for each in chosen if each["series"] == series), key=lambda each: each["size"])
        heads = [series, "query", "rows of each stream", "results", "rows/s", "rows/CPU-s", "checkpoint s", "PSS MiB"]
        table = _table(heads, [
            [_count(each.get("open_windows", each["size"])), each["query"], _count(each["rows"] / each["streams"]),
             _count(each["result_rows"]), _count(each["rows_per_second"]), _count(each["rows_per_cpu_second"]),
             f"{each['checkpoint_seconds']:.2f}", str(each["memory_mib"]["pss"])] for each in points])
        sizes = [_count(each["size"]) for each in points]
        sections.append("\n".join([
            table, _drawn(f"Memory by {series}", "MiB", sizes, [each["memory_mib"]["pss"] for each in points]),
            _drawn(f"Cost by {series}", "CPU-s per million rows", sizes,
                   [round(1e6 / each["rows_per_cpu_second"], 3) for each in points])]))
    return "### Growth\n\n" + "\n".join(sections) if sections else ""


def _groups(known: Sequence[Measurement]) -> str:
    """What more groups cost, beside peers; of results with the group as a column the query says so."""
    chosen = sorted((each for each in known if each.get("series") == _GROUPS), key=lambda each: each["size"])
    if not chosen:
        return ""
    sizes = list(dict.fromkeys(each["size"] for each in chosen))
    kinds = sorted({(each["engine"] != _OWN, each["engine"], each["query"]) for each in chosen})
    sections = []
    for title, unit, figure in (
            ("Rows per second of processors", "", lambda each: each["rows_per_cpu_second"]),
            ("Rows per second", "", lambda each: each["rows_per_second"]),
            ("PSS of all processes at most", " MiB", lambda each: each["memory_mib"]["pss"])):
        of = {(each["engine"], each["query"], each["size"]): figure(each) for each in chosen}
        rows = [[engine, query, *(f"{_count(of[engine, query, size])}{unit}" if (engine, query, size) in of else ""
                                  for size in sizes)] for _, engine, query in kinds]
        sections.append(f"{title}, by groups:\n\n" + _table(["engine", "query", *map(_count, sizes)], rows))
    for query in dict.fromkeys(query for peer, _, query in kinds if not peer):
        costs = [round(1e6 / each["rows_per_cpu_second"], 3) for each in chosen
                 if (each["engine"], each["query"]) == (_OWN, query)]
        sections.append(_drawn(f"Cost of {query} by groups", "CPU-s per million rows", [*map(_count, sizes)], costs))
    return "### Many groups, beside peers\n\n" + "\n".join(sections)


def _drawn(title: str, unit: str, sizes: Sequence[str], values: Sequence[float]) -> str:
    """Returns a bar chart for Markdown that knows Mermaid."""
    names = ", ".join(f'"{size}"' for size in sizes)
    return "\n".join(["```mermaid no-run: figures", "xychart-beta", f'    title "{title}"', f"    x-axis [{names}]",
                      f'    y-axis "{unit}" 0 --> {max(values) * 1.1:.4g}',
                      f"    bar [{', '.join(f'{value:g}' for value in values)}]", "```", ""])


def _profiles(known: Sequence[Measurement]) -> str:
    chosen = [each for each in known if each["measure"] == "profile"]
    if not chosen:
        return ""
    parts = list(dict.fromkeys(name for each in chosen for name in each["rows_per_cpu_second_of"] if name != "queues"))
    heads = ["query", "trigger", "special", "rows", "results", "all parts", *parts, "rows coming in"]
    return "### One thread, rows per second of processors by part\n\n" + _table(heads, [
        [each["query"], each["trigger"], _special(each), _count(each["rows"]), _count(each["result_rows"]),
         _count(each["rows_per_cpu_second"]),
         *(_count(each["rows_per_cpu_second_of"][part]) if part in each["rows_per_cpu_second_of"] else ""
           for part in parts), _count(each["ingest_rows_per_cpu_second"])] for each in chosen])


_SPECIALS: Mapping[str, Callable[[Any], str]] = {
    "late": lambda value: f"{value:.0%} late" if value else "",
    "updated": lambda value: f"{value:.0%} written twice" if value else "",
    "streams": lambda value: f"{value} streams" if value > 1 else "",
    "groups": lambda value: f"{_count(value)} groups",
    "streamSinkDataRate": lambda value: f"sinks at {value} MB/s",
    "sinkCallsPerSecond": lambda value: f"{value} calls/s of a sink",
    "follow": lambda value: "follows its rows" if value else "",
    "checkpointInterval": lambda value: f"checkpoint every {value}",
}


def _special(each: Measurement) -> str:
    found = [text(each[name]) for name, text in _SPECIALS.items() if name in each]
    if each["measure"] == "history":
        found.append(f"FILL_HISTORY, {_count(each['tables'])} tables")
    if each.get("follow"):
        found.append(f"{each['rows_per_record']} per INSERT")
    return ", ".join(text for text in found if text)


def _count(number: float) -> str:
    """Returns a number with three digits at least: 1.23 M, 45.6 k, 789."""
    for unit, size in ((" M", 1e6), (" k", 1e3)):
        if number >= size:
            return f"{number / size:.3g}{unit}" if number < 1000 * size else f"{number / size:.0f}{unit}"
    return f"{number:.3g}" if number < 100 else f"{number:.0f}"


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(cells) + " |" for cells in (heads, ["---"] * len(heads), *rows)]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
