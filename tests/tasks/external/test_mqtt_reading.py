"""The socket that reads ahead gives what came, and says what it still has; so does the client that reads from it."""

from __future__ import annotations

import select
import socket
import ssl
from pathlib import Path

import pytest
from kits.basics.certificates import NO_OPENSSL, OPENSSL, make_certificate
from kits.basics.external_servers import Mosquitto
from kits.basics.waiting import wait_until
from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion

from penstock.tasks.external.connectors.mqtt_reading import ReadAhead, ReadingClient


def test_what_has_come_is_read_at_once_and_handed_on_in_pieces() -> None:
    """`select` says nothing of bytes that are here already: `pending` does."""
    near, far = socket.socketpair()
    with far:
        ahead = ReadAhead(near)
        ahead.setblocking(False)
        assert ahead.pending() == 0
        with pytest.raises(BlockingIOError):
            ahead.recv(1)
        far.sendall(b"one and two")
        assert select.select([ahead], [], [], 5)[0]
        assert (ahead.recv(3), ahead.pending()) == (b"one", 8)
        assert not select.select([ahead], [], [], 0)[0]
        assert (ahead.recv(100), ahead.pending()) == (b" and two", 0)
        with pytest.raises(BlockingIOError):
            ahead.recv(1)
        assert ahead.send(b"three") == 5
        assert far.recv(100) == b"three"
        far.sendall(b"!")
        far.shutdown(socket.SHUT_WR)
        assert (ahead.recv(5), ahead.recv(5), ahead.recv(5)) == (b"!", b"", b"")
        ahead.close()


@pytest.mark.parametrize("encrypted", [False, True])
def test_every_message_comes_whole_and_in_order(encrypted: bool, tmp_path: Path) -> None:
    """Small ones, of which many come at once, and some that are larger than what is read at once or TLS packs up."""
    lines, context = [], None
    if encrypted:
        if OPENSSL is None:
            pytest.skip(NO_OPENSSL)
        certificate, key = make_certificate(tmp_path)
        lines = [f"certfile {certificate}", f"keyfile {key}"]
        context = ssl.create_default_context(cafile=str(certificate))
    broker = Mosquitto(tmp_path, "max_queued_messages 0", *lines)
    broker.start()
    sent = [str(number).encode() * (30_000 if number % 400 == 0 else 5) for number in range(100, 2_100)]
    found: list[bytes] = []
    clients: list[Client] = []
    try:
        for kind in (ReadingClient, Client):
            client = kind(CallbackAPIVersion.VERSION2)
            client.username_pw_set(broker.username, broker.password)
            if context is not None:
                client.tls_set_context(context)
            client.connect("localhost", broker.port)
            clients.append(client)
        reader, writer = clients
        ready: list[int] = []
        reader.on_message = lambda _client, _data, message: found.append(message.payload)
        reader.on_subscribe = lambda *_: ready.append(1)
        reader.subscribe("t", 1)
        reader.loop_start()
        wait_until(lambda: bool(ready), 60.0, "not subscribed")
        writer.loop_start()
        for payload in sent:
            writer.publish("t", payload, 1)
        wait_until(lambda: len(found) >= len(sent), 60.0, f"{len(found)} of {len(sent)} came")
    finally:
        for client in clients:
            client.disconnect()
            client.loop_stop()
        broker.stop()
    assert found == sent
