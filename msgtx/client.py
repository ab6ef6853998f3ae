"""The client: one connection pool, and everything that is made from it."""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, Self

from msgtx import errors, snapshot
from msgtx.admin import doctor
from msgtx.admin.doctor.findings import Limits
from msgtx.admin.groups import GroupsAdmin
from msgtx.admin.partitions import PartitionsAdmin
from msgtx.admin.producers import ProducersAdmin
from msgtx.admin.topics import TopicsAdmin
from msgtx.admin.transactions import TransactionsAdmin
from msgtx.admin.verify import verify
from msgtx.config import ConsumerConfig, ProducerConfig, resolve
from msgtx.consumer.consumer import Consumer, Deserializer
from msgtx.consumer.wakeup import Listener
from msgtx.coordinator.completion import Completion
from msgtx.coordinator.sweep import sweep
from msgtx.database.address import public_url
from msgtx.database.connection import RawConnection
from msgtx.database.opening import open_engine
from msgtx.database.pool import POOL_SIZE, Engine
from msgtx.database.schema import migrate
from msgtx.process import OnError, Transform, process
from msgtx.producer.batcher import Serializer
from msgtx.producer.group_commit import GroupCommit
from msgtx.producer.producer import Producer
from msgtx.store.coordinators import Shard, find_coordinator, list_shards
from msgtx.store.installation import describe_installation, require_version
from msgtx.store.seal import complete_prepared
from msgtx.store.topics import Topic, describe_topics
from msgtx.store.transactions import end_transaction, transaction_outcome
from msgtx.types import (
    Coordinator,
    Finding,
    Outcome,
    PreparedTransaction,
    ProcessReport,
    Record,
    Snapshot,
    SweepReport,
    TopicPartition,
    TransactionId,
    VerifyReport,
)


class Admin:
    """`client.admin`: groups, transactions, producers, partitions and coordinators; what hurts."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.groups = GroupsAdmin(engine)
        self.producers = ProducersAdmin(engine)
        self.transactions = TransactionsAdmin(engine)
        self.partitions = PartitionsAdmin(engine)

    def find_coordinator(self, transactional_id: str) -> Coordinator:
        """Return who leads the shard of a transactional id. Raise `CoordinatorNotAvailable` without a living lease."""
        with self._engine.connection() as connection:
            return find_coordinator(connection, transactional_id)

    def coordinators(self) -> list[Shard]:
        """Return the 50 shards; one without a living lease has no owner."""
        with self._engine.connection() as connection:
            return list_shards(connection)

    def doctor(self, *, most: int = doctor.MOST, limits: Limits | None = None) -> list[Finding]:
        """Report what holds partitions back, what hurts, and what to do; the worst first.

        `most`: findings of one kind, further ones are counted. What the role may not see (others' sessions need
        pg_read_all_stats) is a finding, too.
        """
        return doctor.examine(self._engine, most=most, limits=limits)

    def verify(
        self, topics: Iterable[str] | None = None, *, progress: Callable[[int, str], None] | None = None
    ) -> VerifyReport:
        """Read everything of these topics (None: of all) and compare it with what msgtx promises.

        Runs beside producers and consumers. `progress(records, words)` is called now and then. Raise
        `UnknownTopicOrPartition`.
        """
        return verify(self._engine, topics, progress=progress)


class Client:
    """A connection to msgtx in one database. May be shared by threads; does not survive `fork`. Made by `connect`."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.embedded = engine.embedded  # whether the database is the embedded one
        self._completion = Completion(engine, self._look_at_topics)
        self._listener = Listener(engine)
        self._group_commit = GroupCommit(engine, self._completion.notifier)
        self._lock = threading.Lock()
        self._known: dict[str, Topic] = {}
        self._open: list[Producer | Consumer] = []
        self._closed = False
        self.topics = TopicsAdmin(engine)
        self.snapshots = snapshot.Snapshots(engine)
        self.admin = Admin(engine)

    @property
    def url(self) -> str:
        """The database's URL, without its password."""
        return public_url(self.engine.url)

    @property
    def secret_url(self) -> str:
        """The database's URL with its password: for the environment of a child process, never to be printed."""
        return self.engine.url

    def producer(
        self,
        *,
        key_serializer: Serializer | None = None,
        value_serializer: Serializer | None = None,
        config: Mapping[str, object] | None = None,
        **settings: object,
    ) -> Producer:
        """Make a producer; settings as in the README's table, Kafka's dotted names in `config`. Raise `ConfigError`."""
        self._require_open()
        resolved = resolve(ProducerConfig, settings, config)
        producer = Producer(
            self.engine,
            resolved,
            topics=self._topic,
            wake=self._completion.notifier,
            decided=self._completion.decided,
            group_commit=self._group_commit,
            key_serializer=key_serializer,
            value_serializer=value_serializer,
        )
        self._completion.start()
        self._remember(producer)
        return producer

    def consumer(
        self,
        *topics: str,
        pattern: str | None = None,
        key_deserializer: Deserializer | None = None,
        value_deserializer: Deserializer | None = None,
        config: Mapping[str, object] | None = None,
        **settings: object,
    ) -> Consumer:
        """Make a consumer, subscribed to these topics. Without topics, `assign` or `subscribe` it. Raise `ConfigError`."""
        self._require_open()
        consumer = Consumer(
            self.engine,
            resolve(ConsumerConfig, settings, config),
            topics=self._topic,
            all_topics=self.topics.list,
            listener=self._listener,
            key_deserializer=key_deserializer,
            value_deserializer=value_deserializer,
        )
        if topics or pattern is not None:
            try:
                consumer.subscribe(topics, pattern=pattern)
            except BaseException:
                consumer.close()  # nothing else can: as a member it would keep partitions that no one reads
                raise
        self._remember(consumer)
        return consumer

    def process(
        self,
        topic: str,
        *,
        to: str,
        group: str,
        transactional_id: str,
        transform: Transform,
        transaction_ms: int = 100,
        batch: bool = False,
        on_error: OnError = "stop",
        dead_letter: str | None = None,
        auto_offset_reset: str = "earliest",
        partitions: list[int] | None = None,
        idle_timeout: float | None = None,
        stop: threading.Event | None = None,
        on_commit: Any = None,
        consumer_config: Mapping[str, object] | None = None,
        **settings: Any,
    ) -> ProcessReport:
        """Consume `topic`, transform each record, produce to `to`: exactly once, whatever crashes.

        `transform(record)` returns None, bytes, an `OutputRecord` or an iterable of them; with `batch` it gets a list of
        records. What it fails on: `on_error` is stop, skip or dead-letter (to topic `dead_letter`). Any number of workers of
        a group divide the partitions, each with its own `transactional_id`; `partitions`: indexes of those that this worker
        reads, without membership. `settings` are the producer's, `consumer_config` the consumer's. Ends by `stop` or
        `idle_timeout` (seconds); see `msgtx.process`.
        """
        if self._topic(topic, True) is None:
            raise errors.UnknownTopicOrPartition(f"there is no topic {topic!r}; create it first")
        for target in (to, *([dead_letter] if dead_letter is not None else [])):
            if self._topic(target, True) is None:
                raise errors.UnknownTopicOrPartition(f"there is no topic {target!r}; create it first")
        consumer = self.consumer(
            config=consumer_config, group=group, enable_auto_commit=False, auto_offset_reset=auto_offset_reset
        )
        # The id is taken over first: what a predecessor left open must be aborted before its positions are read (P18).
        with consumer, self.producer(transactional_id=transactional_id, **settings) as producer:
            if partitions is None:
                consumer.subscribe([topic])
            else:
                consumer.assign(TopicPartition(topic, index) for index in partitions)
            return process(
                consumer,
                producer,
                to=to,
                transform=transform,
                transaction_ms=transaction_ms,
                batch=batch,
                on_error=on_error,
                dead_letter=dead_letter,
                idle_timeout=idle_timeout,
                stop=stop,
                on_commit=on_commit,
            )

    def snapshot(self, topics: Iterable[str]) -> Snapshot:
        """Return a consistent cut of these topics: all of each transaction, or nothing of it, on all their partitions (I15).

        It only moves forward, and reading it again gives the same. Raise `UnknownTopicOrPartition`.
        """
        if isinstance(topics, str):
            raise TypeError("topics is a list of names; for one topic write [name]")
        return snapshot.take(self.engine, topics).snapshot

    def read(self, cut: Snapshot, start: Snapshot | None = None) -> Iterator[Record]:
        """Yield each committed record below a cut once, from an earlier cut (None: the log starts), partition by partition.

        Raise `IncarnationChanged`, `OffsetOutOfRange` if retention removed what lies behind `start`, `LogTruncated`.
        """
        return snapshot.read(self.engine, cut, start)

    def transaction_outcome(self, transaction_id: TransactionId | str, *, resolve: bool = False) -> Outcome:
        """Return how a transaction ended: OPEN, COMMITTED, ABORTED or UNKNOWN. Never raises for an id it does not know.

        `resolve=True` decides ABORT if it is open and is not prepared for an outside decision.
        Source: internals: transactions#the-outcome-asked-later.
        """
        name = TransactionId.parse(transaction_id) if isinstance(transaction_id, str) else TransactionId(*transaction_id)
        with self.engine.connection() as connection:
            if resolve:
                return end_transaction(connection, name, "resolve")
            return transaction_outcome(connection, name).outcome

    def complete(self, token: PreparedTransaction | str, *, commit: bool) -> Outcome:
        """Decide a transaction that `prepare` left to an outside party; from any process, as often as one likes.

        Returns how it is decided: COMMITTED or ABORTED. Raise `InvalidTransactionState` if it is decided otherwise, not
        prepared or not known; `IncarnationChanged` for a token from before a failover, which may have lost it.
        """
        wanted = PreparedTransaction.parse(token) if isinstance(token, str) else token
        with self.engine.connection() as connection:
            if wanted.incarnation != str(self.engine.incarnation):
                raise errors.IncarnationChanged(
                    f"the token is of incarnation {wanted.incarnation}, the database has {self.engine.incarnation}"
                )
            complete_prepared(connection, wanted.transaction_id, "COMMIT" if commit else "ABORT")
        self._completion.decided()
        return Outcome.COMMITTED if commit else Outcome.ABORTED

    def sweep(self, *, only: Iterable[str] = (), dry_run: bool = False) -> SweepReport:
        """Do one round of everything that time brings: see `msgtx sweep --help`.

        `only`: names of sweeps; `dry_run`: only return what would be done. Raise `ConfigError` for a name that is not known.
        """
        self._require_open()
        return sweep(self.engine, only=only, dry_run=dry_run)

    def _topic(self, name: str, fresh: bool) -> Topic | None:
        with self._lock:
            if not fresh and name in self._known:
                return self._known[name]
        with self.engine.connection() as connection:
            found = describe_topics(connection, [name]).get(name)
        with self._lock:
            if found is None:
                self._known.pop(name, None)
            else:
                self._known[name] = found
        return found

    def _look_at_topics(self, connection: RawConnection) -> None:
        """See what became of the topics in use. One that was deleted stays known until its use is refused."""
        with self._lock:
            names = sorted(self._known)
        found = describe_topics(connection, names)
        with self._lock:
            self._known.update(found)
            producers = [user for user in self._open if isinstance(user, Producer) and not user.closed]
        for producer in producers:
            for topic in found.values():
                producer._topic_changed(topic)

    def _remember(self, user: Producer | Consumer) -> None:
        """Close it with the client; what is closed is forgotten. Topics may have been altered: it looks at them anew."""
        with self._lock:
            self._known.clear()
            self._open = [other for other in self._open if not other.closed]
            self._open.append(user)

    def _require_open(self) -> None:
        if self._closed:
            raise errors.IllegalState("the client is closed")

    def close(self) -> None:
        """Close its producers and consumers, then the connections. May be called twice."""
        if self._closed:
            return
        self._closed = True
        for user in self._open:
            user.close()
        self._completion.close()
        self._listener.close()
        self.engine.close()

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close."""
        self.close()


def connect(url: str | None = None, *, create: bool = False, pool_size: int = POOL_SIZE) -> Client:
    """Connect to msgtx in a PostgreSQL database.

    Without `url` and without `MSGTX_DATABASE_URL`, an embedded PostgreSQL is started (or joined) and its schema is created
    and upgraded. A given database is left alone unless `create=True`. Raise `DatabaseUnavailable`, or `ConfigError` if the
    schema is missing or of another version.
    """
    engine = open_engine(url, pool_size=pool_size)
    try:
        if engine.embedded or create:
            with engine.transaction() as connection:
                migrate.upgrade(connection)
        with engine.connection() as raw:
            found = describe_installation(raw)
        engine.expect(found.incarnation)
        require_version(found)
    except BaseException:
        engine.close()
        raise
    return Client(engine)
