"""The functions that promise to be flushed (I9), each with calls that must keep the promise: the one list of them."""

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from msgtx import errors
from msgtx.database.calls import batch_array, call, query
from msgtx.generated import calls
from msgtx.store.append.append import append, append_and_decide
from msgtx.store.append.append_once import KeyedRecord, append_once
from msgtx.store.fetch.holders import expire_holders
from msgtx.store.fetch.snapshots import delete_snapshot, save_snapshot
from msgtx.store.groups.groups import commit_offsets, delete_group, delete_offsets, reset_offsets
from msgtx.store.mirrors import advance_mirror, delete_mirror, take_over_mirror
from msgtx.store.operator.installation import (
    change_incarnation,
    describe_installation,
    fence_everybody,
    remove_all_members,
)
from msgtx.store.shares.answers import acknowledge_in_session, acknowledge_in_transaction, acknowledge_records
from msgtx.store.shares.shares import (
    Acquiring,
    acquire_records,
    acquire_records_together,
    configure_share_group,
    ensure_dead_letters,
    join_share_group,
    redrive_dead_letters,
    reset_share_offsets,
)
from msgtx.store.spark import Attempt, BatchName, abort_batch, begin_attempt, decide_batch, follow_batch, record_range
from msgtx.store.sweeps import sweeps
from msgtx.store.sweeps.compaction import find_dirty_log
from msgtx.store.sweeps.coordinators import lease_shards, release_shards
from msgtx.store.topics.retention import LOG_END, delete_records
from msgtx.store.topics.topics import alter_topic, create_topic, delete_topic, describe_topics
from msgtx.store.transactions.decide import decide
from msgtx.store.transactions.producers import fence_producer, init_producer_id
from msgtx.store.transactions.seal import commit_in_session, complete_prepared, decide_sealed, seal
from msgtx.store.transactions.transactions import end_transaction, transaction_outcome
from msgtx.types import GroupMetadata, OffsetAndMetadata, ProducerId
from tests.databases import Clock, Connection
from tests.store.roster import Roster
from tests.store.sharing import ShareGroup
from tests.store.steps import Writer, batch, expire_transaction, expire_transactions, new_partition, plain, unique


@dataclass(frozen=True, slots=True)
class Stage:
    """Where a case plays: it prepares over `aside`, and `session` says the one call that must be flushed."""

    aside: Connection
    session: Connection
    clock: Clock

    def later(self) -> None:
        """Let more time pass than any timeout or expiry."""
        self.clock("30 days")

    def sent(self) -> Writer:
        """Return a producer with a record in an open transaction."""
        writer = Writer(self.aside)
        writer.send(new_partition(self.aside), b"a")
        return writer

    def topic(self, **settings: object) -> str:
        """Return the name of a new topic."""
        name = unique("topic")
        create_topic(self.aside, name, 1, settings)
        return name

    def partition(self, **settings: object) -> int:
        """Return a new partition with a record that has a key."""
        partition = new_partition(self.aside, **settings)
        plain(self.aside, partition, b"a", keys=[b"key"])
        return partition

    def group(self) -> tuple[str, int]:
        """Return a group, and a partition on which it has an offset."""
        partition, name = self.partition(), unique("group")
        commit_offsets(self.aside, {GroupMetadata(name): {partition: OffsetAndMetadata(1)}})
        return name, partition

    def members(self) -> Roster:
        """Return a group of one member that owns a partition; the session goes on with it."""
        group = Roster(self.aside)
        group.join("a")
        assert group.assign({group.partitions[0]: "a"})
        return group

    def attempt(self) -> tuple[BatchName, Attempt]:
        """Return a batch of Spark, and an attempt that has written a record."""
        of = BatchName(unique("app"), "", 0)
        producer_id = begin_attempt(self.aside, of, timeout_ms=60_000)
        assert producer_id is not None
        partition = new_partition(self.aside)
        append(self.aside, [batch(partition, b"a", producer=(producer_id, 0), number=0, sequence=0)], flushed=False)
        return of, Attempt(producer_id, {partition: 0}, 1)


def in_a_call_of(function: str, *arguments: object, stage: Stage) -> object:
    """Call a function of the database that the library does not call itself."""
    places = ", ".join(["%s"] * len(arguments))
    return stage.session.execute(f"select msgtx.{function}({places})", arguments).fetchone()


# ── records and decisions ──


def idempotent_batch(stage: Stage) -> None:
    producer = init_producer_id(stage.aside, None, timeout_ms=60_000)
    append(stage.session, [batch(new_partition(stage.aside), b"a", producer=producer, sequence=0)])


def records_with_keys(stage: Stage) -> None:
    append_once(stage.session, [KeyedRecord(new_partition(stage.aside), unique("key"), b"a", None, 7)])


def records_whose_keys_are_held(stage: Stage) -> None:
    record = KeyedRecord(new_partition(stage.aside), unique("key"), b"a", None, 7)
    append_once(stage.aside, [record])
    assert append_once(stage.session, [record])[0].duplicate


def records_of_a_session(stage: Stage) -> None:
    assert commit_in_session(stage.session, [batch(new_partition(stage.aside), b"a")])
    stage.session.execute("set constraints all immediate")  # as its COMMIT does


def records_with_a_commit(stage: Stage) -> None:
    call(stage.session, calls.APPEND_AT_COMMIT, batch_array(stage.session, [batch(new_partition(stage.aside), b"a")]))


def plain_batch(stage: Stage) -> None:
    row = stage.session.execute(
        "select msgtx.append_plain(array[row(%s, null, null, null, null, 7, null, array['a'::bytea], null, null, null, null)"
        "::msgtx.batch])",
        [new_partition(stage.aside)],
    ).fetchone()
    assert row == (True,)


def whole_transaction(stage: Stage) -> None:
    writer = Writer(stage.aside)
    append_and_decide(stage.session, writer.name, [writer.row(new_partition(stage.aside), b"a")])


def commit(stage: Stage) -> None:
    writer = stage.sent()
    assert decide(stage.session, writer.name, "COMMIT", tails=writer.tails).outcome == "COMMIT"


def abort(stage: Stage) -> None:
    writer = stage.sent()
    assert decide(stage.session, writer.name, "ABORT", tails=writer.tails).outcome == "ABORT"


def abort_of_one_that_is_overdue(stage: Stage) -> None:
    name = stage.sent().name
    stage.later()
    assert expire_transaction(stage.session, name)


def abort_of_what_holds_a_reader_back(stage: Stage) -> None:
    writer = stage.sent()
    stage.later()
    assert [holder.expired for holder in expire_holders(stage.session, [*writer.tails])] == [True]


def sweep_of_overdue_transactions(stage: Stage) -> None:
    stage.sent()
    stage.later()
    assert expire_transactions(stage.session)


def seal_that_finds_its_tail_lost(stage: Stage) -> None:
    writer = stage.sent()
    lost = {partition: sequence + 1 for partition, sequence in writer.tails.items()}
    assert isinstance(seal(stage.session, writer.name, "session", tails=lost).error, errors.TransactionAborted)


def prepare(stage: Stage) -> None:
    writer = stage.sent()
    assert seal(stage.session, writer.name, "external", tails=writer.tails).error is None


def commit_of_what_is_sealed(stage: Stage) -> None:
    writer = stage.sent()
    sealed = seal(stage.aside, writer.name, "session", tails=writer.tails).sealed
    assert sealed is not None
    decide_sealed(stage.session, sealed)


def commit_of_what_is_prepared(stage: Stage) -> None:
    writer = stage.sent()
    assert seal(stage.aside, writer.name, "external", tails=writer.tails).error is None
    complete_prepared(stage.session, writer.name, "COMMIT")


# ── calls that are repeated: they are answered from what the first one stored (decision 0167) ──


def batch_again(stage: Stage) -> None:
    producer, partition = init_producer_id(stage.aside, None, timeout_ms=60_000), new_partition(stage.aside)
    for session in (stage.aside, stage.session):
        append(session, [batch(partition, b"a", producer=producer, sequence=0)])


def whole_transaction_again(stage: Stage) -> None:
    writer = Writer(stage.aside)
    row = writer.row(new_partition(stage.aside), b"a")
    for session in (stage.aside, stage.session):
        append_and_decide(session, writer.name, [row])


def commit_again(stage: Stage) -> None:
    writer = stage.sent()
    for session in (stage.aside, stage.session):
        assert decide(session, writer.name, "COMMIT", tails=writer.tails).outcome == "COMMIT"


def seal_again(stage: Stage) -> None:
    writer = stage.sent()
    for session in (stage.aside, stage.session):
        assert seal(session, writer.name, "external", tails=writer.tails).error is None


def seal_after_an_abort(stage: Stage) -> None:
    writer = stage.sent()
    decide(stage.aside, writer.name, "ABORT", tails=writer.tails)
    assert seal(stage.session, writer.name, "external", tails=writer.tails).error is not None


def commit_of_what_is_prepared_again(stage: Stage) -> None:
    writer = stage.sent()
    assert seal(stage.aside, writer.name, "external", tails=writer.tails).error is None
    for session in (stage.aside, stage.session):
        complete_prepared(session, writer.name, "COMMIT")


def end_again(stage: Stage) -> None:
    writer = stage.sent()
    for session in (stage.aside, stage.session):
        assert end_transaction(session, writer.name, "resolve") == "ABORTED"


def outcome(stage: Stage) -> None:
    writer = stage.sent()
    decide(stage.aside, writer.name, "ABORT", tails=writer.tails)
    assert transaction_outcome(stage.session, writer.name).outcome == "ABORTED"


def new_epoch_again(stage: Stage) -> None:
    first = init_producer_id(stage.aside, None, timeout_ms=60_000)
    for session in (stage.aside, stage.session):
        assert init_producer_id(session, None, timeout_ms=60_000, expected=first).epoch == 1


def batch_of_spark_again(stage: Stage) -> None:
    of, attempt = stage.attempt()
    for session in (stage.aside, stage.session):
        assert decide_batch(session, of, [attempt]).error is None


def batch_of_spark_that_is_begun_again(stage: Stage) -> None:
    of = BatchName(unique("app"), "", 0)
    decide_batch(stage.aside, of, [])
    assert in_a_call_of("begin_batch", of.app_id, of.batch_id, stage=stage) == (False,)


# ── producers ──


def fence_of_all(stage: Stage) -> None:
    Writer(stage.aside)
    assert fence_everybody(stage.session, plain=False)


def fence_of_plain_ones(stage: Stage) -> None:
    producer = init_producer_id(stage.aside, None, timeout_ms=60_000)
    append(stage.aside, [batch(new_partition(stage.aside), b"a", producer=producer, sequence=0)])
    assert fence_everybody(stage.session, plain=True)


def removal_of_idle_producers(stage: Stage) -> None:
    Writer(stage.aside)
    stage.later()
    assert sweeps.remove_idle_producers(stage.session, None, None).done["producer_ids_removed"]


# ── groups ──


def offsets(stage: Stage) -> None:
    commit_offsets(stage.session, {GroupMetadata(unique("group")): {new_partition(stage.aside): OffsetAndMetadata(0)}})


def taking(stage: Stage) -> None:
    topic = stage.topic()
    plain(stage.aside, describe_topics(stage.aside, [topic])[topic].partition_ids[0], b"a")
    assert query(stage.session, "select * from msgtx.take(%s, %s)", topic, unique("group"))


def taking_from_the_ends(stage: Stage) -> None:
    query(stage.session, "select * from msgtx.take(%s, %s, auto_offset_reset => 'latest')", stage.topic(), unique("group"))


def reset(stage: Stage) -> None:
    group, partition = stage.group()
    reset_offsets(stage.session, group, {partition: 0})


def removal_of_offsets(stage: Stage) -> None:
    group, partition = stage.group()
    assert delete_offsets(stage.session, group, [partition]) == [partition]


def removal_of_all_members(stage: Stage) -> None:
    Roster(stage.aside).join("a")
    assert remove_all_members(stage.session) >= 1


def join(stage: Stage) -> None:
    group = Roster(stage.aside)
    group.connection = stage.session
    group.join("a")


def join_again_for_the_same(stage: Stage) -> None:
    """A static member that replaces itself under another id: the assignment stays, and the generation rises."""
    group = Roster(stage.aside)
    group.join("a", "instance")
    group.connection = stage.session
    group.join("b", "instance")


def join_again_with_another_timeout(stage: Stage) -> None:
    """The generation stays."""
    group = Roster(stage.aside)
    group.join("a")
    group.connection = stage.session
    group.join("a", session_timeout_ms=6_000)


def join_to_share(stage: Stage) -> None:
    join_share_group(
        stage.session,
        unique("share"),
        member_id="a",
        client_host=None,
        client_process=None,
        session_timeout_ms=45_000,
        topics=["t"],
    )


def acquisition_that_buries(stage: Stage) -> None:
    group = ShareGroup(stage.aside, stage.partition(), delivery_count_limit=1)
    ensure_dead_letters(stage.aside, group.name)  # which is flushed itself
    group.acquire("a", 1)
    group.expire_locks("a")
    group.connection = stage.session
    assert group.acquire("a", 1) == {}


def acquisition_whose_caller_flushes(stage: Stage) -> None:
    group = ShareGroup(stage.aside, stage.partition())
    group.acquire("a", 1)
    answers = group.answers("a", {0: "accept"})
    acquire_records(stage.session, Acquiring(group.name, group.join("a"), 2, [group.partition], 1, 1, answers))


def acquisition_together(stage: Stage) -> None:
    partition = stage.partition()
    plain(stage.aside, partition, b"b")
    group = ShareGroup(stage.aside, partition)
    asked = []
    for member in ("a", "b"):
        answers = group.answers(member, dict.fromkeys(group.acquire(member, 1), "accept"))
        asked.append(Acquiring(group.name, group.join(member), 9, [partition], 1, 1, answers))
    assert None not in acquire_records_together(stage.session, asked)


def acknowledgement(stage: Stage) -> None:
    group = ShareGroup(stage.aside, stage.partition())
    group.acquire("a", 1)
    assert acknowledge_records(stage.session, group.answers("a", {0: "accept"}), call_number=2) == []


def acknowledgement_that_is_repeated(stage: Stage) -> None:
    """The first one may have been made in a call whose flush never came."""
    group = ShareGroup(stage.aside, stage.partition())
    group.acquire("a", 1)
    for session in (stage.aside, stage.session):
        assert acknowledge_records(session, group.answers("a", {0: "accept"}), call_number=2) == []


def pending_acknowledgement(stage: Stage) -> None:
    group, writer = ShareGroup(stage.aside, stage.partition()), Writer(stage.aside)
    group.acquire("a", 1)
    acknowledge_in_transaction(stage.session, writer.name, group.answers("a", {0: "accept"}), call_number=2)


def whole_transaction_with_acknowledgements(stage: Stage) -> None:
    group, writer = ShareGroup(stage.aside, stage.partition()), Writer(stage.aside)
    group.acquire("a", 1)
    append_and_decide(
        stage.session, writer.name, [writer.row(group.partition, b"a")], answers=group.answers("a", {0: "accept"})
    )


def acknowledgement_of_a_session(stage: Stage) -> None:
    group = ShareGroup(stage.aside, stage.partition())
    group.acquire("a", 1)
    assert acknowledge_in_session(stage.session, group.answers("a", {0: "accept"}))
    stage.session.execute("set constraints all immediate")  # as its COMMIT does


def reset_of_a_share_group(stage: Stage) -> None:
    name, partition = unique("share"), stage.partition()
    configure_share_group(stage.aside, name, {})
    reset_share_offsets(stage.session, name, {partition: 0})


def dead_letters_that_go_back(stage: Stage) -> None:
    group = ShareGroup(stage.aside, stage.partition())
    group.acquire("a", 1)
    ensure_dead_letters(stage.aside, group.name)
    assert group.answer("a", {0: "reject"}) == []
    assert redrive_dead_letters(stage.session, group.name, 0, upto=None, most=9, skip_missing=False).sent == 1


def step_over_what_is_no_dead_letter(stage: Stage) -> None:
    group = ShareGroup(stage.aside, stage.partition())
    ensure_dead_letters(stage.aside, group.name)
    plain(stage.aside, describe_topics(stage.aside, [f"{group.name}-dead-letters"]).popitem()[1].partition_ids[0], b"x")
    assert redrive_dead_letters(stage.session, group.name, 0, upto=None, most=9, skip_missing=False).sent == 0


def settled_acknowledgement(stage: Stage) -> None:
    group, writer = ShareGroup(stage.aside, stage.partition()), Writer(stage.aside)
    group.acquire("a", 1)
    acknowledge_in_transaction(stage.aside, writer.name, group.answers("a", {0: "accept"}), call_number=2)
    decide(stage.aside, writer.name, "COMMIT", tails={})
    assert in_a_call_of("settle_shares", stage=stage) is not None


def last_delivery(stage: Stage) -> None:
    group = ShareGroup(stage.aside, stage.partition(), delivery_count_limit=1)
    ensure_dead_letters(stage.aside, group.name)
    group.acquire("a", 1)
    group.answer("a", {0: "release"})
    assert in_a_call_of("bury_dead_shares", stage=stage) is not None


def assignment(stage: Stage) -> None:
    group = stage.members()
    state = group.state
    stage.session.execute(
        "select msgtx.assign_partitions(%s, %s, %s, '{}', '{}')", [group.name, state.generation, state.topics_version]
    )


def release(stage: Stage) -> None:
    group = stage.members()
    group.connection = stage.session
    group.release("a", group.partitions[0])


def leave(stage: Stage) -> None:
    group = stage.members()
    group.connection = stage.session
    assert group.leave("a")


def members_taken_out(stage: Stage) -> None:
    group = stage.members()
    in_a_call_of("take_out_members", group.state.group_id, [group.numbers["a"]], stage=stage)


def removal_of_members(stage: Stage) -> None:
    stage.members()
    stage.later()
    assert sweeps.remove_members(stage.session, None, None).done["members_removed"]


# ── topics ──


def log_start_by_hand(stage: Stage) -> None:
    partition = stage.partition()
    assert delete_records(stage.session, {partition: LOG_END}) == {partition: 1}


def removal_of_the_front(stage: Stage) -> None:
    partition = stage.partition()
    delete_records(stage.aside, {partition: LOG_END})
    in_a_call_of("remove_front", partition, 10, 1 << 20, stage=stage)


def sweep_of_retention(stage: Stage) -> None:
    stage.partition(retention_ms=1)
    stage.later()
    assert sweeps.remove_old_batches(stage.session, None, None).done["batches_removed"]


def search_for_a_dirty_log(stage: Stage) -> None:
    stage.partition(cleanup_policy="compact")
    found, _ = find_dirty_log(stage.session, None, min_dirty_ratio=0, leases=None)
    assert found is not None


# ── the installation ──


def new_coordinator(stage: Stage) -> None:
    """It gets no shard: one that is there holds all of them until its next call."""
    lease_shards(stage.aside, None, host="here", process=1)
    assert not lease_shards(stage.session, None, host="here", process=2).epochs


def shards_that_change_hands(stage: Stage) -> None:
    """No coordinator is new."""
    first = lease_shards(stage.aside, None, host="here", process=1)
    second = lease_shards(stage.aside, None, host="here", process=2)
    release_shards(stage.aside, first.coordinator_id)
    assert lease_shards(stage.session, second.coordinator_id, host="here", process=2).epochs


def new_snapshot(stage: Stage) -> None:
    save_snapshot(stage.session, unique("cut"), str(describe_installation(stage.aside).incarnation), replace=False)


def removal_of_a_snapshot(stage: Stage) -> None:
    name = unique("cut")
    save_snapshot(stage.aside, name, str(describe_installation(stage.aside).incarnation), replace=False)
    assert delete_snapshot(stage.session, name)


# ── mirrors ──


def mirror_run(stage: Stage, *, called: Connection) -> tuple[str, ProducerId, int]:
    name = unique("mirror")
    run = init_producer_id(stage.aside, f"mirror.{name}", timeout_ms=60_000)
    return name, run, take_over_mirror(called, name, uuid.uuid4(), run, is_new=True, address="")[0].revision


def take_over_of_a_mirror(stage: Stage) -> None:
    mirror_run(stage, called=stage.session)


def progress_of_a_mirror(stage: Stage) -> None:
    name, run, revision = mirror_run(stage, called=stage.aside)
    place = ("t", 0, 1, "7", "")
    advance_mirror(stage.session, name, run, revision, source="s", places=[place], records=1, lag=(0, 0))


def removal_of_a_mirror(stage: Stage) -> None:
    assert delete_mirror(stage.session, mirror_run(stage, called=stage.aside)[0])


# ── Spark ──


def new_attempt(stage: Stage) -> None:
    assert begin_attempt(stage.session, BatchName(unique("app"), "", 0), timeout_ms=60_000) is not None


def batch_of_spark(stage: Stage) -> None:
    of, attempt = stage.attempt()
    assert decide_batch(stage.session, of, [attempt]).error is None


def batch_without_records(stage: Stage) -> None:
    assert decide_batch(stage.session, BatchName(unique("app"), "", 0), []).error is None


def batch_that_a_group_follows(stage: Stage) -> None:
    group, ranges = unique("group"), {new_partition(stage.aside): (0, 1)}
    record_range(stage.aside, unique("query"), 0, group=group, ranges=ranges)
    follow_batch(stage.session, group, ranges, source_id="source")


def abort_of_a_batch(stage: Stage) -> None:
    of, _ = stage.attempt()
    assert abort_batch(stage.session, of) == 1


CASES: Final[dict[str, tuple[Callable[[Stage], None], ...]]] = {
    "abort_batch": (abort_of_a_batch,),
    "alter_topic": (lambda stage: alter_topic(stage.session, stage.topic(), 2, {}),),
    "append": (
        lambda stage: append(stage.session, [batch(new_partition(stage.aside), b"a")]),
        idempotent_batch,
        batch_again,
    ),
    "append_and_decide": (whole_transaction, whole_transaction_again),
    "append_once": (records_with_keys, records_whose_keys_are_held),
    "append_at_commit": (records_with_a_commit,),
    "append_plain": (plain_batch,),
    "assign_partitions": (assignment,),
    "begin_attempt": (new_attempt,),
    "begin_batch": (batch_of_spark_that_is_begun_again,),
    "begins_now": (taking_from_the_ends,),
    "change_incarnation": (lambda stage: change_incarnation(stage.session),),
    "commit_in_session": (records_of_a_session,),
    "commit_offsets": (offsets,),
    "complete_prepared": (commit_of_what_is_prepared, commit_of_what_is_prepared_again),
    "create_topic": (lambda stage: create_topic(stage.session, unique("topic"), 1, {}),),
    "insert_topic": (lambda stage: create_topic(stage.session, unique("topic"), 1, {}),),
    "decide": (commit, abort, commit_again),
    "decide_batch": (batch_of_spark, batch_without_records, batch_of_spark_again),
    "decide_sealed": (commit_of_what_is_sealed,),
    "delete_group": (lambda stage: delete_group(stage.session, stage.group()[0]),),
    "delete_offsets": (removal_of_offsets,),
    "delete_records": (log_start_by_hand,),
    "advance_mirror": (progress_of_a_mirror,),
    "delete_mirror": (removal_of_a_mirror,),
    "take_over_mirror": (take_over_of_a_mirror,),
    "delete_snapshot": (removal_of_a_snapshot,),
    "delete_topic": (lambda stage: delete_topic(stage.session, stage.topic()),),
    "end_transaction": (lambda stage: end_transaction(stage.session, stage.sent().name, "resolve"), end_again),
    "expire_holders": (abort_of_what_holds_a_reader_back,),
    "expire_transaction": (abort_of_one_that_is_overdue,),
    "expire_overdue": (sweep_of_overdue_transactions,),
    "fence_everybody": (fence_of_all,),
    "fence_plain_producers": (fence_of_plain_ones,),
    "fence_producer": (lambda stage: fence_producer(stage.session, Writer(stage.aside).transactional_id),),
    "follow_batch": (batch_that_a_group_follows,),
    "find_dirty_log": (search_for_a_dirty_log,),
    "init_producer_id": (
        lambda stage: init_producer_id(stage.session, None, timeout_ms=60_000),
        lambda stage: init_producer_id(stage.session, unique("id"), timeout_ms=60_000),
        lambda stage: init_producer_id(stage.session, Writer(stage.aside).transactional_id, timeout_ms=60_000),
        new_epoch_again,
    ),
    "insert_decision": (lambda stage: in_a_call_of("insert_decision", *stage.sent().name, "ABORT", "fence", stage=stage),),
    "join_group": (join, join_again_for_the_same, join_again_with_another_timeout),
    "answer_or_raise": (acknowledgement_of_a_session, pending_acknowledgement),
    "acknowledge_in_session": (acknowledgement_of_a_session,),
    "acknowledge_in_transaction": (pending_acknowledgement,),
    "acknowledge_records": (acknowledgement, acknowledgement_that_is_repeated),
    "append_acknowledge_decide": (whole_transaction_with_acknowledgements,),
    "configure_share_group": (
        lambda stage: configure_share_group(stage.session, unique("share"), {"delivery_count_limit": 7}),
    ),
    "reset_share_offsets": (reset_of_a_share_group,),
    "ensure_dead_letters": (
        lambda stage: ensure_dead_letters(stage.session, ShareGroup(stage.aside, stage.partition()).name),
    ),
    "redrive_dead_letters": (dead_letters_that_go_back, step_over_what_is_no_dead_letter),
    "settle_shares": (settled_acknowledgement,),
    "bury_dead_shares": (last_delivery,),
    "acquire_generally": (acquisition_that_buries,),
    "acquire_records": (acquisition_that_buries,),
    "flush_log": (acquisition_whose_caller_flushes, acquisition_together),
    "join_share_group": (join_to_share,),
    "lease_shards": (new_coordinator, shards_that_change_hands),
    "leave_group": (leave,),
    "raise_generation": (lambda stage: in_a_call_of("raise_generation", stage.members().state.group_id, True, stage=stage),),
    "release_partitions": (release,),
    "remove_all_members": (removal_of_all_members,),
    "remove_front": (removal_of_the_front,),
    "remove_idle_producers": (removal_of_idle_producers,),
    "remove_members": (removal_of_members,),
    "remove_old_batches": (sweep_of_retention,),
    "reset_offsets": (reset,),
    "save_snapshot": (new_snapshot,),
    "seal": (seal_that_finds_its_tail_lost, prepare, seal_again, seal_after_an_abort),
    "take": (taking,),
    "transaction_outcome": (outcome,),
    "take_out_members": (members_taken_out,),
}
