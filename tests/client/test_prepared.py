"""Transactions that are prepared for an outside decision (internals: sessions; KIP-939)."""

import contextlib
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator

import pytest

import msgtx
from msgtx import Outcome, PreparedTransaction, TopicPartition, TransactionId, errors
from tests.databases import Connection
from tests.hooks import Hook, away
from tests.refusals import refuses

pytestmark = pytest.mark.slow

Read = Callable[[str], list[bytes]]
Unique = Callable[[str], str]
SECONDS = 30.0


@pytest.fixture
def read(connection: Connection) -> Read:
    """The values of a topic that a log reader sees now."""

    def shown(topic: str) -> list[bytes]:
        rows = connection.execute(
            'select value from msgtx.committed_records where topic = %s order by partition, "offset"', [topic]
        ).fetchall()
        return [value for (value,) in rows]

    return shown


@pytest.fixture
def name(unique: Unique) -> str:
    return unique("prepared")


@pytest.fixture
def producer(client: msgtx.Client, name: str) -> Iterator[msgtx.Producer]:
    with client.producer(transactional_id=name, retry_backoff_ms=5) as made:
        yield made


def prepare(producer: msgtx.Producer, topic: str, value: bytes = b"x") -> PreparedTransaction:
    transaction = producer.begin_transaction()
    producer.send(topic, value)
    token = transaction.prepare()
    assert token == producer.prepared_transaction
    assert token.transaction_id == transaction.id
    return token


def goes_on(producer: msgtx.Producer, topic: str, read: Read) -> None:
    before = read(topic)
    with producer.transaction():
        producer.send(topic, b"next")
    assert read(topic) == [*before, b"next"]


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("as_text", [True, False])
def test_a_token_decides_from_any_client(
    database_url: str, producer: msgtx.Producer, topic: str, read: Read, commit: bool, as_text: bool
) -> None:
    """Any number of times, with one outcome only (I4)."""
    token = prepare(producer, topic)
    wanted = Outcome.COMMITTED if commit else Outcome.ABORTED
    assert read(topic) == []
    with msgtx.connect(database_url) as other:
        assert other.transaction_outcome(token.transaction_id) is Outcome.OPEN
        assert other.transaction_outcome(token.transaction_id, resolve=True) is Outcome.OPEN
        for _ in range(2):
            assert other.complete(str(token) if as_text else token, commit=commit) is wanted
        with refuses(errors.InvalidTransactionState, reason="decided"):
            other.complete(token, commit=not commit)
    assert read(topic) == ([b"x"] if commit else [])
    goes_on(producer, topic, read)
    assert producer.prepared_transaction is None


@pytest.mark.parametrize("commit", [True, False])
def test_its_own_producer_may_decide(
    client: msgtx.Client, producer: msgtx.Producer, topic: str, read: Read, commit: bool
) -> None:
    token = prepare(producer, topic)
    (producer.commit_transaction if commit else producer.abort_transaction)()
    assert client.complete(token, commit=commit) is (Outcome.COMMITTED if commit else Outcome.ABORTED)
    assert read(topic) == ([b"x"] if commit else [])
    assert producer.prepared_transaction is None
    goes_on(producer, topic, read)


@pytest.mark.parametrize("committed", [True, False])
def test_a_producer_that_decides_otherwise_than_the_outside_party_hears_of_it(
    client: msgtx.Client, producer: msgtx.Producer, topic: str, read: Read, committed: bool
) -> None:
    token = prepare(producer, topic)
    client.complete(token, commit=committed)
    with pytest.raises(errors.InvalidTransactionState if committed else errors.TransactionAborted):
        (producer.abort_transaction if committed else producer.commit_transaction)()
    assert read(topic) == ([b"x"] if committed else [])


def test_until_it_is_decided_the_producer_does_nothing_else(
    client: msgtx.Client, producer: msgtx.Producer, topic: str, read: Read
) -> None:
    token = prepare(producer, topic)
    assert producer.prepare_transaction() == token
    for call in (
        producer.begin_transaction,
        lambda: producer.send(topic, b"late"),
        lambda: producer.send_offsets_to_transaction({TopicPartition(topic, 0): 1}, "group"),
        producer.init_transactions,
    ):
        with refuses(errors.IllegalState, reason="prepared"):
            call()
    assert client.complete(token, commit=True) is Outcome.COMMITTED
    assert read(topic) == [b"x"]
    goes_on(producer, topic, read)


def test_a_prepared_transaction_outlives_its_timeout_and_its_producer(
    client: msgtx.Client, name: str, topic: str, read: Read
) -> None:
    with client.producer(transactional_id=name, transaction_timeout_ms=400) as producer:
        token = prepare(producer, topic)
    time.sleep(0.5)
    client.sweep()
    assert client.complete(token, commit=True) is Outcome.COMMITTED
    assert read(topic) == [b"x"]


@pytest.mark.parametrize("raises", [False, True])
def test_prepare_in_the_context_manager_leaves_the_decision_open(
    client: msgtx.Client, producer: msgtx.Producer, topic: str, read: Read, raises: bool
) -> None:
    """Also with an exception after it: the outside party may have decided already."""
    with pytest.raises(KeyError) if raises else contextlib.nullcontext(), producer.transaction() as transaction:
        producer.send(topic, b"x")
        token = transaction.prepare()
        if raises:
            raise KeyError
    assert client.transaction_outcome(token.transaction_id) is Outcome.OPEN
    client.complete(token, commit=True)
    assert read(topic) == [b"x"]
    goes_on(producer, topic, read)


def test_nothing_at_all_may_be_prepared(client: msgtx.Client, producer: msgtx.Producer, topic: str, read: Read) -> None:
    transaction = producer.begin_transaction()
    token = transaction.prepare()
    assert client.complete(token, commit=True) is Outcome.COMMITTED
    goes_on(producer, topic, read)


def test_what_cannot_be_committed_cannot_be_prepared(
    client: msgtx.Client, producer: msgtx.Producer, topic: str, read: Read
) -> None:
    transaction = producer.begin_transaction()
    producer.send(topic, b"gone")
    producer.flush(SECONDS)
    client.admin.transactions.abort(transaction.id)
    for call in (transaction.prepare, transaction.prepare, lambda: producer.send(topic, b"more")):
        with pytest.raises(errors.TransactionAborted):
            call()
    assert producer.prepared_transaction is None
    producer.abort_transaction()
    goes_on(producer, topic, read)


def test_prepare_is_illegal_without_a_transaction(client: msgtx.Client, producer: msgtx.Producer) -> None:
    with refuses(errors.IllegalState, reason="ready"):
        producer.prepare_transaction()
    with client.producer() as plain, refuses(errors.IllegalState, reason="transactional_id"):
        plain.prepare_transaction()


def test_offsets_are_pending_until_the_decision(
    client: msgtx.Client, producer: msgtx.Producer, topic: str, unique: Unique
) -> None:
    """P42. A call that requires stable offsets waits."""
    group, place = unique("group"), TopicPartition(topic, 0)
    transaction = producer.begin_transaction()
    transaction.send_offsets({place: 4}, group)
    token = transaction.prepare()
    with client.consumer(group=group) as consumer:
        consumer.assign([place])
        with pytest.raises(errors.UnstableOffset):
            consumer.committed([place], timeout=0.2)
        assert consumer.committed([place], require_stable=False).get(place) is None
        client.complete(token, commit=True)
        assert consumer.committed([place])[place].offset == 4


# ── tokens ──


def test_tokens_read_as_they_are_written() -> None:
    token = PreparedTransaction(TransactionId(17, 0, 3), "0b8e6f2c-95a6-4a0f-8a2a-2a5e4a8d3b1c")
    assert str(token) == "17.0.3@0b8e6f2c-95a6-4a0f-8a2a-2a5e4a8d3b1c"
    assert PreparedTransaction.parse(f" {token}\n") == token


@pytest.mark.parametrize(
    "text", ["", "garbage", "17.0.3", "17.0.3@", "17.0@{}", "x.y.z@{}", "@{}", "17.0.3@{}x", "17.0.3@{} @{}"]
)
def test_garbage_is_no_token(client: msgtx.Client, text: str) -> None:
    with pytest.raises(errors.InvalidRequest):
        client.complete(text.format(client.runtime.engine.incarnation, client.runtime.engine.incarnation), commit=True)


def test_a_token_of_another_incarnation_decides_nothing(client: msgtx.Client, producer: msgtx.Producer, topic: str) -> None:
    token = prepare(producer, topic)
    other = token._replace(incarnation="0b8e6f2c-95a6-4a0f-8a2a-2a5e4a8d3b1c")
    with pytest.raises(errors.IncarnationChanged):
        client.complete(other, commit=True)
    assert client.transaction_outcome(token.transaction_id) is Outcome.OPEN
    client.complete(token, commit=False)


def test_a_token_of_what_is_not_prepared_decides_nothing(client: msgtx.Client, producer: msgtx.Producer, topic: str) -> None:
    transaction = producer.begin_transaction()
    producer.send(topic, b"x")
    producer.flush(SECONDS)
    for unprepared in (transaction.id, TransactionId(10**12, 0, 0)):
        token = PreparedTransaction(unprepared, str(client.runtime.engine.incarnation))
        for commit in (True, False):
            with refuses(errors.InvalidTransactionState, reason="unknown"):
                client.complete(token, commit=commit)
    producer.abort_transaction()


# ── after a crash ──


CRASH = """
    import os, sys, msgtx
    client = msgtx.connect(sys.argv[1])
    producer = client.producer(transactional_id=sys.argv[2])
    producer.init_transactions()
    transaction = producer.begin_transaction()
    producer.send(sys.argv[3], b"x")
    transaction.send_offsets({msgtx.TopicPartition(sys.argv[3], 0): 7}, sys.argv[2])
    print(transaction.prepare(), flush=True)
    os._exit(9)
"""


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("successor", [True, False])
def test_a_process_that_crashed_after_prepare_leaves_a_token_that_another_completes(
    database_url: str, client: msgtx.Client, name: str, topic: str, read: Read, commit: bool, successor: bool
) -> None:
    """Also after a successor took over the id and kept the transaction."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(CRASH), database_url, name, topic],
        capture_output=True, text=True, timeout=60, env=os.environ, check=False,
    )  # fmt: skip
    assert done.returncode == 9, done.stderr
    token = done.stdout.strip()
    if successor:
        producer = client.producer(transactional_id=name)
        producer.init_transactions(keep_prepared=True)
        assert str(producer.prepared_transaction) == token
    assert client.complete(token, commit=commit) is (Outcome.COMMITTED if commit else Outcome.ABORTED)
    assert read(topic) == ([b"x"] if commit else [])
    with client.consumer(group=name) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        assert (consumer.committed()[TopicPartition(topic, 0)] is not None) is commit
    if successor:
        goes_on(producer, topic, read)
        producer.close()


def test_a_successor_that_does_not_keep_it_aborts_it(
    client: msgtx.Client, producer: msgtx.Producer, name: str, topic: str, read: Read
) -> None:
    """I7."""
    token = prepare(producer, topic)
    with client.producer(transactional_id=name) as successor:
        assert successor.prepared_transaction is None
        with pytest.raises(errors.InvalidTransactionState, match="fence"):
            client.complete(token, commit=True)
        assert client.complete(token, commit=False) is Outcome.ABORTED
        goes_on(successor, topic, read)
    assert read(topic) == [b"next"]


@pytest.mark.parametrize("commit", [True, False])
def test_a_successor_that_keeps_what_is_prepared_may_decide_it_itself(
    client: msgtx.Client, producer: msgtx.Producer, name: str, topic: str, read: Read, commit: bool
) -> None:
    token = prepare(producer, topic)
    successor = client.producer(transactional_id=name)
    successor.init_transactions(keep_prepared=True)
    assert successor.prepared_transaction == token
    assert successor.transaction_id == token.transaction_id
    with refuses(errors.IllegalState, reason="prepared"):
        successor.begin_transaction()
    (successor.commit_transaction if commit else successor.abort_transaction)()
    assert read(topic) == ([b"x"] if commit else [])
    goes_on(successor, topic, read)
    with pytest.raises(errors.ProducerFenced), producer.transaction():
        producer.send(topic, b"zombie")
    successor.close()


def test_an_init_of_which_one_answer_is_lost_can_be_called_again(
    client: msgtx.Client, producer: msgtx.Producer, name: str, topic: str, read: Read, hook: Hook
) -> None:
    """It has its epoch, and does not know what is prepared: nothing may begin."""
    token = prepare(producer, topic)
    successor = client.producer(transactional_id=name)
    with hook.at("before undecided_prepared", away), pytest.raises(errors.DatabaseUnavailable):
        successor.init_transactions(0.3, keep_prepared=True)
    with refuses(errors.IllegalState, reason="uninitialized"):
        successor.begin_transaction()
    successor.init_transactions(keep_prepared=True)
    assert successor.prepared_transaction == token
    successor.commit_transaction()
    assert read(topic) == [b"x"]
    successor.close()


def test_keeping_when_nothing_is_prepared_is_an_ordinary_init(
    client: msgtx.Client, name: str, topic: str, read: Read
) -> None:
    old = client.producer(transactional_id=name)
    old.init_transactions(keep_prepared=True)
    old.begin_transaction()
    old.send(topic, b"open")
    old.flush(SECONDS)
    successor = client.producer(transactional_id=name)
    successor.init_transactions(keep_prepared=True)
    assert successor.prepared_transaction is None
    assert read(topic) == []
    goes_on(successor, topic, read)
    successor.close()
    old.close()


def test_doctor_tells_of_what_is_prepared(client: msgtx.Client, producer: msgtx.Producer, topic: str) -> None:
    token = prepare(producer, topic)

    def told() -> list[str]:
        return [one.text for one in client.admin.doctor() if one.subject == f"transaction {token.transaction_id}"]

    assert "prepared for an outside decision" in told()[0]
    client.complete(token, commit=False)
    assert told() == []


def test_sweeps_remove_the_seals_of_what_is_decided(
    client: msgtx.Client, producer: msgtx.Producer, topic: str, connection: Connection
) -> None:
    seals = "select count(*) from msgtx.transaction_seal where producer_id = %s"
    token = prepare(producer, topic)
    client.sweep()
    assert connection.execute(seals, [token.transaction_id.producer_id]).fetchone() == (1,)
    client.complete(token, commit=True)
    client.sweep()
    assert connection.execute(seals, [token.transaction_id.producer_id]).fetchone() == (0,)
    assert client.complete(token, commit=True) is Outcome.COMMITTED
