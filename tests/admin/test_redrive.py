"""client.admin.shares.redrive: dead letters go back to the topics that they came from, each once."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

import msgtx
from msgtx import Acknowledgement, RedriveReport, errors
from msgtx.store.shares.shares import Redriven, redrive_dead_letters
from msgtx.store.topics.topics import describe_topics
from tests.databases import Connection, backend, wait_for_lock
from tests.refusals import refuses
from tests.store.steps import append_one, batch, count, unique

pytestmark = pytest.mark.slow

HEADERS = (("trace", b"\xff\x00"), ("empty", None))


@pytest.fixture
def group(client: msgtx.Client) -> str:
    name = unique("share")
    client.admin.shares.configure(name, {"auto_offset_reset": "earliest"})
    return name


def fill(client: msgtx.Client, topic: str, count: int) -> None:
    with client.producer() as producer:
        for number in range(count):
            producer.send(topic, b"%d" % number, key=b"k%d" % number, partition=number % 2, headers=HEADERS, timestamp=7)


@pytest.fixture
def topic(client: msgtx.Client) -> str:
    """A topic of two partitions with ten records."""
    name = unique("topic")
    client.topics.create(name, partitions=2)
    fill(client, name, 10)
    return name


def reject(client: msgtx.Client, topic: str, group: str, count: int = 10) -> None:
    with client.share_consumer(topic, group=group, acknowledgement_mode="explicit") as consumer:
        while count > 0:
            for record in consumer.poll(10, max_records=count):
                consumer.acknowledge(record, Acknowledgement.REJECT)
                count -= 1
            consumer.commit()


def of(client: msgtx.Client, topic: str) -> list[msgtx.Record]:
    return list(client.read(client.snapshot([topic])))


def letter(group: str, topic: str, partition: int = 0, **changed: str) -> list[tuple[str, bytes | None]]:
    """The headers of a dead letter that had some of its own."""
    added = {
        "group": group,
        "topic": topic,
        "partition": str(partition),
        "offset": "0",
        "deliveries": "1",
        "reason": "rejected",
        "member": "m",
        "time": "2026-01-01T00:00:00.000Z",
        "timestamp": "7",
    }
    return [*HEADERS, *((f"msgtx.dead-letter.{name}", text.encode()) for name, text in {**added, **changed}.items())]


def post(connection: Connection, group: str, *records: tuple[bytes, list[tuple[str, bytes | None]]]) -> None:
    """Write these to the group's topic of dead letters, in one row, as one that copies topics does."""
    letters = f"{group}-dead-letters"
    (partition,) = describe_topics(connection, [letters])[letters].partition_ids
    row = batch(partition, *(value for value, _ in records), headers=[headers for _, headers in records])
    assert append_one(connection, row).error is None


@pytest.fixture
def letters(client: msgtx.Client, group: str) -> str:
    """The group's topic of dead letters, of one partition."""
    name = f"{group}-dead-letters"
    client.topics.create(name)
    return name


def step(connection: Connection, group: str, upto: int | None, *, most: int = 99, skip_missing: bool = False) -> Redriven:
    return redrive_dead_letters(connection, group, 0, upto=upto, most=most, skip_missing=skip_missing)


def numbers(records: list[msgtx.Record]) -> list[int]:
    return sorted(int(record.value or b"") for record in records)


def test_a_letter_goes_back_as_the_record_that_it_was(client: msgtx.Client, topic: str, group: str) -> None:
    reject(client, topic, group)
    before = of(client, topic)
    assert client.admin.shares.describe(group).dead_letters == 10
    assert client.admin.shares.redrive(group) == RedriveReport(sent=10, skipped=0)
    again = [record for record in of(client, topic) if record not in before]
    assert {(each.partition, each.key, each.value, each.headers) for each in again} == {
        (each.partition, each.key, each.value, (*each.headers, ("msgtx.timestamp", b"7"))) for each in before
    }
    assert len(again) == 10
    assert min(record.timestamp for record in again) > 7, "retention counts from now"
    assert client.admin.shares.describe(group).dead_letters == 0
    assert client.admin.shares.redrive(group) == RedriveReport(sent=0, skipped=0)
    with client.share_consumer(topic, group=group) as consumer:
        found = consumer.poll(10)
        assert {record.delivery_count for record in found} == {1}


def test_a_letter_that_dies_again_is_another_letter(client: msgtx.Client, topic: str, group: str) -> None:
    for _ in range(3):
        reject(client, topic, group)
        assert client.admin.shares.redrive(group).sent == 10
    letters = of(client, f"{group}-dead-letters")
    assert len(letters) == 30
    assert [len(letter.headers) for letter in letters] == [11] * 10 + [12] * 20, "what a letter has added is taken off it"
    assert {value for letter in letters[10:] for name, value in letter.headers if name == "msgtx.timestamp"} == {b"7"}


def test_letters_behind_an_overdue_transaction_go_back(client: msgtx.Client, topic: str, group: str) -> None:
    """I12."""
    reject(client, topic, group, 5)
    with client.producer(transactional_id=unique("tx")) as producer:
        producer.begin_transaction(timeout_ms=300)
        producer.send(f"{group}-dead-letters", b"no letter", partition=0)
        producer.flush(10)
        time.sleep(0.4)
        reject(client, topic, group, 5)
        assert client.admin.shares.redrive(group).sent == 10
        producer.abort_transaction()


def test_a_bounded_redrive_goes_on_where_it_ended(client: msgtx.Client, topic: str, group: str) -> None:
    reject(client, topic, group)
    assert [client.admin.shares.redrive(group, max_records=4).sent for _ in range(4)] == [4, 4, 2, 0]
    assert client.admin.shares.redrive(group, max_records=0).sent == 0
    assert numbers(of(client, topic)) == sorted([*range(10)] * 2)
    with refuses(errors.InvalidRequest, name="max_records"):
        client.admin.shares.redrive(group, max_records=-1)


def test_a_redrive_that_is_stopped_ends_behind_a_step(client: msgtx.Client, topic: str, group: str) -> None:
    reject(client, topic, group)
    stop = threading.Event()
    stop.set()
    assert client.admin.shares.redrive(group, stop=stop).sent == 0
    told: list[int] = []
    assert client.admin.shares.redrive(group, progress=told.append).sent == 10
    assert told[-1] == 10


def test_two_at_a_time_send_each_letter_once(
    client: msgtx.Client, topic: str, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("msgtx.admin.shares.STEP", 3)
    fill(client, topic, 190)
    reject(client, topic, group, 200)
    with ThreadPoolExecutor(4) as threads:
        reports = list(threads.map(lambda _: client.admin.shares.redrive(group), range(4)))
    assert sum(report.sent for report in reports) == 200
    assert numbers(of(client, topic)) == sorted([*range(10), *range(190)] * 2)


def test_groups_that_share_a_topic_of_dead_letters_send_their_own(client: msgtx.Client, topic: str, group: str) -> None:
    other, letters = unique("share"), unique("letters")
    client.topics.create(letters, partitions=3)
    client.admin.shares.configure(group, {"dead_letter_topic": letters})
    client.admin.shares.configure(other, {"dead_letter_topic": letters, "auto_offset_reset": "earliest"})
    reject(client, topic, group, 3)
    reject(client, topic, other, 10)
    with client.producer() as producer:  # no dead letter
        producer.send(letters, b"note", headers=HEADERS, partition=0)
        producer.send(letters, None, partition=1)
    assert client.admin.shares.redrive(group).sent == 3
    assert client.admin.shares.redrive(other).sent == 10
    assert client.admin.shares.redrive(group).sent == 0


def test_a_letter_whose_topic_is_gone_waits_for_it(client: msgtx.Client, topic: str, group: str) -> None:
    """I16."""
    reject(client, topic, group, 10)
    client.topics.delete(topic)
    told = rf"{group}-dead-letters-0 offset 0 came from topic {topic}, which is gone"
    for _ in range(2):
        with pytest.raises(errors.UnknownTopicOrPartition, match=told):
            client.admin.shares.redrive(group)
    client.topics.create(topic)
    assert client.admin.shares.redrive(group, max_records=6).sent == 6
    client.topics.delete(topic)
    assert client.admin.shares.redrive(group, skip_missing=True) == RedriveReport(sent=0, skipped=4)
    assert client.admin.shares.redrive(group) == RedriveReport(sent=0, skipped=0)


def test_a_topic_that_takes_no_letter_refuses_the_step(client: msgtx.Client, topic: str, group: str) -> None:
    """I16."""
    reject(client, topic, group)
    client.topics.alter(topic, max_message_bytes=5)
    before = of(client, topic)
    with pytest.raises(errors.RecordTooLarge, match=topic):
        client.admin.shares.redrive(group)
    assert of(client, topic) == before
    client.topics.alter(topic, max_message_bytes=1_000_000)
    assert client.admin.shares.redrive(group).sent == 10


def test_a_group_without_letters_and_one_that_is_none(client: msgtx.Client, topic: str, group: str) -> None:
    assert client.admin.shares.redrive(group) == RedriveReport(sent=0, skipped=0)
    with refuses(errors.GroupNotFound, group="nobody"):
        client.admin.shares.redrive("nobody")
    consumers = unique("group")
    with client.consumer(topic, group=consumers) as consumer:
        consumer.poll(0)
    with refuses(errors.GroupNotFound, group=consumers):
        client.admin.shares.redrive(consumers)
    with refuses(errors.GroupNotFound, reason="consumer group"):
        client.admin.shares.describe(consumers)
    with refuses(errors.GroupNotFound, reason="consumer group"):
        client.admin.shares.delete(consumers)


def test_a_forged_letter_stops_nobody(client: msgtx.Client, topic: str, group: str) -> None:
    reject(client, topic, group, 1)
    letters = f"{group}-dead-letters"
    (letter,) = of(client, letters)
    with client.producer() as producer:
        for number, bad in (
            *((0, bad) for bad in (None, b"\xff")),
            *((1, bad) for bad in (None, b"", b"\0", b"\xff", b"no topic", b"..", bytes(300_000))),
            *((2, bad) for bad in (None, b"", b"-1", b"1\n", b"\xff", b"99999999999", bytes(300_000))),
            *((8, bad) for bad in (None, b"", b"-1", b"\xff", b"9" * 16, bytes(300_000))),
        ):
            headers = [list(each) for each in letter.headers]
            headers[len(HEADERS) + number][1] = bad
            producer.send(letters, b"forged", headers=[(key, value) for key, value in headers])
        producer.send(letters, b"17", headers=letter.headers[1:])  # a header less
    assert client.admin.shares.redrive(group).sent == 2
    assert 17 in numbers(of(client, topic))


def test_aborted_letters_are_passed_over(client: msgtx.Client, topic: str, group: str) -> None:
    reject(client, topic, group, 1)
    letters = f"{group}-dead-letters"
    (letter,) = of(client, letters)
    with client.producer(transactional_id=unique("id")) as producer:
        producer.begin_transaction()
        producer.send(letters, b"18", headers=letter.headers)
        producer.flush()
        producer.abort_transaction()
    assert client.admin.shares.redrive(group).sent == 1
    assert client.admin.shares.describe(group).dead_letters == 0


def test_the_position_outlasts_the_sweeps(client: msgtx.Client, topic: str, group: str, clock: Callable[..., None]) -> None:
    reject(client, topic, group)
    assert client.admin.shares.redrive(group, max_records=7).sent == 7
    clock("400 days")
    client.sweep()
    assert client.admin.shares.redrive(group).sent == 3


def test_a_reset_of_the_letters_has_them_sent_again(client: msgtx.Client, topic: str, group: str) -> None:
    reject(client, topic, group)
    client.admin.shares.redrive(group)
    client.admin.shares.reset_offsets(group, "earliest", topics=[f"{group}-dead-letters"])
    assert client.admin.shares.redrive(group).sent == 10


def test_a_server_that_dies_with_the_client_leaves_no_half(
    client: msgtx.Client, topic: str, group: str, connection: Connection, open_connection: Callable[[], Connection]
) -> None:
    """A step whose SQL transaction is not committed has neither sent nor moved anything."""
    reject(client, topic, group)
    before = of(client, topic)
    aside = open_connection()
    aside.execute("begin")
    assert aside.execute("select sent from msgtx.redrive_dead_letters(%s, 0, null, 4, false)", [group]).fetchone() == (4,)
    connection.execute("select pg_terminate_backend(%s)", [aside.info.backend_pid])
    assert client.admin.shares.redrive(group).sent == 10
    assert len(of(client, topic)) == len(before) + 10


@pytest.mark.usefixtures("letters")
@pytest.mark.parametrize("most", [1, 2, 3, 4])
def test_letters_of_one_row_go_back_in_steps_of_any_size(
    client: msgtx.Client, connection: Connection, group: str, most: int
) -> None:
    """Each once, with its own headers, though what lies between them is none."""
    target = unique("target")
    client.topics.create(target)
    true, note = letter(group, target), list(HEADERS)
    post(connection, group, (b"0", true), (b"", note), (b"1", true), (b"2", true), (b"", note), (b"3", true), (b"", []))
    post(connection, group, (b"4", true), (b"", note))
    sent = [client.admin.shares.redrive(group, max_records=most).sent for _ in range(6)]
    assert sent == [*[most] * (5 // most), 5 % most, *[0] * (5 - 5 // most)]
    found = of(client, target)
    assert numbers(found) == [0, 1, 2, 3, 4]
    assert {tuple(record.headers) for record in found} == {(*HEADERS, ("msgtx.timestamp", b"7"))}
    assert client.admin.shares.describe(group).dead_letters == 0


@pytest.mark.usefixtures("letters")
def test_a_step_sends_what_lies_below_its_end(client: msgtx.Client, connection: Connection, group: str) -> None:
    """And is over there, even where the log ends before: what comes later is for another one."""
    target = unique("target")
    client.topics.create(target)
    true = letter(group, target)
    assert step(connection, group, 5) == Redriven(5, 0, 0, True)
    post(connection, group, *((b"%d" % number, true) for number in range(4)))
    assert step(connection, group, 2) == Redriven(2, 2, 0, True)
    assert numbers(of(client, target)) == [0, 1]
    assert step(connection, group, 9) == Redriven(9, 2, 0, False)
    post(connection, group, (b"4", true))
    assert step(connection, group, 9) == Redriven(9, 1, 0, False)
    assert numbers(of(client, target)) == [0, 1, 2, 3, 4]


@pytest.mark.usefixtures("letters")
def test_what_is_nearly_a_letter_is_none(client: msgtx.Client, connection: Connection, group: str) -> None:
    target = unique("target")
    client.topics.create(target)
    true = letter(group, target)
    added = true[len(HEADERS) :]
    post(connection, group, (b"names", [(f"x-{name}", value) for name, value in true]))
    post(connection, group, (b"order", [*HEADERS, *added[1:], added[0]]))
    post(connection, group, (b"two", added[:1]), (b"records", added[1:]))
    assert client.admin.shares.redrive(group) == RedriveReport(sent=0, skipped=0)
    assert of(client, target) == []


@pytest.mark.usefixtures("letters")
def test_a_letter_whose_topic_is_gone_ends_the_step_in_front_of_it(
    client: msgtx.Client, connection: Connection, group: str
) -> None:
    """I16: those in front of it are sent; what refuses it has changed nothing."""
    target, gone = unique("target"), unique("gone")
    client.topics.create(target)
    post(connection, group, (b"0", letter(group, target)), (b"", []), (b"1", letter(group, gone)))
    post(connection, group, (b"2", letter(group, target)))
    assert step(connection, group, None) == Redriven(4, 1, 0, False)
    reset = client.admin.shares.reset_offsets
    reset(group, {msgtx.TopicPartition(f"{group}-dead-letters", 0): 1})  # the note
    before = count(connection, "share_state"), client.admin.shares.describe(group)
    with pytest.raises(errors.UnknownTopicOrPartition, match=f"offset 2 came from topic {gone}, which is gone"):
        step(connection, group, None)
    assert (count(connection, "share_state"), client.admin.shares.describe(group)) == before
    client.topics.create(gone)
    assert step(connection, group, None) == Redriven(4, 2, 0, True)
    assert (numbers(of(client, target)), numbers(of(client, gone))) == ([0, 2], [1])


@pytest.mark.usefixtures("letters")
def test_a_step_writes_to_so_many_partitions_at_most(client: msgtx.Client, connection: Connection, group: str) -> None:
    """It takes a lock for each of them, and there is not room for any number."""
    target = unique("target")
    client.topics.create(target, partitions=257)
    post(connection, group, *((b"%d" % number, letter(group, target, number // 2)) for number in range(514)))
    assert step(connection, group, None, most=999) == Redriven(514, 512, 0, False)
    assert step(connection, group, None, most=999) == Redriven(514, 2, 0, True)
    assert numbers(of(client, target)) == [*range(514)]


def test_where_there_is_nothing_to_send_nothing_is_written(
    client: msgtx.Client, connection: Connection, topic: str, group: str
) -> None:
    reject(client, topic, group)
    for most in (0, 10, 10):
        before = count(connection, "share_state")
        step(connection, group, None, most=most)
    assert count(connection, "share_state") == before


def test_who_was_slower_has_done_nothing(
    client: msgtx.Client, connection: Connection, open_connection: Callable[[], Connection], topic: str, group: str
) -> None:
    """And is told that more may be left, though both passed over all letters."""
    reject(client, topic, group)
    client.topics.delete(topic)
    first, second = open_connection(), open_connection()
    with ThreadPoolExecutor(1) as threads:
        with first.transaction():
            assert step(first, group, None, skip_missing=True).skipped == 10
            slower = threads.submit(step, second, group, None, skip_missing=True)
            wait_for_lock(connection, backend(second))
        assert slower.result(20) == Redriven(10, 0, 0, False)
