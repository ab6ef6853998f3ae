"""Sequences behind the tables, as a logical replica has them, and how they skip ahead (I1)."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

import msgtx
from msgtx.database.calls import call
from msgtx.errors import LockTimeout
from msgtx.generated import calls
from msgtx.store.operator.installation import change_incarnation, describe_installation, sequences_behind
from msgtx.types import Level
from tests.databases import PATIENCE_SECONDS, Background, Connection, backend, connect, wait_until, waits_for_lock

SEQUENCES = (
    "commit_sequence",
    "consumer_group_group_id_seq",
    "coordinator_coordinator_id_seq",
    "group_member_member_number_seq",
    "partition_partition_id_seq",
    "producer_id_sequence",
    "staged_commit_staged_number_seq",
    "staged_record_staged_number_seq",
    "topic_topic_id_seq",
    "wake_up_wake_number_seq",
)
BITS_OF_A_TAG = 40  # a producer id's upper bits name its role


@dataclass
class Place:
    """A database of its own, and its owner's session."""

    url: str
    owner: Connection

    def set_back(self, *names: str) -> None:
        """Let sequences begin again, as on a logical replica."""
        for name in names:
            self.owner.execute("select setval(('msgtx.' || %s)::regclass, 1, false)", [name])

    def numbers(self) -> dict[str, tuple[int, int | None]]:
        """Return the next number of each sequence, and the largest one stored."""
        return {name: (following, stored) for name, following, stored, _ in call(self.owner, calls.SEQUENCES)}

    def behind(self) -> list[str]:
        return [each.name for each in sequences_behind(self.owner)]

    def move(self) -> None:
        """Let the database be in another place than the one that is noted."""
        self.owner.execute("update msgtx.installation set sequences_database = sequences_database + 1")


@pytest.fixture
def place(make_database: Callable[..., str]) -> Iterator[Place]:
    """Where each sequence has given out a number that is stored."""
    url = make_database()
    with connect(url) as owner, msgtx.connect(url) as client:
        client.topics.create("t", partitions=2)
        with client.producer() as producer:
            producer.send("t", b"1", partition=1).result(PATIENCE_SECONDS)
        owner.execute(
            "insert into msgtx.coordinator (host, process, started_at, lease_until) select '', 1, c, c from msgtx.clock() c"
        )
        owner.execute("insert into msgtx.wake_up (words) values ('')")
        owner.execute("insert into msgtx.staged_commit default values")
        owner.execute('insert into msgtx.staged_record (partition_id, "timestamp", record_bytes) values (0, 0, 0)')
        # A static member stays in its group. No client is left that could connect, and skip ahead, in the middle of a test.
        with client.consumer("t", group="g", group_instance_id="a", auto_offset_reset="earliest") as consumer:
            assert consumer.poll(PATIENCE_SECONDS)
            consumer.commit()
    with connect(url) as owner:
        yield Place(url, owner)


def test_every_sequence_of_the_schema_is_known_with_a_table_that_holds_its_numbers(place: Place) -> None:
    found = place.numbers()
    assert tuple(found) == SEQUENCES
    assert {name for name, (following, stored) in found.items() if stored is None or stored >= following} == set()


@pytest.mark.parametrize("name", SEQUENCES)
def test_a_sequence_behind_a_table_is_found_and_skips_ahead(place: Place, name: str) -> None:
    """I1."""
    place.set_back(name)
    (behind,) = sequences_behind(place.owner)
    assert (behind.name, behind.next_number, behind.stored >= 1) == (name, 1, True)
    with msgtx.connect(place.url) as client:
        assert [each.level for each in client.admin.doctor() if each.subject == f"sequence {name}"] == [Level.PROBLEM]
    place.owner.execute("select msgtx.note_place()")
    assert place.behind() == []
    assert place.numbers()[name][0] > 1_000_000


def test_the_first_connection_after_a_move_skips_ahead_once(place: Place) -> None:
    """I1: a producer that has stored nothing yet keeps its id, though no table knows it."""
    before = place.numbers()
    place.move()
    place.set_back("producer_id_sequence")
    with msgtx.connect(place.url) as client:
        after = place.numbers()
        with client.producer() as producer:
            assert producer.send("t", b"2", partition=1).result(PATIENCE_SECONDS).duplicate is False
    assert {name for name in SEQUENCES if after[name][0] < before[name][0] + 1_000_000} == set()
    with msgtx.connect(place.url):
        assert {name for name, (following, _) in place.numbers().items() if following > after[name][0] + 10} == set()


@pytest.mark.parametrize("begin", ["begin read only", "begin isolation level repeatable read"])
def test_a_connection_that_cannot_skip_ahead_leaves_it_to_the_next_one(place: Place, begin: str) -> None:
    place.move()
    before = place.numbers()
    place.owner.execute(begin)
    describe_installation(place.owner)
    place.owner.execute("rollback")
    assert place.numbers() == before
    describe_installation(place.owner)
    assert place.numbers()["commit_sequence"][0] > before["commit_sequence"][0]


def test_a_connection_does_not_wait_for_one_that_has_skipped_and_is_open(place: Place) -> None:
    place.move()
    with connect(place.url) as other:
        other.execute("begin")
        describe_installation(other)
        after = place.numbers()
        describe_installation(place.owner)
        other.execute("rollback")
    assert place.numbers() == after


def test_a_lock_that_another_holds_for_long_does_not_pass_for_a_skip(place: Place) -> None:
    """I1: it has the installation's row, as one that makes a topic, and has skipped nothing."""
    place.set_back("producer_id_sequence")
    place.move()
    noted = place.owner.execute("select sequences_database from msgtx.installation").fetchall()
    with connect(place.url) as other:
        other.execute("begin")
        other.execute("select from msgtx.installation for update")
        with pytest.raises(LockTimeout):
            describe_installation(place.owner)
        with pytest.raises(LockTimeout):
            call(place.owner, calls.NOTE_PLACE)
        other.execute("rollback")
    assert place.owner.execute("select sequences_database from msgtx.installation").fetchall() == noted
    assert place.behind() == ["producer_id_sequence"]
    describe_installation(place.owner)
    assert place.behind() == []


def test_of_many_clients_that_connect_at_once_one_skips_ahead(place: Place, background: Background) -> None:
    place.move()
    with connect(place.url) as first, connect(place.url) as second:
        first.execute("begin")
        first.execute("select from msgtx.installation for update")
        waiting = background.submit(describe_installation, second)
        # It waits for a second, and then looks whether a sequence is behind.
        wait_until(lambda: waits_for_lock(place.owner, backend(second)) or waiting.done(), "the second has asked")
        describe_installation(first)
        after = place.numbers()
        first.execute("commit")
        waiting.result(PATIENCE_SECONDS)
    assert place.numbers() == after


def test_a_new_incarnation_skips_ahead_once(place: Place) -> None:
    before = place.numbers()
    place.move()
    change_incarnation(place.owner)
    assert {name for name, (following, _) in place.numbers().items() if following > before[name][0] + 1_500_000_000} == set()
    assert place.numbers()["topic_topic_id_seq"][0] == before["topic_topic_id_seq"][0] + 1_000_001


def test_the_tag_of_a_role_is_no_part_of_the_number(place: Place) -> None:
    """The largest number may be below any tag, and in any partition."""
    largest = 900
    for tag, number in ((0, 7), (3, largest), (5, 8)):
        place.owner.execute(
            """insert into msgtx.producer_state (
                   partition_id, producer_id, producer_epoch, last_sequence, last_offset, appended_at)
               select max(partition_id), %s, 0, 0, 0, msgtx.clock() from msgtx.partition""",
            [(tag << BITS_OF_A_TAG) + number],
        )
    assert place.numbers()["producer_id_sequence"][1] == largest


def test_a_number_that_a_member_of_a_share_group_has_drawn_is_of_no_sequence(place: Place) -> None:
    before = place.numbers()["group_member_member_number_seq"]
    with msgtx.connect(place.url) as client, client.share_consumer("t", group="s") as member:
        member.poll(0.0)
        drawn = place.owner.execute("select max(member_number) from msgtx.group_member").fetchone()
        assert drawn is not None
        assert drawn[0] >= 1 << 60
        assert place.numbers()["group_member_member_number_seq"] == before
        assert place.behind() == []


def test_the_log_of_a_deleted_topic_still_holds_its_numbers(place: Place) -> None:
    place.owner.execute("insert into msgtx.deleted_partition select partition_id from msgtx.partition")
    before = place.numbers()["producer_id_sequence"]
    place.owner.execute("delete from msgtx.partition")
    assert place.numbers()["producer_id_sequence"] == before
