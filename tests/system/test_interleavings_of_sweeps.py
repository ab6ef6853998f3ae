"""T4, interleavings of sweeps: sweeps beside each other and beside the clients that they affect, in every order.

As in `test_interleavings`: each call is one SQL transaction, paused before each lock and before COMMIT.
"""

from typing import Any

import pytest

from msgtx import OffsetAndMetadata, ProducerId, errors
from msgtx.store.append.append import append
from msgtx.store.groups.groups import commit_offsets, committed_offsets, offset_columns
from msgtx.store.sweeps import sweeps
from msgtx.store.sweeps.coordinators import Leases, lease_shards, list_shards, release_shards
from msgtx.store.transactions.decide import decide
from msgtx.store.transactions.transactions import mark, transaction_outcome
from msgtx.types import GroupMetadata, Outcome
from tests.databases import Connection
from tests.system.test_interleavings import Stage
from tests.weave import Call, Played, Story, Weaver

pytestmark = pytest.mark.slow

AGED = ("producer.initialized_at", "transaction.opened_at", "transaction_decision.decided_at")


def age(stage: Stage) -> None:
    """Date everything that the producer did nine days back."""
    for column in AGED:
        table, name = column.split(".")
        stage.eye.execute(
            f"update msgtx.{table} set {name} = {name} - interval '9 days' where producer_id = %s",
            [stage.producer.producer_id],
        )


def purge(connection: Connection) -> int:
    return sweeps.purge_transactions(connection, None, None).done["transactions_purged"]


def remove_ids(connection: Connection) -> int:
    return sweeps.remove_idle_producers(connection, None, None).done["producer_ids_removed"]


def known(stage: Stage) -> ProducerId | None:
    row = stage.eye.execute(
        "select producer_id, epoch from msgtx.producer where transactional_id = %s", [f"id-{stage.run}"]
    ).fetchone()
    return None if row is None else ProducerId(*row)


def of_history(stage: Stage, number: int) -> int:
    """Return the number of a transaction's rows: all of them or none."""
    row = stage.eye.execute(
        "select count(*) from (select producer_id, transaction_number from msgtx.transaction union all"
        " select producer_id, transaction_number from msgtx.transaction_partition union all"
        " select producer_id, transaction_number from msgtx.transaction_decision) h"
        " where producer_id = %s and transaction_number = %s",
        [stage.producer.producer_id, number],
    ).fetchone()
    assert row is not None
    return int(row[0])


def aged(eye: Connection) -> Stage:
    """A committed, an aborted and a newest transaction, marked, nine days ago; nothing else can be swept."""
    mark(eye, everything=True)
    remove_ids(eye)
    purge(eye)
    stage = Stage(eye)
    append(eye, stage.batches("old"), flushed=False)
    stage.decide("COMMIT", last=0)(eye)
    append(eye, stage.batches("aborted", number=1, sequence=1), flushed=False)
    stage.decide("ABORT", last=1, number=1)(eye)
    stage.whole("newest", number=2, sequence=2)(eye)
    mark(eye, everything=True)
    age(stage)
    return stage


def test_two_sweepers_remove_each_id_once(weaver: Weaver, eye: Connection) -> None:
    def begin() -> Story:
        first = aged(eye)
        second = Stage(eye)
        age(second)

        def judge(played: Played) -> None:
            assert sum(played.answers[f"{name}.ids"] for name in ("one", "two")) == 2
            assert (known(first), known(second)) == (None, None)

        calls = [Call("ids", remove_ids)]
        return Story({"one": calls, "two": calls}, judge)

    weaver.explore(begin, at_least=16)


def test_two_sweepers_purge_each_transaction_once(weaver: Weaver, eye: Connection) -> None:
    def begin() -> Story:
        stage = aged(eye)

        def look(played: Played) -> None:
            assert stage.committed() == stage.now() == [["old", "newest"]]
            assert {of_history(stage, number) for number in (0, 1)} <= {0, 3}

        def judge(played: Played) -> None:
            assert sum(played.answers[f"{name}.history"] for name in ("one", "two")) == 2
            assert {of_history(stage, number) for number in (0, 1)} == {0}

        calls = [Call("history", purge, gate=1)]
        return Story({"one": calls, "two": calls}, judge, look)

    weaver.explore(begin, at_least=16)


def test_readers_notice_nothing_of_a_purge_beside_a_marker_and_a_producer(weaver: Weaver, eye: Connection) -> None:
    """P29: purge, mark and fetch."""

    def begin() -> Story:
        stage = aged(eye)

        def look(played: Played) -> None:
            rows = ["old", "newest", *(["more"] if (0, 3) in stage.decisions() else [])]
            assert stage.committed() == stage.now() == [rows]
            assert {of_history(stage, number) for number in (0, 1)} <= {0, 3}

        def judge(played: Played) -> None:
            mark(eye, everything=True)
            purge(eye)
            assert {of_history(stage, number) for number in (0, 1)} == {0}
            look(played)
            left = eye.execute(
                "select transaction_number, outcome from msgtx.transaction_marker where producer_id = %s"
                " and transaction_number < 2",
                [stage.producer.producer_id],
            ).fetchall()
            assert left == [(1, "ABORT")]

        return Story(
            {
                "sweep": [Call("history", purge, gate=1)],
                "owner": [
                    Call("whole", stage.whole("more", number=3, sequence=3), gate=9),
                    Call("mark", lambda connection: mark(connection, everything=True), gate=1),
                ],
            },
            judge,
            look,
        )

    weaver.explore(begin, at_least=50)


@pytest.mark.parametrize(("number", "outcome"), [(0, "COMMIT"), (1, "ABORT")], ids=["COMMIT", "ABORT"])
def test_a_late_retry_of_a_decision_beside_the_purge_gets_the_outcome_or_hears_that_it_is_over(
    number: int, outcome: Any, weaver: Weaver, eye: Connection
) -> None:
    """I4."""

    def begin() -> Story:
        stage = aged(eye)

        def judge(played: Played) -> None:
            answer = played.answers["owner.retry"]
            assert answer.outcome == outcome or type(answer.error) is errors.InvalidTransactionState
            assert played.answers["sweep.history"] == 2
            assert of_history(stage, number) == 0
            assert transaction_outcome(eye, stage.name(number)).outcome is Outcome.UNKNOWN
            assert stage.committed() == [["old", "newest"]]

        retry = stage.decide(outcome, last=number, number=number)
        return Story({"sweep": [Call("history", purge, gate=1)], "owner": [Call("retry", retry, gate=1)]}, judge)

    weaver.explore(begin, at_least=16)


def test_an_id_that_is_initialized_beside_its_removal_lives(weaver: Weaver, eye: Connection) -> None:
    """Its epoch is raised before the removal, or it starts afresh after it: init never returns an id that does not exist."""

    def begin() -> Story:
        stage = aged(eye)

        def judge(played: Played) -> None:
            removed, got = played.answers["sweep.ids"], played.answers["owner.init"]
            assert known(stage) == got
            if removed:
                assert got.epoch == 0
                assert got.producer_id != stage.producer.producer_id
            else:
                assert got == (stage.producer.producer_id, 1)
            (whole,) = stage.whole("next", producer=got)(eye)
            assert whole.error is None
            assert stage.committed() == [["old", "newest", "next"]]

        return Story({"sweep": [Call("ids", remove_ids, gate=1)], "owner": [Call("init", stage.init, gate=1)]}, judge)

    weaver.explore(begin, at_least=12)


@pytest.mark.parametrize("how", ["append", "whole"])
def test_an_id_that_is_used_beside_its_removal_lives_or_its_use_is_refused(
    how: str, weaver: Weaver, eye: Connection
) -> None:
    """I13."""

    def begin() -> Story:
        stage = aged(eye)

        def judge(played: Played) -> None:
            (used,) = played.answers["owner.use"]
            if played.answers["sweep.ids"]:
                assert type(used.error) is errors.InvalidProducerIdMapping
                assert known(stage) is None
            else:
                assert used.error is None
                assert known(stage) == stage.producer
                if how == "append":
                    assert stage.decide("COMMIT", last=3, number=3)(eye).error is None
            assert stage.committed() == [["old", "newest", *(["use"] if used.error is None else [])]]
            stage.nothing_open()

        use = stage.append("use", number=3, sequence=3) if how == "append" else stage.whole("use", number=3, sequence=3)
        return Story({"sweep": [Call("ids", remove_ids, gate=1)], "owner": [Call("use", use, gate=1)]}, judge)

    weaver.explore(begin, at_least=20)


# ── leases ──


def nobody_leads(eye: Connection) -> None:
    eye.execute("delete from msgtx.coordinator")
    eye.execute("update msgtx.coordinator_shard set coordinator_id = null, coordinator_epoch = 0, leased_at = null")


def lease(connection: Connection, coordinator_id: int | None = None) -> Leases:
    return lease_shards(connection, coordinator_id, host="here", process=1)


def test_an_old_owner_acts_before_the_takeover_or_is_fenced(weaver: Weaver, eye: Connection) -> None:
    def begin() -> Story:
        mark(eye, everything=True)
        stage = Stage(eye)
        append(eye, stage.batches("value"), flushed=False)
        stage.decide("COMMIT", last=0)(eye)
        nobody_leads(eye)
        old = lease(eye)
        eye.execute("update msgtx.coordinator set lease_until = lease_until - interval '1 hour'")
        at_takeover: list[int] = []

        def markers() -> list[tuple[int]]:
            return eye.execute(
                "select coordinator_epoch from msgtx.transaction_marker where producer_id = %s", [stage.producer.producer_id]
            ).fetchall()

        def look(played: Played) -> None:
            if "new.lease" in played.answers and "new.mark" not in played.answers:
                at_takeover.append(len(markers()))
                assert len(set(at_takeover)) == 1, "the old owner acted after the takeover"

        def judge(played: Played) -> None:
            assert set(played.answers["new.lease"].epochs.values()) == {2}
            marked = played.answers["old.mark"]
            assert markers() == [(1,) if marked == (1, 1) else (2,)]
            assert marked == (1, 1) or isinstance(marked, errors.CoordinatorFenced)
            stage.nothing_open()

        def marking(connection: Connection) -> Any:
            return mark(connection, everything=True, leases=old)

        taken: list[Leases] = []

        def take(connection: Connection) -> Leases:
            taken[:] = [lease(connection)]
            return taken[0]

        return Story(
            {
                "old": [Call("mark", marking, gate=1)],
                "new": [
                    Call("lease", take, gate=1),
                    Call("mark", lambda connection: mark(connection, everything=True, leases=taken[0]), gate=9),
                ],
            },
            judge,
            look,
        )

    weaver.explore(begin, at_least=40)


def test_a_release_beside_a_lease_gives_each_shard_one_owner_and_each_owner_its_epoch(
    weaver: Weaver, eye: Connection
) -> None:
    def begin() -> Story:
        nobody_leads(eye)
        old = lease(eye)

        def judge(played: Played) -> None:
            got = [answer.epochs for name, answer in played.answers.items() if name.startswith("new")]
            shards = {shard.shard: (shard.owner, shard.epoch) for shard in list_shards(eye)}
            new = played.answers["new.again"].coordinator_id
            last = played.answers["new.again"].epochs
            assert {shard: epoch for shard, (owner, epoch) in shards.items() if owner == new} == last
            assert {owner for owner, _ in shards.values()} <= {new, None}
            assert all(epoch == 2 for epochs in got for epoch in epochs.values()), "each takeover raises it once"
            lease(eye, new)
            assert {(shard.owner, shard.epoch) for shard in list_shards(eye)} == {(new, 2)}

        ids: list[int] = []

        def take(connection: Connection) -> Leases:
            leases = lease(connection, ids[0] if ids else None)
            ids[:] = [leases.coordinator_id]
            return leases

        return Story(
            {
                "old": [Call("release", lambda connection: release_shards(connection, old.coordinator_id), gate=1)],
                "new": [Call("lease", take, gate=1), Call("again", take, gate=1)],
            },
            judge,
        )

    weaver.explore(begin, at_least=36)


@pytest.mark.parametrize("outcome", ["COMMIT", "ABORT"])
def test_offsets_are_swept_beside_commits_and_the_newest_that_counts_stays(
    outcome: Any, weaver: Weaver, eye: Connection
) -> None:
    """P43."""

    def begin() -> Story:
        stage = Stage(eye)
        eye.execute("delete from msgtx.group_offset")
        nobody_leads(eye)
        leases = lease(eye)
        partition, group = stage.partitions[0], GroupMetadata(f"group-{stage.run}")
        for offset in (1, 2):
            commit_offsets(eye, {group: {partition: OffsetAndMetadata(offset)}})

        def end(connection: Connection) -> Any:
            offsets = offset_columns({group: {partition: OffsetAndMetadata(3)}})
            return decide(connection, stage.name(), outcome, tails={}, offsets=offsets, wake=False)

        def sweep(connection: Connection) -> int:
            return sweeps.remove_superseded_offsets(connection, None, leases).done["offsets_removed"]

        def at() -> int | None:
            found = committed_offsets(eye, group.group, [partition])[partition].at
            return None if found is None else found.offset

        def look(played: Played) -> None:
            assert at() == (3 if stage.decisions().get((0, 0)) == "COMMIT" else 2)

        def judge(played: Played) -> None:
            assert played.answers["owner.end"].outcome == outcome
            sweep(eye)
            look(played)
            row = eye.execute("select count(*) from msgtx.group_offset where partition_id = %s", [partition]).fetchone()
            assert row == (1,)

        return Story(
            {"one": [Call("sweep", sweep, gate=1)], "owner": [Call("end", end, gate=1)]},
            judge,
            look,
        )

    weaver.explore(begin, at_least=16)
