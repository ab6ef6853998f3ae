"""A msgtx database as the target of a mirror: records and progress are decided by one COMMIT (I6)."""

import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Final

import sqlalchemy

from msgtx import errors
from msgtx.database.calls import driver_of
from msgtx.database.pool import Engine
from msgtx.database.translation import translated
from msgtx.declared.settings import TOPIC
from msgtx.mirror.ends import NOTE_SECONDS, Lag, Portion, Progress, SourcePlace
from msgtx.producer.producer import Producer
from msgtx.rules.partitioner import by_crc32
from msgtx.session.opened import opened
from msgtx.store.mirrors import PlaceColumns, advance_mirror, note_mirror, take_over_mirror
from msgtx.store.topics.topics import TopicsNow, alter_topic, create_topic
from msgtx.types import ProducerId, Record, TopicPartition

SHAPE_ATTEMPTS: Final = 3  # other mirrors may make the same topics, or add partitions, between a look and a change


class DatabaseTarget:
    """The records of a portion are a transaction of the mirror's producer, which decides it together with the progress.

    `sessions`: an engine of its own; its SQL transactions commit both. `make_producer`: makes the producer of a
    transactional id. `topics_now`: looks at topics for this client, whose producers find partitions by that. `address`: of
    the source, as people see it. `repartition`: the key chooses the partition anew; else records keep their partitions.
    """

    def __init__(
        self,
        engine: Engine,
        name: str,
        *,
        sessions: sqlalchemy.Engine,
        make_producer: Callable[[str], Producer],
        topics_now: TopicsNow,
        address: str,
        repartition: bool = False,
    ) -> None:
        self._engine = engine
        self._sessions = sessions
        self._name = name
        self._make_producer = make_producer
        self._topics_now = topics_now
        self._address = address
        self._repartition = repartition
        self._producer: Producer | None = None
        self._run_id = uuid.uuid4()
        self._identity: ProducerId | None = None  # of the producer
        self._lag = Lag(0, 0)
        self._shapes: dict[str, int] = {}  # partitions that a topic of the target is known to have

    def take_over(self) -> Progress:
        """See `Target.take_over`."""
        is_new = self._identity is None
        if not is_new:
            # Looked at first: the next lines fence the producer of another mirror that has taken over.
            self.note(self._lag)
        self._close_producer()
        self._producer = self._make_producer(f"mirror.{self._name}")
        self._producer.init_transactions()
        named = self._producer.begin_transaction().id
        self._producer.abort_transaction()
        identity = ProducerId(named.producer_id, named.producer_epoch)
        with self._engine.connection() as connection:
            rows = take_over_mirror(connection, self._name, self._run_id, identity, is_new=is_new, address=self._address)
        self._identity = identity
        self._shapes.clear()
        return Progress(
            source=rows[0].source,
            places={
                TopicPartition(row.topic, row.partition): SourcePlace(row.next_offset, row.topic_identity, row.row_identity)
                for row in rows
                if row.topic is not None
            },
            revision=str(rows[0].revision),
        )

    def write(self, progress: Progress, portion: Portion) -> Progress:
        """See `Target.write`. Raise also `UnknownTopicOrPartition` for a topic that was deleted."""
        producer, identity = self._producer, self._identity
        assert producer is not None, "take_over comes first"
        assert identity is not None
        assert progress.revision is not None
        self._shape(producer, progress, portion)
        self._lag = portion.lag
        places: list[PlaceColumns] = [
            (*partition, place.offset, place.topic_id, place.identity) for partition, place in portion.places.items()
        ]
        records = iter(portion.records)
        first = next(records, None)
        with translated(), opened(self._sessions.connect) as (connection, commit):
            count = 0
            if first is not None:
                with producer.transaction(session=connection):
                    noted = time.monotonic()
                    for record in _all(first, records):
                        self._send(producer, record)
                        count += 1
                        if time.monotonic() > noted + NOTE_SECONDS:  # on another connection: others see that it lives
                            self.note(portion.lag)
                            noted = time.monotonic()
            revision = advance_mirror(
                driver_of(connection),
                self._name,
                identity,
                int(progress.revision),
                source=portion.source,
                places=places,
                records=count,
                lag=(portion.lag.records, portion.lag.age_ms),
            )
            commit()
        return replace(progress, source=portion.source, places={**progress.places, **portion.places}, revision=str(revision))

    def note(self, lag: Lag) -> None:
        """See `Target.note`."""
        assert self._identity is not None
        self._lag = lag
        with self._engine.connection() as connection:
            if not note_mirror(connection, self._name, self._run_id, self._identity, (lag.records, lag.age_ms)):
                raise errors.MirrorFenced(
                    f"mirror {self._name}: another one of this name has taken over, or its progress was reset",
                    name=self._name,
                )

    def give_up(self, error: Exception) -> None:
        """See `Target.give_up`."""
        if self._identity is None:
            return
        lag = (self._lag.records, self._lag.age_ms)
        with self._engine.connection() as connection:
            note_mirror(connection, self._name, self._run_id, self._identity, lag, error=str(error))

    def close(self) -> None:
        """See `Target.close`."""
        self._close_producer()
        self._sessions.dispose()

    def _close_producer(self) -> None:
        if self._producer is not None:
            self._producer.close(timeout=1)
            self._producer = None

    def _send(self, producer: Producer, record: Record) -> None:
        partition = record.partition
        if self._repartition:
            count = self._shapes[record.topic]
            partition = partition % count if record.key is None else by_crc32(record.key, count)
        producer.send(
            record.topic,
            record.value,
            key=record.key,
            partition=partition,
            timestamp=record.timestamp,
            headers=record.headers or None,
        )

    def _shape(self, producer: Producer, progress: Progress, portion: Portion) -> None:
        """Make the topics that are missing, with the partitions of the source; add partitions to the others.

        Raise `UnknownTopicOrPartition` for one that has been deleted since records were copied to it.
        """
        for attempt in reversed(range(SHAPE_ATTEMPTS)):
            try:
                self._make_topics(producer, progress, portion)
                return
            except (errors.TopicExists, errors.InvalidRequest):
                if not attempt:
                    raise

    def _make_topics(self, producer: Producer, progress: Progress, portion: Portion) -> None:
        unknown = [name for name, shape in portion.topics.items() if self._lacks(name, shape.partitions)]
        if not unknown:
            return
        copied = {at.topic for at, place in progress.places.items() if place.offset > 0}
        found, shapes, changed = self._topics_now(unknown), dict[str, int](), []
        with self._engine.connection() as connection:
            for name in unknown:
                shape, topic = portion.topics[name], found.get(name)
                if topic is None and name in copied:
                    raise errors.UnknownTopicOrPartition(
                        f"topic {name} of the target was deleted after records were copied to it: make it again for those"
                        f" that follow, or `msgtx mirror reset {self._name}` to copy all again",
                        topic=name,
                        reason="deleted",
                    )
                if topic is None:
                    create_topic(connection, name, shape.partitions, _settings(shape.settings.items()))
                elif len(topic.partition_ids) < shape.partitions and not self._repartition:
                    alter_topic(connection, name, shape.partitions, {})
                else:
                    shapes[name] = len(topic.partition_ids)
                    continue
                shapes[name] = shape.partitions
                changed.append(name)
        if changed:
            found |= self._topics_now(changed)
        for topic in found.values():
            producer._topic_changed(topic)
        self._shapes |= shapes

    def _lacks(self, name: str, partitions: int) -> bool:
        known = self._shapes.get(name)
        return known is None or (known < partitions and not self._repartition)


def _all(first: Record, others: Iterator[Record]) -> Iterator[Record]:
    yield first
    yield from others


def _settings(given: Iterable[tuple[str, object]]) -> dict[str, object]:
    """Return the settings that this version knows. Records keep the timestamps of the source, whoever set them there."""
    known = {one.name for one in TOPIC} - {"timestamp_type"}
    return {name: value for name, value in given if name in known}
