"""Reads topics of Kafka, from positions that are Penstock's own: the broker's groups don't decide who reads what."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Sequence

from penstock.common.clock import Clock
from penstock.common.errors import PenstockError, TargetMissingError
from penstock.common.logging import logger
from penstock.planner.streams.ingest_plan import CHANGES
from penstock.tasks.external.connectors.base_consumer import BaseConsumer
from penstock.tasks.external.connectors.incoming_messages import MessageBatch, MessagePosition, Positions, mark_of
from penstock.tasks.external.connectors.kafka import client_config, external_error
from penstock.tasks.external.connectors.libraries import importing
from penstock.tasks.protocol.deployment import IngestDeployment

with importing("confluent-kafka"):
    from confluent_kafka import (
        OFFSET_BEGINNING,
        Consumer,
        KafkaError,
        KafkaException,
        Message,
        TopicPartition,
    )

_log = logger(__name__)
_ASK_S = 0.25
"""So long one question to the brokers may keep the other tasks of the worker's ingest waiting."""
_ASK_EVERY_S = (1.0, 30.0)
"""How often it is looked which partitions there are: while some aren't known, and later."""
_QUEUED_KB = 16_384
_TROUBLE_S = 3.0
"""So long what the library has told counts, if nothing has come since."""


class KafkaConsumer(BaseConsumer):
    """The share of one task: of each topic the partitions whose number leaves its own when divided by all tasks.

    A topic may be deleted and made anew, with other messages at the offsets that were read. So the last message that
    was read is read once more at each start, and when a topic had been away: if another one is at its offset, or if the
    partition ends before it, the partition begins anew, in a segment of its own.
    """

    replays = True

    def __init__(self, deployment: IngestDeployment, index: int, positions: Positions, clock: Clock) -> None:
        super().__init__(deployment, clock)
        plan = deployment.plan
        self._topics = plan.topics
        self._tombstones = plan.format in CHANGES
        self._share = index, plan.tasks
        self._given = dict(positions)
        self._from_latest = plan.from_latest
        self._begun: dict[str, MessagePosition] = {}
        self._read: dict[str, MessagePosition] = dict(positions)
        self._segments = {name: position.segment for name, position in positions.items()}
        # Partitions whose next message shall be the one before a position.
        self._proofs: dict[str, MessagePosition] = {}
        self._anew: set[str] = set()  # those that wait for the checkpoint that has their new segment
        self._away: set[str] = set()  # topics that weren't there when they were looked for, or may not have been
        self._assigned: dict[str, TopicPartition] = {}
        self._missing: TargetMissingError | None = None
        self._reported: deque[tuple[float, KafkaError]] = deque(maxlen=4)
        self._asked_at: float | None = None
        self._held = False
        config = client_config(self._connection)
        config |= {
            "group.id": f"penstock-{deployment.name}", "enable.auto.commit": False, "auto.offset.reset": "error",
            "enable.partition.eof": False, "queued.max.messages.kbytes": _QUEUED_KB, "error_cb": self._note,
            "fetch.message.max.bytes": max(1 << 20, plan.max_message + 4096), "max.poll.interval.ms": 86_400_000,
            "fetch.wait.max.ms": 100, "reconnect.backoff.max.ms": 2_000,
        }
        try:
            self._client = Consumer(config, logger=_log)
        except KafkaException as error:
            raise external_error(self._connection, error.args[0]) from None

    def poll(self, messages: int) -> Sequence[MessageBatch]:
        self._look_for_partitions()
        found = self._client.consume(0 if self._held else messages, 0.0) if self._assigned else self._client.poll(0)
        if not isinstance(found, list):
            found = [] if found is None else [found]
        batches = self._batches(found)
        if batches:
            self._reported.clear()
        return batches

    def begun(self) -> Positions:
        return self._begun

    def hold(self, held: bool) -> None:
        """Pauses the partitions; the library throws away what it had fetched, and fetches it again on resume."""
        if not self._assigned:
            return
        partitions = [TopicPartition(one.topic, one.partition) for one in self._assigned.values()]
        (self._client.pause if held else self._client.resume)(partitions)
        self._held = held

    def committed(self, positions: Positions) -> None:
        """Tells the broker's group, so that Kafka's own tools show how far the ingest is; nobody reads it back."""
        offsets = [TopicPartition(self._assigned[name].topic, self._assigned[name].partition, position.offset)
                   for name, position in positions.items() if name in self._assigned]
        for name in sorted(self._anew):
            if name in positions and positions[name].segment == self._segments[name]:
                self._anew.discard(name)
                self._client.incremental_assign([TopicPartition(
                    self._assigned[name].topic, self._assigned[name].partition, OFFSET_BEGINNING)])
        if not offsets:
            return
        try:
            self._client.commit(offsets=offsets, asynchronous=True)
        except KafkaException as error:
            _log.info("the group of %s was not told: %s", self._connection.name, error)

    def lag(self) -> int | None:
        waiting = None
        try:
            places = {(one.topic, one.partition): one.offset
                      for one in self._client.position(list(self._assigned.values()))}
            for name, partition in self._assigned.items():
                _, high = self._client.get_watermark_offsets(partition, cached=True)
                place = places.get((partition.topic, partition.partition), -1)
                place = place if place >= 0 or name not in self._read else self._read[name].offset
                place = max(place, 0)
                if high >= 0:
                    waiting = (waiting or 0) + max(0, high - place)
        except KafkaException:
            return waiting
        return waiting

    def problem(self) -> PenstockError | None:
        if self._problem is not None:
            return self._problem
        if self._missing is not None:
            return self._missing
        if self._anew:
            return TargetMissingError(
                f"partition {min(self._anew)} of {self._connection.options['servers']} was made anew",
                hint="it is read from its beginning after the next checkpoint")
        if not self._reported or self._clock.monotonic() - self._reported[-1][0] > _TROUBLE_S:
            return None
        errors = [external_error(self._connection, error) for _, error in self._reported]
        return next((error for error in errors if not error.retry), errors[-1])

    def close(self) -> None:
        """Leaves; that may take longer than anybody should wait for while the brokers don't answer."""
        threading.Thread(target=self._client.close, name="leave Kafka", daemon=True).start()

    # --- inside ------------------------------------------------------------------------------------------------

    def _note(self, error: KafkaError) -> None:
        self._reported.append((self._clock.monotonic(), error))

    def _look_for_partitions(self) -> None:
        """Asks which partitions there are, now and then, and reads those that are new."""
        now = self._clock.monotonic()
        every = _ASK_EVERY_S[0] if self._away or not self._assigned else _ASK_EVERY_S[1]
        if self._asked_at is not None and now - self._asked_at < every:
            return
        self._asked_at = now
        fresh: dict[str, TopicPartition] = {}
        missing: TargetMissingError | None = None
        for topic in self._topics:
            try:
                known = self._client.list_topics(topic, timeout=_ASK_S).topics.get(topic)
            except KafkaException as error:
                self._client.poll(0)
                self._note(error.args[0])
                return
            self._reached = True
            if known is None or known.error is not None or not known.partitions:
                missing = TargetMissingError(f"unknown topic {topic} at {self._connection.options['servers']}",
                                             hint="it is read once it exists")
                self._away.add(topic)
                continue
            if topic in self._away:
                self._away.discard(topic)
                self._prove(topic)
            for number in sorted(known.partitions):
                name = f"{topic}/{number}"
                if number % self._share[1] == self._share[0] and name not in self._assigned:
                    fresh[name] = TopicPartition(topic, number)
        self._missing = missing
        if fresh:
            self._begin(fresh)

    def _begin(self, fresh: dict[str, TopicPartition]) -> None:
        """Starts to read partitions: where the ingest was, or at their beginning or end."""
        ready: dict[str, TopicPartition] = {}
        for name, partition in fresh.items():
            place = self._given.get(name)
            if place is not None:
                partition.offset = self._first(name, place)
            elif self._from_latest and not self._begun and not self._given:
                try:
                    _, high = self._client.get_watermark_offsets(partition, timeout=_ASK_S)
                except KafkaException as error:
                    self._note(error.args[0])
                    self._asked_at = None
                    return
                partition.offset = high
            else:
                partition.offset = OFFSET_BEGINNING
            ready[name] = partition
        for name, partition in ready.items():
            if partition.offset >= 0:  # the beginning is wherever it is by the time of the next start
                self._begun[name] = self._given.get(name) or MessagePosition("", partition.offset)
        self._assigned |= ready
        self._client.incremental_assign(list(ready.values()))

    def _first(self, name: str, place: MessagePosition) -> int:
        """Returns from which offset a partition is to be read on from a place: that of the message before, if it can
        be told from others."""
        if place.mark and place.offset:
            self._proofs[name] = place
            return place.offset - 1
        return place.offset or OFFSET_BEGINNING

    def _prove(self, topic: str) -> None:
        """Makes sure that a topic which may have been away is the same one."""
        for name, partition in self._assigned.items():
            if partition.topic == topic and name in self._read and name not in self._anew:
                self._client.incremental_unassign([TopicPartition(topic, partition.partition)])
                self._client.incremental_assign([TopicPartition(
                    topic, partition.partition, self._first(name, self._read[name]))])

    def _begin_anew(self, name: str) -> None:
        """Stops reading a partition that isn't the one that was read, until a checkpoint says so."""
        segment = f"{int(self._segments.get(name) or 0) + 1:06d}"
        _log.warning("partition %s of connection %s was made anew: it is read from its beginning", name,
                     self._connection.name)
        self._proofs.pop(name, None)
        self._segments[name] = segment
        self._begun[name] = self._read[name] = MessagePosition(segment, 0)
        self._anew.add(name)
        self._client.incremental_unassign([TopicPartition(self._assigned[name].topic, self._assigned[name].partition)])

    def _is_proof(self, name: str, message: Message) -> bool:
        """Whether a message is the one that was read last; if another one is in its place, all begins anew."""
        place = self._proofs.pop(name)
        if (message.offset() or 0) >= place.offset:
            return False  # the broker has deleted it, as it may
        if mark_of(message.value() or b"", message.key(), message.timestamp()[1]) != place.mark:
            self._begin_anew(name)
        return True

    def _batches(self, messages: Iterable[Message]) -> list[MessageBatch]:
        """Returns messages by partition; what is an error instead is noted."""
        by_partition: dict[tuple[str, int], list[Message]] = {}
        for message in messages:
            error = message.error()
            if error is not None:
                self._note_message_error(message, error)
                continue
            name = f"{message.topic()}/{message.partition()}"
            if name in self._anew or (name in self._proofs and self._is_proof(name, message)):
                continue
            if message.value() is None and not self._tombstones:
                continue  # says that what a key had said is void, which is no row
            by_partition.setdefault((message.topic() or "", message.partition() or 0), []).append(message)
        now_ms = self._clock.now_ms()
        batches = []
        for (topic, number), found in by_partition.items():
            times = [message.timestamp()[1] for message in found]
            name = f"{topic}/{number}"
            batch = MessageBatch(
                name, self._segments.get(name, ""),
                [message.offset() or 0 for message in found], [message.value() or b"" for message in found],
                [time if time > 0 else now_ms for time in times], topic, [message.key() for message in found],
                timed=times[-1] > 0)
            self._read[name] = MessagePosition(batch.segment, batch.next_offset, batch.mark)
            batches.append(batch)
        return batches

    def _note_message_error(self, message: Message, error: KafkaError) -> None:
        code = error.code()
        if code == KafkaError._AUTO_OFFSET_RESET or code == KafkaError.OFFSET_OUT_OF_RANGE:
            if self._ends_before(message):
                self._begin_anew(f"{message.topic()}/{message.partition()}")
                return
            self._problem = TargetMissingError(
                f"partition {message.topic()}/{message.partition()} no longer has the next offset: "
                f"{error.str()}", hint="the broker has deleted it; to read what is there, drop the ingest and create "
                "it again; RESUME INGEST tries once more")
            return
        self._note(error)
        if isinstance(external_error(self._connection, error), TargetMissingError):
            self._away.add(message.topic() or "")

    def _ends_before(self, message: Message) -> bool:
        """Whether a partition ends before what was read of it: it is another one."""
        name = f"{message.topic()}/{message.partition()}"
        if name not in self._read:
            return False
        try:
            _, high = self._client.get_watermark_offsets(
                TopicPartition(message.topic() or "", message.partition() or 0), timeout=_ASK_S)
        except KafkaException:
            return False
        return high < self._read[name].offset
