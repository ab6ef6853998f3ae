"""Acknowledgements in a producer's transaction: the output is visible if and only if the input is acknowledged (I17)."""

import threading
import time
from collections.abc import Callable
from functools import partial

import pytest

import msgtx
from msgtx import Acknowledgement, errors
from msgtx.rules.transaction import ClientState
from tests.client.sharing import Shares, accept, copy, seen
from tests.client.steps import values
from tests.databases import wait_until
from tests.hooks import Hook, away
from tests.refusals import refuses

pytestmark = pytest.mark.slow

Unique = Callable[[str], str]
Read = Callable[..., list[msgtx.Record]]
Make = Callable[..., msgtx.Producer]


@pytest.mark.parametrize("mode", ["implicit", "explicit"])
@pytest.mark.parametrize("late", [False, True], ids=["in one call", "in steps"])
def test_output_and_acknowledgements_are_committed_together(
    output: str, share: Shares, make: Make, read: Read, mode: str, late: bool
) -> None:
    share.fill(4)
    one, producer = share(mode), make()
    with producer.transaction() as tx:
        copy(one, producer, output)
        tx.send_acknowledgements(one)
        if late:
            time.sleep(0.7)
    assert values(read(output)) == [b"0", b"1", b"2", b"3"]
    assert share.lag == 0


@pytest.mark.parametrize("late", [False, True], ids=["in one call", "in steps"])
def test_an_abort_makes_the_records_available_at_once(
    output: str, share: Shares, make: Make, read: Read, late: bool, long_locks: None
) -> None:
    share.fill(2)
    one, producer = share(), make()
    producer.begin_transaction()
    copy(one, producer, output)
    producer.send_acknowledgements_to_transaction(one)
    if late:
        time.sleep(0.3)
    producer.abort_transaction()
    assert seen(share().poll(0)) == [(b"0", 2), (b"1", 2)]
    assert values(read(output)) == []


def one_that_lost_its_first(
    share: Shares, count: int
) -> tuple[msgtx.ShareConsumer, msgtx.ShareConsumer, list[msgtx.ShareRecord]]:
    """Return a member, another one that has its first record since its locks are over, and what it was given."""
    share.fill(count)
    one, other = share(), share()
    records = one.poll(5)
    time.sleep(0.6)
    assert seen(other.poll(5, max_records=1)) == [(b"0", 2)]
    return one, other, records


@pytest.mark.parametrize("late", [False, True], ids=["in one call", "in steps"])
def test_a_record_that_was_lost_meanwhile_fails_the_transaction(
    output: str, share: Shares, make: Make, read: Read, late: bool
) -> None:
    producer = make()
    one, other, records = one_that_lost_its_first(share, 2)
    one.acknowledge(records[0])
    producer.begin_transaction()
    producer.send(output, b"out", partition=0)
    producer.send_acknowledgements_to_transaction(one)
    if late:
        time.sleep(0.3)
    with refuses(errors.InvalidRecordState, partition=0, offset=0):
        producer.commit_transaction()
    producer.abort_transaction()
    assert values(read(output)) == []
    with producer.transaction() as tx:
        producer.send(output, b"next", partition=0)
        tx.send_acknowledgements(other)
    assert values(read(output)) == [b"next"]


def test_when_a_lost_record_fails_the_transaction_its_abort_releases_the_others(
    output: str, share: Shares, make: Make, hook: Hook
) -> None:
    """Also if they were to be pending, and are not."""
    producer = make()
    one, other, records = one_that_lost_its_first(share, 3)
    share.configure(record_lock_duration_ms=60_000)
    again = one.poll(5)
    assert seen(again) == [(b"1", 2), (b"2", 2)]
    accept(one, [records[0], *again])
    producer.begin_transaction()
    producer.send_acknowledgements_to_transaction(one)
    wait_until(lambda: producer._state.has_failed, "they are handed over, and refused")
    hook.seen.clear()
    time.sleep(0.1)
    assert hook.seen["before acknowledge_in_transaction"] == 0, "they are not handed over again"
    producer.abort_transaction()
    assert seen(other.poll(5))[-2:] == [(b"1", 3), (b"2", 3)]


def test_a_transaction_may_hold_acknowledgements_alone(share: Shares, make: Make) -> None:
    share.fill(2)
    one, producer = share(), make()
    first, second = one.poll(5)
    one.acknowledge(first)
    with producer.transaction() as tx:
        tx.send_acknowledgements(one)
    one.acknowledge(second)
    with producer.transaction() as tx:
        tx.send_acknowledgements(one)
        with pytest.raises(errors.TransactionConflict):
            one.acknowledge(second)
        tx.send_acknowledgements(one)  # there are none
    assert share.lag == 0


def test_a_lock_that_begins_anew_is_of_no_transaction(share: Shares, make: Make) -> None:
    share.fill(1)
    one, producer = share(), make()
    (record,) = one.poll(5)
    one.acknowledge(record, Acknowledgement.RENEW)
    with producer.transaction() as tx:
        tx.send_acknowledgements(one)
    one.commit()
    one.acknowledge(record)
    one.commit()


def test_a_lost_answer_to_the_whole_transaction_acknowledges_once(
    output: str, share: Shares, make: Make, read: Read, hook: Hook
) -> None:
    share.fill(2)
    one, producer = share(), make()
    hook.at("after append_acknowledge_decide", away, times=1)
    with producer.transaction() as tx:
        copy(one, producer, output)
        tx.send_acknowledgements(one)
    assert hook.seen["before append_acknowledge_decide"] == 2
    assert values(read(output)) == [b"0", b"1"]
    assert share.lag == 0


def test_a_commit_that_had_no_answer_is_finished_before_a_transaction_has_answers(
    share: Shares, make: Make, hook: Hook, long_locks: None
) -> None:
    """I17: it was applied. Else the transaction would have its records, too, and would be refused."""
    share.fill(2)
    one, producer = share(request_timeout_ms=100, retry_backoff_ms=50), make()
    first, second = one.poll(5)
    one.acknowledge(first)
    with hook.at("after acknowledge_records", away), pytest.raises(errors.DatabaseUnavailable):
        one.commit()
    one.acknowledge(second)
    with producer.transaction() as tx:
        tx.send_acknowledgements(one)
    assert share.lag == 0


def test_a_lost_answer_to_pending_acknowledgements_is_asked_for_again(
    output: str, share: Shares, make: Make, hook: Hook
) -> None:
    share.fill(2)
    one, producer = share(), make()
    hook.at("after acknowledge_in_transaction", away, times=1)
    with producer.transaction() as tx:
        accept(one, one.poll(5))
        tx.send_acknowledgements(one)
        wait_until(lambda: hook.seen["after acknowledge_in_transaction"])
        producer.send(output, b"out", partition=0)
    assert share.lag == 0


def test_a_commit_waits_until_its_acknowledgements_are_stored(
    output: str, share: Shares, make: Make, read: Read, hook: Hook
) -> None:
    """A decision without them would have their records delivered, and the output written, once more (I17)."""
    share.fill(1)
    one, producer = share(), make()
    committed = threading.Event()
    early: list[bool] = []

    def held_up() -> None:
        wait_until(lambda: producer._state.value is ClientState.COMMITTING)
        early.append(committed.wait(0.2))

    hook.at("before acknowledge_in_transaction", held_up)
    with producer.transaction() as tx:
        copy(one, producer, output)
        producer.flush()
        tx.send_acknowledgements(one)
    committed.set()
    assert early == [False]
    assert values(read(output)) == [b"0"]
    assert share.lag == 0


def test_a_commit_whose_acknowledgements_are_refused_meanwhile_raises_at_once(
    output: str, share: Shares, make: Make, hook: Hook
) -> None:
    producer = make(max_block_ms=10_000)
    one, _, records = one_that_lost_its_first(share, 1)
    is_committing = partial(wait_until, lambda: producer._state.value is ClientState.COMMITTING)
    hook.at("before acknowledge_in_transaction", is_committing)
    producer.begin_transaction()
    producer.send(output, b"out", partition=0).result(30)
    one.acknowledge(records[0])
    producer.send_acknowledgements_to_transaction(one)
    began = time.monotonic()
    with refuses(errors.InvalidRecordState, partition=0, offset=0):
        producer.commit_transaction()
    assert time.monotonic() - began < 5


def test_acknowledgements_linger_and_go_with_the_end_or_by_themselves(
    share: Shares, make: Make, hook: Hook, long_locks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A small transaction is one call; the locks of what a longer one has taken must not expire."""
    share.fill(3)
    one, producer = share(), make()
    records = one.poll(5)

    def asleep() -> bool:
        return producer._accumulator.sender_sleeps

    def handed_over() -> int:
        return hook.seen["before acknowledge_in_transaction"]

    with monkeypatch.context() as lingering:
        lingering.setattr("msgtx.producer.transaction.LINGER_SECONDS", 3_600)
        for ending, calls in (("commit_transaction", 0), ("prepare_transaction", 1)):
            one.acknowledge(records.pop())
            producer.begin_transaction()
            producer.send_acknowledgements_to_transaction(one)
            wait_until(asleep, "the sender has nothing to do")
            assert handed_over() == 0
            getattr(producer, ending)(10)
            assert handed_over() == calls
    producer.commit_transaction()
    one.acknowledge(records.pop())
    producer.begin_transaction()
    wait_until(asleep, "the sender has nothing to do")
    producer.send_acknowledgements_to_transaction(one)
    wait_until(lambda: handed_over() == 2, "it is woken for them")
    producer.commit_transaction()
    one.close()
    assert share().poll(0) == []


def test_a_transaction_that_fails_while_it_takes_acknowledgements_gives_them_back(
    share: Shares, make: Make, long_locks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    share.fill(1)
    one, producer = share(), make()
    (record,) = one.poll(5)
    one.acknowledge(record)
    hand_over = one.transaction_answers

    def fails_meanwhile() -> object:
        producer._state.fail(errors.DeliveryTimeout("planted", reason="planted"))
        return hand_over()

    producer.begin_transaction()
    monkeypatch.setattr(one, "transaction_answers", fails_meanwhile)
    with refuses(errors.DeliveryTimeout, reason="planted"):
        producer.send_acknowledgements_to_transaction(one)
    assert seen(share().poll(0)) == [(b"0", 2)]


def test_a_thread_that_closes_the_producer_in_a_commit_leaves_no_half_of_it(
    output: str, share: Shares, make: Make, read: Read, monkeypatch: pytest.MonkeyPatch, long_locks: None
) -> None:
    """I10: the output that `close` drops is not acknowledged for."""
    share.fill(1)
    one, producer = share(), make(linger_ms=60_000)
    producer.begin_transaction()
    copy(one, producer, output)
    producer.send_acknowledgements_to_transaction(one)
    deadline = producer._transactions._calls.deadline

    def closes(timeout: float | None = None) -> float:
        producer.close()
        return deadline(timeout)

    monkeypatch.setattr(producer._transactions._calls, "deadline", closes)
    began = time.monotonic()
    with refuses(errors.TransactionAborted, reason="closed"):
        producer.commit_transaction(20)
    assert time.monotonic() - began < 10, "nothing more is to come"
    assert values(read(output)) == []


def test_what_is_handed_to_no_transaction_stays_the_consumers(client: msgtx.Client, share: Shares, make: Make) -> None:
    share.fill(1)
    one, producer = share(), make()
    (record,) = one.poll(5)
    one.acknowledge(record)
    with refuses(errors.IllegalState, reason="ready"):
        producer.send_acknowledgements_to_transaction(one)
    one.commit()
    with refuses(errors.IllegalState, reason="ready"):
        producer.send_acknowledgements_to_transaction(one)  # there are none
    with refuses(errors.IllegalState, reason="transactional_id"), client.producer() as plain:
        plain.send_acknowledgements_to_transaction(one)
    with pytest.raises(errors.InvalidRecordState):
        one.acknowledge(record)


def test_a_consumer_whose_session_is_over_hands_over_nothing(share: Shares, make: Make) -> None:
    share.fill(1)
    one, producer = share(), make()
    (record,) = one.poll(5)
    one.acknowledge(record)
    one._member.gone()
    producer.begin_transaction()
    with refuses(errors.InvalidRecordState, reason="session over"):
        producer.send_acknowledgements_to_transaction(one)
    producer.abort_transaction()
