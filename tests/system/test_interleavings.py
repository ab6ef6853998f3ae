"""T4, interleavings: actors paused before each lock and before COMMIT, every order of their steps tried.

Each call is named for what a library call does in the database, in one SQL transaction. `at_least` is the number of orders
that were found when a test was written: fewer would mean that an actor no longer stops where it used to.
"""

import itertools
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest

from msgtx import Isolation, OffsetAndMetadata, ProducerId, TransactionId
from msgtx.database.connection import Connection as OwnConnection
from msgtx.database.wire import BatchColumns
from msgtx.store.append.append import Appended, Whole, append, append_and_decide, append_and_decide_together
from msgtx.store.fetch.fetch import Position, fetch
from msgtx.store.groups.groups import commit_offsets, committed_offsets, offset_columns
from msgtx.store.topics.topics import create_topic, describe_topics
from msgtx.store.transactions.decide import Decided, decide
from msgtx.store.transactions.producers import init_producer_id
from msgtx.store.transactions.transactions import end_transaction, mark
from msgtx.types import GroupMetadata
from tests.databases import Connection, connect
from tests.store.steps import expire_transaction, expire_transactions
from tests.weave import Call, Played, Story, Weaver, weaving

pytestmark = pytest.mark.slow

TIMEOUT_MS: Final = 60_000
_numbers = itertools.count(1)


@pytest.fixture
def alone(make_database: Callable[[], str]) -> Iterator[tuple[Weaver, Connection]]:
    """A weaver and an eye in a fresh database: a sweep acts on the whole database."""
    url = make_database()
    with weaving(url, actors=3) as made, connect(url) as looking:
        yield made, looking


class Stage:
    """Fresh partitions and a producer with a transactional id, for one schedule."""

    def __init__(self, eye: Connection, partitions: int = 1) -> None:
        self.eye = eye
        self.run = next(_numbers)
        name = f"stage-{self.run}"
        create_topic(eye, name, partitions, {})
        self.partitions = list(describe_topics(eye, [name])[name].partition_ids)
        self.producer = self.init(eye)

    def init(self, connection: Connection, expected: ProducerId | None = None) -> ProducerId:
        return init_producer_id(connection, f"id-{self.run}", timeout_ms=TIMEOUT_MS, expected=expected)

    def name(self, number: int | None = 0, producer: ProducerId | None = None) -> TransactionId:
        return TransactionId(*(producer or self.producer), number)  # type: ignore[arg-type]

    def batches(
        self, *values: str, number: int | None = 0, sequence: int = 0, producer: ProducerId | None = None
    ) -> list[BatchColumns]:
        """A batch of the same values for each partition."""
        who = producer or self.producer
        contents = [value.encode() for value in values]
        return [BatchColumns(partition, *who, number, sequence, 1_000, None, contents) for partition in self.partitions]

    def append(self, *values: str, **where: Any) -> Callable[[Connection], list[Appended]]:
        return lambda connection: append(connection, self.batches(*values, **where), flushed=False, wake=False)

    def decide(self, outcome: Any, *, last: int | None, number: int = 0) -> Callable[[Connection], Decided]:
        tails = {} if last is None else dict.fromkeys(self.partitions, last)
        return lambda connection: decide(connection, self.name(number), outcome, tails=tails, wake=False)

    def whole(
        self, *values: str, number: int = 0, sequence: int = 0, producer: ProducerId | None = None
    ) -> Callable[[Connection], list[Appended]]:
        batches = self.batches(*values, number=number, sequence=sequence, producer=producer)
        name = self.name(number, producer)
        return lambda connection: append_and_decide(connection, name, batches, wake=False)

    # ── looks ──

    def committed(self) -> list[list[str]]:
        """What a reader at read_committed sees from 0, per partition."""
        answers = fetch(
            self.eye, dict.fromkeys(self.partitions, Position(0)), isolation=Isolation.READ_COMMITTED, max_bytes=10**6
        )
        return [
            [value.decode() for batch in answers[p].batches for value in batch.values if value is not None]
            for p in self.partitions
        ]

    def now(self) -> list[list[str]]:
        """What one statement sees, also beyond open transactions."""
        rows = self.eye.execute(
            'select partition_id, value from msgtx.committed_records_now where partition_id = any(%s) order by 1, "offset"',
            [self.partitions],
        ).fetchall()
        return [[bytes(value).decode() for partition, value in rows if partition == p] for p in self.partitions]

    def rows(self, epoch: int | None = None) -> int:
        return self._count("record_batch", epoch)

    def decisions(self) -> dict[tuple[int, int], str]:
        found = self.eye.execute(
            "select producer_epoch, transaction_number, outcome from msgtx.transaction_decision where producer_id = %s",
            [self.producer.producer_id],
        ).fetchall()
        return {(epoch, number): outcome for epoch, number, outcome in found}

    def _count(self, table: str, epoch: int | None) -> int:
        row = self.eye.execute(
            f"select count(*) from msgtx.{table} where producer_id = %s and (producer_epoch = %s or %s::int is null)",
            [self.producer.producer_id, epoch, epoch],
        ).fetchone()
        assert row is not None
        return int(row[0])

    def nothing_open(self) -> None:
        """No transaction hangs: each row of `transaction` has its decision, readers reach the end (I8)."""
        opened = self._count("transaction", None)
        decided = self.eye.execute(
            "select count(*) from msgtx.transaction t join msgtx.transaction_decision d"
            " using (producer_id, producer_epoch, transaction_number) where producer_id = %s",
            [self.producer.producer_id],
        ).fetchone()
        assert decided == (opened,), "a transaction is open and nothing will end it"
        answers = fetch(
            self.eye, dict.fromkeys(self.partitions, Position(0)), isolation=Isolation.READ_COMMITTED, max_bytes=0
        )
        for answer in answers.values():
            assert answer.last_stable_offset == answer.log_end_offset


# ── the stories ──


def test_after_init_returns_a_zombie_changes_nothing(weaver: Weaver, eye: Connection) -> None:
    def begin() -> Story:
        stage = Stage(eye)
        successor = ProducerId(stage.producer.producer_id, stage.producer.epoch + 1)
        fenced_with: list[tuple[int, str | None]] = []

        def zombies(played: Played) -> tuple[int, str | None]:
            return stage.rows(stage.producer.epoch), stage.decisions().get((stage.producer.epoch, 0))

        def look(played: Played) -> None:
            if "successor.init" in played.answers:
                fenced_with.append(zombies(played))
                assert fenced_with[-1] == fenced_with[0], "I7: a zombie changed something after init returned"

        def judge(played: Played) -> None:
            assert played.answers["successor.init"] == successor
            committed = played.answers["zombie.commit"].outcome == "COMMIT"
            assert (stage.decisions().get((stage.producer.epoch, 0)) == "COMMIT") == committed
            assert stage.committed() == [[*(["zombie"] if committed else []), "successor"]]
            assert stage.now() == stage.committed()
            stage.nothing_open()

        return Story(
            {
                "zombie": [Call("append", stage.append("zombie")), Call("commit", stage.decide("COMMIT", last=0))],
                "successor": [
                    Call("init", stage.init, gate=1),
                    Call("whole", stage.whole("successor", producer=successor)),
                ],
            },
            judge,
            look,
        )

    weaver.explore(begin, at_least=100)


def test_a_reader_sees_all_of_a_transaction_or_nothing_and_never_skips(weaver: Weaver, eye: Connection) -> None:
    def begin() -> Story:
        stage = Stage(eye, partitions=2)
        other = init_producer_id(eye, f"other-{stage.run}", timeout_ms=TIMEOUT_MS)
        position = dict.fromkeys(stage.partitions, Position(0))
        polled: dict[int, list[str]] = {partition: [] for partition in stage.partitions}

        def look(played: Played) -> None:
            # A statement sees both partitions of a transaction or none (I6); a log reader continues from where it was (I5).
            for value in ("long", "more", "whole"):
                assert len({rows.count(value) for rows in stage.now()}) == 1, f"{value}: {stage.now()}"
            committed = stage.decisions().get((stage.producer.epoch, 0)) == "COMMIT"
            assert all(("long" in rows) == committed for rows in stage.now())
            answers = fetch(eye, position, isolation=Isolation.READ_COMMITTED, max_bytes=10**6)
            for partition, answer in answers.items():
                assert not answer.truncated
                polled[partition] += [v.decode() for b in answer.batches for v in b.values if v is not None]
                position[partition] = Position(answer.position, answer.token)
            fresh = stage.committed()
            assert [polled[partition] for partition in stage.partitions] == fresh
            if not committed:
                assert all("long" not in rows for rows in fresh)

        def judge(played: Played) -> None:
            assert [sorted(rows) for rows in stage.committed()] == [["long", "more", "whole"]] * 2
            stage.nothing_open()

        return Story(
            {
                "long": [
                    Call("append", stage.append("long", "more")),
                    Call("commit", stage.decide("COMMIT", last=1)),
                ],
                "short": [Call("whole", stage.whole("whole", producer=other))],
            },
            judge,
            look,
        )

    weaver.explore(begin, at_least=100)


def test_a_record_that_comes_after_the_decision_joins_no_transaction(weaver: Weaver, eye: Connection) -> None:
    def begin() -> Story:
        stage = Stage(eye)
        stage.append("first")(eye)
        at_decision: list[int] = []

        def look(played: Played) -> None:
            if "owner.abort" in played.answers:
                found = eye.execute(
                    "select count(*) from msgtx.record_batch where producer_id = %s and transaction_number = 0",
                    [stage.producer.producer_id],
                ).fetchone()
                assert found is not None
                at_decision.append(found[0])
                assert at_decision[-1] == at_decision[0], "I8: a record joined a decided transaction"

        def judge(played: Played) -> None:
            assert played.answers["owner.abort"].outcome == "ABORT"
            (late,) = played.answers["delayed.append"]
            assert late.error is None or type(late.error).__name__ == "InvalidTransactionState", late
            assert "late" not in stage.committed()[0]
            assert "first" not in stage.committed()[0]
            stage.nothing_open()

        def second(connection: Connection) -> Any:
            # The next transaction continues with the abort's answer.
            (last,) = decide(connection, stage.name(0), "ABORT", tails={stage.partitions[0]: 0}).last_sequences.values()
            assert last is not None
            return append(connection, stage.batches("second", number=1, sequence=last + 1))

        def commit(connection: Connection) -> Any:
            (last,) = decide(connection, stage.name(0), "ABORT", tails={stage.partitions[0]: 0}).last_sequences.values()
            return decide(connection, stage.name(1), "COMMIT", tails={stage.partitions[0]: last or 0})

        return Story(
            {
                "owner": [
                    Call("abort", stage.decide("ABORT", last=0)),
                    Call("second", second, gate=3),
                    Call("commit", commit, gate=3),
                ],
                "delayed": [Call("append", stage.append("late", sequence=1))],
            },
            judge,
            look,
        )

    weaver.explore(begin, at_least=20)


@pytest.mark.parametrize("how", ["abort", "init"])
def test_an_end_that_overtakes_the_first_append_leaves_nothing_open(how: str, weaver: Weaver, eye: Connection) -> None:
    """P25: the abort finds nothing, and a later append must not open a transaction that nothing will end."""

    def begin() -> Story:
        stage = Stage(eye, partitions=2)

        def judge(played: Played) -> None:
            stage.nothing_open()
            assert stage.committed() == [[], []]
            refused = [answer.error is not None for answer in played.answers["first.append"]]
            assert len(set(refused)) == 1, "the transaction is refused on all partitions or on none"
            assert stage.decisions().get((stage.producer.epoch, 0), "ABORT") == "ABORT"

        ends = {"abort": Call("abort", stage.decide("ABORT", last=0)), "init": Call("init", stage.init, gate=1)}
        return Story({"first": [Call("append", stage.append("first"))], "end": [ends[how]]}, judge)

    weaver.explore(begin, at_least={"abort": 6, "init": 16}[how])


def test_transactions_that_go_together_wait_for_no_other_and_each_is_whole(weaver: Weaver, eye: Connection) -> None:
    """Two transactions in one SQL transaction beside one over the same partitions: no deadlock, nothing torn (I6)."""

    def begin() -> Story:
        stage = Stage(eye, partitions=2)
        others = [init_producer_id(eye, f"other-{stage.run}-{number}", timeout_ms=TIMEOUT_MS) for number in range(2)]
        # Not in the order of the partitions: the third one may hold the first partition while they hold the second.
        wholes = [
            Whole(stage.name(), [stage.batches("first")[1]]),
            Whole(stage.name(producer=others[0]), [stage.batches("second", producer=others[0])[0]]),
        ]
        answers: list[list[Appended] | None] = []

        def together(connection: Connection) -> Any:
            assert isinstance(connection, OwnConnection)
            connection.execute("select")  # begins the SQL transaction that the weaver commits
            answers[:] = append_and_decide_together(connection, wholes)
            return answers

        def alone(connection: Connection) -> Any:
            lacking = [whole for whole, answer in zip(wholes, answers, strict=True) if answer is None]
            return [append_and_decide(connection, whole.id, whole.batches, wake=False) for whole in lacking[:1]]

        def look(played: Played) -> None:
            assert len({rows.count("beside") for rows in stage.now()}) == 1, f"torn: {stage.now()}"

        def judge(played: Played) -> None:
            done = {"first": answers[0], "second": answers[1]}
            lacking = [name for name, answer in done.items() if answer is None]
            assert all(answer.error is None for name in done for answer in done[name] or ())
            expected = [["beside", "second"], ["beside", "first"]]
            for name in lacking[1:]:
                expected = [[value for value in rows if value != name] for rows in expected]
            assert [sorted(rows) for rows in stage.committed()] == expected
            stage.nothing_open()

        return Story(
            {
                "group": [Call("together", together), Call("alone", alone)],
                "other": [Call("beside", stage.whole("beside", producer=others[1]))],
            },
            judge,
            look,
        )

    weaver.explore(begin, at_least=200)


@pytest.mark.parametrize("ends", ["commit and expiry", "resolve and commit"])
def test_whoever_decides_first_decides_for_all(ends: str, weaver: Weaver, eye: Connection) -> None:
    """I4: the owner commits; a sweep that finds the transaction overdue, or a client that resolves it, aborts."""

    def begin() -> Story:
        stage = Stage(eye)
        append(eye, stage.batches("value"), flushed=False, timeout_ms=1)
        eye.execute("select pg_sleep(0.002)")
        name = stage.name()

        def judge(played: Played) -> None:
            outcome = stage.decisions()[stage.producer.epoch, 0]
            commit = played.answers["owner.commit"]
            assert commit.outcome == outcome
            assert (commit.error is None) == (outcome == "COMMIT")
            assert stage.committed() == [["value"] if outcome == "COMMIT" else []]
            if ends == "resolve and commit":
                assert played.answers["other.end"].value == {"COMMIT": "COMMITTED", "ABORT": "ABORTED"}[outcome]
            elif outcome == "COMMIT":
                assert played.answers["other.end"] is False
            stage.nothing_open()

        end: Callable[[Connection], Any] = lambda connection: expire_transaction(connection, name)  # noqa: E731
        if ends == "resolve and commit":
            end = lambda connection: end_transaction(connection, name, "resolve")  # noqa: E731
        return Story(
            {
                "owner": [Call("commit", stage.decide("COMMIT", last=0), gate=1)],
                "other": [Call("end", end, gate=1), Call("again", end, gate=1)],
            },
            judge,
        )

    weaver.explore(begin, at_least=50)


@pytest.mark.parametrize("sweeps", ["two sweeps", "sweeps and commit", "sweeps and abort"])
def test_sweeps_at_once_neither_deadlock_nor_mark_wrongly(sweeps: str, alone: tuple[Weaver, Connection]) -> None:
    """P11, P40, P44: markers and floors of the same transactions, written by two sessions at once."""
    weaver, eye = alone
    commits = sweeps != "sweeps and abort"

    def begin() -> Story:
        stage = Stage(eye, partitions=2)
        overdue = init_producer_id(eye, f"overdue-{stage.run}", timeout_ms=TIMEOUT_MS)
        append(eye, stage.batches("overdue", producer=overdue), flushed=False, timeout_ms=1)
        append(eye, stage.batches("value"), flushed=False)
        eye.execute("select pg_sleep(0.002)")

        def judge(played: Played) -> None:
            expire_transactions(eye)
            mark(eye, everything=True)
            assert stage.committed() == [["value"] if commits else []] * 2
            stage.nothing_open()
            floors = eye.execute(
                "select max(stable_floor) from msgtx.partition_floor where partition_id = any(%s) group by partition_id",
                [stage.partitions],
            ).fetchall()
            assert floors == [(2,), (2,)]

        def look(played: Played) -> None:
            # Below the floor, an ABORT without its marker would be read as committed.
            allowed = {"value"} if commits else set()
            assert {value for rows in stage.committed() for value in rows} <= allowed

        marks = [Call("mark", lambda connection: mark(connection, everything=True))]
        if sweeps == "two sweeps":
            stage.decide("COMMIT", last=0)(eye)
            return Story({"one": marks, "two": [Call("expire", expire_transactions), *marks]}, judge, look)
        expire_transactions(eye)
        end = Call("end", stage.decide("COMMIT" if commits else "ABORT", last=0))
        return Story({"one": marks, "owner": [end, *marks]}, judge, look)

    weaver.explore(begin, at_least=50 if sweeps == "two sweeps" else 30)


def test_a_request_beside_its_own_retry_is_stored_once(weaver: Weaver, eye: Connection) -> None:
    """P7, I1: the original still waits for a lock when the retry comes."""

    def begin() -> Story:
        stage = Stage(eye, partitions=2)

        def judge(played: Played) -> None:
            answers = [*played.answers["original.append"], *played.answers["retry.append"]]
            assert [answer.error for answer in answers] == [None] * 4
            assert sorted(answer.duplicate for answer in answers) == [False, False, True, True]
            assert {answer.base_offset for answer in answers} == {0}
            assert stage.committed() == [["value"], ["value"]]

        call = [Call("append", stage.append("value", number=None))]
        return Story({"original": call, "retry": call}, judge)

    weaver.explore(begin, at_least=20)


def test_a_whole_transaction_beside_its_own_retry_is_stored_once(weaver: Weaver, eye: Connection) -> None:
    def begin() -> Story:
        stage = Stage(eye, partitions=2)

        def judge(played: Played) -> None:
            answers = [*played.answers["original.whole"], *played.answers["retry.whole"]]
            assert [(answer.error, answer.base_offset) for answer in answers] == [(None, 0)] * 4
            assert stage.committed() == [["value"], ["value"]]
            assert stage.rows() == 2

        call = [Call("whole", stage.whole("value"), gate=1)]
        return Story({"original": call, "retry": call}, judge)

    weaver.explore(begin, at_least=30)


def test_two_producers_that_raise_the_same_epoch_do_not_both_get_it(weaver: Weaver, eye: Connection) -> None:
    """P30: a retry of a producer's own bump gets the same answer; a producer with a real successor is fenced."""

    def begin() -> Story:
        stage = Stage(eye)
        old = stage.producer

        def bump(connection: Connection) -> ProducerId:
            return stage.init(connection, expected=old)

        def judge(played: Played) -> None:
            taken = played.answers["successor.init"]
            bumps = [played.answers["owner.bump"], played.answers["owner.again"]]
            for bumped in bumps:
                assert isinstance(bumped, Exception) or bumped.epoch < taken.epoch, "a zombie has its successor's epoch"
            fenced = [isinstance(bumped, Exception) for bumped in bumps]
            assert fenced in ([False, False], [False, True], [True, True])

        return Story(
            {
                "owner": [Call("bump", bump, gate=1), Call("again", bump, gate=1)],
                "successor": [Call("init", stage.init, gate=1)],
            },
            judge,
        )

    weaver.explore(begin, at_least=50)


def test_offsets_that_are_committed_last_win(weaver: Weaver, eye: Connection) -> None:
    """P17: a plain commit and a transaction's: both take effect, and the one that began after the other ended wins."""

    def begin() -> Story:
        stage = Stage(eye)
        append(eye, stage.batches("value"), flushed=False)
        partition, group = stage.partitions[0], GroupMetadata(f"group-{stage.run}")

        def commit(connection: Connection) -> Decided:
            offsets = offset_columns({group: {partition: OffsetAndMetadata(10, "transaction")}})
            return decide(connection, stage.name(), "COMMIT", tails={partition: 0}, offsets=offsets, wake=False)

        def plain(connection: Connection) -> None:
            commit_offsets(connection, {group: {partition: OffsetAndMetadata(5, "plain")}})

        def judge(played: Played) -> None:
            assert played.answers["owner.commit"].outcome == "COMMIT"
            at = committed_offsets(eye, group.group, [partition])[partition].at
            assert at is not None
            order = list(played.answers)
            overlapped = _overlap(played.trace)
            last = {"owner.commit": 10, "other.plain": 5}[order[-1]]
            assert at.offset in ({5, 10} if overlapped else {last})

        return Story({"owner": [Call("commit", commit, gate=1)], "other": [Call("plain", plain, gate=1)]}, judge)

    weaver.explore(begin, at_least=20)


def _overlap(trace: list[str]) -> bool:
    """Whether one call began before the other had ended."""
    names = [step.split(":")[0] for step in trace]
    return len(list(itertools.groupby(names))) > 2
