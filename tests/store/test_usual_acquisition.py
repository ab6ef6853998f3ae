"""An acquisition has a usual case, found out by single rows; else it asks the general rules. Both do the same.

Two worlds in one database go through the same random history: one with the function that members call, one with a copy that
takes nothing for usual, and looks at every partition. Where members acquire together, those of the other world do so one
after the other. All answers, and all that is stored of the groups, are compared.
"""

import random
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, Final

import pytest

from msgtx import errors
from msgtx.database.calls import call
from msgtx.database.pool import Engine
from msgtx.database.wire import Int4Array, Int8Array
from msgtx.generated import calls
from msgtx.store.groups.members import leave_group
from msgtx.store.shares.answers import NO_ANSWERS
from msgtx.store.shares.shares import (
    INLINE_BYTES,
    NOTHING,
    Acquiring,
    Acquisition,
    acquire_records,
    acquire_records_together,
)
from msgtx.store.topics.retention import delete_records
from msgtx.store.transactions.transactions import mark
from tests.databases import Connection
from tests.store.sharing import ANYTHING, ShareGroup, answers_of
from tests.store.steps import Writer, new_partition, plain
from tests.store.test_usual_case import forbid_general_rules, without_usual_case

pytestmark = pytest.mark.slow

MEMBERS: Final = ("a", "b", "c")
STEPS, SEEDS = 80, 40
SETTINGS: Final[tuple[dict[str, Any], ...]] = (
    {}, {}, {"max_record_locks": 7}, {"isolation": "read_uncommitted"}, {"release_backoff_ms": 50_000}, {"ordering": "key"},
)  # fmt: skip
KEYS: Final = {b"1": b"odd", b"2": b"even", b"3": b"odd", b"4": b"even"}
LATER: Final = [("msgtx.deliver-at", b"99999999999999")]


@pytest.fixture(scope="module")
def general(engine: Engine) -> Iterator[str]:
    yield from without_usual_case(
        engine,
        "shares",
        "acquire_records",
        ("if is_repeated then\n            is_usual", "if true then\n            is_usual"),
        ("accepts boolean := -1 <> any(accepted_firsts)", "accepts boolean := false"),
        (
            "partition_ids[:1] || array(\n                select p from msgtx.partitions_to_acquire("
            "g, partition_ids[2:], moment, partitions_at_once - 1) p)",
            "partition_ids",
        ),
    )


class World:
    """Two partitions, a share group on them, and which function its members call."""

    def __init__(self, connection: Connection, function: str, settings: dict[str, Any]) -> None:
        self.connection = connection
        self.function = replace(calls.ACQUIRE_RECORDS, name=function)
        self.partitions = [new_partition(connection), new_partition(connection)]
        self.group = ShareGroup(connection, self.partitions[0], delivery_count_limit=4, **settings)
        self.writers = [Writer(connection), Writer(connection)]
        self.held: dict[str, list[tuple[int, int, int]]] = {member: [] for member in MEMBERS}
        self.last: dict[str, tuple[Any, ...]] = {}
        self.together = 0  # calls for several members

    def send(self, partition: int, count: int, later: int) -> None:
        headers = [LATER if at < later else [] for at in range(count)]
        values = [b"%d" % at for at in range(count)]
        plain(self.connection, self.partitions[partition], *values, keys=[*map(KEYS.get, values)], headers=headers)

    def send_in(self, writer: int, partition: int, count: int) -> None:
        self.writers[writer].send(self.partitions[partition], *[b"t"] * count)

    def end(self, writer: int, outcome: str) -> None:
        who = self.writers[writer]
        if who.tails:
            who.commit() if outcome == "COMMIT" else who.abort()

    def acquire(self, member: str, order: list[int], most: int, answer: tuple[str, int, int, int] | None) -> object:
        """Acquire, and answer for what was acquired before: for one range of it, or a part of that."""
        columns = NO_ANSWERS
        if answer is not None and self.held[member]:
            kind, which, front, back = answer
            partition, first, last = self.held[member][which % len(self.held[member])]
            first, last = min(first + front, last), max(last - back, min(first + front, last))
            if kind != "renew":
                self.held[member] = [
                    each for each in self.held[member] if each[0] != partition or each[1] > last or each[2] < first
                ]
            number = self.group.join(member)
            columns = answers_of(self.group.name, number, (self.partitions[partition], first, last, kind))
        self.last[member] = (self.group.call(), order, most, columns)
        return self.again(member, is_again=False)

    def acquire_together(self, askers: list[tuple[str, int]]) -> object:
        """Acquire from the first partition, and accept what came of it: in one call if that is possible, or one by one."""
        for member, most in askers:
            columns, place = NO_ANSWERS, next((each for each in self.held[member] if each[0] == 0), None)
            if place is not None:
                self.held[member].remove(place)
                columns = answers_of(self.group.name, self.group.join(member), (self.partitions[0], *place[1:], "accept"))
            self.last[member] = (self.group.call(), [0], most, columns)
        found: list[Acquisition | None] = [None] * len(askers)
        if self.function.name == "acquire_records":
            found = acquire_records_together(self.connection, [self._asked(member) for member, _ in askers])
            self.together += found[0] is not None
        answers = []
        for (member, _), each in zip(askers, found, strict=True):
            if each is None:  # the last row may say that there is more
                answers.append([row for row in self.again(member, is_again=False) if row[:2] != (None, None)])
            else:
                self._hold(member, [(0, *one.range[1:]) for one in each.records])
                answers.append(
                    [(None, 0, *one.range[1:], one.delivery_count, one.lock_ms, one.values) for one in each.records]
                )
        return answers

    def _asked(self, member: str) -> Acquiring:
        number, order, most, columns = self.last[member]
        places = [self.partitions[at] for at in order]
        return Acquiring(self.group.name, self.group.join(member), number, places, most, ANYTHING, columns)

    def _hold(self, member: str, ranges: Iterable[tuple[int, int, int]]) -> None:
        """Note what a member has; what follows in the same partition is one range."""
        held = self.held[member]
        for partition, first, last in ranges:
            if held and held[-1][0] == partition and held[-1][2] == first - 1:
                held[-1] = (partition, held[-1][1], last)
            elif not any(place == partition and low <= first <= high for place, low, high in held):
                held.append((partition, first, last))

    def again(self, member: str, *, is_again: bool = True) -> list[Any]:
        """Make the last call of a member again, as after a lost answer."""
        if member not in self.last:
            return []
        asked = self._asked(member)
        numbers = Int8Array([asked.member_number]), Int8Array([asked.call_number])
        limits = Int4Array(asked.partition_ids), Int4Array([asked.max_records]), asked.max_bytes
        accepted = (Int8Array([each]) for each in asked.accepted() or NOTHING)
        answers = asked.answers.arguments()[2:]
        rows = call(
            self.connection, self.function, asked.group, *numbers, *limits, *accepted, *answers, is_again, INLINE_BYTES
        )
        found = [
            (row[0], *((None,) * 3 if row[2] is None else (self.partitions.index(row[2]), *row[3:5])), *row[5:8], row[10])
            for row in rows
        ]
        self._hold(member, [row[1:4] for row in found if row[0] is None and row[1] is not None])
        return [(*row[:6], row[7]) for row in found]

    def expire(self, member: str) -> None:
        if member in self.group.numbers:
            self.group.expire_locks(member)

    def leave(self, member: str) -> None:
        if member in self.group.numbers:
            leave_group(self.connection, self.group.name, member)
            del self.group.numbers[member]
            self.held[member], _ = [], self.last.pop(member, None)

    def clean(self, partition: int, by: int) -> None:
        place = self.partitions[partition]
        (start,) = self.connection.execute(
            "select least(p.log_start_offset + %s, coalesce((select max(b.last_offset) + 1 from msgtx.record_batch b"
            " where b.partition_id = p.partition_id), 0)) from msgtx.partition p where p.partition_id = %s",
            [by, place],
        ).fetchone() or (0,)
        delete_records(self.connection, {place: start})

    def rows(self) -> object:
        """What is stored of the group: the newest states, without times, with members by name."""
        names = {number: name for name, number in self.group.numbers.items()}
        found = []
        for place in self.partitions:
            states = self.connection.execute(
                "select s.next_offset, split_part(s.next_token, ' ', 1), s.next_due is null, s.waiting_keys from"
                " msgtx.share_state s where s.group_id = %s and s.partition_id = %s order by s.version desc limit 1",
                [self.group.group_id, place],
            ).fetchall()
            spans = self.connection.execute(
                "select u.first_offset, u.last_offset, u.status, u.delivery_count, u.member_number, u.call_number from ("
                " select s.spans from msgtx.share_state s where s.group_id = %s and s.partition_id = %s"
                " order by s.version desc limit 1) newest cross join lateral unnest(newest.spans) u order by 1",
                [self.group.group_id, place],
            ).fetchall()
            found.append((states, [(*span[:4], names.get(span[4]), span[5]) for span in spans]))
        return found


def drawn(dice: random.Random) -> tuple[str, tuple[Any, ...]]:
    """Draw a step: mostly what is usual, often what is nearly so."""
    partition, member = dice.choice([0, 0, 1]), dice.choice(MEMBERS)
    kind = dice.choice(
        ["acquire"] * 9
        + ["acquire_together"] * 7
        + ["send"] * 6
        + ["send_in", "end", "end", "again", "again", "expire", "leave", "clean"]
    )
    if kind == "acquire_together":
        return kind, ([(each, dice.randint(1, 4)) for each in dice.sample(MEMBERS, dice.randint(2, 3))],)
    if kind == "send":
        return kind, (partition, dice.randint(1, 6), dice.choice([0] * 15 + [1, 2]))
    if kind == "send_in":
        return kind, (dice.randrange(2), partition, dice.randint(1, 3))
    if kind == "end":
        return kind, (dice.randrange(2), dice.choice(["COMMIT", "COMMIT", "ABORT"]))
    if kind == "clean":
        return kind, (partition, dice.randint(1, 8))
    if kind == "acquire":
        order = dice.choice([[0, 1], [1, 0], [0], [1]])
        answer = (
            dice.choice(["accept"] * 8 + ["release", "reject", "renew"]),
            dice.randrange(3),
            *dice.choice([(0, 0)] * 5 + [(1, 0), (0, 1)]),
        )
        return kind, (member, order, dice.randint(1, 8), answer if dice.random() < 0.8 else None)
    return kind, (member,)


@pytest.fixture(scope="module")
def together() -> Iterator[list[int]]:
    """How often members have acquired together, by history."""
    counts: list[int] = []
    yield counts
    assert sum(counts) > SEEDS or len(counts) < SEEDS


@pytest.mark.parametrize("seed", range(SEEDS))
def test_the_usual_case_of_an_acquisition_answers_and_writes_as_the_general_one(
    connection: Connection, general: str, seed: int, together: list[int]
) -> None:
    dice = random.Random(seed)
    settings = dice.choice(SETTINGS)
    worlds = [World(connection, "acquire_records", settings), World(connection, general, settings)]
    for number in range(STEPS):
        kind, arguments = drawn(dice)
        if kind == "acquire_together" and "max_record_locks" in settings:
            continue  # what one member accepts makes room for those before it
        answers = [getattr(world, kind)(*arguments) for world in worlds]
        assert answers[0] == answers[1], f"step {number}: {kind} {arguments}"
        assert worlds[0].rows() == worlds[1].rows(), f"step {number}: {kind} {arguments}"
        if dice.random() < 0.1:
            mark(connection, everything=True)
    together.append(worlds[0].together)


def test_what_is_usual_does_not_ask_the_general_rules(connection: Connection) -> None:
    """Else every poll would pay for both, and every answer would still be right."""
    beside = [new_partition(connection), partition := new_partition(connection), new_partition(connection)]
    beside.remove(partition)
    group, writer = ShareGroup(connection, partition), Writer(connection)
    for place in (partition, *beside):  # others hold the same offsets
        plain(connection, place, b"0")
    assert group.acquire("a") == {0: 1}  # the first one finds out where to begin
    with connection.transaction(force_rollback=True):
        for general in ("current_spans", "fetch_batches", "share_group_of"):
            forbid_general_rules(connection, general)
        plain(connection, partition, b"1", b"2", b"3")
        writer.commit_whole(writer.row(partition, b"4"))
        for place in beside:
            plain(connection, place, b"1", b"2", b"3")
        assert group.acquire("b", 2) == {1: 1, 2: 1}
        assert group.acquire("a", 2) == {3: 1, 4: 1}
        number = group.join("b")
        asked = group.asking("b", 2)._replace(answers=answers_of(group.name, number, (partition, 1, 2, "accept")))
        assert acquire_records(connection, asked) == ([], [], False)
        assert group.spans == [(0, 0, "acquired", 1), (3, 4, "acquired", 1)]
        writer.send(partition, b"open")
        with pytest.raises(Exception, match="the general rules were asked"):
            group.acquire("a")


# ── what looks usual, and is not ──


@pytest.fixture
def begun(connection: Connection) -> ShareGroup:
    """A group that has acquired one record."""
    group = ShareGroup(connection, new_partition(connection), max_record_locks=2)
    plain(connection, group.partition, b"0")
    assert group.acquire("a") == {0: 1}
    return group


@pytest.mark.parametrize("beside", ["another producer's", "an earlier epoch's", "an earlier one"])
def test_a_new_record_is_committed_by_its_own_transaction(connection: Connection, begun: ShareGroup, beside: str) -> None:
    """I5. Not by one that was committed, and has nearly the same name."""
    other, elsewhere = Writer(connection), new_partition(connection)
    writer = Writer(connection) if beside == "another producer's" else other
    other.commit_whole(other.row(elsewhere, b"x"))
    if beside == "an earlier epoch's":
        writer.init()
    writer.send(begun.partition, b"1")
    assert begun.acquire("b") == {}
    writer.commit()
    assert begun.acquire("b") == {1: 1}


def test_what_was_read_uncommitted_does_not_lead_past_what_is_undecided(connection: Connection) -> None:
    """I5. The group reads committed records alone from now on."""
    group, writer = ShareGroup(connection, new_partition(connection), isolation="read_uncommitted"), Writer(connection)
    writer.send(group.partition, b"0")
    assert group.acquire("a") == {0: 1}
    assert group.answer("a", {0: "accept"}) == []
    group.leave("a")
    group.configure(isolation="read_committed")
    plain(connection, group.partition, b"1")
    assert group.acquire("b") == {}
    writer.commit()
    assert group.acquire("b") == {1: 1}


def test_what_is_accepted_makes_room_for_as_much(connection: Connection, begun: ShareGroup) -> None:
    plain(connection, begun.partition, b"1", b"2")
    assert begun.acquire("b") == {1: 1}
    asked = begun.asking("a")._replace(answers=begun.answers("a", {0: "accept"}))
    assert begun.acquired(asked) == {2: 1}


def test_what_retention_has_removed_makes_room_for_as_much(connection: Connection, begun: ShareGroup) -> None:
    """Though it was one span with what is left."""
    plain(connection, begun.partition, b"1", b"2", b"3")
    begun.answer("a", {0: "accept"})
    assert begun.acquire("a") == {1: 1, 2: 1}
    begun.remove_below(2)
    assert begun.acquire("b") == {3: 1}


def test_a_row_that_is_compacted_meanwhile_is_acquired_by_the_next_call(connection: Connection, begun: ShareGroup) -> None:
    """Else records that are gone would be delivered as others. Who calls again is told by the error to do so."""
    plain(connection, begun.partition, b"1", b"2")
    asked = begun.asking("b", 1)
    with connection.transaction(force_rollback=True):
        connection.execute(
            "create or replace function msgtx.batch_identity(base_offset bigint, producer_id bigint, producer_epoch int,"
            " base_sequence bigint, appended_at timestamptz) returns text language plpgsql as $$ begin"
            f" update msgtx.record_batch b set offset_deltas = '{{0, 1}}' where b.partition_id = {begun.partition}"
            " and b.base_offset = 1; return concat_ws(':', base_offset, producer_id, producer_epoch, base_sequence,"
            " (extract(epoch from appended_at) * 1000000)::bigint); end $$"
        )
        with pytest.raises(errors.LockTimeout, match="was compacted meanwhile: call again"):
            acquire_records(connection, asked)
    assert begun.acquired(asked) == {1: 1}
