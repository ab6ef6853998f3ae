"""The client: one connection pool, and everything that is made from it."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar, Unpack, overload

from msgtx import arguments, errors, forks, units
from msgtx.closing import Closing
from msgtx.config import ClientConfig, ConsumerConfig, ProducerConfig, ShareConsumerConfig, resolve
from msgtx.database.address import public_url, sqlalchemy_url
from msgtx.database.connection import until
from msgtx.database.opening import open_engine
from msgtx.database.pool import POOL_SIZE, Engine
from msgtx.observer import Observer
from msgtx.receiving.deserializers import Deserializers
from msgtx.runtime import Runtime
from msgtx.settings import (
    ConsumerSettings,
    IntoSettings,
    MirrorSettings,
    OnFailover,
    ProducerSettings,
    ShareConsumerSettings,
    StopSignal,
    TransformSettings,
)
from msgtx.store.operator.installation import SCHEMA_VERSION, describe_installation, require_version
from msgtx.store.transactions.seal import complete_prepared
from msgtx.store.transactions.transactions import end_transaction, transaction_outcome
from msgtx.types import (
    ActivityPiece,
    Coordinator,
    DatabaseDescription,
    Finding,
    FoundBefore,
    FoundRecord,
    K,
    MirrorReport,
    Outcome,
    PreparedTransaction,
    ProcessReport,
    Record,
    SearchAnswer,
    ShareRecord,
    Snapshot,
    SweepReport,
    TopicPartition,
    TransactionId,
    V,
    VerifyReport,
)
from msgtx.units import Duration

if TYPE_CHECKING:
    from sqlalchemy import Engine as SqlalchemyEngine
    from sqlalchemy.ext.asyncio import AsyncEngine

    from msgtx.admin.doctor.findings import Limits
    from msgtx.admin.find import Search
    from msgtx.admin.groups import GroupsAdmin
    from msgtx.admin.mirrors import MirrorsAdmin
    from msgtx.admin.partitions import PartitionsAdmin
    from msgtx.admin.producers import ProducersAdmin
    from msgtx.admin.shares import SharesAdmin
    from msgtx.admin.spark import SparkAdmin
    from msgtx.admin.topics import TopicsAdmin
    from msgtx.admin.transactions import TransactionsAdmin
    from msgtx.consumer.consumer import Consumer
    from msgtx.process import Outputs, Transform
    from msgtx.producer.batcher import Serializer
    from msgtx.producer.producer import Producer
    from msgtx.shares.share_consumer import ShareConsumer
    from msgtx.snapshot import Snapshots
    from msgtx.store.sweeps.coordinators import Shard

# Members of a share group get a `ShareRecord`. A worker's function of a `Record` takes one, too.
S = TypeVar("S")  # a session
MOST_CONNECTIONS: Final = 10_000  # of one client: more than a server takes
MOST_FINDINGS: Final = 20  # of one kind: an operator who has more of them begins with the oldest


class Admin:
    """`client.admin`: groups, share groups, transactions, producers, partitions, Spark, mirrors; what hurts."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @property
    @forks.kept
    def groups(self) -> "GroupsAdmin":
        """The calls for consumer groups."""
        from msgtx.admin.groups import GroupsAdmin

        return GroupsAdmin(self._engine)

    @property
    @forks.kept
    def shares(self) -> "SharesAdmin":
        """The calls for share groups."""
        from msgtx.admin.shares import SharesAdmin

        return SharesAdmin(self._engine)

    @property
    @forks.kept
    def producers(self) -> "ProducersAdmin":
        """The calls for producers."""
        from msgtx.admin.producers import ProducersAdmin

        return ProducersAdmin(self._engine)

    @property
    @forks.kept
    def transactions(self) -> "TransactionsAdmin":
        """The calls for transactions."""
        from msgtx.admin.transactions import TransactionsAdmin

        return TransactionsAdmin(self._engine)

    @property
    @forks.kept
    def partitions(self) -> "PartitionsAdmin":
        """The calls for partitions."""
        from msgtx.admin.partitions import PartitionsAdmin

        return PartitionsAdmin(self._engine)

    @property
    @forks.kept
    def spark(self) -> "SparkAdmin":
        """The calls for Spark's queries."""
        from msgtx.admin.spark import SparkAdmin

        return SparkAdmin(self._engine)

    @property
    @forks.kept
    def mirrors(self) -> "MirrorsAdmin":
        """The calls for mirrors."""
        from msgtx.admin.mirrors import MirrorsAdmin

        return MirrorsAdmin(self._engine)

    def find_coordinator(self, transactional_id: str) -> Coordinator:
        """Return the leader of the shard of a transactional id. Raise `CoordinatorNotAvailable` without a living lease."""
        from msgtx.store.sweeps.coordinators import find_coordinator

        transactional_id = arguments.check_name("a transactional id", transactional_id)
        with self._engine.connection() as connection:
            return find_coordinator(connection, transactional_id)

    def coordinators(self) -> "list[Shard]":
        """Return the 50 shards; one without a living lease has no owner."""
        from msgtx.store.sweeps.coordinators import list_shards

        with self._engine.connection() as connection:
            return list_shards(connection)

    def activity(self, minutes: int = 60, *, pieces: int | None = None, topic: str | None = None) -> list[ActivityPiece]:
        """Return how many records were stored and transactions decided in each piece of the last minutes, the oldest first.

        `pieces`: 1 to 240, a minute each by default; the last one is under way. Of a topic, or of all that the role may
        consume or observe. The cost is bounded: a busy piece is estimated, and says so. Raise `UnknownTopicOrPartition`,
        `AuthorizationFailed`.
        """
        from msgtx.admin.activity import activity

        return activity(self._engine, minutes, pieces=pieces, topic=topic)

    def database(self) -> DatabaseDescription:
        """Describe the database below: tables, holders of snapshots, standbys, connections, and the rights of roles.

        PostgreSQL hides other roles' sessions and standbys from roles without pg_read_all_stats. Raise
        `AuthorizationFailed` without the right to observe every topic.
        """
        from msgtx.admin.database import database

        return database(self._engine)

    def doctor(self, *, most: int = MOST_FINDINGS, limits: "Limits | None" = None) -> list[Finding]:
        """Report transactions that hold partitions back, other problems, and the remedies; the worst first.

        `most`: findings of one kind, further ones are counted. Data that the role may not see (others' sessions need
        pg_read_all_stats) is a finding, too.
        """
        from msgtx.admin import doctor

        return doctor.examine(self._engine, most=most, limits=limits)

    def verify(
        self, topics: Iterable[str] | None = None, *, progress: Callable[[int, str], None] | None = None
    ) -> VerifyReport:
        """Read everything of these topics (None: of all, and the sequences of the schema) and check the promises of msgtx.

        Runs beside producers and consumers. `progress(records, words)` is called now and then. Raise
        `UnknownTopicOrPartition`.
        """
        from msgtx.admin.verify import verify

        return verify(self._engine, topics, progress=progress)


class Client(Closing):
    """A connection to msgtx in one database. May be shared by threads; does not survive `fork`. Made by `connect`."""

    def __init__(self, engine: Engine) -> None:
        self.embedded = engine.embedded  # whether the database is the embedded one
        self.runtime = Runtime(engine)
        self.admin = Admin(engine)

    @property
    @forks.kept
    def topics(self) -> "TopicsAdmin":
        """The calls for topics."""
        from msgtx.admin.topics import TopicsAdmin

        return TopicsAdmin(self.runtime.engine)

    @property
    @forks.kept
    def snapshots(self) -> "Snapshots":
        """The calls for named snapshots."""
        from msgtx.snapshot import Snapshots

        return Snapshots(self.runtime.engine)

    def __repr__(self) -> str:
        return f"<msgtx.Client of {self.url}{', closed' if self.closed else ''}>"

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self.runtime.closed

    @property
    def url(self) -> str:
        """The database's URL, without its password."""
        return public_url(self.runtime.engine.url)

    @property
    def secret_url(self) -> str:
        """The database's URL with its password: for the environment of a child process, never to be printed."""
        return self.runtime.engine.url

    def engine(self, *, reads_only: bool = False, **arguments: Any) -> "SqlalchemyEngine":
        """Return a new SQLAlchemy engine for this database, by psycopg. It is the caller's to dispose of.

        `reads_only`: for the standby of `read_url`, if one is named. `arguments`: of `sqlalchemy.create_engine`, over a
        `pool_pre_ping` that outlives a restart of the server. Behind a pooler it prepares no statements.
        """
        import sqlalchemy

        return sqlalchemy.create_engine(**self._engine_arguments(reads_only, arguments))

    def async_engine(self, *, reads_only: bool = False, **arguments: Any) -> "AsyncEngine":
        """Return a new AsyncEngine of SQLAlchemy; see `engine`. Raise `ConfigError` without greenlet."""
        try:
            from sqlalchemy.ext.asyncio import create_async_engine
        except ImportError as error:
            raise errors.ConfigError("SQLAlchemy's async engines need greenlet: pip install msgtx[async]") from error
        return create_async_engine(**self._engine_arguments(reads_only, arguments))

    def _engine_arguments(self, reads_only: bool, given: Mapping[str, Any]) -> dict[str, Any]:
        engine = self.runtime.engine
        reads = arguments.flag("reads_only", reads_only)
        url, rest = sqlalchemy_url((engine.reading if reads else engine).parameters)
        pooled = {"prepare_threshold": None} if engine.pooled else {}
        connect_args = {**rest, **pooled, **given.get("connect_args", {})}
        return {"url": url, "pool_pre_ping": True, **given, "connect_args": connect_args}

    def producer(
        self,
        *,
        key_serializer: "Serializer | None" = None,
        value_serializer: "Serializer | None" = None,
        config: Mapping[str, object] | None = None,
        **settings: Unpack[ProducerSettings],
    ) -> "Producer":
        """Make a producer; settings as in `msgtx.settings`, Kafka's dotted names in `config`. Raise `ConfigError`."""
        from msgtx.producer.producer import Producer

        self.runtime.require_open()
        resolved = resolve(ProducerConfig, settings, config)
        _functions(key_serializer=key_serializer, value_serializer=value_serializer)
        producer = Producer(
            self.runtime.engine,
            resolved,
            topics=self.runtime.topic,
            wake=self.runtime.completion.notifier,
            decided=self.runtime.completion.decided,
            group_commit=self.runtime.group_commit,
            key_serializer=key_serializer,
            value_serializer=value_serializer,
            observers=self.runtime.observers,
        )
        self.runtime.completion.start()
        self.runtime.remember(producer)
        return producer

    def consumer(
        self,
        *topics: str,
        pattern: str | None = None,
        key_deserializer: Callable[[bytes], K] | None = None,
        value_deserializer: Callable[[bytes], V] | None = None,
        config: Mapping[str, object] | None = None,
        **settings: Unpack[ConsumerSettings],
    ) -> "Consumer[K, V]":
        """Make a consumer, subscribed to these topics. Without topics, `assign` or `subscribe` it. Raise `ConfigError`."""
        from msgtx.consumer.consumer import Consumer

        self.runtime.require_open()
        names = arguments.topics(topics)
        resolved = resolve(ConsumerConfig, settings, config)
        consumer: Consumer[K, V] = Consumer(
            self.runtime.engine,
            resolved,
            topics=self.runtime.topic,
            topics_now=self.runtime.topics_now,
            all_topics=self.topics.list,
            listener=self.runtime.listener,
            deserializers=Deserializers(key_deserializer, value_deserializer),
            observers=self.runtime.observers,
        )
        if names or pattern is not None:
            try:
                consumer.subscribe(names, pattern=pattern)
            except BaseException:
                consumer.close()  # nothing else can: as a member it would keep partitions that no one reads
                raise
        self.runtime.remember(consumer)
        return consumer

    def share_consumer(
        self,
        *topics: str,
        key_deserializer: Callable[[bytes], K] | None = None,
        value_deserializer: Callable[[bytes], V] | None = None,
        config: Mapping[str, object] | None = None,
        **settings: Unpack[ShareConsumerSettings],
    ) -> "ShareConsumer[K, V]":
        """Make a member of a share group (`group=…`): each record of these topics goes to one member at a time.

        `acknowledgement_mode`: implicit accepts the returned records with the next poll; explicit accepts those of
        `acknowledge`. Raise `ConfigError`, `UnknownTopicOrPartition`.
        """
        from msgtx.shares.share_consumer import ShareConsumer

        self.runtime.require_open()
        resolved = resolve(ShareConsumerConfig, settings, config)
        names = arguments.topics(topics)
        if not names:
            raise errors.ConfigError("a share consumer reads at least one topic: name it, or several", name="topics")
        consumer: ShareConsumer[K, V] = ShareConsumer(
            self.runtime.engine,
            resolved,
            names,
            look_up=self.runtime.topic,
            listener=self.runtime.listener,
            polls=self.runtime.share_polls,
            deserializers=Deserializers(key_deserializer, value_deserializer),
            observers=self.runtime.observers,
        )
        self.runtime.remember(consumer)
        return consumer

    @overload
    def process(
        self,
        *topics: str,
        to: str,
        group: str,
        transactional_id: str,
        transform: "Callable[[ShareRecord], Outputs]",
        batch: Literal[False] = False,
        partitions: list[int] | None = None,
        **settings: Unpack[TransformSettings],
    ) -> ProcessReport: ...

    @overload
    def process(
        self,
        *topics: str,
        to: str,
        group: str,
        transactional_id: str,
        transform: "Callable[[ShareRecord[bytes, V]], Outputs]",
        batch: Literal[False] = False,
        partitions: list[int] | None = None,
        value_deserializer: Callable[[bytes], V],
        **settings: Unpack[TransformSettings],
    ) -> ProcessReport: ...

    @overload
    def process(
        self,
        *topics: str,
        to: str,
        group: str,
        transactional_id: str,
        transform: "Callable[[ShareRecord[K, V]], Outputs]",
        batch: Literal[False] = False,
        partitions: list[int] | None = None,
        key_deserializer: Callable[[bytes], K],
        value_deserializer: Callable[[bytes], V] | None = None,
        **settings: Unpack[TransformSettings],
    ) -> ProcessReport: ...

    @overload
    def process(
        self,
        *topics: str,
        to: str,
        group: str,
        transactional_id: str,
        transform: "Callable[[list[Record]], Outputs] | Callable[[list[ShareRecord]], Outputs]",
        batch: Literal[True],
        partitions: list[int] | None = None,
        **settings: Unpack[TransformSettings],
    ) -> ProcessReport: ...

    @overload
    def process(
        self,
        *topics: str,
        to: str,
        group: str,
        transactional_id: str,
        transform: "Callable[[list[Record[bytes, V]]], Outputs] | Callable[[list[ShareRecord[bytes, V]]], Outputs]",
        batch: Literal[True],
        partitions: list[int] | None = None,
        value_deserializer: Callable[[bytes], V],
        **settings: Unpack[TransformSettings],
    ) -> ProcessReport: ...

    @overload
    def process(
        self,
        *topics: str,
        to: str,
        group: str,
        transactional_id: str,
        transform: "Callable[[list[Record[K, V]]], Outputs] | Callable[[list[ShareRecord[K, V]]], Outputs]",
        batch: Literal[True],
        partitions: list[int] | None = None,
        key_deserializer: Callable[[bytes], K],
        value_deserializer: Callable[[bytes], V] | None = None,
        **settings: Unpack[TransformSettings],
    ) -> ProcessReport: ...

    def process(
        self,
        *topics: str,
        to: str,
        group: str,
        transactional_id: str,
        transform: "Transform",
        batch: bool = False,
        partitions: list[int] | None = None,
        key_deserializer: Callable[[bytes], Any] | None = None,
        value_deserializer: Callable[[bytes], Any] | None = None,
        **settings: Unpack[TransformSettings],
    ) -> ProcessReport:
        """Consume topics, transform each record, produce to `to`: exactly once, whatever crashes.

        `transform(record)` returns None, bytes, an `OutputRecord` or an iterable of them; with `batch` it gets a list of
        records. `failure`: the treatment of a record on which a deserializer or `transform` fails, or whose outputs are
        refused; as in `process_into`. Any number of workers of a group divide the partitions, each with its own
        `transactional_id`; `partitions`: indexes of this worker's partitions of its one topic, without membership.
        `on_commit(report)` is called after each transaction. `consumer_config` is the consumer's, further `settings`
        are the producer's. Ends by `stop`, `idle_timeout` (seconds, or with a unit), or SIGTERM where nothing else
        handles it; see `msgtx.process`. Raise `ConfigError` if `to` is one of `topics`.

        `share_members`: `group` is a share group, whose members divide records, and so many members run here, each in a
        thread, with ids `TRANSACTIONAL_ID-1`, `-2` and so on if there are several. Outputs and acknowledgements are one
        transaction. `consumer_config` is that of a share consumer.
        """
        from msgtx.workers import process

        return process(
            self,
            topics,
            to,
            group,
            transform,
            transactional_id=transactional_id,
            partitions=partitions,
            batch=batch,
            deserializers=Deserializers(key_deserializer, value_deserializer),
            settings=settings,
        )

    @overload
    def process_into(
        self,
        session_factory: Callable[[], S],
        handler: Callable[[S, ShareRecord], object],
        *topics: str,
        group: str,
        batch: Literal[False] = False,
        **settings: Unpack[IntoSettings],
    ) -> ProcessReport: ...

    @overload
    def process_into(
        self,
        session_factory: Callable[[], S],
        handler: Callable[[S, ShareRecord[bytes, V]], object],
        *topics: str,
        group: str,
        batch: Literal[False] = False,
        value_deserializer: Callable[[bytes], V],
        **settings: Unpack[IntoSettings],
    ) -> ProcessReport: ...

    @overload
    def process_into(
        self,
        session_factory: Callable[[], S],
        handler: Callable[[S, ShareRecord[K, V]], object],
        *topics: str,
        group: str,
        batch: Literal[False] = False,
        key_deserializer: Callable[[bytes], K],
        value_deserializer: Callable[[bytes], V] | None = None,
        **settings: Unpack[IntoSettings],
    ) -> ProcessReport: ...

    @overload
    def process_into(
        self,
        session_factory: Callable[[], S],
        handler: Callable[[S, list[Record]], object] | Callable[[S, list[ShareRecord]], object],
        *topics: str,
        group: str,
        batch: Literal[True],
        **settings: Unpack[IntoSettings],
    ) -> ProcessReport: ...

    @overload
    def process_into(
        self,
        session_factory: Callable[[], S],
        handler: Callable[[S, list[Record[bytes, V]]], object] | Callable[[S, list[ShareRecord[bytes, V]]], object],
        *topics: str,
        group: str,
        batch: Literal[True],
        value_deserializer: Callable[[bytes], V],
        **settings: Unpack[IntoSettings],
    ) -> ProcessReport: ...

    @overload
    def process_into(
        self,
        session_factory: Callable[[], S],
        handler: Callable[[S, list[Record[K, V]]], object] | Callable[[S, list[ShareRecord[K, V]]], object],
        *topics: str,
        group: str,
        batch: Literal[True],
        key_deserializer: Callable[[bytes], K],
        value_deserializer: Callable[[bytes], V] | None = None,
        **settings: Unpack[IntoSettings],
    ) -> ProcessReport: ...

    def process_into(
        self,
        session_factory: Callable[[], Any],
        handler: Callable[[Any, Any], object],
        *topics: str,
        group: str,
        batch: bool = False,
        key_deserializer: Callable[[bytes], Any] | None = None,
        value_deserializer: Callable[[bytes], Any] | None = None,
        **settings: Unpack[IntoSettings],
    ) -> ProcessReport:
        """Consume topics and have `handler(session, record)` write rows: exactly once, whatever crashes or raises.

        `session_factory` opens sessions on this database: SQLAlchemy's (a `sessionmaker`, `lambda: db.session`) or its
        connections, or psycopg's (`lambda: psycopg.connect(url)`, `pool.connection`). Each transaction has one of its own,
        which is committed here with the rows of many records and their offsets; with `batch` the handler gets a list of
        records. When it raises, the session is rolled back, and its records come again one by one. A record that fails alone
        is tried again, with pauses. `failure` says what becomes of it: `Retry()` (the default) tries until it succeeds,
        `Retry(5)` raises after 5 retries; `DeadLetter(topic)` sends it after 3 to a topic, in the same commit as its offset;
        `Skip()` leaves it out after as many; `Stop()` raises at the first failure. Its partition waits, up to 30 s between
        two tries; the others go on. A failure that is not the records' fault, such as a lost connection or a deadlock, is
        tried again in any case.

        Any number of workers of a group divide the partitions. One that is killed keeps its own for `session_timeout_ms`
        (45 s), unless it comes back with the same `group_instance_id`. `transaction_ms`: about how long a transaction lasts;
        `on_commit(report)` is called after each. Further `settings` and `consumer_config` are the consumer's. Ends by
        `stop`, `idle_timeout` (seconds, or with a unit), the client's `close`, or SIGTERM where nothing else handles it,
        after the transaction that is under way. Raise what the handler raised; a note names topic, partition and offset.

        `share_members`: `group` is a share group, whose members divide records, and so many members run here, each in a
        thread. Rows and acknowledgements are one commit. A record that fails is released with `failure`
        `Acknowledgement.RELEASE` (the default), for anyone, after the group's back-off and up to its `delivery_count_limit`;
        rejected with `Acknowledgement.REJECT`; the others go on. Further `settings` are those of a share consumer.
        """
        from msgtx.workers import Into, process_into

        read = Deserializers(key_deserializer, value_deserializer)
        return process_into(self, Into, session_factory, handler, topics, group, batch, read, settings)

    def mirror(
        self,
        *topics: str,
        name: str,
        source: "str | Client | None" = None,
        target: "str | Client | None" = None,
        **settings: Unpack[MirrorSettings],
    ) -> MirrorReport:
        """Copy topics from this database to `target`, or from `source` to this one; each record once, until it is stopped.

        The other end is a client, the address of a database, or that of a Kafka cluster: `kafka://host:9092`, with the extra
        `msgtx[kafka]`. A transaction of the source arrives as a whole, in one transaction of the target with the progress of
        the mirror (I6, I15); one of Kafka may arrive in several. Topics and partitions that the target lacks are made. A
        second mirror of the same `name` fences the first. Outages of either end are waited for, up to `outage_timeout`
        seconds.

        The settings are those of a mirror (docs/reference/settings.md); `stop` ends it. `on_progress`: called with a
        `MirrorReport` after each transaction, and at least each few seconds.

        Raise `MirrorFenced`; `LogTruncated`, `IncarnationChanged` and `UnknownTopicOrPartition` if the source is not the one
        that was copied so far; `OffsetOutOfRange` if retention was faster; `ConfigError`, `AuthorizationFailed`.
        """
        from msgtx.mirroring import mirror

        return mirror(self, topics, name, source, target, settings)

    def snapshot(self, topics: Iterable[str]) -> Snapshot:
        """Return a consistent cut of these topics: all of each transaction, or nothing of it, on all their partitions (I15).

        It only moves forward, and reading it again gives the same. Raise `UnknownTopicOrPartition`.
        """
        from msgtx import snapshot

        return snapshot.take(self.runtime.engine, arguments.topics(topics)).snapshot

    def read(self, cut: Snapshot, start: Snapshot | None = None) -> Iterator[Record]:
        """Yield each committed record below a cut once, from an earlier cut (None: the log starts), partition by partition.

        Raise `IncarnationChanged`, `OffsetOutOfRange` if retention removed records behind `start`, `LogTruncated`.
        """
        from msgtx import snapshot

        return snapshot.read(self.runtime.engine, cut, start)

    def find(
        self,
        topic: str,
        *,
        key: str | bytes | None = None,
        json: str | None = None,
        header: str | None = None,
        partition: int | None = None,
        offset: int | None = None,
        since: Duration | None = "1d",
        limit: int = 10,
        stop: StopSignal | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> list[FoundRecord]:
        """Find records. Return their places, the outcomes of their transactions, and the progress of each group.

        All that is given must fit. `json`: `path.of.names=text`, in a value that is JSON; `header`: `name=content`. The last
        stored records come first, at most `limit` (1 to 1,000), also open and aborted ones. `since`: how long ago a record
        may have been stored (None: any time); an `offset`, which needs a `partition`, is found whatever its age. The search
        reads the topic in short calls; `stop` ends it after one, and `progress(found)` is called after each. Contents are
        searched with the right to consume; the right to observe shows places and states. Raise `UnknownTopicOrPartition`,
        `AuthorizationFailed`, `InvalidRequest`.
        """
        if offset is not None and partition is None:
            raise errors.InvalidRequest("an offset needs its partition", name="partition")
        topic = arguments.topic(topic)
        partition = None if partition is None else arguments.whole("partition", partition)
        offset = None if offset is None else arguments.whole("offset", offset)
        asked = _search(key, json, header, since=None if offset is not None else since, limit=limit)
        asked = replace(asked, offset=offset)
        arguments.function("progress", progress)
        stop = arguments.stop_signal("stop", stop)
        from msgtx.admin.find import find

        return find(self.runtime.engine, topic, asked, partition=partition, stop=stop, progress=progress)

    def find_before(
        self,
        topic: str,
        partition: int,
        *,
        before: int | None = None,
        key: str | bytes | None = None,
        json: str | None = None,
        header: str | None = None,
        since: Duration | None = None,
        limit: int = 10,
        groups: bool = True,
        stop: StopSignal | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> FoundBefore:
        """Find the last records of a partition in front of an offset (None: its end), and where to continue.

        It is `find` in pages: pass `next_before` as `before` of the next call. A page has at most `limit` records and some
        4 MiB of keys and values, but at least one record if any fits. `groups=False` leaves groups and dead
        letters out, which are looked up record by record. Errors are those of `find`.
        """
        place = TopicPartition(arguments.topic(topic), arguments.whole("partition", partition))
        asked = replace(_search(key, json, header, since=since, limit=limit), groups=arguments.flag("groups", groups))
        from msgtx.admin.find import find_before
        from msgtx.store.find import BEHIND_ALL

        before = BEHIND_ALL if before is None else arguments.whole("before", before)
        arguments.function("progress", progress)
        stop = arguments.stop_signal("stop", stop)
        return find_before(self.runtime.engine, place, asked, before=before, stop=stop, progress=progress)

    def search(
        self,
        text: str,
        *,
        since: Duration | None = "1d",
        limit: int = 10,
        contents: bool = True,
        stop: StopSignal | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> SearchAnswer:
        """Find what a text may mean: the places to go, and what they hold.

        A place as messages write it (`orders/0/4711`, `orders-0@4711`), the name of a transaction (`7.3.12`), and what is
        named so or begins so: transactional ids, topics, groups, share groups, snapshots; a producer id. Then the records
        with this key, or with these words in a value that is JSON, of all topics that the role may consume, the last stored
        ones first, at most `limit` (1 to 100); `since`: how long ago they may have been stored (None: any time);
        `contents=False` leaves them out. If nothing is found, `similar` has names that are like it. The search for records
        is made of short calls and has an end: `is_complete` says whether it came to it. `stop`, `progress`: as in `find`.
        """
        text = arguments.text("text", text).strip()
        if not text:
            raise errors.InvalidRequest("a search needs a text", name="text")
        arguments.function("progress", progress)
        from msgtx.admin.search import search

        return search(
            self.runtime.engine,
            text,
            since_ms=None if since is None else arguments.whole("since", units.milliseconds("since", since, unit="s")),
            limit=arguments.whole("limit", limit, least=1, most=100),
            contents=arguments.flag("contents", contents),
            stop=arguments.stop_signal("stop", stop),
            progress=progress,
        )

    def transaction_outcome(self, transaction_id: TransactionId | str, *, resolve: bool = False) -> Outcome:
        """Return how a transaction ended: OPEN, COMMITTED, ABORTED or UNKNOWN. Never raises for an id it does not know.

        `resolve=True` decides ABORT if it is open and is not prepared for an outside decision.
        Source: internals: transactions#the-outcome-asked-later.
        """
        name, resolve = arguments.transaction_id(transaction_id), arguments.flag("resolve", resolve)
        with self.runtime.engine.connection() as connection:
            if resolve:
                return end_transaction(connection, name, "resolve")
            return transaction_outcome(connection, name).outcome

    def complete(self, token: PreparedTransaction | str, *, commit: bool) -> Outcome:
        """Decide a transaction that `prepare` left to an outside party; from any process, as often as one likes.

        Returns how it is decided: COMMITTED or ABORTED. Raise `InvalidTransactionState` if it is decided otherwise, not
        prepared or not known; `IncarnationChanged` for a token from before a failover, which may have lost it.
        """
        commit = arguments.flag("commit", commit)
        wanted = PreparedTransaction.parse(str(token) if isinstance(token, PreparedTransaction) else token)
        with self.runtime.engine.connection() as connection:
            if wanted.incarnation != str(self.runtime.engine.incarnation):
                raise errors.IncarnationChanged(
                    f"the token is of incarnation {wanted.incarnation}, the database has {self.runtime.engine.incarnation}"
                )
            complete_prepared(connection, wanted.transaction_id, "COMMIT" if commit else "ABORT")
        self.runtime.completion.decided()
        return Outcome.COMMITTED if commit else Outcome.ABORTED

    def sweep(
        self,
        *,
        only: Iterable[str] = (),
        dry_run: bool = False,
        full_speed: bool = False,
        stop: StopSignal | None = None,
    ) -> SweepReport:
        """Do one round of all upkeep: see `msgtx sweep --help`.

        `only`: names of sweeps; `dry_run`: only count, change nothing. `full_speed`: remove and compact records without the
        pauses of `sweep_max_bytes_per_second`, and to the end: with pauses, the sweep ends after 50 s, or during one when
        `stop` is set. Raise `ConfigError` for a name that is not known, `IllegalState` if the client is closed during a
        pause.
        """
        self.runtime.require_open()
        end = self.runtime.stop_or_close(arguments.stop_signal("stop", stop))
        from msgtx.coordinator.sweep import sweep

        return sweep(self.runtime.engine, only=only, dry_run=dry_run, full_speed=full_speed, stop=end)

    def observe(self, observer: Observer) -> None:
        """Report the work of producers, consumers and workers to it from now on.

        See `msgtx.metrics` and `msgtx.otel`. Call it before a worker is started: of a running one it sees only the
        producer and consumer.
        """
        arguments.an_instance("observer", observer, Observer, "a msgtx.observer.Observer")
        self.runtime.observe(observer)

    def close(self) -> None:
        """End its workers after their transactions, close its producers and consumers, then the connections.

        These are closed one after the other, each within its own time limit: on a network that stalls the limits add up.
        May be called twice: one that was interrupted is finished by the next. A worker that is not at its end after 30 s
        loses its connections; nothing of its transaction is left then. In a child process, which has inherited it, it does
        nothing: all of this is its parent's.
        """
        self.runtime.close()


def _search(
    key: str | bytes | None, json: str | None, header: str | None, *, since: Duration | None, limit: int
) -> "Search":
    """Return what records are looked for. Raise `WrongType`, `InvalidRequest`."""
    from msgtx.admin.find import Search

    if key is not None:
        arguments.an_instance("key", key, (str, bytes), "a text or bytes")
    return Search(
        key=key.encode() if isinstance(key, str) else key,
        json=None if json is None else arguments.text("json", json),
        header=None if header is None else arguments.text("header", header),
        since_ms=None if since is None else arguments.whole("since", units.milliseconds("since", since, unit="s")),
        limit=arguments.whole("limit", limit, least=1, most=1_000),
    )


def _functions(**named: object) -> None:
    for name, function in named.items():
        arguments.function(name, function)


def _is_newest(engine: Engine) -> bool:
    """Return whether the schema is that of this package: then Alembic, a fifth of a second, need not be asked."""
    from msgtx.database.schema.functions import are_all_there, functions_hash

    try:
        with until(silence=math.inf), engine.connection() as connection:  # another program may be upgrading
            found = describe_installation(connection)
            is_whole = are_all_there(connection)
    except (errors.ConfigError, errors.LockTimeout):  # no schema, or another one; the upgrade says what does not pass
        return False
    return (found.schema_version, found.functions_hash) == (SCHEMA_VERSION, functions_hash()) and is_whole


def connect(
    url: str | None = None,
    *,
    read_url: str | None = None,
    create: bool = False,
    pool_size: int = POOL_SIZE,
    on_failover: OnFailover | None = None,
) -> Client:
    """Connect to msgtx in a PostgreSQL database.

    Without `url` and without `MSGTX_DATABASE_URL`, an embedded PostgreSQL is started (or joined) and its schema is created
    and upgraded. A given database is left alone unless `create=True`. `read_url`: of a standby, from which consumers,
    snapshots, searches and `verify` read; without `url`, `MSGTX_READ_URL` counts. The first call that reads connects to it.
    `on_failover`: see the settings of a client. Raise `DatabaseUnavailable`, or `ConfigError` if the schema is missing or of
    another version.
    """
    for name, value in (("url", url), ("read_url", read_url)):
        if value is not None and not isinstance(value, str):
            raise errors.WrongType(
                f"{name} is a text, not a {type(value).__name__}", name=name
            )  # it is not shown: it may hold a password
    create = arguments.flag("create", create)
    pool_size = arguments.whole("pool_size", pool_size, least=1, most=MOST_CONNECTIONS)
    config = resolve(ClientConfig, {} if on_failover is None else {"on_failover": on_failover})
    engine = open_engine(url, read_url=read_url, pool_size=pool_size)
    engine.on_failover = config.on_failover
    try:
        if (engine.embedded or create) and not _is_newest(engine):
            from msgtx.database.schema import migrate

            with engine.transaction() as connection:
                migrate.upgrade(connection)
        with engine.connection() as raw:
            found = describe_installation(raw)
            require_version(found)
            engine.begin_with(raw, found.incarnation)
    except BaseException:
        engine.close()
        raise
    return Client(engine)
