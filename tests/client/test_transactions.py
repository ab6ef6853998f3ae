"""Transactions as users see them: five calls, the context manager, fencing, offsets (internals: transactions, groups)."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, NoReturn

import pytest

import msgtx
from msgtx import GroupMetadata, OffsetAndMetadata, Outcome, TopicPartition, errors
from msgtx.database.wire import BatchColumns
from msgtx.generated import calls
from msgtx.observer import Observer
from msgtx.producer import sender
from msgtx.producer.transaction import FUSED_BYTES
from msgtx.store.append.append import PARTITIONS_AT_ONCE
from tests.client.steps import SECONDS, begun, lower_limit, producer_held, values
from tests.databases import Connection, partitions_held, wait_until, waiting_backends
from tests.hooks import Held, Hook, away
from tests.refusals import refuses

Read = Callable[..., list[msgtx.Record]]
Unique = Callable[[str], str]


@pytest.fixture
def producer(client: msgtx.Client, unique: Unique) -> msgtx.Producer:
    made = client.producer(transactional_id=unique("id"), retry_backoff_ms=5)
    made.init_transactions()
    return made


def stretch(producer: msgtx.Producer, topic: str) -> None:
    """Store a part of the transaction, so it is no longer one call."""
    producer.send(topic, b"stored")
    producer.flush(SECONDS)


# ── the five calls ──


@pytest.mark.parametrize("fused", [True, False])
def test_a_commit_is_readable_when_it_returns(
    client: msgtx.Client, producer: msgtx.Producer, wide: str, read: Read, fused: bool
) -> None:
    transaction = producer.begin_transaction()
    futures = [producer.send(wide, b"%d" % i, partition=i % 3) for i in range(9)]
    if not fused:
        producer.flush(SECONDS)
        assert values(read(wide)) == []
        assert client.transaction_outcome(transaction.id) is Outcome.OPEN
    producer.commit_transaction()
    assert all(future.done() for future in futures)
    assert [future.result().offset for future in futures] == [i // 3 for i in range(9)]
    assert len(read(wide)) == 9
    assert client.transaction_outcome(transaction.id) is Outcome.COMMITTED
    assert client.transaction_outcome(str(transaction.id)) is Outcome.COMMITTED
    assert producer.transaction_id == transaction.id


@pytest.mark.parametrize("sent", [True, False])
def test_an_abort_is_never_seen_and_the_next_transaction_goes_on(
    producer: msgtx.Producer, topic: str, read: Read, sent: bool
) -> None:
    producer.begin_transaction()
    future = producer.send(topic, b"aborted")
    if sent:
        producer.flush(SECONDS)
    producer.abort_transaction()
    assert future.done()
    assert (future.exception() is None) is sent
    if not sent:
        assert isinstance(future.exception(), errors.TransactionAborted)
    for value in (b"a", b"b"):
        with producer.transaction():
            producer.send(topic, value)
    assert values(read(topic)) == [b"a", b"b"]


def test_a_large_transaction_goes_out_while_it_is_filled(client: msgtx.Client, wide: str, read: Read) -> None:
    with client.producer(transactional_id="large", batch_bytes=10_000, buffer_bytes=100_000) as producer:
        for _ in range(2):
            with producer.transaction():
                for i in range(2_000):
                    producer.send(wide, b"x" * 500, key=b"%d" % i)
    assert len(read(wide)) == 4_000


def test_aborting_a_large_transaction_in_full_flight(client: msgtx.Client, wide: str, read: Read) -> None:
    with client.producer(transactional_id="flight", batch_bytes=1_000, linger_ms=0) as producer:
        for round_number in range(5):
            producer.begin_transaction()
            for i in range(300):
                producer.send(wide, b"aborted", key=b"%d" % i)
            producer.abort_transaction()
            with producer.transaction():
                for i in range(30):
                    producer.send(wide, b"%d" % round_number, key=b"%d" % i)
    assert sorted(values(read(wide))) == sorted(b"%d" % r for r in range(5) for _ in range(30))


def test_an_empty_transaction_writes_nothing(client: msgtx.Client, producer: msgtx.Producer, connection: Connection) -> None:
    for end in (producer.commit_transaction, producer.abort_transaction):
        transaction = producer.begin_transaction()
        end()
        assert client.transaction_outcome(transaction.id) is Outcome.UNKNOWN
    producer.begin_transaction()
    producer.abort_transaction()
    rows = connection.execute(
        "select count(*) from msgtx.transaction_decision where producer_id = %s", [transaction.id.producer_id]
    ).fetchone()
    assert rows == (0,)


def test_a_transaction_may_hold_only_offsets(
    client: msgtx.Client, producer: msgtx.Producer, topic: str, unique: Unique
) -> None:
    """P35; its number is used up."""
    group = unique("group")
    for at in (41, 42):
        with producer.transaction() as transaction:
            transaction.send_offsets({TopicPartition(topic, 0): at}, group)
    with client.consumer(topic, group=group) as consumer:
        assert consumer.committed() == {TopicPartition(topic, 0): OffsetAndMetadata(42)}
    assert client.transaction_outcome(transaction.id) is Outcome.COMMITTED


def test_each_record_of_a_transaction_keeps_its_time(producer: msgtx.Producer, topic: str, read: Read) -> None:
    with producer.transaction():
        for timestamp in (7, 5):
            producer.send(topic, b"a", timestamp=timestamp)
    assert [record.timestamp for record in read(topic)] == [7, 5]


def test_transactions_of_many_topics_are_one(client: msgtx.Client, producer: msgtx.Producer, unique: Unique) -> None:
    topics = [unique("many") for _ in range(4)]
    for name in topics:
        client.topics.create(name, partitions=2)
    with producer.transaction():
        for name in topics:
            producer.send(name, b"a", partition=1)
    described = [client.admin.partitions.describe(TopicPartition(name, 1)) for name in topics]
    assert [d.last_stable_offset for d in described] == [1] * 4


# ── calls out of order ──


def test_without_a_transactional_id_the_calls_are_illegal(client: msgtx.Client, topic: str) -> None:
    with client.producer() as producer:
        calls: list[Callable[[], object]] = [
            producer.init_transactions,
            producer.begin_transaction,
            lambda: producer.send_offsets_to_transaction({}, "g"),
            producer.commit_transaction,
            producer.abort_transaction,
        ]
        for call in calls:
            with refuses(errors.IllegalState, reason="transactional_id"):
                call()
        assert producer.send(topic, b"a").result(SECONDS).offset == 0


def test_calls_out_of_order_are_illegal_and_the_producer_stays_usable(
    client: msgtx.Client, topic: str, unique: Unique, read: Read
) -> None:
    producer = client.producer(transactional_id=unique("id"))
    assert producer.transaction_id is None
    for early in (
        producer.begin_transaction,
        lambda: producer.send(topic, b"x"),
        producer.commit_transaction,
        producer.abort_transaction,
    ):
        with refuses(errors.IllegalState, reason="uninitialized"):
            early()
    producer.init_transactions()
    with pytest.raises(errors.IllegalState):
        producer.init_transactions()
    for outside in (
        lambda: producer.send(topic, b"x"),
        lambda: producer.send_batch(topic, [b"x"]),
        lambda: producer.send_offsets_to_transaction({TopicPartition(topic, 0): 1}, "g"),
        lambda: producer.send_offsets_to_transaction({TopicPartition("nowhere", 0): 1}, "g"),
        producer.commit_transaction,
        producer.abort_transaction,
    ):
        with refuses(errors.IllegalState, reason="ready"):
            outside()
    producer.begin_transaction()
    producer.send(topic, b"a").result(SECONDS)
    for within in (producer.begin_transaction, producer.init_transactions):
        with pytest.raises(errors.IllegalState):
            within()
    producer.commit_transaction()
    producer.close()
    with refuses(errors.IllegalState, reason="closed"):
        producer.begin_transaction()
    assert values(read(topic)) == [b"a"]


@pytest.mark.parametrize("timeout_ms", [0, -1])
def test_a_timeout_that_is_not_above_zero_is_refused(producer: msgtx.Producer, timeout_ms: int) -> None:
    with pytest.raises(errors.InvalidTransactionTimeout):
        producer.begin_transaction(timeout_ms=timeout_ms)
    producer.begin_transaction()
    producer.abort_transaction()


def test_a_call_of_another_thread_while_a_commit_runs_is_illegal(
    client: msgtx.Client, producer: msgtx.Producer, topic: str, connection: Connection, read: Read
) -> None:
    transaction = producer.begin_transaction()
    stretch(producer, topic)
    with ThreadPoolExecutor(1) as threads:
        with producer_held(connection, transaction):
            committing = threads.submit(producer.commit_transaction)
            wait_until(lambda: waiting_backends(connection), "the commit waits")
            for call in (producer.commit_transaction, producer.abort_transaction, producer.begin_transaction):
                with pytest.raises(errors.IllegalState):
                    call()
            with pytest.raises(errors.IllegalState):
                producer.send(topic, b"late")
        committing.result(SECONDS)
    assert values(read(topic)) == [b"stored"]


# ── the context manager ──


def test_a_body_that_raises_aborts_and_its_exception_goes_on(producer: msgtx.Producer, topic: str, read: Read) -> None:
    for stored in (True, False):
        with pytest.raises(ZeroDivisionError), producer.transaction():  # noqa: PT012 - the block raises at its end
            if stored:
                stretch(producer, topic)
            producer.send(topic, b"x")
            raise ZeroDivisionError
    with producer.transaction():
        producer.send(topic, b"a")
    assert values(read(topic)) == [b"a"]


def test_a_block_whose_end_was_interrupted_at_its_beginning_is_aborted(client: msgtx.Client, topic: str, read: Read) -> None:
    """A signal's handler may raise before the first step of `__exit__`."""
    with client.producer(transactional_id=topic) as producer:

        def interrupted() -> None:
            block = producer.transaction()
            block.__enter__()
            producer.send(topic, b"lost")

        interrupted()
        with producer.transaction():
            producer.send(topic, b"kept")
    assert [record.value for record in read(topic)] == [b"kept"]


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_aborts_too(
    client: msgtx.Client, producer: msgtx.Producer, topic: str, kind: type[BaseException]
) -> None:
    with pytest.raises(kind), producer.transaction() as transaction:  # noqa: PT012 - the block raises at its end
        stretch(producer, topic)
        raise kind
    assert client.transaction_outcome(transaction.id) is Outcome.ABORTED


def test_a_nested_transaction_is_illegal_and_the_outer_one_goes_on(producer: msgtx.Producer, topic: str, read: Read) -> None:
    with producer.transaction():
        producer.send(topic, b"a")
        with pytest.raises(errors.IllegalState), producer.transaction():
            pass
        producer.send(topic, b"b")
    assert values(read(topic)) == [b"a", b"b"]


@pytest.mark.parametrize("end", ["commit_transaction", "abort_transaction"])
def test_a_transaction_that_its_body_ended_by_name_is_left_alone(
    producer: msgtx.Producer, topic: str, read: Read, end: str
) -> None:
    with producer.transaction():
        producer.send(topic, b"a")
        getattr(producer, end)()
    with producer.transaction():
        producer.send(topic, b"b")
    assert values(read(topic)) == ([b"a", b"b"] if end == "commit_transaction" else [b"b"])


@pytest.mark.parametrize("raises", [False, True])
@pytest.mark.parametrize("another", [False, True])
def test_a_body_that_ended_it_is_not_aborted_nor_is_the_one_that_it_has_begun_then(
    producer: msgtx.Producer, topic: str, read: Read, another: bool, raises: bool
) -> None:
    with pytest.raises(ZeroDivisionError) if raises else nullcontext(), producer.transaction():
        producer.send(topic, b"a")
        producer.commit_transaction()
        if another:
            producer.begin_transaction()
            producer.send(topic, b"b")
        if raises:
            raise ZeroDivisionError
    if another:
        producer.commit_transaction()
    assert values(read(topic)) == ([b"a", b"b"] if another else [b"a"])


def test_an_abort_that_fails_is_told_with_the_exception_that_it_was_for(
    producer: msgtx.Producer, topic: str, hook: Hook
) -> None:
    with pytest.raises(ZeroDivisionError) as raised, producer.transaction():  # noqa: PT012 - the block raises at its end
        stretch(producer, topic)
        hook.at("before decide", errors.DatabaseNotFound("not there"), times=1)
        raise ZeroDivisionError
    assert raised.value.__notes__ == [f"the abort of transaction {producer.transaction_id} failed, too: not there"]
    for call in (producer.commit_transaction, lambda: producer.send(topic, b"x")):
        with refuses(errors.IllegalState, reason="aborting"):
            call()
    producer.abort_transaction()


def test_a_body_that_ended_an_empty_one_and_began_another_leaves_that_one_open(
    producer: msgtx.Producer, topic: str, read: Read
) -> None:
    """An empty transaction uses no number: the second one has the same name, but is another one."""
    with producer.transaction():
        producer.commit_transaction()
        producer.begin_transaction()
        producer.send(topic, b"b")
    producer.send(topic, b"c")
    producer.commit_transaction()
    assert values(read(topic)) == [b"b", b"c"]


# ── failures ──


def test_a_failed_send_fails_the_transaction_and_abort_leads_out(producer: msgtx.Producer, limited: str, read: Read) -> None:
    producer.begin_transaction()
    producer.send(limited, b"ok")
    assert isinstance(producer.send(limited, b"x" * 11).exception(SECONDS), errors.RecordTooLarge)
    for call in (
        lambda: producer.send(limited, b"y"),
        lambda: producer.send_offsets_to_transaction({TopicPartition(limited, 0): 1}, "g"),
        producer.commit_transaction,
        producer.commit_transaction,
    ):
        with pytest.raises(errors.RecordTooLarge):
            call()
    with pytest.raises(errors.IllegalState):
        producer.begin_transaction()
    producer.abort_transaction()
    with producer.transaction():
        producer.send(limited, b"a")
    assert values(read(limited)) == [b"a"]


def test_a_send_that_the_database_refuses_fails_the_transaction(
    client: msgtx.Client, producer: msgtx.Producer, topic: str, unique: Unique, read: Read
) -> None:
    """Also by a usage error; no reader sees any of the transaction."""
    gone = unique("gone")
    client.topics.create(gone)
    with producer.transaction():
        producer.send(gone, b"warm")
    client.topics.delete(gone)
    with pytest.raises(errors.UnknownTopicOrPartition), producer.transaction():  # noqa: PT012 - the block raises at its end
        producer.send(topic, b"a")
        producer.send(gone, b"b")
    with pytest.raises(errors.UnknownTopicOrPartition), producer.transaction():  # noqa: PT012 - the block raises at its end
        stretch(producer, topic)
        producer.send(gone, b"b")
        producer.flush(SECONDS)
    with producer.transaction():
        producer.send(topic, b"c")
    assert values(read(topic)) == [b"c"]


def test_a_refused_send_raises_at_once_and_the_transaction_goes_on(producer: msgtx.Producer, topic: str, read: Read) -> None:
    with producer.transaction():
        producer.send(topic, b"a")
        for wrong in (
            lambda: producer.send(topic, "text"),
            lambda: producer.send("nowhere", b"a"),
            lambda: producer.send(topic, b"a", partition=7),
        ):
            with pytest.raises((TypeError, errors.UnknownTopicOrPartition)):
                wrong()
    assert values(read(topic)) == [b"a"]


@pytest.mark.parametrize("before", [True, False])
def test_an_overdue_transaction_is_aborted_by_a_reader_and_the_producer_goes_on(
    client: msgtx.Client, topic: str, unique: Unique, clock: Callable[[object], None], before: bool
) -> None:
    """I12: a reader that it holds back ends it; its owner learns of it, aborts, and continues."""
    with client.producer(transactional_id=unique("id"), transaction_timeout_ms=60_000) as producer:
        transaction = producer.begin_transaction(timeout_ms=1_000 if before else None)
        stretch(producer, topic)
        clock("30 seconds" if before else "2 minutes")
        with client.producer() as other:
            other.send(topic, b"behind").result(SECONDS)
        with client.consumer(topic, auto_offset_reset="earliest") as consumer:
            assert values(consumer.poll(SECONDS)) == [b"behind"]
        assert client.transaction_outcome(transaction.id) is Outcome.ABORTED
        with refuses(errors.TransactionAborted, reason="timeout"):
            producer.commit_transaction()
        producer.abort_transaction()
        with producer.transaction():
            producer.send(topic, b"next")


def test_a_send_after_the_timeout_fails_the_transaction(
    client: msgtx.Client, producer: msgtx.Producer, topic: str, clock: Callable[[object], None]
) -> None:
    producer.begin_transaction()
    stretch(producer, topic)
    clock("1 hour")
    assert client.sweep().transactions_aborted == 1
    future = producer.send(topic, b"late")
    assert isinstance(future.exception(SECONDS), errors.TransactionAborted)
    with pytest.raises(errors.TransactionAborted):
        producer.send(topic, b"later")
    producer.abort_transaction()
    with producer.transaction():
        producer.send(topic, b"next")


def test_an_administrators_abort_is_told_to_the_owner(client: msgtx.Client, producer: msgtx.Producer, topic: str) -> None:
    transaction = producer.begin_transaction()
    stretch(producer, topic)
    client.admin.transactions.abort(transaction.id)
    with refuses(errors.TransactionAborted, reason="admin"):
        producer.commit_transaction()
    producer.abort_transaction()
    with producer.transaction() as committed:
        producer.send(topic, b"a")
    with pytest.raises(errors.InvalidTransactionState):
        client.admin.transactions.abort(committed.id)


def test_a_lost_connection_does_not_disturb_a_transaction(
    client: msgtx.Client, wide: str, unique: Unique, killer: Callable[[], int], read: Read
) -> None:
    with client.producer(transactional_id=unique("id"), retry_backoff_ms=5, linger_ms=0) as producer:
        for number in range(6):
            with producer.transaction():
                for i in range(30):
                    producer.send(wide, b"%d" % number, key=b"%d" % i)
                    if i == 15:
                        killer()
                if number % 2:
                    producer.flush(SECONDS)
                    killer()
    assert sorted(values(read(wide))) == sorted(b"%d" % n for n in range(6) for _ in range(30))


def test_an_unknown_outcome_can_be_repeated_or_asked_for(
    client: msgtx.Client, producer: msgtx.Producer, topic: str, read: Read, hook: Hook
) -> None:
    """Only the same call may be repeated; anything else is illegal."""
    transaction = producer.begin_transaction()
    stretch(producer, topic)
    with hook.at("before decide", errors.LockTimeout("its lock")), pytest.raises(errors.OutcomeUnknown):
        producer.commit_transaction(timeout=0.2)
    for call in (producer.abort_transaction, producer.begin_transaction, lambda: producer.send(topic, b"x")):
        with pytest.raises(errors.IllegalState):
            call()
    assert client.transaction_outcome(transaction.id) is Outcome.OPEN
    producer.commit_transaction()
    assert client.transaction_outcome(transaction.id) is Outcome.COMMITTED
    assert values(read(topic)) == [b"stored"]


def test_an_unknown_outcome_leaves_the_context_manager_without_an_abort(
    client: msgtx.Client, topic: str, unique: Unique, hook: Hook
) -> None:
    producer = client.producer(transactional_id=unique("id"), retry_backoff_ms=5, max_block_ms=200)
    producer.init_transactions()
    with (
        hook.at("before append_and_decide", errors.LockTimeout("its lock")),
        pytest.raises(errors.OutcomeUnknown),
        producer.transaction() as transaction,
    ):
        producer.send(topic, b"a")
    producer.commit_transaction()
    assert client.transaction_outcome(transaction.id) is Outcome.COMMITTED


def test_an_open_transaction_is_aborted_by_close(client: msgtx.Client, topic: str, unique: Unique) -> None:
    with client.producer(transactional_id=unique("id")) as producer:
        transaction = producer.begin_transaction()
        stretch(producer, topic)
    assert client.transaction_outcome(transaction.id) is Outcome.ABORTED


@pytest.mark.parametrize("refusal", [errors.DatabaseNotFound, errors.LoginRefused])
@pytest.mark.parametrize("fused", [True, False])
def test_who_is_refused_after_a_commit_that_was_not_answered_does_not_know_its_outcome(
    client: msgtx.Client, producer: msgtx.Producer, topic: str, read: Read, hook: Hook, fused: bool,
    refusal: type[errors.MsgtxError],
) -> None:  # fmt: skip
    """I4: it is committed; who was told that it is not would send it again."""
    transaction = producer.begin_transaction()
    if not fused:
        stretch(producer, topic)
    sent = producer.send(topic, b"a")
    asked: list[None] = []

    def refuse() -> None:
        asked.append(None)
        if len(asked) > 1:
            raise refusal("refused")

    hook.at("after append_and_decide" if fused else "after decide", away, times=1)
    with hook.at("check out", refuse, thread="MainThread"):
        for _ in range(2):
            with pytest.raises(errors.OutcomeUnknown, match="refused"):
                producer.commit_transaction()
        assert len(asked) == 3
    assert client.transaction_outcome(transaction.id) is Outcome.COMMITTED
    producer.commit_transaction()
    assert sent.exception(0) is None
    assert values(read(topic)) == ([b"a"] if fused else [b"stored", b"a"])


@pytest.mark.parametrize("call", ["commit_transaction", "abort_transaction"])
def test_what_a_call_left_undecided_is_decided_by_close(
    client: msgtx.Client, topic: str, unique: Unique, connection: Connection, read: Read, call: str
) -> None:
    """Else nobody would read past it before its timeout. It is not committed: nobody was told that it is."""
    producer, transaction = begun(client, unique("id"), linger_ms=0)
    stretch(producer, topic)
    with partitions_held(connection, topic):
        producer.send(topic, b"waits")
        wait_until(lambda: waiting_backends(connection), "the append waits")
        with pytest.raises(errors.OutcomeUnknown):
            getattr(producer, call)(0.05)
    producer.close()
    assert client.transaction_outcome(transaction.id) is Outcome.ABORTED
    client.producer().send(topic, b"behind").result(SECONDS)
    assert values(read(topic)) == [b"behind"]


def test_what_an_undecided_commit_has_not_sent_is_dropped_by_close_before_it_asks(
    client: msgtx.Client, topic: str, unique: Unique, connection: Connection, background: ThreadPoolExecutor
) -> None:
    producer, _ = begun(client, unique("id"), linger_ms=0, max_in_flight=1, batch_bytes=1_000)
    with partitions_held(connection, topic):
        producer.send(topic, bytes(900))
        wait_until(lambda: waiting_backends(connection), "the append waits")
        rest = producer.send_batch(topic, [bytes(900)] * 2)
        with pytest.raises(errors.OutcomeUnknown):
            producer.commit_transaction(0.05)
        closing = background.submit(producer.close)
        assert isinstance(rest.exception(5), errors.TransactionAborted)
    closing.result(SECONDS)


@pytest.mark.parametrize("committing", ["before", "meanwhile"])
@pytest.mark.parametrize("outcome", [Outcome.COMMITTED, Outcome.ABORTED, None])
def test_what_was_sent_with_a_commit_that_is_not_answered_is_settled_by_close(
    client: msgtx.Client, topic: str, unique: Unique, background: ThreadPoolExecutor, hook: Hook, committing: str,
    outcome: Outcome | None,
) -> None:  # fmt: skip
    """Whoever waits for a future goes on."""
    endings = Endings()
    client.observe(endings)
    producer, transaction = begun(client, unique("id"), linger_ms=60_000)
    future = producer.send(topic, b"a")
    held = Held()

    def lost() -> NoReturn:
        held()
        away()

    hook.at("after append_and_decide" if outcome is Outcome.COMMITTED else "before append_and_decide", lost)
    if outcome is None:
        hook.at("check out", errors.DatabaseNotFound("not there"), thread="MainThread")
    call = background.submit(producer.commit_transaction, 0.2)
    held.wait()
    if committing == "meanwhile":
        producer.close()
    held.go_on.set()
    with pytest.raises(errors.OutcomeUnknown):
        call.result(SECONDS)
    producer.close()
    error = future.exception(0)
    if committing == "meanwhile" or outcome is None:
        assert isinstance(error, errors.OutcomeUnknown)
    elif outcome is Outcome.ABORTED:
        assert isinstance(error, errors.TransactionAborted)
    else:
        assert error is None
    if committing == "before" and outcome is not None:
        assert client.transaction_outcome(transaction.id) is outcome
        assert endings.told == ["committed" if outcome is Outcome.COMMITTED else "aborted"]


class Endings(Observer):
    """Takes note of how transactions end."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def transaction_ended(self, producer: object, outcome: str, seconds: float) -> None:
        self.told.append(outcome)


@pytest.mark.parametrize("fused", [True, False])
def test_a_commit_in_another_thread_is_not_undone_by_close(
    client: msgtx.Client, topic: str, unique: Unique, connection: Connection, background: ThreadPoolExecutor, fused: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """The sender ends with what it has, and the commit with it."""
    producer, transaction = begun(client, unique("id"), linger_ms=60_000)
    sent = producer.send(topic, b"a")
    if not fused:
        producer.flush(SECONDS)
    with producer_held(connection, transaction):
        committing = background.submit(producer.commit_transaction)
        wait_until(lambda: waiting_backends(connection), "the commit waits")
        producer.close()
    committing.result(SECONDS)
    assert sent.result(0).offset == 0
    assert client.transaction_outcome(transaction.id) is Outcome.COMMITTED
    assert "could not be ended" not in caplog.text


def test_a_commit_that_is_fenced_while_another_thread_closes_the_producer_says_so(
    client: msgtx.Client, topic: str, unique: Unique, connection: Connection, background: ThreadPoolExecutor
) -> None:
    """I7."""
    name = unique("id")
    producer, transaction = begun(client, name)
    stretch(producer, topic)
    client.admin.transactions.fence(name)
    with producer_held(connection, transaction):
        committing = background.submit(producer.commit_transaction)
        wait_until(lambda: waiting_backends(connection), "the commit waits")
        producer.close()
    with pytest.raises(errors.ProducerFenced):
        committing.result(SECONDS)


def test_records_of_a_commit_that_is_refused_for_good_have_its_error(
    client: msgtx.Client, topic: str, unique: Unique, hook: Hook
) -> None:
    """At once: whoever waits for a future goes on."""
    producer, _ = begun(client, unique("id"), linger_ms=60_000)
    sent = producer.send(topic, b"a")
    hook.at("before append_and_decide", errors.AuthorizationFailed("the right is gone"), times=1)
    with pytest.raises(errors.AuthorizationFailed):
        producer.commit_transaction()
    assert isinstance(sent.exception(0), errors.AuthorizationFailed)
    producer.close()


@pytest.mark.parametrize("part", ["function", "database"])
def test_half_a_transaction_is_not_committed_where_a_part_of_it_was_refused_for_a_while(
    client: msgtx.Client, topic: str, unique: Unique, read: Read, hook: Hook, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    """I1: all that waits is dropped then, and fails its transaction, whether or not anybody looks at the futures."""
    with client.producer(transactional_id=unique("id"), linger_ms=0) as producer:
        transaction = producer.begin_transaction()
        stretch(producer, topic)
        with monkeypatch.context() as patched:
            if part == "function":
                patched.setattr(sender, "APPEND_UNFLUSHED", replace(calls.APPEND, name="no_such_function"))
            else:
                hook.at("check out", errors.DatabaseNotFound("not there"), thread="msgtx-sender", times=1)
            assert isinstance(producer.send(topic, b"refused").exception(SECONDS), errors.ConfigError)
        with pytest.raises(errors.ConfigError):
            producer.commit_transaction()
        producer.abort_transaction()
        with producer.transaction():
            producer.send(topic, b"next")
    assert client.transaction_outcome(transaction.id) is Outcome.ABORTED
    assert values(read(topic)) == [b"next"]


@pytest.mark.parametrize("stored", [True, False])
def test_half_a_transaction_is_not_committed_by_a_thread_when_another_one_closes_the_producer(
    client: msgtx.Client, topic: str, unique: Unique, connection: Connection, background: ThreadPoolExecutor, read: Read,
    stored: bool,
) -> None:  # fmt: skip
    """I1: what was not sent is dropped by `close`; what was sent is aborted with it."""
    producer, transaction = begun(client, unique("id"), linger_ms=0, max_in_flight=1)
    if stored:
        stretch(producer, topic)
    with partitions_held(connection, topic):
        producer.send(topic, b"in flight")
        wait_until(lambda: waiting_backends(connection), "the append waits")
        producer.send(topic, b"not sent")
        committing = background.submit(producer.commit_transaction)
        wait_until(lambda: producer._transactions.is_ending, "the commit waits for both")
        closing = background.submit(producer.close)
        wait_until(lambda: producer._accumulator.unfinished == 1, "the second one was dropped")
    with refuses(errors.TransactionAborted, reason="closed"):
        committing.result(SECONDS)
    closing.result(SECONDS)
    assert client.transaction_outcome(transaction.id) is Outcome.ABORTED
    client.producer().send(topic, b"behind").result(SECONDS)
    assert values(read(topic)) == [b"behind"]


@pytest.mark.parametrize("end", ["abort", "a record that is too large"])
def test_a_callback_of_what_is_dropped_may_wait_for_another_thread(
    client: msgtx.Client, limited: str, background: ThreadPoolExecutor, end: str
) -> None:
    """It runs outside the producer's lock."""
    heard: list[int] = []
    producer, _ = begun(client, limited, linger_ms=60_000)
    producer.send(limited, b"a", on_delivery=lambda _: heard.append(background.submit(waits, producer).result(5)))
    if end == "abort":
        producer.abort_transaction()
    else:
        producer.send(limited, b"x" * 11)  # nothing of its transaction is sent any more
    assert heard == [0]
    producer.close()


def waits(producer: msgtx.Producer) -> int:
    """Need the producer's lock; return how many bytes are on their way."""
    with producer._accumulator.lock:
        return producer._accumulator.buffered


# ── fencing ──


@pytest.mark.parametrize("action", ["send", "commit", "abort", "fused"])
def test_a_successor_fences_the_zombie(client: msgtx.Client, topic: str, unique: Unique, read: Read, action: str) -> None:
    """I7."""
    name = unique("id")
    zombie, _ = begun(client, name)
    if action != "fused":
        stretch(zombie, topic)
    with client.producer(transactional_id=name) as successor:
        with pytest.raises(errors.ProducerFenced):  # noqa: PT012 - the block raises at its end
            if action == "send":
                zombie.send(topic, b"zombie").result(SECONDS)
            elif action == "abort":
                zombie.abort_transaction()
                zombie.begin_transaction()
                zombie.send(topic, b"zombie").result(SECONDS)
            else:
                zombie.send(topic, b"zombie") if action == "fused" else None
                zombie.commit_transaction()
        for call in (
            lambda: zombie.send(topic, b"x"),
            zombie.commit_transaction,
            zombie.abort_transaction,
            zombie.begin_transaction,
        ):
            with pytest.raises(errors.ProducerFenced):
                call()
        with successor.transaction():
            successor.send(topic, b"successor")
    zombie.close()
    zombie.close()
    with refuses(errors.IllegalState, reason="closed"):
        zombie.send(topic, b"x")
    assert values(read(topic)) == [b"successor"]


def test_a_producer_that_cannot_take_its_id_over_does_not_begin_its_block(
    client: msgtx.Client, unique: Unique, hook: Hook
) -> None:
    producer = client.producer(transactional_id=unique("id"))
    hook.at("before init_producer_id", errors.DatabaseNotFound("not there"))
    with pytest.raises(errors.DatabaseNotFound), producer:
        raise AssertionError("the block does not begin")
    assert producer.closed


def test_a_fenced_producer_leaves_the_context_manager_with_its_error(
    client: msgtx.Client, topic: str, unique: Unique
) -> None:
    name = unique("id")
    with client.producer(transactional_id=name) as zombie, pytest.raises(errors.ProducerFenced), zombie.transaction():  # noqa: PT012 - the block raises at its end
        stretch(zombie, topic)
        client.admin.transactions.fence(name)


def test_an_abort_that_meanwhile_hears_of_the_successor_says_so(
    client: msgtx.Client, topic: str, unique: Unique, connection: Connection, background: ThreadPoolExecutor
) -> None:
    """The abort itself succeeds, as the fence aborted the same transaction; a batch in flight reveals the fence."""
    name = unique("id")
    zombie, _ = begun(client, name, linger_ms=0)
    stretch(zombie, topic)
    client.admin.transactions.fence(name)
    with partitions_held(connection, topic):
        sent = zombie.send(topic, b"zombie")
        wait_until(lambda: waiting_backends(connection), "the append waits")
        aborting = background.submit(zombie.abort_transaction)
        wait_until(lambda: zombie._sender._paused, "the abort waits for the append")
    with pytest.raises(errors.ProducerFenced):
        sent.result(SECONDS)
    for call in (lambda: aborting.result(SECONDS), zombie.abort_transaction, zombie.begin_transaction):
        with pytest.raises(errors.ProducerFenced):
            call()
    zombie.close()


def test_the_same_producer_fences_itself_when_it_is_made_twice_in_threads(
    client: msgtx.Client, topic: str, unique: Unique, read: Read
) -> None:
    name, winners = unique("id"), []

    def work(number: int) -> None:
        try:
            with client.producer(transactional_id=name) as producer:
                for i in range(10):
                    with producer.transaction():
                        producer.send(topic, b"%d-%d" % (number, i))
            winners.append(number)
        except errors.ProducerFenced:
            pass

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
    found = values(read(topic))
    assert len(set(found)) == len(found)
    assert winners
    for winner in winners:
        assert [v for v in found if v and v.startswith(b"%d-" % winner)] == [b"%d-%d" % (winner, i) for i in range(10)]


# ── offsets ──


@pytest.fixture
def source(client: msgtx.Client, unique: Unique) -> str:
    name = unique("source")
    client.topics.create(name, partitions=2)
    with client.producer() as filling:
        for i in range(10):
            filling.send(name, b"%d" % i, partition=i % 2)
    return name


def committed(client: msgtx.Client, group: str, topic: str) -> dict[int, int]:
    partitions = [TopicPartition(topic, index) for index in range(client.topics.describe(topic).partitions)]
    with client.consumer(group=group, enable_auto_commit=False) as apart:
        return {tp.partition: at.offset for tp, at in apart.committed(partitions).items() if at is not None}


def test_a_consumers_positions_travel_with_the_transaction(
    client: msgtx.Client, producer: msgtx.Producer, topic: str, source: str, unique: Unique
) -> None:
    """I10: the offset after the last record returned to the caller; prefetched records do not count."""
    group = unique("group")
    with client.consumer(source, group=group, auto_offset_reset="earliest", enable_auto_commit=False) as consumer:
        taken = []
        while len(taken) < 7:
            taken += consumer.poll(SECONDS, max_records=7 - len(taken))
        with pytest.raises(ZeroDivisionError), producer.transaction() as transaction:  # noqa: PT012 - the block raises at its end
            transaction.send_offsets(consumer)
            raise ZeroDivisionError
        assert committed(client, group, source) == {}
        with producer.transaction() as transaction:
            producer.send(topic, b"out")
            transaction.send_offsets(consumer)
        expected = {p: max((r.offset + 1 for r in taken if r.partition == p), default=0) for p in (0, 1)}
        assert sum(expected.values()) == 7
        assert committed(client, group, source) == expected
        consumer.rewind()
        assert {tp.partition: consumer.position(tp) for tp in consumer.assignment()} == expected


def test_every_form_of_offsets_is_taken_and_later_replaces_earlier(
    client: msgtx.Client, producer: msgtx.Producer, source: str, unique: Unique
) -> None:
    one, other = unique("group"), unique("group")
    first, second = TopicPartition(source, 0), TopicPartition(source, 1)
    with producer.transaction() as transaction:
        transaction.send_offsets({first: 1, second: OffsetAndMetadata(2, "note")}, one)
        transaction.send_offsets({first: 3}, GroupMetadata(one))
        transaction.send_offsets({(source, 0): 4}, other)
        transaction.send_offsets({}, one)
        producer.send_offsets_to_transaction({second: 5}, other, timeout=1)
    assert committed(client, one, source) == {0: 3, 1: 2}
    assert committed(client, other, source) == {0: 4, 1: 5}


def test_offsets_without_their_group_are_refused(producer: msgtx.Producer, source: str) -> None:
    with producer.transaction() as transaction, refuses(errors.InvalidRequest, name="group"):
        transaction.send_offsets({TopicPartition(source, 0): 1})


@pytest.mark.parametrize(
    ("prepare", "reason"),
    [
        ({"enable_auto_commit": True}, "enable_auto_commit"),
        ({"isolation": "read_uncommitted"}, "isolation"),
        ({"group": None}, "no group"),
        ({"commit": True}, "by hand"),
    ],
)
def test_a_consumer_whose_positions_may_not_be_used_is_illegal(
    client: msgtx.Client, producer: msgtx.Producer, source: str, unique: Unique, prepare: dict[str, object], reason: str
) -> None:
    """The error names the setting, and the transaction continues."""
    by_hand = prepare.pop("commit", False)
    settings = {"group": unique("group"), "enable_auto_commit": False, "auto_offset_reset": "earliest", **prepare}
    if settings["group"] is None:
        del settings["group"], settings["enable_auto_commit"]
    with client.consumer(source, **settings) as consumer:
        consumer.poll(SECONDS)
        if by_hand:
            consumer.commit()
        with producer.transaction() as transaction:
            with refuses(errors.IllegalState, reason=reason):
                transaction.send_offsets(consumer)
            transaction.send_offsets({TopicPartition(source, 0): 1}, "any")


@pytest.mark.parametrize("iterate", [False, True])
def test_with_each_poll_a_consumer_may_commit_in_another_way(
    client: msgtx.Client, producer: msgtx.Producer, source: str, unique: Unique, iterate: bool
) -> None:
    group = unique("group")
    with client.consumer(source, group=group, enable_auto_commit=False, auto_offset_reset="earliest") as consumer:
        with producer.transaction() as transaction:
            transaction.send_offsets(consumer)  # nothing was read
        assert committed(client, group, source) == {}
        polls = ([record] for record in consumer) if iterate else (consumer.poll(SECONDS, max_records=1) for _ in range(2))
        assert len(next(polls)) == 1
        consumer.commit()
        with refuses(errors.IllegalState, reason="by hand"):
            consumer._transaction_offsets()
        assert len(next(polls)) == 1
        with producer.transaction() as transaction:
            transaction.send_offsets(consumer)
    assert sum(committed(client, group, source).values()) == 2


@pytest.mark.parametrize(
    ("at", "group", "refusal"),
    [
        (-1, "g", errors.InvalidRequest),
        (OffsetAndMetadata(1, "x" * 4_097), "g", errors.OffsetMetadataTooLarge),
    ],
)
def test_bad_offsets_fail_the_transaction(
    producer: msgtx.Producer, source: str, at: int | OffsetAndMetadata, group: str, refusal: type[errors.MsgtxError]
) -> None:
    producer.begin_transaction()
    with pytest.raises(refusal):
        producer.send_offsets_to_transaction({TopicPartition(source, 0): at}, group)
    with pytest.raises(refusal):
        producer.commit_transaction()
    producer.abort_transaction()


def test_offsets_of_a_member_that_is_not_known_abort_the_transaction(
    client: msgtx.Client, producer: msgtx.Producer, source: str, topic: str, read: Read
) -> None:
    """I11."""
    member = GroupMetadata("group", member_id="ghost", generation=3)
    for stored in (False, True):
        with pytest.raises(errors.UnknownMember), producer.transaction() as transaction:  # noqa: PT012 - the block raises at its end
            if stored:
                stretch(producer, topic)
            producer.send(topic, b"a")
            transaction.send_offsets({TopicPartition(source, 0): 1}, member)
    with producer.transaction():
        producer.send(topic, b"b")
    assert values(read(topic)) == [b"b"]


def test_offsets_of_an_unknown_partition_are_refused_at_once(producer: msgtx.Producer, source: str) -> None:
    producer.begin_transaction()
    with pytest.raises(errors.UnknownTopicOrPartition):
        producer.send_offsets_to_transaction({TopicPartition(source, 9): 1}, "g")
    producer.abort_transaction()


# ── the outcome asked for ──


@pytest.mark.parametrize("text", ["", "1", "1.2", "1.2.3.4", "a.b.c", "-1.0.0", "1.0.99999999999999999999"])
def test_what_is_no_transaction_id_is_refused(client: msgtx.Client, text: str) -> None:
    with pytest.raises(errors.InvalidRequest):
        client.transaction_outcome(text)


@pytest.mark.parametrize("text", ["9999999999999999999.0.0", "1.9999999999.0", "1.0.9999999999999999999", "77777.0.0"])
def test_an_id_that_is_not_known_is_unknown_and_never_raises(client: msgtx.Client, text: str) -> None:
    """internals: transactions#the-outcome-asked-later; an impossible id (too large) may be refused."""
    try:
        assert client.transaction_outcome(text) is Outcome.UNKNOWN
    except errors.InvalidRequest:
        assert text != "77777.0.0"


def test_resolve_settles_what_nobody_will_finish(client: msgtx.Client, producer: msgtx.Producer, topic: str) -> None:
    """No unknown outcomes: any process can ask later."""
    transaction = producer.begin_transaction()
    stretch(producer, topic)
    assert client.transaction_outcome(transaction.id, resolve=True) is Outcome.ABORTED
    with refuses(errors.TransactionAborted, reason="resolve"):
        producer.commit_transaction()
    producer.abort_transaction()


def test_administration_lists_and_describes(
    client: msgtx.Client, topic: str, unique: Unique, clock: Callable[[object], None]
) -> None:
    name = unique("listed")
    with client.producer(transactional_id=name) as producer:
        listing = client.admin.transactions.list(pattern=name)
        assert [(entry.transactional_id, entry.state) for entry in listing] == [(name, "Empty")]
        transaction = producer.begin_transaction(timeout_ms=5_000)
        stretch(producer, topic)
        found = client.admin.transactions.describe(name)
        assert (found.state, found.transaction_id, found.timeout_ms) == ("Ongoing", transaction.id, 5_000)
        assert found.partitions == [TopicPartition(topic, 0)]
        assert client.admin.transactions.list(states=["Ongoing"], pattern=f"{name}.*")
        assert client.admin.transactions.list(producer_ids=[transaction.id.producer_id])
        assert not client.admin.transactions.list(pattern=name, longer_than_ms=3_600_000)
        producer.commit_transaction()
        client.sweep()
        assert client.admin.transactions.describe(name).state == "CompleteCommit"
    with pytest.raises(errors.TransactionalIdNotFound):
        client.admin.transactions.describe("nobody")
    with pytest.raises(errors.InvalidRequest):
        client.admin.transactions.list(states=["Odd"])
    with pytest.raises(errors.InvalidRequest):
        client.admin.transactions.list(pattern="(")


def test_a_limit_that_was_lowered_meanwhile_fails_the_whole_transaction(
    client: msgtx.Client, producer: msgtx.Producer, topic: str, connection: Connection, read: Read
) -> None:
    with producer.transaction():
        producer.send(topic, b"warm")
    lower_limit(connection, topic, 10)
    for stored in (False, True):
        producer.begin_transaction()
        if stored:
            stretch(producer, topic)
        producer.send(topic, b"fine")
        producer.send(topic, b"x" * 50)
        with pytest.raises(errors.RecordTooLarge):
            producer.commit_transaction()
        producer.abort_transaction()
    with producer.transaction():
        producer.send(topic, b"next")
    assert values(read(topic)) == [b"warm", b"next"]


def test_a_transaction_in_one_call_that_lost_its_answer_is_committed_once(
    client: msgtx.Client, topic: str, unique: Unique, killer: Callable[[], int], read: Read
) -> None:
    """I1: the session is ended while it waits; the retry shows whether it had committed."""
    with client.producer(transactional_id=unique("id"), retry_backoff_ms=5) as producer, ThreadPoolExecutor(1) as threads:
        for number in range(5):
            producer.begin_transaction()
            future = producer.send(topic, b"%d" % number)
            committing = threads.submit(producer.commit_transaction)
            if number % 2:
                killer()
            committing.result(SECONDS)
            assert future.result(0).offset == number
    assert values(read(topic)) == [b"%d" % number for number in range(5)]


def test_a_commit_that_is_interrupted_when_it_is_answered_may_be_repeated(
    producer: msgtx.Producer, wide: str, read: Read
) -> None:
    """By Ctrl-C in a callback: what is settled by then is not settled twice."""

    def interrupt(_: object) -> NoReturn:
        raise KeyboardInterrupt

    producer.begin_transaction()
    futures = [
        producer.send(wide, b"%d" % partition, partition=partition, on_delivery=interrupt if partition == 1 else None)
        for partition in range(3)
    ]
    with pytest.raises(KeyboardInterrupt):
        producer.commit_transaction()
    producer.commit_transaction()
    assert [future.result(0).offset for future in futures] == [0, 0, 0]
    assert len(read(wide)) == 3
    producer.flush(0)
    assert producer._accumulator.buffered == 0


def test_what_is_too_large_for_one_call_goes_in_several(
    client: msgtx.Client, wide: str, unique: Unique, read: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One call would hold the locks of its partitions for as long as it takes to store all of it."""
    with client.producer(transactional_id=unique("id"), linger_ms=60_000) as producer:
        for size, calls in ((1_000, []), (FUSED_BYTES // 3, [3])):
            with monkeypatch.context() as counting, producer.transaction():
                sizes = calls_of(counting)
                for partition in range(3):
                    producer.send(wide, b"x" * size, partition=partition)
                producer.commit_transaction()
            assert sizes == calls
    assert len(read(wide)) == 6


def test_a_small_transaction_is_one_call(producer: msgtx.Producer, topic: str, unique: Unique, hook: Hook) -> None:
    with producer.transaction():
        producer.send(topic, b"warm")  # the topic is known then
    calls: list[None] = []
    hook.at("check out", lambda: calls.append(None), thread="MainThread")
    with producer.transaction() as transaction:
        producer.send(topic, b"a")
        transaction.send_offsets({TopicPartition(topic, 0): 1}, unique("group"))
    assert len(calls) == 1


# ── many partitions ──


def calls_of(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The partitions of each call that the sender makes from now on."""
    sizes: list[int] = []
    append_arguments = sender.append_arguments

    def counted(connection: Connection, batches: list[BatchColumns], **options: object) -> tuple[object, ...]:
        sizes.append(len(batches))
        return append_arguments(connection, batches, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(sender, "append_arguments", counted)
    return sizes


@pytest.mark.parametrize("transactional", [True, False])
def test_a_record_for_each_of_many_partitions_goes_in_calls_of_few(
    client: msgtx.Client, unique: Unique, read: Read, monkeypatch: pytest.MonkeyPatch, transactional: bool
) -> None:
    """Each partition of a call takes an entry of PostgreSQL's lock table, which all sessions share."""
    sizes, topic = calls_of(monkeypatch), unique("many")
    client.topics.create(topic, partitions=600)
    with client.producer(transactional_id=topic if transactional else None, linger_ms=1_000) as producer:
        if transactional:
            producer.begin_transaction()
        futures = [producer.send(topic, b"x", partition=partition) for partition in range(600)]
        if transactional:
            producer.commit_transaction()
        else:
            producer.flush(SECONDS)
        assert [future.exception(SECONDS) for future in futures] == [None] * 600
    assert len(read(topic)) == 600
    assert (sum(sizes), max(sizes) <= PARTITIONS_AT_ONCE) == (600, True)
    client.topics.delete(topic)


def test_calls_get_smaller_while_the_lock_table_is_full(
    client: msgtx.Client, unique: Unique, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes, topic, refused = calls_of(monkeypatch), unique("many"), iter(range(3))
    client.topics.create(topic, partitions=PARTITIONS_AT_ONCE)
    begin = sender.end_call

    def full(pipeline: object) -> None:
        if next(refused, None) is not None:
            raise errors.LockTableFull("out of shared memory")
        begin(pipeline)  # type: ignore[arg-type]

    monkeypatch.setattr(sender, "end_call", full)
    with client.producer(linger_ms=1_000, retry_backoff_ms=5) as producer:
        futures = [producer.send(topic, b"x", partition=partition) for partition in range(PARTITIONS_AT_ONCE)]
        producer.flush(SECONDS)
        assert [future.exception(SECONDS) for future in futures] == [None] * PARTITIONS_AT_ONCE
    assert sizes[:4] == [PARTITIONS_AT_ONCE // 2**n for n in range(4)]
    client.topics.delete(topic)


def test_offsets_whose_topic_is_looked_up_hold_no_record_up(
    client: msgtx.Client, topic: str, unique: Unique, hook: Hook
) -> None:
    """The look-up may wait for the database: meanwhile it holds no lock that the sender needs."""
    with client.producer(transactional_id=unique("id")) as producer, ThreadPoolExecutor(1) as threads:
        producer.begin_transaction()
        held = hook.hold("before describe_topics")
        offsets = threads.submit(producer.send_offsets_to_transaction, {TopicPartition(topic, 0): 7}, unique("group"))
        held.wait()
        free = producer._accumulator.lock.acquire(timeout=1.0)
        if free:
            producer._accumulator.lock.release()
        held.go_on.set()
        offsets.result(SECONDS)
        assert free
        producer.commit_transaction()


def test_offsets_whose_transaction_failed_meanwhile_are_refused(
    client: msgtx.Client, topic: str, unique: Unique, hook: Hook
) -> None:
    with client.producer(transactional_id=unique("id")) as producer:
        producer.begin_transaction()
        hook.at("before describe_topics", lambda: producer._state.fail(errors.DeliveryTimeout("planted")))
        with pytest.raises(errors.DeliveryTimeout):
            producer.send_offsets_to_transaction({TopicPartition(topic, 0): 7}, unique("group"))
        producer.abort_transaction()


def test_a_send_that_waits_for_room_hears_that_its_transaction_has_failed(
    client: msgtx.Client, topic: str, unique: Unique, connection: Connection, background: ThreadPoolExecutor
) -> None:
    """At once, though nothing that it waits behind is answered."""
    with client.producer(transactional_id=unique("id"), buffer_bytes=1_000, linger_ms=0) as producer:
        producer.begin_transaction()
        with partitions_held(connection, topic):
            producer.send(topic, b"x" * 600)
            wait_until(lambda: waiting_backends(connection), "the append waits")
            sending = background.submit(producer.send, topic, b"x" * 600)
            wait_until(lambda: producer._accumulator.settled._waiters, "the send waits")  # type: ignore[attr-defined]
            with pytest.raises(errors.InvalidRequest):
                producer.send_offsets_to_transaction({TopicPartition(topic, 0): -1}, unique("group"))
            with pytest.raises(errors.InvalidRequest):
                sending.result(2)
        producer.abort_transaction()


def test_no_commit_overtakes_the_failure_of_a_record_that_was_never_sent(
    client: msgtx.Client, topic: str, unique: Unique, hook: Hook, background: ThreadPoolExecutor, read: Read
) -> None:
    """I1: it waits for the record, and hears that it failed, however long a callback takes."""
    with client.producer(transactional_id=unique("id"), delivery_timeout_ms=100, retry_backoff_ms=5) as producer:
        transaction = producer.begin_transaction()
        stretch(producer, topic)
        commits: list[Any] = []
        with hook.at("check out", away, thread="msgtx-sender"):
            failed = producer.send(topic, b"not sent", on_delivery=lambda _: wait(commits, SECONDS))
            commits.append(background.submit(producer.commit_transaction))
            with pytest.raises(errors.DeliveryTimeout):
                commits[0].result(SECONDS)
        assert isinstance(failed.exception(0), errors.DeliveryTimeout)
        producer.abort_transaction()
    assert client.transaction_outcome(transaction.id) is Outcome.ABORTED
    assert values(read(topic)) == []


def test_records_of_a_transaction_go_out_before_its_commit(client: msgtx.Client, topic: str) -> None:
    """Also when many commits in a row have left the sender nothing to do, so that it looks less often."""
    with client.producer(transactional_id="trickles") as producer:
        for _ in range(100):
            with producer.transaction():
                producer.send(topic, b"small")
        for _ in range(3):
            with producer.transaction():
                began = time.monotonic()
                assert producer.send(topic, b"awaited").result(20).offset >= 0
                assert time.monotonic() - began < 2


def test_transactions_that_are_one_call_do_not_wake_the_sender(
    producer: msgtx.Producer, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for the first one: a thread that wakes is in the way of the one that commits."""
    accumulator = producer._accumulator
    with producer.transaction():
        producer.send(topic, b"x")
    wait_until(lambda: accumulator.sender_sleeps)
    wakes = []
    notify = accumulator.work.notify

    def noted(count: int = 1) -> None:
        wakes.append(count)
        notify(count)

    monkeypatch.setattr(accumulator.work, "notify", noted)
    began = time.monotonic()
    for _ in range(50):
        with producer.transaction():
            producer.send(topic, b"x")
    assert len(wakes) <= 1 + (time.monotonic() - began) / sender.AWAKE_SECONDS


@pytest.mark.parametrize("refusal", [errors.InvalidRequest, errors.DatabaseNotFound])
def test_a_commit_that_is_refused_is_not_of_unknown_outcome(
    client: msgtx.Client, topic: str, hook: Hook, refusal: type[errors.MsgtxError]
) -> None:
    """The same call would be refused again."""
    with client.producer(transactional_id=topic) as producer:
        producer.begin_transaction()
        stretch(producer, topic)
        with hook.at("before decide", refusal("no such decision")), pytest.raises(refusal):
            producer.commit_transaction()
        producer.commit_transaction()
