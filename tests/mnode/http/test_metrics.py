"""What Prometheus reads, what the dashboard asks for, and the listener that both come through."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from typing import Any

import pytest
from kits.basics.places import ROOT
from kits.engines.overviews import T0, staged
from prometheus_client.parser import text_string_to_metric_families

from penstock.common.errors import StorageError, UnavailableError
from penstock.mnode.http.http_messages import Page
from penstock.mnode.http.http_server import HttpListener
from penstock.mnode.http.metrics import exposition, families

DASHBOARD = ROOT / "conf" / "grafana" / "penstock.json"


@pytest.fixture(scope="module")
def samples() -> dict[str, list[tuple[dict[str, str], float]]]:
    """Samples by name, read back from the text by Prometheus' own parser."""
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    overview = staged()
    for family in text_string_to_metric_families(exposition(lambda: overview).decode()):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


def test_metrics_say_what_the_tables_say(samples: dict[str, list[tuple[dict[str, str], float]]]) -> None:
    """Rows, states, watermarks and rows left out, with stream, task, level and vnode as labels."""
    rows = samples["penstock_task_input_rows_total"]
    assert sum(value for labels, value in rows if labels["level"] == "source") == 45
    assert {(labels["stream"], labels["level"], labels["vnode"]) for labels, _ in rows} == {
        ("s1", level, vnode) for level in ("source", "agg", "sink") for vnode in ("2", "3")}
    assert samples["penstock_stream_state"] == [({"stream": "s1", "state": "RUNNING"}, 1)]
    assert sum(value for labels, value in samples["penstock_stream_left_out_rows_total"]
               if labels["reason"] == "late") == 1
    assert max(value for _, value in samples["penstock_vnode_watermark_timestamp_seconds"]) == (T0 + 40_000) / 1000
    assert all(value == 60 * 2**20 for _, value in samples["penstock_task_queue_capacity_bytes"])
    assert {labels["queue"] for labels, _ in samples["penstock_task_queue_bytes"]} == {"input", "output"}
    assert samples["penstock_stream_checkpoint_bytes"][0][1] > 0
    assert samples["penstock_build_info"] == [({"version": "9.9"}, 1)]
    assert samples["process_resident_memory_bytes"][0][1] > 1e6


def test_metrics_of_ingests(samples: dict[str, list[tuple[dict[str, str], float]]]) -> None:
    """Their state, messages and rows, what was no use, and what waits, by their names."""
    assert samples["penstock_ingest_state"] == [({"ingest": "i1", "state": "RUNNING"}, 1)]
    values = {name: value for name, ((labels, value), *_) in samples.items()
              if name.startswith("penstock_ingest_") and labels == {"ingest": "i1"}}
    assert values.pop("penstock_ingest_bytes_total") > 0
    assert values == {
        "penstock_ingest_messages_total": 4, "penstock_ingest_rows_total": 3,
        "penstock_ingest_refused_messages_total": 1, "penstock_ingest_unknown_field_rows_total": 0,
        "penstock_ingest_lag_messages": 1, "penstock_ingest_restarts_total": 0}


def test_tasks_on_an_snode_are_of_no_vnode() -> None:
    """Their numbers are there, with the stream, the task and the level; the label of the vnode is empty."""
    overview = staged()
    for task in overview["streams"][0]["tasks"]:
        if task["level"] == "agg":
            task.update(node_type="snode", node_id=1012)
    rows = next(family for family in families(overview) if family.name == "penstock_task_input_rows")
    assert {(sample.labels["level"], sample.labels["vnode"]) for sample in rows.samples} == {
        ("source", "2"), ("source", "3"), ("agg", ""), ("sink", "2"), ("sink", "3")}


def test_names_follow_the_conventions() -> None:
    """Own prefix, base units, `_total` for counters alone, a sentence of help each, no name twice."""
    found = list(families(staged()))
    names = [family.name for family in found]
    assert len(set(names)) == len(names)
    for family in found:
        assert re.fullmatch(r"penstock_[a-z]+(_[a-z]+)+", family.name)
        assert not re.search(r"(_ms|_millis|_percent|_mib|_total)(_|$)", family.name)
        assert family.documentation.endswith(".")
        assert all(sample.name.endswith("_total") == (family.type == "counter") for sample in family.samples)


def test_the_dashboard_asks_for_what_there_is(samples: dict[str, list[tuple[dict[str, str], float]]]) -> None:
    """Each name and each label in a query of the dashboard is exported; what is exported of tasks is on it."""
    dashboard = json.loads(DASHBOARD.read_text())
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    asked += [variable["query"] for variable in dashboard["templating"]["list"] if variable["type"] == "query"]
    exported = {family.name + ("_total" if family.type == "counter" else "") for family in families(staged())}
    names = {name for expr in asked for name in re.findall(r"\b(?:penstock|process)_\w+", expr)}
    assert names <= exported | samples.keys()
    assert {"penstock_task_queue_bytes", "penstock_task_busy_seconds_total", "penstock_stream_lag_records",
            "penstock_ingest_state", "penstock_ingest_lag_messages"} <= names
    for expr in asked:
        for name, labels in re.findall(r"\b(penstock_\w+)\{(.*?)\}", expr):
            known = set().union(*(labels for labels, _ in samples.get(name, [({"stream": "", "level": ""}, 0)])))
            assert set(re.findall(r"(\w+)=~?\"", labels)) <= known | {"job", "instance"}  # Prometheus' own
    places = [tuple(panel["gridPos"].values()) for panel in dashboard["panels"]]
    assert len(set(places)) == len(places)


def test_the_dashboard_tells_engines_apart() -> None:
    """Each value that it shows is of the chosen jobs and instances, and none is summed over engines."""
    dashboard = json.loads(DASHBOARD.read_text())
    scope = 'job=~"$job",instance=~"$instance"'
    targets = [target for panel in dashboard["panels"] for target in panel.get("targets", ())]
    for target in targets:
        metrics = re.findall(r"\b(?:penstock|process)_\w+", target["expr"])
        assert metrics
        assert target["expr"].count("{" + scope) == len(metrics), target["expr"]
        assert all("instance" in labels for labels in re.findall(r"\bby \((.*?)\)", target["expr"])), target["expr"]
        assert "{{instance}}" in target["legendFormat"]
    chosen = {variable["name"]: variable["query"] for variable in dashboard["templating"]["list"]}
    assert scope in chosen["stream"]
    assert scope in chosen["ingest"]
    assert 'job=~"$job"' in chosen["instance"]
    assert "job" in chosen


# --- the listener ----------------------------------------------------------------------------------------------------


def get(listener: HttpListener, path: str, method: str = "GET", **headers: str) -> tuple[int, str]:
    """Returns status and text of an answer."""
    request = urllib.request.Request(f"http://127.0.0.1:{listener.port}{path}", headers=headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_a_door_only_reads_and_only_for_us() -> None:
    """Known paths by GET are answered; other paths, methods and names of hosts aren't, and errors stay outside."""

    def broken() -> Any:
        raise ZeroDivisionError

    def closed() -> Any:
        raise StorageError("the disk is gone")

    listener = HttpListener("127.0.0.1", 0, {
        "/a": Page("text/plain", lambda: b"yes"), "/b": Page("text/plain", broken), "/c": Page("text/plain", closed)})
    assert get(listener, "/a") == get(listener, "/a?x=1") == (200, "yes")
    status, text = get(listener, "/x")
    assert (status, json.loads(text)["desc"]) == (404, "unknown path; known paths: /a, /b, /c")
    for path, wanted, said in (("/b", 500, "see the log"), ("/c", 503, "the disk is gone")):
        status, text = get(listener, path)
        assert (status, json.loads(text)["desc"]) == (wanted, said)
    for method in ("POST", "HEAD", "PUT", "DELETE"):
        status, text = get(listener, "/a", method)
        assert status == 405
        assert method == "HEAD" or json.loads(text)["desc"] == "this path takes GET"
    assert get(listener, "/a", Host=f"localhost:{listener.port}")[0] == get(listener, "/a", Host="[::1]:80")[0] == 200
    assert get(listener, "/a", Host="elsewhere.example")[0] == 421
    with pytest.raises(UnavailableError, match=f"port {listener.port} of 127.0.0.1 can't be opened"):
        HttpListener("127.0.0.1", listener.port, {})
    port = listener.port
    listener.close()
    HttpListener("127.0.0.1", port, {}).close()
