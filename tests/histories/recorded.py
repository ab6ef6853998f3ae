"""Producers and consumers whose calls are recorded. The library's own loops run on them unchanged.

The recorded methods are put on the object itself, so that what the library calls (`producer.transaction()` calls
`commit_transaction`) is recorded, too.
"""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import sqlalchemy

from msgtx import Client, Consumer, Producer, Record, TopicPartition, errors
from msgtx.producer.state import DECIDED_ELSEWHERE
from msgtx.rules.partitioner import PARTITIONERS
from tests.histories.history import Recorder, Result

_labels = itertools.count()


def text_of(value: bytes | None) -> str:
    """Return a value without its padding."""
    return (value or b"").split(b" ", 1)[0].decode()


def result_of(error: errors.MsgtxError) -> Result:
    """Return what an error promises: after an abortable or fatal one, the call did not happen.

    An id that has expired says nothing: where all is forgotten after seconds, a call that was done may be refused when it is
    repeated.
    """
    if isinstance(error, errors.InvalidProducerIdMapping):
        return Result.INFO
    return Result.FAIL if error.requires_abort or error.fatal else Result.INFO


class ProducerTape:
    """Records a producer's calls and answers. `once`: it promises not to store a record twice.

    `counts`: the numbers of partitions of topics to which it sends by key.
    """

    def __init__(self, producer: Producer, recorder: Recorder, counts: Mapping[str, int] | None = None) -> None:
        self._recorder = recorder
        self._producer = producer
        self.label = f"{recorder.process}#{next(_labels)}"
        config = producer.config
        self._counts = counts or {}
        self._partition_of = PARTITIONERS[config.partitioner]
        self._acks = config.acks
        self._once = config.enable_idempotence or config.retries == 0 or config.acks == "0"
        self._transactional_id = config.transactional_id
        self._seconds = config.max_block_ms / 1000
        self._attempt = 0
        self._sent: list[tuple[int, Any]] = []
        self._group: str | None = None
        self._offsets: dict[TopicPartition, int] = {}
        self._init, self._begin = producer.init_transactions, producer.begin_transaction
        self._send, self._send_batch = producer.send, producer.send_batch
        self._send_offsets = producer.send_offsets_to_transaction
        self._commit, self._abort = producer.commit_transaction, producer.abort_transaction
        for name in (
            "init_transactions",
            "begin_transaction",
            "send",
            "send_batch",
            "commit_transaction",
            "abort_transaction",
        ):
            setattr(producer, name, getattr(self, name))
        producer.send_offsets_to_transaction = self.send_offsets  # type: ignore[method-assign]

    def init_transactions(self, timeout: float | None = None, *, keep_prepared: bool = False) -> None:
        number = self._recorder.invoke(
            "init", transactional_id=self._transactional_id, within=self._seconds if timeout is None else timeout
        )
        try:
            self._init(timeout, keep_prepared=keep_prepared)
        except errors.MsgtxError as error:
            self._recorder.complete(Result.INFO, number, error=type(error).__name__)
            raise
        self._recorder.complete(Result.OK, number, producer=list(self._producer._state.producer or ()))

    def begin_transaction(self, timeout_ms: int | None = None) -> Any:
        self._sent, self._group, self._offsets = [], None, {}
        before = self._producer.transaction_id
        transaction = self._begin(timeout_ms)
        # A number is used again if nothing of its transaction was sent to the database: another attempt.
        self._attempt = self._attempt + 1 if transaction.id == before else 0
        return transaction

    @property
    def _name(self) -> str:
        return f"{self._producer.transaction_id} {self._attempt}"

    def _invoke(self, topic: str, partition: int | None, values: Iterable[bytes]) -> int:
        state = self._producer._state
        in_transaction = state.transaction is not None and state.value not in DECIDED_ELSEWHERE
        return self._recorder.invoke(
            "send",
            topic=topic,
            partition=partition,
            values=[text_of(value) for value in values],
            transaction=self._name if in_transaction else None,
            producer=self.label,
            acks=self._acks,
            once=self._once,
        )

    def send(
        self, topic: str, value: bytes, *, partition: int | None = None, key: bytes | None = None, **options: Any
    ) -> Any:
        place = partition
        if place is None and key is not None:
            place = self._partition_of(key, self._counts[topic])
        number = self._invoke(topic, place, [value])
        try:
            future = self._send(topic, value, partition=partition, key=key, **options)
        except errors.MsgtxError as error:
            self._recorder.complete(Result.FAIL, number, error=type(error).__name__)
            raise
        self._sent.append((number, future))
        return future

    def send_batch(self, topic: str, values: list[bytes], *, partition: int) -> Any:
        number = self._invoke(topic, partition, values)
        try:
            future = self._send_batch(topic, values, partition=partition)
        except errors.MsgtxError as error:
            # A part of it may have been accepted before.
            self._recorder.complete(Result.INFO, number, error=type(error).__name__)
            raise
        self._sent.append((number, future))
        return future

    def send_offsets(self, offsets: Any, group_metadata: Any = None, timeout: float | None = None) -> None:
        self._send_offsets(offsets, group_metadata, timeout)
        positions = offsets if isinstance(offsets, Mapping) else offsets._transaction_offsets()
        self._group = group_metadata if isinstance(offsets, Mapping) else offsets.group_metadata().group
        self._offsets.update({tp: getattr(at, "offset", at) for tp, at in positions.items()})

    def commit_transaction(self, timeout: float | None = None) -> None:
        number = self.deciding(within=self._seconds if timeout is None else timeout)
        self._end(number, lambda: self._commit(timeout))

    def abort_transaction(self, timeout: float | None = None) -> None:
        within = self._seconds if timeout is None else timeout
        number = self._recorder.invoke("abort", transaction=self._name, within=within)
        self._end(number, lambda: self._abort(timeout))

    def decided(self, decide: Callable[[], object]) -> None:
        """Record a commit of what was sealed by a session, or an outside party."""
        self._end(self.deciding(), decide)

    def deciding(self, *, within: float | None = None, row: str | None = None) -> int:
        """Note that the transaction is about to be committed. Returns the operation's number."""
        return self._recorder.invoke(
            "commit",
            transaction=self._name,
            group=self._group,
            offsets=[[*tp, at] for tp, at in self._offsets.items()],
            within=within,
            row=row,
        )

    def _end(self, number: int, end: Callable[[], object]) -> None:
        try:
            end()
        except errors.MsgtxError as error:
            self.settle()
            self._recorder.complete(result_of(error), number, error=type(error).__name__, detail=str(error))
            raise
        except sqlalchemy.exc.SQLAlchemyError as error:  # of a session's COMMIT, whose outcome is unknown
            self.settle()
            self._recorder.complete(Result.INFO, number, error=type(error).__name__, detail=str(error))
            raise
        self.settle()
        self._recorder.complete(Result.OK, number)

    def settle(self) -> int:
        """Note the answers of sends that have one. Returns how many sends still wait."""
        answers: list[tuple[Result, int, dict[str, object]]] = []
        waiting = []
        for number, future in self._sent:
            if not future.done():
                waiting.append((number, future))
                continue
            error = future.exception()
            if error is None:
                answers.append((Result.OK, number, {"offsets": _offsets_of(future.result())}))
            else:
                answers.append((Result.INFO, number, {"error": type(error).__name__}))
        self._sent = waiting
        if answers:
            self._recorder.complete_all(answers)
        return len(waiting)


def _offsets_of(answer: Any) -> list[int]:
    """Return the offsets of the values, in their order; −1: not reported."""
    if hasattr(answer, "count"):
        (spans,) = answer.offsets.values()
        if any(first < 0 for first, _ in spans):
            return [-1] * answer.count
        return [at for first, last in spans for at in range(first, last + 1)]
    return [answer.offset]


class ConsumerTape:
    """Records what a consumer returns, and its positions."""

    def __init__(self, consumer: Consumer, recorder: Recorder) -> None:
        self._consumer = consumer
        self._recorder = recorder
        self._who = {
            "consumer": f"{recorder.process}#{next(_labels)}",
            "isolation": str(consumer.config.isolation),
            "group": consumer.config.group,
            "reset": str(consumer.config.auto_offset_reset),
        }
        self._gained: dict[TopicPartition, int | None] = {}
        self._handed: dict[TopicPartition, int] = {}  # passed to commits in the background
        self._subscribe = consumer.subscribe
        self._poll, self._rewind, self._seek = consumer.poll, consumer.rewind, consumer.seek
        self._commit, self._close = consumer.commit, consumer.close
        consumer.poll, consumer.rewind, consumer.seek = self.poll, self.rewind, self.seek  # type: ignore[method-assign]
        consumer.commit, consumer.close = self.commit, self.close  # type: ignore[method-assign]

    def subscribe(self, topics: Sequence[str]) -> None:
        """Be a member of the group: partitions come and go within polls."""
        self._subscribe(topics, on_assign=self._assigned)
        self.begin()

    def _assigned(self, partitions: list[TopicPartition]) -> None:
        for partition in partitions:
            self._handed.pop(partition, None)
            try:
                self._gained[partition] = self._consumer.position(partition)
            except errors.MsgtxError:
                self._gained[partition] = None  # where it continues is not known

    def _take_gained(self) -> list[list[object]]:
        gained: list[list[object]] = [[*partition, position] for partition, position in self._gained.items()]
        self._gained.clear()
        return gained

    def poll(self, timeout: float = 1.0, max_records: int | None = None) -> list[Record]:
        number = self._recorder.invoke("poll", **self._who)
        try:
            records = self._poll(timeout, max_records)
        except errors.MsgtxError as error:
            failed = Result.FAIL if isinstance(error, errors.LogTruncated | errors.OffsetOutOfRange) else Result.INFO
            told = {"error": type(error).__name__, "detail": str(error), "gained": self._take_gained()}
            self._recorder.complete(failed, number, **told)
            raise
        grouped: dict[tuple[str, int], tuple[list[int], list[str]]] = {}
        for record in records:
            offsets, values = grouped.setdefault((record.topic, record.partition), ([], []))
            offsets.append(record.offset)
            values.append(text_of(record.value))
        rows = [[*tp, offsets, values] for tp, (offsets, values) in grouped.items()]
        gained = self._take_gained()
        self._recorder.complete(Result.OK, number, records=rows, gained=gained, positions=self._positions())
        return records

    def _positions(self) -> list[list[Any]]:
        known = self._consumer._fetcher.assigned.values()
        return [[*each.topic_partition, each.position] for each in known if each.position is not None]

    def begin(self) -> None:
        """Note where reading begins. Raise `MsgtxError` if the database does not answer."""
        for partition in self._consumer.assignment():
            self._consumer.position(partition)
        self._gained.clear()
        self._recorder.happened("seek", arguments=self._who, positions=self._positions())

    def rewind(self) -> None:
        self._rewind()
        self.begin()

    def seek(self, partition: TopicPartition, offset: int) -> None:
        self._seek(partition, offset)
        self._recorder.happened("seek", arguments=self._who, positions=[[*partition, offset]])

    def commit(self, offsets: Any = None, wait: bool = True, **options: Any) -> None:
        """Commit, and note the offsets: without `wait` they are passed on, and close has to ensure the commit."""
        given = None if offsets is None else [[*tp, getattr(at, "offset", at)] for tp, at in offsets.items()]
        positions = self._positions() if given is None else given
        number = self._recorder.invoke("commit offsets", **self._who, offsets=positions, wait=wait)
        try:
            self._commit(offsets, wait, **options)
        except errors.MsgtxError as error:
            self._recorder.complete(result_of(error), number, error=type(error).__name__, detail=str(error))
            raise
        self._handed.update({TopicPartition(topic, index): at for topic, index, at in positions})
        self._recorder.complete(Result.OK, number)

    def committed(self) -> None:
        """Note the group's offsets on this member's partitions."""
        number = self._recorder.invoke("committed", **self._who)
        try:
            found = self._consumer.committed()
        except errors.MsgtxError as error:
            self._recorder.complete(Result.INFO, number, error=type(error).__name__)
            raise
        positions = [[*tp, at.offset] for tp, at in found.items() if at is not None]
        self._recorder.complete(Result.OK, number, positions=positions)

    def close(self) -> None:
        """Close, and note what was passed on before: all positions where commits are automatic."""
        if self._consumer.closed:
            return
        mine = self._consumer.assignment()
        handed: dict[TopicPartition, int] = dict(self._handed)
        if self._consumer.config.enable_auto_commit:
            handed = {TopicPartition(topic, index): at for topic, index, at in self._positions()}
        offsets = [[*tp, at] for tp, at in handed.items() if tp in mine]
        number = self._recorder.invoke("close", **self._who, offsets=offsets)
        self._close()
        self._recorder.complete(Result.OK, number)

    def drained(self) -> None:
        """Note that everything was read."""
        self._recorder.happened("drained", arguments=self._who, positions=self._positions())


def outcome_recorded(client: Client, recorder: Recorder, transaction: str, *, resolve: bool = False) -> str:
    """Ask how a transaction ended."""
    number = recorder.invoke("outcome", transaction=transaction, resolve=resolve)
    try:
        outcome = str(client.transaction_outcome(transaction, resolve=resolve))
    except errors.MsgtxError as error:
        recorder.complete(Result.INFO, number, error=type(error).__name__)
        raise
    recorder.complete(Result.OK, number, outcome=outcome)
    return outcome
