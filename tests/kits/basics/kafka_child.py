"""Kafka brokers that librdkafka simulates, with what its Python binding doesn't offer: topics, brokers that fail.

Prints the address of the cluster; each line of its input is a command, which it answers with `done`.
"""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

import confluent_kafka

_PRODUCER = 0


def library() -> ctypes.CDLL:
    """Returns the librdkafka that the binding brings along."""
    folder = Path(confluent_kafka.__file__).parent
    found = ctypes.CDLL(str(next((folder.parent / "confluent_kafka.libs").glob("librdkafka*"))))
    for name, result, arguments in (
        ("rd_kafka_conf_new", ctypes.c_void_p, []),
        ("rd_kafka_new", ctypes.c_void_p, [ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t]),
        ("rd_kafka_mock_cluster_new", ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_int]),
        ("rd_kafka_mock_cluster_bootstraps", ctypes.c_char_p, [ctypes.c_void_p]),
        ("rd_kafka_mock_topic_create", ctypes.c_int, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int, ctypes.c_int]),
        ("rd_kafka_mock_topic_set_error", None, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int]),
        ("rd_kafka_mock_broker_set_down", ctypes.c_int, [ctypes.c_void_p, ctypes.c_int32]),
        ("rd_kafka_mock_broker_set_up", ctypes.c_int, [ctypes.c_void_p, ctypes.c_int32]),
    ):
        function = getattr(found, name)
        function.restype, function.argtypes = result, arguments
    return found


def main(brokers: int) -> None:
    rdkafka = library()
    error = ctypes.create_string_buffer(512)
    client = rdkafka.rd_kafka_new(_PRODUCER, rdkafka.rd_kafka_conf_new(), error, len(error))
    assert client, error.value.decode()
    cluster = rdkafka.rd_kafka_mock_cluster_new(client, brokers)
    print(rdkafka.rd_kafka_mock_cluster_bootstraps(cluster).decode(), flush=True)
    for line in sys.stdin:
        match line.split():
            case ["topic", name, partitions]:
                failed = rdkafka.rd_kafka_mock_topic_create(cluster, name.encode(), int(partitions), min(brokers, 3))
            case ["drop" | "restore" as what, name]:
                rdkafka.rd_kafka_mock_topic_set_error(
                    cluster, name.encode(), confluent_kafka.KafkaError.UNKNOWN_TOPIC_OR_PART if what == "drop" else 0)
                failed = 0
            case ["down", broker]:
                failed = rdkafka.rd_kafka_mock_broker_set_down(cluster, int(broker))
            case ["up", broker]:
                failed = rdkafka.rd_kafka_mock_broker_set_up(cluster, int(broker))
            case _:
                failed = 1
        print("failed" if failed else "done", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
