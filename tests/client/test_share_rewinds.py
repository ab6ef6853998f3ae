"""What a share consumer handed out and nobody committed is handed out again (internals: share-answers#rewinding; I17)."""

import contextlib
import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Literal

import pytest

import msgtx
from msgtx import Acknowledgement, errors
from msgtx.database.connection import seconds_left
from msgtx.shares.holdings import Holdings
from tests.client.sharing import Shares, accept, copy, seen
from tests.databases import PATIENCE_SECONDS, wait_until
from tests.hooks import Hook, away
from tests.interrupts import interrupts
from tests.refusals import refuses

Unique = Callable[[str], str]
Read = Callable[..., list[msgtx.Record]]
Make = Callable[..., msgtx.Producer]
Mode = Literal["implicit", "explicit"]
MODES = pytest.mark.parametrize("mode", ["implicit", "explicit"])

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("long_locks")]


class Oops(Exception):
    """What the user's code raises."""


# ── rewind() ──


@MODES
def test_what_is_rewound_is_handed_out_again_and_its_answers_count_no_more(share: Shares, mode: Mode) -> None:
    share.fill(2)
    one = share(mode)
    accept(one, one.poll(5))
    one.rewind()
    assert seen(share().poll(0, 1)) == [(b"0", 2)], "others have it at once"
    assert seen(one.poll(5)) == [(b"1", 2)]
    one.rewind()
    one.commit()
    assert share.lag == 2


@MODES
@pytest.mark.parametrize("end", ["commit", "close", "poll"])
def test_what_is_rewound_while_the_database_is_away_is_neither_accepted_nor_sent(
    share: Shares, mode: Mode, end: str, hook: Hook
) -> None:
    share.fill(1)
    one = share(mode, request_timeout_ms=100)
    accept(one, one.poll(5))
    with hook.at("before acknowledge_records", away):
        one.rewind()
    if end == "poll":
        assert seen(one.poll(0)) == [(b"0", 2)]
    else:
        getattr(one, end)()
    assert share.lag == 1


def test_what_a_transaction_has_is_not_rewound(share: Shares, make: Make) -> None:
    share.fill(2)
    one, producer = share(), make()
    first, second = one.poll(5)
    one.acknowledge(first)
    with producer.transaction() as tx:
        tx.send_acknowledgements(one)
        one.acknowledge(second)
        one.rewind()
    assert seen(one.poll(5)) == [(b"1", 2)]
    assert share.lag == 1


def test_what_a_commit_without_an_answer_may_have_done_is_not_rewound(share: Shares, hook: Hook) -> None:
    share.fill(2)
    one = share(request_timeout_ms=100)
    first, second = one.poll(5)
    one.acknowledge(first)
    with hook.at("before acknowledge_records", away), pytest.raises(errors.DatabaseUnavailable):
        one.commit()
    one.acknowledge(second)
    one.rewind()
    one.commit()
    assert seen(one.poll(5)) == [(b"1", 2)]
    assert share.lag == 1


# ── transactions that are not committed ──


@MODES
@pytest.mark.parametrize("end", ["poll", "transaction", "commit", "close"])
def test_nothing_accepts_what_an_aborted_transaction_was_for(
    output: str, share: Shares, make: Make, mode: Mode, end: str
) -> None:
    share.fill(1)
    one, producer = share(mode), make()
    with contextlib.suppress(Oops), producer.transaction():
        accept(one, one.poll(5))
        raise Oops
    if end == "transaction":
        refused = refuses(errors.IllegalState, reason="poll first") if mode == "implicit" else contextlib.nullcontext()
        with refused, producer.transaction() as tx:
            producer.send(output, b"another's", partition=0)
            tx.send_acknowledgements(one)
    elif end == "poll":
        assert seen(one.poll(0)) == [(b"0", 2)]
    else:
        getattr(one, end)()
    assert share.lag == 1


def test_a_caller_may_try_the_records_in_hand_again(share: Shares, make: Make) -> None:
    """Explicit mode: they are held until the next poll."""
    share.fill(2)
    one, producer = share(), make()
    first, second = one.poll(5)
    with contextlib.suppress(Oops), producer.transaction():
        one.acknowledge(first)
        raise Oops
    one.acknowledge(first)
    with producer.transaction() as tx:
        tx.send_acknowledgements(one)
    assert seen(one.poll(0)) == [(b"1", 2)]
    assert share.lag == 1
    with pytest.raises(errors.InvalidRecordState):
        one.acknowledge(second)


def test_a_poll_that_finds_nothing_ends_a_rewind(output: str, share: Shares, make: Make, read: Read) -> None:
    """Others have got the records: the loop goes on with what there is, and that may be nothing."""
    share.fill(1)
    one, producer = share("implicit"), make()
    with contextlib.suppress(Oops), producer.transaction():
        one.poll(5)
        raise Oops
    assert seen(share().poll(5)) == [(b"0", 2)]
    assert one.poll(0) == []
    with producer.transaction() as tx:
        producer.send(output, b"0", partition=0)
        tx.send_acknowledgements(one)
    assert [record.value for record in read(output)] == [b"0"]


@MODES
def test_a_poll_within_a_transaction_accepts_nothing(share: Shares, make: Make, mode: Mode) -> None:
    """It is the transaction's to commit, or nobody's."""
    share.fill(3)
    one, producer = share(mode), make()
    with contextlib.suppress(Oops), producer.transaction() as tx:
        for _ in range(2):
            accept(one, one.poll(5, 1))
        assert share.lag == 3
        raise Oops
    assert share.lag == 3
    with producer.transaction() as tx:
        for _ in range(3):
            accept(one, one.poll(5, 1))
        tx.send_acknowledgements(one)
    assert share.lag == 0


@MODES
def test_a_transaction_in_another_thread_is_nobody_elses(
    share: Shares, make: Make, mode: Mode, background: ThreadPoolExecutor
) -> None:
    share.fill(1)
    one, producer = share(mode), make()
    accept(one, one.poll(5))

    def aborts() -> None:
        with contextlib.suppress(Oops), producer.transaction():
            raise Oops

    background.submit(aborts).result()
    if mode == "explicit":
        one.commit()
    assert one.poll(0) == []
    assert share.lag == 0


def test_a_consumer_that_another_thread_polls_follows_the_producer_that_had_its_answers(
    share: Shares, make: Make, background: ThreadPoolExecutor
) -> None:
    share.fill(2)
    one, producer = share("implicit"), make()

    assert len(background.submit(one.poll, 5, 1).result()) == 1
    with producer.transaction() as tx:
        tx.send_acknowledgements(one)
    assert len(background.submit(one.poll, 5, 1).result()) == 1
    with contextlib.suppress(Oops), producer.transaction():
        raise Oops
    assert seen(one.poll(5)) == [(b"1", 2)]
    assert share.lag == 1


# Whatever ends a transaction without a commit.


def is_fenced(client: msgtx.Client, producer: msgtx.Producer) -> None:
    with client.producer(transactional_id=producer.config.transactional_id):
        pass


def is_aborted_by_an_operator(client: msgtx.Client, producer: msgtx.Producer) -> None:
    producer.flush()
    name = producer.transaction_id
    assert name is not None
    client.admin.transactions.abort(name)


def is_closed(_: msgtx.Client, producer: msgtx.Producer) -> None:
    producer.close()


def is_left(_: msgtx.Client, __: msgtx.Producer) -> None:
    raise Oops


@MODES
@pytest.mark.parametrize("handed", [False, True], ids=["before its answers", "with its answers"])
@pytest.mark.parametrize(
    ("end", "begun"),
    [
        (is_left, "before the poll"),
        *((end, "after the poll") for end in (is_left, is_fenced, is_aborted_by_an_operator, is_closed)),
    ],
)
def test_all_ends_but_a_commit_have_the_records_handed_out_again(
    client: msgtx.Client, output: str, share: Shares, make: Make, read: Read, mode: Mode, handed: bool, end: Any, begun: str
) -> None:
    share.fill(2)
    one, producer = share(mode), make()
    before = one.poll(5, 1) if begun == "after the poll" else []
    with contextlib.suppress(errors.MsgtxError, Oops), producer.transaction() as tx:
        records = before or one.poll(5, 1)
        producer.send(output, b"lost", partition=0).result(10)
        accept(one, records)
        if handed:
            tx.send_acknowledgements(one)
        end(client, producer)
        producer.send(output, b"late", partition=0).result(10)
        if not handed:
            tx.send_acknowledgements(one)
    producer = make()
    for _ in range(2):
        with producer.transaction() as tx:
            copy(one, producer, output, 1)
            tx.send_acknowledgements(one)
    assert sorted(record.value or b"" for record in read(output)) == [b"0", b"1"]
    assert share.lag == 0


def test_a_producer_that_is_fenced_while_nobody_calls_it_gives_its_records_back(
    client: msgtx.Client, share: Shares, make: Make, unique: Unique
) -> None:
    """The fence comes before the answers are pending: the sender hears of it when it hands them over."""
    share.fill(1)
    one, zombie = share(), make()
    one.acknowledge(one.poll(5)[0])
    zombie.begin_transaction()
    zombie.send_acknowledgements_to_transaction(one)
    is_fenced(client, zombie)
    other = share()
    wait_until(lambda: seen(other.poll(0.2)) == [(b"0", 2)])


def test_an_undo_in_another_thread_and_a_commit_do_not_come_between_each_other(
    share: Shares, hook: Hook, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer of the commit is lost. It is asked for again, whatever the undo would have released."""
    share.fill(1)
    one = share("implicit", request_timeout_ms=300)
    assert len(one.poll(5)) == 1
    undone: list[threading.Thread] = []
    given = Holdings.given

    def meanwhile(holdings: Holdings) -> Any:
        found = given(holdings)
        if not undone:
            undone.append(threading.Thread(target=partial(one.undo, release=True)))
            undone[0].start()
            undone[0].join(0.2)
        return found

    monkeypatch.setattr(Holdings, "given", meanwhile)
    with hook.at("after acknowledge_records", away), pytest.raises(errors.DatabaseUnavailable):
        one.commit()
    undone[0].join()
    assert one.poll(0) == []
    assert share.lag == 0


@pytest.mark.parametrize("own", [False, True], ids=["has none", "has one"])
def test_a_producer_that_is_lent_leaves_the_consumer_of_its_last_user_alone(
    client: msgtx.Client, topic: str, share: Shares, make: Make, own: bool, background: ThreadPoolExecutor
) -> None:
    """Unless nothing was polled where it is now."""
    share.fill(2)
    one, pooled = share("implicit"), make()

    one.poll(5, 1)
    with pooled.transaction() as tx:
        tx.send_acknowledgements(one)
    one.poll(5, 1)

    def aborts() -> None:
        with client.share_consumer(topic, group=f"{share.name}-2") as other:
            if own:
                other.poll(0)
            with contextlib.suppress(Oops), pooled.transaction():
                raise Oops

    background.submit(aborts).result()
    one.commit()
    assert share.lag == (0 if own else 1)


def test_a_producer_that_another_thread_closes_leaves_what_that_thread_polled(
    share: Shares, make: Make, background: ThreadPoolExecutor
) -> None:
    share.fill(1)
    one, producer = share("implicit"), make()
    background.submit(producer.begin_transaction).result()
    assert len(one.poll(5)) == 1
    producer.close()
    one.commit()
    assert share.lag == 0


def test_what_was_handed_out_in_a_transaction_that_ended_without_it_is_accepted_by_the_next_poll(
    output: str, share: Shares, make: Make
) -> None:
    """A loop in which a transaction is always open, and none is given any answers."""
    share.fill(3)
    one, producer = share("implicit"), make()
    producer.begin_transaction()
    for done in range(3):
        assert len(one.poll(5, 1)) == 1
        assert share.lag == 3 - done
        producer.send(output, b"out", partition=0)
        producer.commit_transaction()
        producer.begin_transaction()
    assert one.poll(0) == []
    assert share.lag == 0


def test_what_a_transaction_was_polled_for_and_not_given_is_the_next_ones_with_a_warning(
    share: Shares, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever gives transactions their answers may poll for the next one before the commit."""
    share.fill(4)
    one, producer = share("implicit"), make()
    producer.begin_transaction()
    one.poll(5, 1)
    with caplog.at_level(logging.WARNING, "msgtx.consumer"):
        for _ in range(2):
            producer.send_acknowledgements_to_transaction(one)
            one.poll(5, 1)
            producer.commit_transaction()
            producer.begin_transaction()
            one.poll(0, 1)
            assert caplog.text.count("ended without it") == 1
    producer.abort_transaction()
    assert seen(one.poll(5)) == [(b"3", 2)]
    assert share.lag == 1


def test_an_abort_takes_no_longer_than_it_may_however_many_consumers_it_was_for(
    share: Shares, make: Make, hook: Hook
) -> None:
    share.fill(2)
    several, producer = [share("implicit", request_timeout_ms=3000) for _ in range(2)], make()
    for one in several:
        assert len(one.poll(5, 1)) == 1
    limits: list[float] = []
    hook.at("before acknowledge_records", lambda: limits.append(seconds_left()))
    producer.begin_transaction()
    producer.abort_transaction(timeout=0.8)
    assert len(limits) == 2
    assert max(limits) <= 0.8


@pytest.mark.parametrize("tidies", ["abort_transaction", "close"])
def test_a_failed_producer_that_is_tidied_up_late_does_not_touch_what_was_handed_out_since(
    client: msgtx.Client, output: str, share: Shares, make: Make, tidies: str
) -> None:
    """Whoever has caught its error goes on with a new one."""
    share.fill(1)
    one, failed, producer = share("implicit"), make(), make()
    assert len(one.poll(5)) == 1
    failed.begin_transaction()
    is_fenced(client, failed)
    failed.send(output, b"late", partition=0)
    with pytest.raises(errors.ProducerFenced):
        failed.commit_transaction()
    assert len(one.poll(5)) == 1
    with producer.transaction() as tx:
        with contextlib.suppress(errors.ProducerFenced):
            getattr(failed, tidies)()
        tx.send_acknowledgements(one)
    assert share.lag == 0


def test_an_end_that_is_learnt_late_does_not_touch_what_was_handed_out_since(
    client: msgtx.Client, share: Shares, make: Make
) -> None:
    """A transaction that was prepared is aborted elsewhere; its producer learns of it when it begins the next one."""
    share.fill(2)
    one, producer = share("implicit"), make()
    assert len(one.poll(5, 1)) == 1
    tx = producer.begin_transaction()
    tx.send_acknowledgements(one)
    client.complete(tx.prepare(), commit=False)
    assert len(one.poll(5)) == 2
    with producer.transaction() as tx:
        tx.send_acknowledgements(one)
    assert share.lag == 0


# ── answers that are handed over ──


def test_a_consumer_that_is_closed_leaves_its_transaction_whole(share: Shares, make: Make) -> None:
    """What the transaction was given is pending before the member leaves: others do not get it."""
    share.fill(1)
    one, producer = share(), make()
    one.acknowledge(one.poll(5)[0])
    producer.begin_transaction()
    producer.send_acknowledgements_to_transaction(one)
    one.close()
    assert share().poll(0) == []
    producer.commit_transaction()
    assert share.lag == 0


def test_answers_go_out_before_their_locks_end(share: Shares, make: Make) -> None:
    """However soon that is."""
    share.configure(record_lock_duration_ms=2_000)
    share.fill(1)
    one, producer = share(), make()
    began = time.monotonic()
    one.acknowledge(one.poll(5)[0])
    one.holdings._locked_until -= 1.95
    producer.begin_transaction()
    producer.send_acknowledgements_to_transaction(one)
    transaction = producer._state.transaction
    assert transaction is not None
    (answers,) = transaction.answers
    assert answers.due <= answers.locked_until < began + 2
    wait_until(lambda: answers.stored)


def test_a_consumer_that_is_closed_in_a_callback_of_the_producer_does_not_wait_for_it(
    output: str, share: Shares, make: Make
) -> None:
    share.fill(1)
    one, producer = share(), make()
    one.acknowledge(one.poll(5)[0])
    closed = threading.Event()

    def close(_: object) -> None:
        one.close()
        closed.set()

    producer.begin_transaction()
    with producer._accumulator.lock:  # so that the record goes first
        producer.send(output, b"out", partition=0, on_delivery=close)
        producer.send_acknowledgements_to_transaction(one)
    began = time.monotonic()
    producer.flush(PATIENCE_SECONDS)
    assert closed.wait(PATIENCE_SECONDS)
    assert time.monotonic() - began < one.config.request_timeout_ms / 2_000
    with pytest.raises(errors.UnknownMember):
        producer.commit_transaction()
    producer.abort_transaction()


# ── an answer belongs to one delivery ──


def test_an_answer_that_was_not_committed_in_time_is_not_of_the_next_delivery(
    share: Shares, caplog: pytest.LogCaptureFixture
) -> None:
    share.configure(record_lock_duration_ms=500)
    share.fill(1)
    one, other = share(), share()
    (first,) = one.poll(5)
    one.acknowledge(first)
    (record,) = other.poll(5)
    other.acknowledge(record, Acknowledgement.RELEASE)
    other.commit()
    with caplog.at_level(logging.WARNING, "msgtx.consumer"):
        assert seen(one.poll(5)) == [(b"0", 3)]
    assert "before the lock expired" in caplog.text
    with refuses(errors.InvalidRecordState, reason="delivered again"):
        one.acknowledge(first)
    one.commit()
    assert share.lag == 1


def test_a_loop_that_never_commits_is_warned_once(share: Shares, caplog: pytest.LogCaptureFixture) -> None:
    """As in Kafka, whose next poll commits explicit answers."""
    share.fill(5)
    one, careful = share(), share()
    with caplog.at_level(logging.WARNING, "msgtx.consumer"):
        for record in careful.poll(5, 1):
            careful.acknowledge(record)
            careful.commit()
        for _ in range(2):
            for consumer in (careful, one):
                for record in consumer.poll(5, 1):
                    consumer.acknowledge(record)
        one.poll(0)
    assert caplog.text.count("commits nothing") == 1


def test_closing_after_a_record_that_cannot_be_read_accepts_nothing_else(share: Shares) -> None:
    share.fill(2)

    def one_only(value: bytes | None) -> bytes | None:
        if value == b"1":
            raise ValueError("unreadable")
        return value

    with share("implicit", value_deserializer=one_only) as one:
        iteration: Iterator[msgtx.ShareRecord] = iter(one)
        assert next(iteration).value == b"0"
        with pytest.raises(errors.DeserializationError):
            next(iteration)
    assert share.lag == 2


# ── interrupts, other threads, other processes ──


ENDS_OF_TRANSACTIONS = (
    "abort", "_ended", "_tell_sources", "_undo_sources", "undo", "hold_again", "undone", "released", "lost", "committed",
    "take", "to_take", "given", "not_committed", "send_answers",
)  # fmt: skip


@MODES
@pytest.mark.parametrize("fails", [True, False], ids=["an abort", "a commit"])
def test_an_interrupt_at_any_line_of_a_transactions_end_loses_and_repeats_nothing(
    client: msgtx.Client, output: str, share: Shares, unique: Unique, read: Read, mode: Mode, fails: bool
) -> None:
    """Whoever catches it closes the producer, goes on with another one, and rewinds (decision 0146)."""
    share.configure(delivery_count_limit=100)
    one = share(mode)
    name = unique("id")

    def handle(*, fails: bool) -> None:
        with client.producer(transactional_id=name) as producer, contextlib.suppress(Oops), producer.transaction() as tx:
            copy(one, producer, output, 1, seconds=0)
            tx.send_acknowledgements(one)
            if fails:
                raise Oops

    files = ("shares/holdings.py", "session/answers.py", "producer/transaction.py")
    places: list[str | None] = []
    for interrupt in interrupts(*files, within=ENDS_OF_TRANSACTIONS, least=20):
        share.fill(1, len(places))
        with interrupt:
            handle(fails=fails)
        places.append(interrupt.place)
        one.rewind()
        # The server may still be in the call that was interrupted: a poll passes over a partition that it holds.
        wait_until(lambda: handle(fails=False) or share.lag == 0, str(interrupt.place))
    found = Counter(int(record.value or b"") for record in read(output))
    assert [(place, found[at]) for at, place in enumerate(places) if found[at] != 1] == []


@MODES
def test_an_interrupt_at_any_line_of_a_rewind_accepts_nothing(share: Shares, mode: Mode) -> None:
    share.configure(delivery_count_limit=100)
    share.fill(1)
    one = share(mode)
    files = [f"shares/{name}.py" for name in ("share_consumer", "answering", "holdings")]
    for interrupt in interrupts(*files, within=("rewind", "undo", "released"), least=5):
        accept(one, one.poll(5))
        with interrupt:
            one.rewind()
        if interrupt.place is not None:
            one.rewind()  # it did not return: the caller repeats it
    assert seen(one.poll(5))[0][0] == b"0"
    assert share.lag == 1


def test_a_prepared_transaction_holds_up_no_implicit_mode(client: msgtx.Client, share: Shares, make: Make) -> None:
    """What is handed out after it was prepared is not its own."""
    share.fill(3)
    one, producer = share("implicit"), make()
    assert len(one.poll(5, 1)) == 1
    tx = producer.begin_transaction()
    tx.send_acknowledgements(one)
    token = tx.prepare()
    assert len(one.poll(5, 1)) == 1
    assert len(one.poll(5, 1)) == 1
    assert share.lag == 2, "the second one was accepted by the third poll"
    client.complete(token, commit=True)
    assert share.lag == 1


def test_an_abort_without_an_answer_has_dropped_the_answers_already(
    output: str, share: Shares, make: Make, hook: Hook
) -> None:
    """The database is away when the block aborts, and the caller goes on with another producer."""
    share.fill(1)
    one, failed, producer = share(), make(max_block_ms=300), make()
    with hook.at("before decide", away), contextlib.suppress(Oops), failed.transaction():
        one.acknowledge(one.poll(5)[0])
        failed.send(output, b"lost", partition=0).result(10)
        raise Oops
    with producer.transaction() as tx:
        tx.send_acknowledgements(one)
    assert share.lag == 1


def test_a_child_process_touches_nothing_of_its_parent(share: Shares, make: Make) -> None:
    """Whatever it calls (the child of a fork, in the middle of a transaction)."""
    share.fill(1)
    one, producer = share(), make()
    one.acknowledge(one.poll(5)[0])
    tx = producer.begin_transaction()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            for call in (one.rewind, one.poll, one.commit, one.close, lambda: tx.send_acknowledgements(one)):
                with contextlib.suppress(errors.MsgtxError):
                    call()
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert share().poll(0) == []
    tx.send_acknowledgements(one)
    producer.commit_transaction()
    assert share.lag == 0
