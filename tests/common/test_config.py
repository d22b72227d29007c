"""Configuration: layers, texts with units, complaints, and the agreement of file, dataclass and documentation."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kits.basics.places import ROOT

from penstock.common.config import (
    CONF_DIRECTORY,
    Config,
    describe_values,
    environment_variable,
    format_value,
    keys,
    load_config,
    parse_assignment,
    read_value,
    system_time_zone,
)
from penstock.common.errors import ConfigError
from penstock.mnode.coordinator.task_settings import task_settings
from penstock.tasks.protocol.deployment import TaskSettings

CONF_FILE = CONF_DIRECTORY / "penstock.toml"


def complaints(*arguments: object, **more: object) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(*arguments, environment={}, **more)  # type: ignore[arg-type]
    return caught.value.message


def test_defaults_are_those_that_the_design_names() -> None:
    """Without any layer of the user's, the well-known numbers apply."""
    config = load_config(environment={})
    assert config.stream_queue_size == 60 * 1024**2 == 62_914_560
    assert config.sink_calls_per_second == 50
    assert config.stream_sink_data_rate == 2.0
    assert config.checkpoint_interval == 180
    assert (config.streams_per_worker, config.packed_streams_per_worker) == (4, 60)
    assert config.stream_buffer_size == 134_217_728
    assert config.host == "127.0.0.1"


def test_later_layers_win(tmp_path: Path) -> None:
    """Built-in file < user's file < environment < overrides."""
    user = tmp_path / "mine.toml"
    user.write_text('idleTimeout = "3s"\n[checkpoints]\ncheckpointInterval = "1m"\ncheckpointsKept = 7\n')
    environment = {"PENSTOCK_CHECKPOINT_INTERVAL": "2m", "PENSTOCK_HOST": "0.0.0.0", "PATH": "/bin"}
    config = load_config(user, {"host": "::1"}, environment)
    assert config.idle_timeout == 3
    assert config.checkpoints_kept == 7
    assert config.checkpoint_interval == 120
    assert config.host == "::1"


def test_mapping_ranks_above_the_environment() -> None:
    """What a program passes to `connect` is explicit, so the environment doesn't change it."""
    config = load_config({"idleTimeout": 1}, environment={"PENSTOCK_IDLE_TIMEOUT": "9"})
    assert config.idle_timeout == 1


def test_config_as_source_keeps_its_values() -> None:
    """Overrides on a `Config` change nothing else."""
    first = load_config({"idleTimeout": 1, "spark.executor.memory": "1g"}, environment={})
    second = load_config(first, {"checkpointsKept": 9}, environment={"PENSTOCK_IDLE_TIMEOUT": "9"})
    assert (second.idle_timeout, second.checkpoints_kept) == (1, 9)
    assert second.spark == first.spark


def test_all_mistakes_are_reported_at_once(tmp_path: Path) -> None:
    """One error lists each unknown key and bad value of each layer, with a suggestion where one is close."""
    user = tmp_path / "mine.toml"
    user.write_text('[chekpoints]\nx = 1\n[wal]\nidleTimeout = 1\nwalSegmentSze = "1MiB"\n')
    with pytest.raises(ConfigError) as caught:
        load_config(
            user, {"streamSinkDataRate": 7, "logLevel": "infos"}, {"PENSTOCK_CHECKPOINT_INTERVAl": "1"}
        )
    text = caught.value.message
    assert "6 mistakes" in text
    assert "no section [chekpoints] (did you mean checkpoints?)" in text
    assert "idleTimeout belongs into section [streams], not [wal]" in text
    assert "no key walSegmentSze (did you mean walSegmentSize?)" in text
    assert "(did you mean PENSTOCK_CHECKPOINT_INTERVAL?)" in text
    assert "streamSinkDataRate = 7: out of range (Number, 0.1 to 5, or 0)" in text
    assert "expected one of debug, info, warning, error (did you mean info?)" in text


@pytest.mark.parametrize(
    ("key", "value", "complaint"),
    [
        ("checkpointInterval", "5x", "expected a number of seconds"),
        ("checkpointInterval", "", "expected a number of seconds"),
        ("checkpointInterval", True, "expected a number of seconds"),
        ("checkpointInterval", "nan", "expected a number of seconds"),
        ("checkpointInterval", float("nan"), "out of range"),
        ("checkpointInterval", -1, "out of range"),
        ("streamQueueSize", "60MB", "expected a number of bytes"),
        ("streamQueueSize", "1KiB", "out of range (Size, 64KiB to 4GiB)"),
        ("checkpointsKept", 2.5, "expected a whole number"),
        ("checkpointsKept", "many", "expected a number"),
        ("disableStream", "maybe", "expected true or false"),
        ("host", 5, "expected a text"),
        ("timezone", "Europe/Berln", "no such zone (did you mean Europe/Berlin?)"),
        ("timezone", "../etc/passwd", "no such zone"),
    ],
)
def test_bad_values_are_refused(key: str, value: object, complaint: str) -> None:
    """A value of the wrong kind or out of its range is named with what would be right."""
    assert complaint in complaints({key: value})


def test_related_bounds_are_checked_together() -> None:
    """Two values that are fine alone can contradict each other; the reason is given."""
    text = complaints({"blockBytesMax": "1GiB"})
    assert "blockBytesMax (1GiB) must not exceed streamQueueSize (60MiB): a block must fit into a queue" in text
    assert "3 times heartbeatInterval (10s)" in complaints({"heartbeatInterval": 10})


def test_zero_means_unlimited_sink_rate() -> None:
    """streamSinkDataRate may be 0 although its range begins at 0.1."""
    assert load_config({"streamSinkDataRate": 0}, environment={}).stream_sink_data_rate == 0
    assert task_settings(load_config({"streamSinkDataRate": 0}, environment={})).sink_bytes_per_second == 0


def test_task_settings_default_to_the_file() -> None:
    """The defaults of the tasks' settings are those of the configuration."""
    assert task_settings(load_config(environment={})) == TaskSettings()


def test_spark_keys_pass_through(tmp_path: Path) -> None:
    """Any key of the [spark] table reaches Spark with its prefix, on top of spark-defaults.conf."""
    user = tmp_path / "mine.toml"
    user.write_text('[spark]\nmaster = "local[8]"\n"executor.memory" = "2g"\nui.enabled = true\n')
    config = load_config(user, environment={"PENSTOCK_SPARK_MASTER": "local[9]"})
    properties = config.spark_properties()
    assert properties["spark.master"] == "local[9]"
    assert properties["spark.executor.memory"] == "2g"
    assert properties["spark.ui.enabled"] == "true"
    assert properties["spark.scheduler.barrier.maxConcurrentTasksCheck.interval"] == "1s"


def test_where_the_engine_listens_for_workers() -> None:
    """On loopback for those of this machine; else on `host`, or where the [spark] table says that Spark does."""
    cluster = {"spark.master": "spark://10.0.0.9:7077", "host": "10.0.0.7", "spark.authenticate": False}
    for settings, host in (({"host": "0.0.0.0"}, "127.0.0.1"), (cluster, "10.0.0.7"),
                           (cluster | {"host": "::", "spark.driver.host": "10.0.0.8"}, "10.0.0.8")):
        config = load_config(settings, environment={})
        properties = config.spark_properties()
        assert {config.worker_host, properties["spark.driver.host"], properties["spark.driver.bindAddress"]} == {host}
    with pytest.raises(ConfigError, match=r"workers of spark://10.0.0.9:7077 need one address to call"):
        load_config(cluster | {"host": "0.0.0.0"}, environment={})


def test_missing_and_malformed_files_are_named(tmp_path: Path) -> None:
    """A file that cannot be read or isn't TOML is an error that names it."""
    assert "cannot read" in complaints(tmp_path / "none.toml")
    bad = tmp_path / "bad.toml"
    bad.write_text("idleTimeout = \n")
    assert "bad.toml is not valid TOML" in complaints(bad)


def test_assignments_of_the_command_line() -> None:
    """`--set` takes key=value; the value may contain an equals sign."""
    assert parse_assignment("spark.driver.extraJavaOptions=-Da=b") == ("spark.driver.extraJavaOptions", "-Da=b")
    with pytest.raises(ConfigError, match="expected key=value"):
        parse_assignment("checkpointInterval")


def test_system_time_zone_is_found(tmp_path: Path) -> None:
    """TZ comes first, then the link /etc/localtime, then UTC."""
    link = tmp_path / "localtime"
    link.symlink_to("/usr/share/zoneinfo/Asia/Tokyo")
    assert system_time_zone({"TZ": "Europe/Berlin"}, link) == "Europe/Berlin"
    assert system_time_zone({"TZ": "nonsense"}, link) == "Asia/Tokyo"
    assert system_time_zone({}, tmp_path / "none") == "UTC"


@given(st.sampled_from(list(keys().values())), st.data())
def test_formatted_values_read_back(key: object, data: st.DataObject) -> None:
    """What SHOW VARIABLES prints is what the file accepts, for any value within the bounds."""
    from penstock.common.config import Key

    assert isinstance(key, Key)
    if key.kind == "size":
        value: object = data.draw(st.integers(int(key.low or 0), int(key.high or 0)))
    elif key.kind == "integer":
        value = data.draw(st.integers(int(key.low or 0), int(key.high or 0)))
    elif key.kind == "duration":
        micros = st.integers(round((key.low or 0) * 1e6), round((key.high or 0) * 1e6))
        value = data.draw(micros) / 1e6
    elif key.kind == "flag":
        value = data.draw(st.booleans())
    else:
        return
    assert read_value(key, format_value(key, value)) == pytest.approx(value, rel=1e-9)


# --- file, dataclass and documentation agree ---------------------------------------------------------------


def test_file_and_dataclass_have_the_same_keys_in_the_same_order() -> None:
    """Each key is in the file once, in its section, in the dataclass's order; nothing else is."""
    content = tomllib.loads(CONF_FILE.read_text("utf-8"))
    spark = content.pop("spark")
    in_file = [(section, name) for section, values in content.items() for name in values]
    assert in_file == [(key.section, key.name) for key in keys().values()]
    assert spark == {"master": "local[64]"}


def test_each_key_of_the_file_has_a_comment_with_its_bounds() -> None:
    """One line above each key: a sentence, then what is accepted."""
    lines = CONF_FILE.read_text("utf-8").splitlines()
    for key in keys().values():
        at = next(index for index, line in enumerate(lines) if re.match(rf"{key.name}\s*=", line))
        comment = lines[at - 1]
        assert comment.startswith("# "), key.name
        assert comment.endswith(f". {describe_values(key)}."), f"{comment} should end with {describe_values(key)}"
        assert lines[at - 2] == "", f"the comment of {key.name} has one line"


def test_environment_names_are_unique() -> None:
    """No two keys share a variable, and names are split at words."""
    names = [environment_variable(key.name) for key in keys().values()]
    assert len(set(names)) == len(names)
    assert environment_variable("walPinMax") == "PENSTOCK_WAL_PIN_MAX"


def test_config_is_frozen() -> None:
    """Nobody changes settings behind the engine's back."""
    config = load_config(environment={})
    with pytest.raises(AttributeError):
        config.idle_timeout = 1  # type: ignore[misc]
    assert isinstance(config, Config)


def test_every_key_is_used() -> None:
    """A key that no code reads would be a promise that nobody keeps."""
    parts = ("common", "wal", "vnode", "tasks", "mnode", "shell")
    code = "".join(
        path.read_text("utf-8") for part in parts for path in (ROOT / part).rglob("*.py") if path.name != "config.py"
    )
    assert [key.name for name, key in keys().items() if not re.search(rf"\.{name}\b", code)] == []
