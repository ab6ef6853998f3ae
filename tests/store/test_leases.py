"""Leases: who leads which shard, at which coordinator epoch, and who is refused (internals: coordinator)."""

import threading
from typing import Any

import pytest

from msgtx import errors
from msgtx.coordinator.sweep import sweep
from msgtx.database.pool import Engine
from msgtx.store.groups.members import heartbeat
from msgtx.store.spark import BatchName, decide_batch, record_range
from msgtx.store.sweeps import sweeps
from msgtx.store.sweeps.coordinators import Leases, find_coordinator, lease_shards, list_shards, ranges, release_shards
from msgtx.store.transactions.seal import complete_prepared
from tests.databases import Clock, Connection
from tests.refusals import refuses
from tests.store.batches import attempt
from tests.store.conftest import Settings
from tests.store.roster import join
from tests.store.sharing import ShareGroup
from tests.store.steps import (
    Writer,
    count,
    counts,
    new_partition,
    note_sequence,
    offsets_of,
    plain,
    seal,
    to_its_end,
    unique,
)
from tests.store.test_append_once import once

ALL = set(range(50))
STEPS = {
    "overdue": sweeps.expire_step,
    "markers": sweeps.mark_step,
    "retention": sweeps.remove_old_batches,
    "ids": sweeps.remove_idle_producers,
    "history": sweeps.purge_transactions,
    "offsets": sweeps.remove_superseded_offsets,
    "floors": sweeps.remove_superseded_floors,
    "members": sweeps.remove_members,
    "heartbeats": sweeps.remove_heartbeats,
    "seals": sweeps.remove_decided_seals,
    "deleted": sweeps.remove_deleted_logs,
    "dedup": sweeps.remove_dedup_keys,
    "acknowledgements": sweeps.settle_shares,
    "shares": sweeps.remove_superseded_shares,
    "spark": sweeps.remove_spark_history,
    "wakeups": sweeps.remove_old_wake_ups,
}
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("bare")]


def lease(connection: Connection, coordinator_id: int | None = None) -> Leases:
    return lease_shards(connection, coordinator_id, host="here", process=1)


def shared(connection: Connection, coordinators: int, *, rounds: int = 3) -> list[Leases]:
    """Let a number of coordinators call in turns."""
    leases = [lease(connection) for _ in range(coordinators)]
    for _ in range(rounds):
        leases = [lease(connection, each.coordinator_id) for each in leases]
    return leases


def epochs(connection: Connection) -> dict[int, int]:
    return {shard.shard: shard.epoch for shard in list_shards(connection)}


def java_hash(text: str) -> int:
    """String.hashCode of Java: on UTF-16 units, in 32 bits with a sign."""
    units = text.encode("utf-16-be")
    code = 0
    for index in range(0, len(units), 2):
        code = (31 * code + (units[index] << 8) + units[index + 1]) % 2**32
    return code - 2**32 if code >= 2**31 else code


def shard_of(text: str) -> int:
    code = java_hash(text)
    return 0 if code == -(2**31) else abs(code) % 50


def test_the_hash_of_these_tests_is_javas() -> None:
    """Values that Java printed."""
    known = {"": 0, "a": 97, "hello": 99162322, "polygenelubricants": -(2**31), "Hello, World!": 1498789909}
    assert {text: java_hash(text) for text in known} == known


@pytest.mark.parametrize(
    "text",
    [
        "", "a", "id-1", "hello", "polygenelubricants", "Überweisung", "日本語", "\U0001f600",
        "a\U0001f468\u200d\U0001f469b",
        "\ue000", "\uffff", "\U0010ffff", "\n\t'\"\\%", "x" * 5_000,
    ],
    ids=ascii,
)  # fmt: skip
def test_the_shard_of_an_id_is_javas_hash_made_positive_modulo_50(connection: Connection, text: str) -> None:
    row = connection.execute("select msgtx.shard_of(%s, null)", [text]).fetchone()
    assert row == (shard_of(text),)


def test_many_ids_get_the_shards_that_the_rule_says(connection: Connection) -> None:
    ids = [f"{prefix}{number}" for prefix in ("id-", "ü", "\U0001f600") for number in range(300)]
    rows = connection.execute("select msgtx.shard_of(t, null) from unnest(%s::text[]) t", [ids]).fetchall()
    assert [shard for (shard,) in rows] == [shard_of(text) for text in ids]


def test_what_has_no_transactional_id_belongs_to_the_shard_of_its_number(connection: Connection) -> None:
    rows = connection.execute(
        "select msgtx.shard_of(null, n) from unnest(%s::bigint[]) n", [[0, 1, 49, 50, 2**40]]
    ).fetchall()
    assert [shard for (shard,) in rows] == [0, 1, 49, 0, 2**40 % 50]


def test_a_producers_row_holds_its_shard(connection: Connection) -> None:
    writer = Writer(connection, unique("shard-\U0001f600"))
    row = connection.execute("select shard from msgtx.producer where producer_id = %s", [writer.id.producer_id]).fetchone()
    assert row == (shard_of(writer.transactional_id),)


# ── dividing ──


def test_one_coordinator_leads_every_shard(connection: Connection) -> None:
    got = lease(connection)
    assert dict(got.epochs) == dict.fromkeys(range(50), 1)
    assert (got.lease_ms, got.sweep_interval_ms) == (10_000, 1_000)
    assert got.look_again_ms == 3_333


@pytest.mark.parametrize("coordinators", [2, 3, 4, 7, 26, 50, 51])
def test_the_living_ones_divide_the_shards_evenly_within_a_few_calls(connection: Connection, coordinators: int) -> None:
    leases = shared(connection, coordinators)
    owned = [shard for each in leases for shard in each.epochs]
    assert (len(owned), set(owned)) == (50, ALL)
    sizes = {len(each.epochs) for each in leases}
    assert max(sizes) - min(sizes) <= 1
    # All have their share, and nothing moves.
    assert {each.look_again_ms for each in leases} == {3_333}
    before = epochs(connection)
    again = [lease(connection, each.coordinator_id) for each in leases]
    assert [each.epochs for each in again] == [each.epochs for each in leases]
    assert epochs(connection) == before


def test_who_waits_for_its_share_looks_again_soon(connection: Connection) -> None:
    first = lease(connection)
    second = lease(connection)
    assert (len(first.epochs), len(second.epochs), second.look_again_ms) == (50, 0, 200)
    assert len(lease(connection, first.coordinator_id).epochs) == 25
    assert len(lease(connection, second.coordinator_id).epochs) == 25


def test_a_newcomer_moves_no_more_shards_than_it_gets(connection: Connection) -> None:
    before = {shard: each.coordinator_id for each in shared(connection, 3) for shard in each.epochs}
    newcomer = lease(connection).coordinator_id
    for owner in [*sorted(set(before.values())), newcomer]:
        lease(connection, owner)
    after = {shard.shard: shard.owner for shard in list_shards(connection)}
    moved = {shard for shard in ALL if before[shard] != after[shard]}
    assert {after[shard] for shard in moved} == {newcomer}
    assert len(moved) == 12


def test_a_renewal_raises_no_epoch(connection: Connection, clock: Clock) -> None:
    first = lease(connection)
    clock("5 seconds")
    again = lease(connection, first.coordinator_id)
    assert again == first
    clock("14 seconds")  # the renewal counts
    assert {shard.owner for shard in list_shards(connection)} == {first.coordinator_id}


def test_the_shards_of_a_dead_one_move_when_its_lease_is_over_and_only_their_epochs_rise(
    connection: Connection, clock: Clock
) -> None:
    dead, living = shared(connection, 2)
    before = epochs(connection)
    clock("9 seconds")
    living = lease(connection, living.coordinator_id)
    assert len(living.epochs) == 25
    assert 1 <= living.look_again_ms <= 1_000, "it comes back when the other's lease ends"
    clock("11 seconds")
    assert set(lease(connection, living.coordinator_id).epochs) == ALL
    after = epochs(connection)
    assert {shard: after[shard] - before[shard] for shard in ALL} == {shard: int(shard in dead.epochs) for shard in ALL}


def test_released_shards_are_free_at_once(connection: Connection) -> None:
    first, second = shared(connection, 2)
    release_shards(connection, first.coordinator_id)
    assert {shard.owner for shard in list_shards(connection)} == {None, second.coordinator_id}
    assert set(lease(connection, second.coordinator_id).epochs) == ALL
    release_shards(connection, first.coordinator_id)  # again, or of one that is gone: nothing happens
    assert {shard.owner for shard in list_shards(connection)} == {second.coordinator_id}


def test_one_that_was_stopped_past_its_lease_and_comes_back_is_a_new_one(connection: Connection, clock: Clock) -> None:
    old, other = shared(connection, 2)
    clock("11 seconds")
    lease(connection, other.coordinator_id)
    back = lease(connection, old.coordinator_id)
    assert back.coordinator_id not in {old.coordinator_id, other.coordinator_id}
    assert back.epochs == {}
    lease(connection, other.coordinator_id)
    back = lease(connection, back.coordinator_id)
    assert len(back.epochs) == 25
    assert all(old.epochs.get(shard, 0) < epoch for shard, epoch in back.epochs.items())


def test_one_that_was_stopped_past_its_lease_while_nobody_came_goes_on(connection: Connection, clock: Clock) -> None:
    old = lease(connection)
    clock("1 hour")
    assert lease(connection, old.coordinator_id).epochs == old.epochs


# ── finding ──


def test_the_coordinator_of_an_id_is_who_leads_its_shard(connection: Connection) -> None:
    leases = shared(connection, 2)
    for text in ("a", "b", "Überweisung", "polygenelubricants"):
        found = find_coordinator(connection, text)
        (owner,) = [each for each in leases if found.shard in each.epochs]
        assert (found.shard, found.owner, found.epoch) == (shard_of(text), owner.coordinator_id, owner.epochs[found.shard])
        assert (found.host, found.process) == ("here", 1)


def test_without_a_living_lease_there_is_no_coordinator(connection: Connection, clock: Clock) -> None:
    with pytest.raises(errors.CoordinatorNotAvailable, match="shard 47"):
        find_coordinator(connection, "a")
    led = lease(connection)
    assert find_coordinator(connection, "a").owner == led.coordinator_id
    clock("11 seconds")
    with pytest.raises(errors.CoordinatorNotAvailable, match="shard 47"):
        find_coordinator(connection, "a")
    assert {(shard.owner, shard.host, shard.epoch) for shard in list_shards(connection)} == {(None, None, 1)}


def test_an_empty_id_has_no_coordinator(connection: Connection) -> None:
    with refuses(errors.InvalidRequest, name="transactional_id"):
        find_coordinator(connection, "")


@pytest.mark.parametrize(
    ("numbers", "words"), [([], ""), ([7], "7"), ([0, 1, 2, 30], "0-2, 30"), ([0, 2, 3, 5], "0, 2-3, 5")]
)
def test_shards_are_told_as_people_write_them(numbers: list[int], words: str) -> None:
    assert ranges(numbers) == words


# ── acting ──


def something_of_everything(connection: Connection, clock: Clock) -> None:
    """Leave work for every sweep."""
    for _ in range(3):
        plain(connection, new_partition(connection, retention_bytes=0), b"too much")
    partition = new_partition(connection)
    for number in range(3):
        writer = Writer(connection)
        writer.send(partition, b"old")
        writer.commit(offsets_of((f"group-{number}", partition, 1)))
        writer.commit(offsets_of((f"group-{number}", partition, 2)))
        sweeps.mark_step(connection, None, None)
        member = join(connection, f"group-{number}", "member")
        beat = {"member_number": member.member_number, "member_id": "member", "group_instance_id": None}
        heartbeat(connection, f"group-{number}", **beat, number=1)
        prepared = Writer(connection)
        seal(connection, prepared.name, "external")
        complete_prepared(connection, prepared.name, "COMMIT")
        connection.execute(
            "insert into msgtx.deleted_partition (partition_id) values (1000000 + %s) on conflict do nothing", [number]
        )
        connection.execute(
            "insert into msgtx.dedup_key (topic_id, dedup_key, partition_id, record_offset, record_timestamp, appended_at)"
            " values (1000000 + %s, 'key', 1, 0, 0, msgtx.clock())",
            [number],
        )
        for batch in range(2):
            of = BatchName(f"app-{number}", f"query-{number}", batch)
            record_range(connection, of.query_id, batch, group=None, ranges={partition: (batch, batch + 1)})
            decide_batch(connection, of, [attempt(connection, of, partition, b"a batch")])
    for number in range(3):
        group, writer = ShareGroup(connection, partition, name=f"share-{number}"), Writer(connection)
        first, second, third = group.acquire("a", 3)
        for offset in (first, second):
            group.answer("a", {offset: "accept"})
        group.answer_in(writer.name, "a", {third: "accept"})
        writer.commit()
    clock("9 days")
    for outcome in ("COMMIT", "ABORT"):
        writer = Writer(connection)
        writer.send(partition, b"new")
        writer.decide(outcome)
    Writer(connection).send(partition, b"overdue", timeout_ms=1)


@pytest.mark.parametrize("how", ["a newer epoch", "released", "an epoch that never was", "fewer epochs than shards"])
@pytest.mark.parametrize("step", STEPS)
def test_every_sweep_refuses_stale_leases_and_changes_nothing(
    connection: Connection, clock: Clock, step: str, how: str
) -> None:
    something_of_everything(connection, clock)
    stale = lease(connection)
    expected: type[errors.MsgtxError] = errors.NotCoordinator
    if how == "a newer epoch":
        release_shards(connection, stale.coordinator_id)
        lease(connection)
        expected = errors.CoordinatorFenced
    elif how == "released":
        release_shards(connection, stale.coordinator_id)
    elif how == "an epoch that never was":
        stale = Leases(stale.coordinator_id, {**stale.epochs, 7: 99}, 1, 1, 1)
    else:
        stale = Leases(stale.coordinator_id, _Short(stale.epochs), 1, 1, 1)
    before = counts(connection)
    with pytest.raises(expected, match="shard"):
        STEPS[step](connection, None, stale)
    assert counts(connection) == before
    assert any(_to_its_end(connection, step, None).values()), "there was something to do"


class _Short(dict[int, int]):
    """Shards whose last epoch is missing."""

    def values(self) -> Any:
        return list(super().values())[:-1]


def test_one_shard_that_passed_on_is_enough_to_be_refused_as_fenced(connection: Connection) -> None:
    """Some shards have no holder, one has another: the error names the worse case."""
    old, other = shared(connection, 2)
    release_shards(connection, old.coordinator_id)
    connection.execute(
        "update msgtx.coordinator_shard set coordinator_id = %s, coordinator_epoch = coordinator_epoch + 1 where shard = %s",
        [other.coordinator_id, max(old.epochs)],
    )
    with pytest.raises(errors.CoordinatorFenced, match=f"shard {max(old.epochs)} "):
        sweeps.mark_step(connection, None, old)


@pytest.mark.parametrize("step", STEPS)
def test_who_leads_its_shards_sweeps_for_them(connection: Connection, clock: Clock, step: str) -> None:
    something_of_everything(connection, clock)
    leases = lease(connection)
    assert any(_to_its_end(connection, step, leases).values())


@pytest.mark.parametrize("step", STEPS)
def test_a_sweep_for_no_shards_does_nothing_that_belongs_to_a_shard(connection: Connection, clock: Clock, step: str) -> None:
    something_of_everything(connection, clock)
    nothing = Leases(1, {}, 1, 1, 1)
    done = _to_its_end(connection, step, nothing)
    # Recent decisions are marked by the client that gets the marking lock, and wake-ups are of no shard.
    if step not in {"markers", "wakeups"}:
        assert not any(done.values())


@pytest.mark.parametrize("step", STEPS)
def test_shards_one_after_the_other_do_what_all_of_them_do_at_once(connection: Connection, clock: Clock, step: str) -> None:
    """As who acts for no coordinator does."""
    something_of_everything(connection, clock)
    leases = lease(connection)
    with connection.transaction(force_rollback=True):
        expected = _to_its_end(connection, step, None)
        left = counts(connection)
    parts = [Leases(leases.coordinator_id, {shard: epoch}, 1, 1, 1) for shard, epoch in leases.epochs.items()]
    assert _done(_to_its_end(connection, step, part) for part in parts) == expected
    assert counts(connection) == left


def test_a_coordinator_removes_what_retention_left_of_producers_on_its_own_partitions(connection: Connection) -> None:
    leases = lease(connection)
    for partition in (51, 52):
        note_sequence(connection, partition, 1, 0, age="2 days")
    for shard, left in ((3, 2), (1, 1), (2, 0)):
        own = Leases(leases.coordinator_id, {shard: leases.epochs[shard]}, 1, 1, 1)
        sweeps.remove_idle_producers(connection, None, own)
        assert count(connection, "producer_state") == left


def _to_its_end(connection: Connection, step: str, leases: Leases | None) -> dict[str, int]:
    """Run a sweep as a round does, from where the last call came to."""
    return _done(to_its_end(connection, STEPS[step], leases))


def _done(parts: Any) -> dict[str, int]:
    total: dict[str, int] = {}
    for done in parts:
        for name, number in done.items():
            total[name] = total.get(name, 0) + number
    return total


def test_a_marker_carries_the_coordinator_epoch_of_its_shard(connection: Connection, partition: int) -> None:
    writer, other = Writer(connection), Writer(connection)
    for _ in range(3):
        leases = lease(connection)
        release_shards(connection, leases.coordinator_id)
    for epoch, which in ((7, "<>"), (3, "=")):  # its row is the last one, too
        connection.execute(
            f"update msgtx.coordinator_shard set coordinator_epoch = {epoch} where shard {which} (select p.shard"
            " from msgtx.producer p where p.producer_id = %s)",
            [writer.id.producer_id],
        )
    for each in (writer, other):
        each.send_and_commit(partition, b"a")
    connection.execute("delete from msgtx.producer where producer_id = %s", [other.id.producer_id])
    sweeps.mark_step(connection, None, None)
    rows = connection.execute("select producer_id, coordinator_epoch from msgtx.transaction_marker").fetchall()
    assert dict(rows) == {writer.id.producer_id: 3, other.id.producer_id: 0}


def test_an_own_lease_time_counts(connection: Connection, clock: Clock, settings: Settings) -> None:
    settings(lease_ms=600, sweep_interval_ms=50)
    leases = lease(connection)
    assert (leases.lease_ms, leases.look_again_ms, leases.sweep_interval_ms) == (600, 200, 50)
    clock("1 second")
    assert {shard.owner for shard in list_shards(connection)} == {None}


def test_limits_may_be_as_large_as_numbers_go(connection: Connection, engine: Engine, settings: Settings) -> None:
    """What is to be "for ever" is any large number: no time is out of the range that PostgreSQL and Python have."""
    names = [name for (name,) in connection.execute("select name from msgtx.setting").fetchall()]
    settings(**dict.fromkeys(names, 2**63 - 1))
    settings(group_min_session_timeout_ms=1)
    partition = new_partition(connection)
    writer = Writer(connection)
    writer.send_and_commit(partition, b"a")
    join(connection, unique("group"), "a")
    assert [once(connection, partition, "key").duplicate for _ in range(2)] == [False, True]
    leases = lease(connection)
    assert {shard.owner for shard in list_shards(connection)} == {leases.coordinator_id}
    assert leases.sweep_interval_ms / 1000 < threading.TIMEOUT_MAX
    release_shards(connection, leases.coordinator_id)
    sweep(engine)
