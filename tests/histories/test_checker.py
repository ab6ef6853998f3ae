"""The checker, on histories written by hand: it names each planted anomaly, and nothing else."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import pytest

from msgtx import TopicPartition
from tests.histories.anomalies import Name, summary
from tests.histories.checker import check
from tests.histories.history import NEMESIS, History, Operation, Recorder, Result, read_history
from tests.histories.members import EXTRA, INPUT, SEALED, TALLY
from tests.histories.relays import RELAY_GROUP, RELAY_TARGET, RELAYED
from tests.histories.settled import Settled
from tests.histories.waited import CALM_SECONDS, GRACE_SECONDS, SECOND
from tests.histories.workers import GROUP, LEDGERS, LOOSE

SOURCE, LEFT, RIGHT, LAX, MORE = (TopicPartition(topic, 0) for topic in (INPUT, *LEDGERS, LOOSE, EXTRA))
RELAY_SOURCE, RELAYED_TO = TopicPartition(RELAYED, 0), TopicPartition(RELAY_TARGET, 0)
LINGER: Final = 10  # between the invocation of an operation and its answer


@dataclass
class Story:
    """A history step by step, and its end. `log`: values with their offsets, and which are committed."""

    operations: list[Operation] = field(default_factory=list)
    log: dict[TopicPartition, list[str]] = field(default_factory=dict)
    hidden: set[str] = field(default_factory=set)  # in the log, but not visible to readers of committed data
    stable: dict[TopicPartition, int] = field(default_factory=dict)
    offsets: dict[tuple[str, TopicPartition], int] = field(default_factory=dict)
    outcomes: dict[str, str] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)
    members: dict[str, int] = field(default_factory=dict)
    rows: list[str] = field(default_factory=list)  # of a user's table
    purged: bool = False
    now: int = 0

    def tell(self, process: str, kind: str, result: Result = Result.OK, answer: Any = None, **arguments: Any) -> Operation:
        """Add an operation after all others; without an answer if it is INFO."""
        self.now += 100
        number = len(self.operations)
        done = None if result is Result.INFO else self.now + LINGER
        self.operations.append(Operation(process, number, kind, arguments, self.now, done, result, answer or {}))
        return self.operations[-1]

    def send(self, by: str, at: TopicPartition, *values: str, transaction: str | None = None, **options: Any) -> Operation:
        """Add values that were sent and acknowledged; they are stored at the end of the log."""
        acks, once = options.pop("acks", "all"), options.pop("once", True)
        stored, result = options.pop("stored", True), options.pop("result", Result.OK)
        rows = self.log.setdefault(at, [])
        first = len(rows)
        rows += values if stored else ()
        answer = {"offsets": list(range(first, first + len(values)))} if result is Result.OK else {}
        return self.tell(by, "send", result, answer, topic=at.topic, partition=at.partition, values=list(values),
                         transaction=transaction, producer=f"{by}#0", acks=acks, once=once)  # fmt: skip

    def init(self, by: str, producer_id: int, epoch: int) -> None:
        self.tell(by, "init", answer={"producer": [producer_id, epoch]}, transactional_id=by)

    def commit(
        self, by: str, transaction: str, result: Result = Result.OK, *, group: str = GROUP, **offsets: int
    ) -> Operation:
        carried = [[topic, 0, at] for topic, at in offsets.items()]
        if result is not Result.FAIL:
            self.outcomes[transaction] = "COMMITTED"
            self.offsets.update({(group, TopicPartition(topic, 0)): at for topic, at in offsets.items()})
        return self.tell(by, "commit", result, transaction=transaction, group=group if offsets else None, offsets=carried)

    def abort(self, by: str, transaction: str) -> None:
        self.outcomes[transaction] = "ABORTED"
        self.hidden |= {value for each in self.operations for value in each.arguments.get("values", ())
                        if each.arguments["transaction"] == transaction}  # fmt: skip
        self.tell(by, "abort", transaction=transaction)

    def poll(
        self, by: str, *at: tuple[TopicPartition, int, int], isolation: str = "read_committed", **changed: str
    ) -> Operation:
        """Add a poll that returned the log from one position to another (`changed`: other values)."""
        records, positions = [], []
        for partition, start, end in at:
            rows = [(offset, self.log[partition][offset]) for offset in range(start, end)]
            seen = [row for row in rows if isolation != "read_committed" or row[1] not in self.hidden]
            records.append([*partition, [offset for offset, _ in seen], [changed.get(value, value) for _, value in seen]])
            positions.append([*partition, end])
        return self.tell(by, "poll", answer={"records": records, "positions": positions},
                         consumer=f"{by}#0", isolation=isolation)  # fmt: skip

    def seek(self, by: str, *at: tuple[TopicPartition, int], kind: str = "seek", isolation: str = "read_committed") -> None:
        positions = [[*partition, position] for partition, position in at]
        self.tell(by, kind, answer={"positions": positions}, consumer=f"{by}#0", isolation=isolation)

    def member(self, kind: str, by: str, at: int, *, group: str = TALLY, **options: Any) -> Operation:
        """Add a member's operation on the input: it commits up to `at`, closes there, or learns that the group is there."""
        rows = [[*SOURCE, at]]
        who: dict[str, Any] = {"consumer": f"{by}#0", "isolation": "read_committed", "group": group}
        who["reset"] = options.pop("reset", "earliest")
        if kind in {"commit offsets", "close"}:
            return self.tell(by, kind, options.pop("result", Result.OK), **who, offsets=rows, **options)
        answer = {"gained": rows, "records": [], "positions": []} if kind == "poll" else {"positions": rows}
        return self.tell(by, kind, answer=answer, **who)

    def crash(self) -> None:
        self.tell(NEMESIS, "crash")

    def end(self) -> Settled:
        everything = {partition: list(enumerate(rows)) for partition, rows in self.log.items()}
        committed = {partition: [row for row in rows if row[1] not in self.hidden] for partition, rows in everything.items()}
        ends = {partition: (self.stable.get(partition, len(rows)), len(rows)) for partition, rows in self.log.items()}
        return Settled(committed, everything, ends, self.offsets, self.outcomes, [], self.violations, self.purged,
                       self.members, self.rows)  # fmt: skip

    def anomalies(self) -> list[str]:
        return list(summary(check(History(self.operations), self.end())))

    def found(self) -> set[Name]:
        return {anomaly.name for anomaly in check(History(self.operations), self.end())}


def copying() -> Story:
    """Add two inputs copied in one transaction, an aborted writer, and readers that read all of it."""
    story = Story()
    story.seek("reader-0.0", (SOURCE, 0), (LEFT, 0), (RIGHT, 0))
    story.send("plain-0.0", SOURCE, "one", "two")
    story.init("copy-0", 1, 0)
    story.seek("copy-0.0", (SOURCE, 0))
    story.poll("copy-0.0", (SOURCE, 0, 2))
    story.send("writer-0.0", LEFT, "other", transaction="2.0.0")
    story.send("copy-0.0", LEFT, "one>a", transaction="1.0.0")
    story.send("copy-0.0", RIGHT, "one>b", "two>b", transaction="1.0.0")
    story.send("copy-0.0", LEFT, "two>a", transaction="1.0.0")
    story.abort("writer-0.0", "2.0.0")
    story.commit("copy-0.0", "1.0.0", input=2)
    story.poll("reader-0.0", (SOURCE, 0, 2), (LEFT, 0, 3), (RIGHT, 0, 2))
    story.seek("reader-0.0", (SOURCE, 2), (LEFT, 3), (RIGHT, 2), kind="drained")
    story.tell("view-0.0", "view", answer={"transactions": {"1.0.0": {str(LEFT): 2, str(RIGHT): 2}}})
    story.tell("meddler-0.0", "outcome", answer={"outcome": "COMMITTED"}, transaction="1.0.0", resolve=False)
    return story


def change(story: Story, kind: str, by: str, **arguments: Any) -> Operation:
    """Return the last operation of a kind, with some arguments replaced."""
    found = [each for each in story.operations if each.kind == kind and each.process == by][-1]
    found.arguments.update(arguments)
    return found


# ── clean histories ──


def test_a_clean_history_has_no_anomaly() -> None:
    assert copying().anomalies() == []


def test_a_commit_whose_answer_was_lost_may_have_happened_or_not() -> None:
    for happened in (True, False):
        story = Story()
        story.send("writer-0.0", LEFT, "x", transaction="1.0.0")
        story.commit("writer-0.0", "1.0.0", Result.INFO)
        if not happened:
            story.outcomes["1.0.0"] = "ABORTED"
            story.hidden.add("x")
        assert story.anomalies() == []


def test_a_send_whose_answer_was_lost_may_have_happened_or_not() -> None:
    for stored in (True, False):
        story = Story()
        story.send("plain-0.0", LEFT, "x", stored=stored, result=Result.INFO)
        assert story.anomalies() == []


def test_a_crash_may_take_back_acks_1_and_its_offset_may_be_given_out_again() -> None:
    story = Story()
    story.seek("reader-0.0", (LAX, 0))
    story.log[LAX] = ["gone"]
    story.send("loose-0.0", LAX, "gone", acks="1", stored=False).answer["offsets"] = [0]
    story.poll("reader-0.0", (LAX, 0, 1))
    story.crash()
    story.log[LAX] = []
    story.send("loose-0.0", LAX, "new", acks="1")
    story.tell("reader-0.0", "poll", Result.FAIL, {"error": "LogTruncated", "detail": f"{LAX}: …"},
               consumer="reader-0.0#0", isolation="read_committed")  # fmt: skip
    story.seek("reader-0.0", (LAX, 0))
    story.poll("reader-0.0", (LAX, 0, 1))
    assert story.anomalies() == []


def test_a_crash_may_take_back_an_open_transaction_that_was_read_uncommitted() -> None:
    story = Story()
    story.send("writer-0.0", LEFT, "open", transaction="1.0.0")
    story.poll("dirty-0.0", (LEFT, 0, 1), isolation="read_uncommitted")
    story.crash()
    story.log[LEFT] = []
    story.abort("writer-0.0", "1.0.0")
    assert story.anomalies() == []


def test_a_record_without_idempotence_may_be_there_twice() -> None:
    story = Story()
    story.send("loose-0.0", LAX, "x", acks="1", once=False)
    story.log[LAX] *= 2
    assert story.anomalies() == []


def test_a_zombie_whose_call_began_before_its_successor_may_still_succeed() -> None:
    story = Story()
    story.init("writer-0", 1, 0)
    story.send("writer-0.0", LEFT, "x", transaction="1.0.0")
    story.commit("writer-0.0", "1.0.0", Result.INFO)
    story.init("writer-0", 1, 1)
    assert story.anomalies() == []


def test_an_init_whose_answer_is_noted_late_takes_nothing_over() -> None:
    """The process was stopped with its answer until its successor worked."""
    story = Story()
    story.init("writer-0", 1, 1)
    story.init("writer-0", 1, 0)
    story.send("writer-0.1", LEFT, "x", transaction="1.1.0")
    story.commit("writer-0.1", "1.1.0")
    assert story.anomalies() == []
    story.send("writer-0.0", LEFT, "y", transaction="1.0.0")
    story.commit("writer-0.0", "1.0.0")
    assert story.found() == {Name.ZOMBIE_WRITE}


def test_an_outcome_that_was_forgotten_is_what_was_told_and_what_is_there() -> None:
    story = copying()
    story.send("writer-0.0", LAX, "x", transaction="2.0.1")
    story.commit("writer-0.0", "2.0.1", Result.INFO)
    story.outcomes = {}
    story.purged = True
    assert story.anomalies() == []
    story.send("writer-0.0", LAX, "y", transaction="2.0.1", stored=False)
    assert story.found() == {Name.TORN_TRANSACTION}


def test_a_name_of_which_nothing_was_handed_over_is_used_again() -> None:
    story = Story()
    story.send("writer-0.0", LEFT, "x", transaction="1.0.0 0", stored=False, result=Result.INFO)
    story.abort("writer-0.0", "1.0.0 0")
    story.send("writer-0.0", LEFT, "y", transaction="1.0.0 1")
    story.commit("writer-0.0", "1.0.0 1")
    story.outcomes = {"1.0.0": "COMMITTED"}
    assert story.anomalies() == []


def test_a_member_goes_on_where_another_one_has_committed() -> None:
    """It had the partition before, and gets it back after others went further; it need not see what they copied."""
    story = copying()
    story.send("plain-0.0", SOURCE, "three")
    story.send("copy-1.0", LEFT, "three>a", transaction="3.0.0")
    story.send("copy-1.0", RIGHT, "three>b", transaction="3.0.0")
    story.commit("copy-1.0", "3.0.0", input=3)
    story.poll("copy-0.0", (SOURCE, 3, 3)).answer["gained"] = [[*SOURCE, 3]]
    story.poll("reader-0.0", (SOURCE, 2, 3), (LEFT, 3, 4), (RIGHT, 2, 3))
    assert story.anomalies() == []
    story.poll("reader-0.0", (SOURCE, 3, 3)).answer["gained"] = [[*SOURCE, 0]]
    story.poll("reader-0.0", (SOURCE, 3, 3))
    assert story.found() == {Name.POLL_SKIP}


def test_commits_of_two_owners_that_overlap_in_time_may_be_answered_in_any_order() -> None:
    story = copying()
    story.init("copy-1", 3, 0)
    early = story.commit("copy-0.0", "1.0.1", input=2)
    story.commit("copy-1.0", "3.0.0", input=2)
    early.completed = None
    assert story.anomalies() == []


def test_a_commit_in_the_background_may_be_lost_with_its_process_or_its_partition() -> None:
    story = copying()
    story.member("commit offsets", "tally-0.0", 2, wait=False)
    story.member("poll", "tally-1.0", 0)
    story.member("commit offsets", "tally-1.0", 1, wait=True)
    story.member("commit offsets", "tally-1.0", 2, wait=False)
    story.member("close", "tally-1.0", 1)
    story.offsets[TALLY, SOURCE] = 1
    assert story.anomalies() == []


def test_a_reader_that_seeks_may_commit_what_it_has_read_before() -> None:
    story = copying()
    story.member("commit offsets", "reader-0.0", 2, wait=True, reset="none", group="reader-0")
    story.member("commit offsets", "reader-0.0", 1, wait=True, reset="none", group="reader-0")
    assert story.anomalies() == []


def test_a_group_that_begins_at_the_end_need_not_process_what_was_before() -> None:
    story = copying()
    story.member("seek", "late-0.0", 1, group="late-0", reset="latest")
    story.send("late-0.0", MORE, "two>late-0@late-0.0#0:1", transaction="4.0.0")
    story.commit("late-0.0", "4.0.0", group="late-0", input=2)
    assert story.anomalies() == []
    story.member("seek", "late-0.0", 2, group="late-1", reset="latest")
    story.offsets["late-1", SOURCE] = 2  # it has noted where it began, and no input came
    assert story.anomalies() == []


def test_a_process_that_stands_still_is_not_late() -> None:
    story = copying()
    late = story.tell("bounded-0.0", "answer", within=1.0)
    story.tell(NEMESIS, "pause", whom="bounded-0.0")
    story.now += 60 * SECOND
    story.tell(NEMESIS, "resume", whom="bounded-0.0")
    late.completed = story.now
    assert story.anomalies() == []
    late.completed += round((GRACE_SECONDS + 2) * SECOND)
    assert story.found() == {Name.ENDLESS_WAIT}


def test_who_is_disturbed_may_give_up() -> None:
    story = copying()
    story.crash()
    story.tell("bounded-0.0", "answer", Result.FAIL, {"error": "DeliveryTimeout"}, within=1.0)
    assert story.anomalies() == []


def test_who_gives_a_call_no_time_may_give_up() -> None:
    story = copying()
    story.crash()
    story.now += round((CALM_SECONDS + 1) * SECOND)
    story.tell("bounded-0.0", "answer", Result.FAIL, {"error": "DeliveryTimeout"}, within=0.05)
    assert story.anomalies() == []


# ── planted anomalies ──


def aborted_read(story: Story) -> None:
    story.send("writer-0.0", LAX, "x", transaction="2.0.1")
    story.abort("writer-0.0", "2.0.1")
    story.hidden.remove("x")


def aborted_read_by_one_reader(story: Story) -> None:
    story.seek("reader-1.0", (LEFT, 0))
    story.poll("reader-1.0", (LEFT, 0, 3), isolation="read_uncommitted").arguments["isolation"] = "read_committed"


def aborted_view(story: Story) -> None:
    story.tell("view-0.0", "view", answer={"transactions": {"2.0.0": {str(LEFT): 1}}})


def lost_write(story: Story) -> None:
    story.send("plain-0.0", LAX, "acknowledged", stored=False)


def lost_write_in_a_crash(story: Story) -> None:
    story.send("plain-0.0", LAX, "acknowledged", stored=False)
    story.crash()


def lost_write_of_acks_1_without_a_crash(story: Story) -> None:
    story.send("loose-0.0", LAX, "acknowledged", acks="1", stored=False)


def lost_write_of_acks_1_that_another_commit_had_flushed(story: Story) -> None:
    story.send("loose-0.0", LAX, "acknowledged", acks="1", stored=False)
    story.send("plain-0.0", LEFT, "later")
    story.seek("reader-0.0", (LEFT, 3))
    story.poll("reader-0.0", (LEFT, 3, 4))
    story.crash()


def lost_write_of_a_whole_transaction(story: Story) -> None:
    story.send("writer-0.0", LAX, "x", transaction="2.0.1", stored=False)
    story.commit("writer-0.0", "2.0.1")


def duplicate(story: Story) -> None:
    story.send("plain-0.0", LAX, "x")
    story.log[LAX].append("x")


def duplicate_of_an_unanswered_send(story: Story) -> None:
    story.send("plain-0.0", LAX, "x", result=Result.INFO)
    story.log[LAX].append("x")


def inconsistent_offsets(story: Story) -> None:
    story.send("plain-0.0", LAX, "x").answer["offsets"] = [7]


def inconsistent_offsets_of_a_reader(story: Story) -> None:
    story.send("plain-0.0", LAX, "x", "y")
    story.poll("reader-1.0", (LAX, 0, 1), x="y")


def non_monotonic_poll(story: Story) -> None:
    story.poll("reader-0.0", (LEFT, 1, 3))


def non_monotonic_poll_within_one_answer(story: Story) -> None:
    story.seek("reader-0.0", (RIGHT, 0))
    told = story.poll("reader-0.0", (RIGHT, 0, 2)).answer["records"][0]
    told[2].reverse()
    told[3].reverse()


def non_monotonic_position(story: Story) -> None:
    story.poll("reader-0.0", (LEFT, 3, 3)).answer["positions"] = [[*LEFT, 2]]


def poll_skip(story: Story) -> None:
    story.seek("reader-0.0", (RIGHT, 0))
    story.poll("reader-0.0", (RIGHT, 1, 2))


def poll_skip_by_the_position(story: Story) -> None:
    story.seek("reader-0.0", (RIGHT, 0))
    story.poll("reader-0.0", (RIGHT, 0, 1)).answer["positions"] = [[*RIGHT, 2]]


def non_monotonic_send(story: Story) -> None:
    story.send("plain-0.0", LAX, "x", result=Result.INFO)
    story.send("plain-0.0", LAX, "y", result=Result.INFO)
    story.log[LAX].reverse()


def unseen(story: Story) -> None:
    story.send("plain-0.0", LEFT, "late")  # no reader reads it, though one has reported that it is at the end


def torn_transaction(story: Story) -> None:
    story.send("writer-0.0", LAX, "x", transaction="2.0.1")
    story.send("writer-0.0", LAX, "y", transaction="2.0.1", stored=False)
    story.commit("writer-0.0", "2.0.1")


def torn_view(story: Story) -> None:
    story.tell("view-0.0", "view", answer={"transactions": {"1.0.0": {str(LEFT): 2}}})


def offsets_without_outputs(story: Story) -> None:
    story.offsets[GROUP, SOURCE] = 3


def outputs_without_offsets(story: Story) -> None:
    del story.offsets[GROUP, SOURCE]


def offsets_of_an_aborted_transaction(story: Story) -> None:
    story.commit("copy-0.0", "1.0.1", Result.FAIL, input=3)
    story.outcomes["1.0.1"] = "ABORTED"
    story.offsets[GROUP, SOURCE] = 3


def offsets_of_a_zombie(story: Story) -> None:
    """Another member has the partition by now, and went further."""
    story.init("copy-1", 3, 0)
    story.commit("copy-1.0", "3.0.0", input=2)
    story.commit("copy-0.0", "1.0.1", input=1)


def offsets_of_a_zombie_that_another_commit_hides(story: Story) -> None:
    offsets_of_a_zombie(story)
    story.commit("copy-1.0", "3.0.1", input=2)


def zombie_write(story: Story) -> None:
    story.init("copy-0", 1, 1)
    story.send("copy-0.0", LEFT, "zombie", transaction="1.0.1")
    story.abort("copy-0.0", "1.0.1")


def zombie_commit(story: Story) -> None:
    story.init("writer-0", 2, 0)
    story.send("writer-0.0", LAX, "zombie", transaction="2.0.1")
    story.tell("meddler-0.0", "fence", answer={"producer": [2, 1]}, transactional_id="writer-0")
    story.commit("writer-0.0", "2.0.1")


def output_twice(story: Story) -> None:
    story.send("copy-0.1", LEFT, "one>a@again", transaction="1.1.0")
    story.commit("copy-0.1", "1.1.0")
    story.seek("reader-0.0", (LEFT, 3))
    story.poll("reader-0.0", (LEFT, 3, 4))


def output_missing(story: Story) -> None:
    story.send("plain-0.0", SOURCE, "three")
    story.seek("reader-0.0", (SOURCE, 2))
    story.poll("reader-0.0", (SOURCE, 2, 3))


def output_of_no_input(story: Story) -> None:
    story.send("copy-0.1", RIGHT, "none>b", transaction="1.1.0")
    story.commit("copy-0.1", "1.1.0")
    story.seek("reader-0.0", (RIGHT, 2))
    story.poll("reader-0.0", (RIGHT, 2, 3))


def relayed(story: Story) -> None:
    """Add two inputs that a relay has copied."""
    story.send("keyed-0.0", RELAY_SOURCE, "three", "four")
    story.send("relay-0.0", RELAYED_TO, "three>s", "four>s", transaction="6.0.0")
    story.commit("relay-0.0", "6.0.0", group=RELAY_GROUP, **{RELAYED: 2})
    assert story.anomalies() == []


def relayed_twice(story: Story) -> None:
    relayed(story)
    story.send("relay-0.1", RELAYED_TO, "three>s@again", transaction="6.1.0")
    story.commit("relay-0.1", "6.1.0")


def relayed_without_an_output(story: Story) -> None:
    relayed(story)
    story.send("keyed-0.0", RELAY_SOURCE, "five")


def relayed_without_an_input(story: Story) -> None:
    relayed(story)
    story.send("relay-0.1", RELAYED_TO, "none>s", transaction="6.1.0")
    story.commit("relay-0.1", "6.1.0")


def disordered_in_one_transaction(story: Story) -> None:
    story.send("plain-0.0", SOURCE, "three", "four")
    story.send("copy-0.0", LEFT, "four>a", "three>a", transaction="1.0.1")
    story.send("copy-0.0", RIGHT, "three>b", "four>b", transaction="1.0.1")
    story.commit("copy-0.0", "1.0.1", input=4)
    story.seek("reader-0.0", (SOURCE, 4), (LEFT, 5), (RIGHT, 4), kind="drained")
    for at in (SOURCE, LEFT, RIGHT):
        story.seek("reader-0.0", (at, 2))
        story.poll("reader-0.0", (at, 2, len(story.log[at])))


def disordered_by_two_relays(story: Story) -> None:
    story.send("keyed-0.0", RELAY_SOURCE, "three", "four")
    story.send("relay-1.0", RELAYED_TO, "four>s", transaction="7.0.0")
    story.commit("relay-1.0", "7.0.0", group=RELAY_GROUP, **{RELAYED: 2})
    story.send("relay-0.0", RELAYED_TO, "three>s", transaction="6.0.0")
    story.commit("relay-0.0", "6.0.0")


def changed_range(story: Story) -> None:
    story.send("plain-0.0", LAX, "read", result=Result.INFO, stored=False)
    story.log[LAX] = ["read"]
    story.poll("reader-1.0", (LAX, 0, 1))
    story.log[LAX] = []


def changed_range_in_a_crash(story: Story) -> None:
    changed_range(story)
    story.crash()


def phantom(story: Story) -> None:
    story.log[LAX] = ["nobody's"]


def phantom_of_a_refused_send(story: Story) -> None:
    story.send("plain-0.0", LAX, "refused", result=Result.FAIL)


def two_outcomes(story: Story) -> None:
    story.send("writer-0.0", LAX, "x", transaction="2.0.1")
    story.commit("writer-0.0", "2.0.1")
    story.outcomes["2.0.1"] = "ABORTED"
    story.hidden.add("x")


def two_outcomes_of_a_failed_commit(story: Story) -> None:
    story.send("writer-0.0", LAX, "x", transaction="2.0.1")
    story.commit("writer-0.0", "2.0.1", Result.FAIL)
    story.outcomes["2.0.1"] = "COMMITTED"


def two_outcomes_for_who_asks(story: Story) -> None:
    story.tell("meddler-0.0", "outcome", answer={"outcome": "ABORTED"}, transaction="1.0.0", resolve=True)


def nobody_asked_for_the_commit(story: Story) -> None:
    story.send("writer-0.0", LAX, "x", transaction="2.0.1")
    story.outcomes["2.0.1"] = "COMMITTED"


def stuck(story: Story) -> None:
    story.stable[LEFT] = 1


def members_that_do_not_go(story: Story) -> None:
    story.members[RELAY_GROUP] = 1


def violation(story: Story) -> None:
    story.violations.append("a gap")


def false_truncation(story: Story) -> None:
    story.tell("reader-0.0", "poll", Result.FAIL, {"error": "LogTruncated", "detail": f"{LEFT}: …"},
               consumer="reader-0.0#0", isolation="read_committed")  # fmt: skip


def offset_back(story: Story) -> None:
    """An older background commit is written after a newer one that had returned."""
    story.member("commit offsets", "tally-0.0", 1, wait=False)
    story.member("commit offsets", "tally-0.0", 2, wait=True)
    story.offsets[TALLY, SOURCE] = 1


def offset_back_for_a_moment(story: Story) -> None:
    story.member("commit offsets", "tally-0.0", 2, wait=True)
    story.member("committed", "tally-0.0", 1)
    story.offsets[TALLY, SOURCE] = 2


def offset_back_for_who_comes_next(story: Story) -> None:
    story.member("commit offsets", "tally-0.0", 2, wait=True)
    story.member("poll", "tally-1.0", 1)
    story.offsets[TALLY, SOURCE] = 2


def commit_lost_at_close(story: Story) -> None:
    story.member("commit offsets", "tally-0.0", 1, wait=False)
    story.member("commit offsets", "tally-0.0", 2, wait=False)
    story.member("close", "tally-0.0", 2)
    story.offsets[TALLY, SOURCE] = 1


def commit_lost_altogether(story: Story) -> None:
    story.member("close", "tally-0.0", 2)


def never_processed(story: Story) -> None:
    """A group that begins at the end goes there again after an abort, past records that it got."""
    story.member("seek", "late-0.0", 0, group="late-0", reset="latest")
    story.member("seek", "late-0.0", 1, group="late-0", reset="latest")
    story.send("late-0.0", MORE, "two>late-0@late-0.0#0:1", transaction="4.0.0")
    story.commit("late-0.0", "4.0.0", group="late-0", input=2)


def processed_twice(story: Story) -> None:
    """The next member begins before a sealed transaction's offsets, and both are committed."""
    story.member("seek", "seals-0.0", 0, group=SEALED)
    for by, transaction in (("seals-0.0", "4.0.0"), ("seals-1.0", "5.0.0")):
        story.send(by, MORE, *(f"{value}>{SEALED}@{by}#0:1" for value in ("one", "two")), transaction=transaction)
        story.commit(by, transaction, group=SEALED, input=2)


def endless_wait(story: Story) -> None:
    hung = story.tell("bounded-0.0", "answer", within=1.0)
    hung.completed = hung.invoked + round((GRACE_SECONDS + 2) * SECOND)


def endless_wait_of_a_commit(story: Story) -> None:
    story.send("bounded-0.0", MORE, "x", transaction="4.0.0")
    hung = story.commit("bounded-0.0", "4.0.0")
    hung.arguments["within"] = 1.0
    hung.completed = hung.invoked + round((GRACE_SECONDS + 2) * SECOND)


def deadlock(story: Story) -> None:
    detail = "deadlock detected\nDETAIL: …"
    story.send("publisher-0.0", MORE, "x", stored=False, result=Result.FAIL).answer["detail"] = detail


def starved(story: Story) -> None:
    story.crash()
    story.now += round((CALM_SECONDS + 1) * SECOND)
    story.tell("wide-0.0", "spread", Result.FAIL, {"error": "DeliveryTimeout"}, within=60.0)


def row_without_its_transaction(story: Story) -> None:
    story.outcomes["9.0.0"] = "ABORTED"
    story.commit("session-0.0", "9.0.0", Result.FAIL).arguments["row"] = "row"
    story.rows = ["row"]


def row_of_nobody(story: Story) -> None:
    story.rows = ["row"]


def transaction_without_its_row(story: Story) -> None:
    story.send("session-0.0", MORE, "x", transaction="9.0.0")
    story.commit("session-0.0", "9.0.0").arguments["row"] = "row"


PLANTED: Final[dict[Name, list[Callable[[Story], None]]]] = {
    Name.ABORTED_READ: [aborted_read, aborted_read_by_one_reader, aborted_view],
    Name.LOST_WRITE: [
        lost_write,
        lost_write_in_a_crash,
        lost_write_of_acks_1_without_a_crash,
        lost_write_of_acks_1_that_another_commit_had_flushed,
        lost_write_of_a_whole_transaction,
    ],
    Name.DUPLICATE: [duplicate, duplicate_of_an_unanswered_send],
    Name.INCONSISTENT_OFFSETS: [inconsistent_offsets, inconsistent_offsets_of_a_reader],
    Name.NON_MONOTONIC_POLL: [non_monotonic_poll, non_monotonic_poll_within_one_answer, non_monotonic_position],
    Name.POLL_SKIP: [poll_skip, poll_skip_by_the_position],
    Name.NON_MONOTONIC_SEND: [non_monotonic_send],
    Name.UNSEEN: [unseen],
    Name.TORN_TRANSACTION: [torn_transaction, torn_view],
    Name.OFFSET_OUTPUT_SPLIT: [
        offsets_without_outputs,
        outputs_without_offsets,
        offsets_of_an_aborted_transaction,
        offsets_of_a_zombie,
        offsets_of_a_zombie_that_another_commit_hides,
    ],
    Name.ZOMBIE_WRITE: [zombie_write, zombie_commit],
    Name.IMAGE: [
        *(output_twice, output_missing, output_of_no_input),
        *(relayed_twice, relayed_without_an_output, relayed_without_an_input),
    ],
    Name.DISORDERED: [disordered_in_one_transaction, disordered_by_two_relays],
    Name.CHANGED_RANGE: [changed_range, changed_range_in_a_crash],
    Name.PHANTOM: [phantom, phantom_of_a_refused_send],
    Name.TWO_OUTCOMES: [
        two_outcomes,
        two_outcomes_of_a_failed_commit,
        two_outcomes_for_who_asks,
        nobody_asked_for_the_commit,
    ],
    Name.HOLE: [],
    Name.STUCK: [stuck, members_that_do_not_go],
    Name.VIOLATION: [violation],
    Name.FALSE_TRUNCATION: [false_truncation],
    Name.OFFSET_BACK: [offset_back, offset_back_for_a_moment, offset_back_for_who_comes_next],
    Name.COMMIT_LOST: [commit_lost_at_close, commit_lost_altogether],
    Name.NEVER_PROCESSED: [never_processed],
    Name.PROCESSED_TWICE: [processed_twice],
    Name.ENDLESS_WAIT: [endless_wait, endless_wait_of_a_commit],
    Name.DEADLOCK: [deadlock],
    Name.STARVED: [starved],
    Name.ROW_SPLIT: [row_without_its_transaction, row_of_nobody, transaction_without_its_row],
}
CASES: Final = [(name, plant) for name, plants in PLANTED.items() for plant in plants]


@pytest.mark.parametrize(("name", "plant"), CASES, ids=[plant.__name__ for _, plant in CASES])
def test_the_checker_names_a_planted_anomaly_and_no_other(name: Name, plant: Callable[[Story], None]) -> None:
    story = copying()
    plant(story)
    assert story.found() == {name}, story.anomalies()


def test_what_a_session_committed_without_an_answer_is_what_is_there() -> None:
    """Its name is the application's own: the database does not know it."""
    for happened in (True, False):
        story = copying()
        story.send("session-0.0", MORE, "x", transaction="own-name", result=Result.INFO)
        story.commit("session-0.0", "own-name", Result.INFO).arguments["row"] = "row"
        del story.outcomes["own-name"]
        story.rows = ["row"] if happened else []
        story.hidden |= set() if happened else {"x"}
        assert story.anomalies() == []
        story.hidden ^= {"x"}
        assert story.found() == {Name.LOST_WRITE if happened else Name.ROW_SPLIT}


def test_a_log_that_is_read_out_of_order_or_twice_is_named() -> None:
    for again in ([0, 1, 1], [1, 0]):
        story = copying()
        end = story.end()
        rows = end.committed[SOURCE]
        changed = replace(end, committed={**end.committed, SOURCE: [rows[at] for at in again]})
        found = {anomaly.name for anomaly in check(History(story.operations), changed)}
        assert Name.NON_MONOTONIC_POLL in found


def test_a_hole_in_the_log_is_named() -> None:
    story = copying()
    end = story.end()
    gap = {**end.everything, LAX: [(0, "x"), (2, "y")]}
    story.send("plain-0.0", LAX, "x", stored=False).answer["offsets"] = [0]
    story.send("plain-0.0", LAX, "y", stored=False).answer["offsets"] = [2]
    holed = Settled({**end.committed, LAX: gap[LAX]}, gap, {**end.ends, LAX: (3, 3)}, end.offsets, end.outcomes)
    assert {anomaly.name for anomaly in check(History(story.operations), holed)} == {Name.HOLE}


def test_every_anomaly_is_planted() -> None:
    assert set(PLANTED) == set(Name)


# ── the recorder ──


def test_what_was_recorded_is_read_again_and_a_line_that_was_cut_off_is_not(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, "writer-0.0")
    number = recorder.invoke("commit", transaction="1.0.0 0", group=None, offsets=[])
    lost = recorder.invoke("abort", transaction="1.0.1 0")
    recorder.complete(Result.OK, number)
    recorder.happened("drained", arguments={"consumer": "c"}, positions=[["input", 0, 1]])
    with (tmp_path / "writer-0.0.jsonl").open("a") as file:
        file.write('{"time":1,"process":"writer-0.0","ty')
    commit, abort, drained = read_history(tmp_path).operations
    assert (commit.kind, commit.result, commit.arguments["transaction"]) == ("commit", Result.OK, "1.0.0 0")
    assert commit.completed is not None
    assert commit.invoked <= commit.completed
    assert (abort.number, abort.result, abort.completed) == (lost, Result.INFO, None)
    assert drained.answer == {"positions": [["input", 0, 1]]}


def test_operations_are_counted_by_records_and_calls() -> None:
    counted = History(copying().operations).counts()
    assert counted["records sent"] == 7
    assert counted["records polled"] == 2 + 2 + 2 + 2
    assert (counted["commit"], counted["abort"], counted["view"]) == (1, 1, 1)
