"""Consumer groups, transactional ids and producer ids: names that only some roles may use."""

import contextlib
import json
from collections.abc import Callable

import psycopg
import pytest

import msgtx
from msgtx import errors
from msgtx.cli.main import run
from msgtx.store.append.append import append_and_decide
from msgtx.store.fetch.holders import expire_holders
from msgtx.store.fetch.snapshots import delete_snapshot, save_snapshot, saved_snapshots
from msgtx.store.groups.groups import commit_offsets, committed_offsets
from msgtx.store.groups.members import heartbeat, leave_group
from msgtx.store.operator.installation import describe_installation
from msgtx.store.shares.answers import (
    AnswerColumns,
    acknowledge_in_session,
    acknowledge_in_transaction,
    acknowledge_records,
    last_share_call,
)
from msgtx.store.shares.shares import (
    Acquiring,
    acquire_records,
    acquire_records_together,
    ensure_dead_letters,
    join_share_group,
    new_member_number,
    redrive_dead_letters,
)
from msgtx.store.spark import (
    Attempt,
    BatchName,
    abort_batch,
    begin_attempt,
    decide_batch,
    is_batch_committed,
    renew_attempts,
)
from msgtx.store.transactions.decide import decide
from msgtx.store.transactions.producers import fence_producer, init_producer_id, kept_sequences
from msgtx.store.transactions.seal import complete_prepared, seal
from msgtx.store.transactions.transactions import describe_transaction, end_transaction, mark, transaction_outcome
from msgtx.types import GroupMetadata, OffsetAndMetadata, ProducerId, TransactionId
from tests.admin.conftest import Realm
from tests.databases import Connection
from tests.refusals import refuses
from tests.store.roster import join
from tests.store.sharing import ShareGroup
from tests.store.steps import (
    Writer,
    append_one,
    append_unless_locked,
    batch,
    named_topic,
    new_topic,
    offsets_of,
    plain,
    topic_of,
    unique,
    values,
)

pytestmark = pytest.mark.slow

SECONDS = 30.0


@pytest.fixture
def partition(connection: Connection) -> int:
    return new_topic(connection)[0]


def allowed(connection: Connection, group: str, partition: int) -> bool:
    """Whether a caller may join a group, be a member of it, commit for it, read its offsets: all of these or none."""
    steps: list[Callable[[], object]] = [
        lambda: join(connection, group, "a", session_timeout_ms=100),
        lambda: connection.execute("select * from msgtx.heartbeat_group(%s, 1, 'a', null, 1)", [group]),
        lambda: connection.execute("select * from msgtx.describe_members(%s)", [group]),
        lambda: connection.execute("select * from msgtx.member_assignment(%s, 1)", [group]),
        lambda: connection.execute("select msgtx.assign_partitions(%s, -1, 1, '{}', '{}')", [group]),
        lambda: connection.execute("select msgtx.release_partitions(%s, 1, '{}')", [group]),
        lambda: connection.execute("select msgtx.leave_group(%s, 'a')", [group]),
        lambda: commit_offsets(connection, {GroupMetadata(group): {partition: OffsetAndMetadata(0)}}),
        lambda: committed_offsets(connection, group, [partition]),
        lambda: expire_holders(connection, [partition], group),
        lambda: connection.execute("select msgtx.join_share_group(%s, 'b', null, null, 10000, '{}')", [group]),
        lambda: connection.execute("select msgtx.ensure_dead_letters(%s)", [group]),
        lambda: redrive(connection, group),
        lambda: connection.execute("select * from msgtx.record_range('q', 1, %s, '{}', '{}', '{}')", [group]),
        lambda: connection.execute("select * from msgtx.follow_batch(%s, '{}', '{}', '{}', 'a')", [group]),
        lambda: connection.execute("select * from msgtx.noted_begins(%s, '{}', '{}')", [group]),
    ]
    answers = set()
    for step in steps:
        try:
            step()
            answers.add(True)
        except (errors.AuthorizationFailed, psycopg.errors.InsufficientPrivilege) as refused:
            answers.add(f"lacks the right to use group {group}: " not in str(refused))
    (answer,) = answers
    return answer


def redrive(connection: Connection, group: str) -> None:
    """The names above are those of consumer groups, so what may use them finds no share group."""
    with contextlib.suppress(errors.GroupNotFound):
        redrive_dead_letters(connection, group, 0, upto=None, most=1, skip_missing=False)


def answer_in(connection: Connection, name: TransactionId, answers: AnswerColumns) -> None:
    acknowledge_in_transaction(connection, name, answers, call_number=1)


def one_answer(group: str, member: int, partition: int) -> AnswerColumns:
    return AnswerColumns((group,), (member,), (partition,), (0,), (0,), ("accept",), (None,), (None,))


def test_the_kept_sequences_are_those_of_its_own_producer_and_topics(realm: Realm, partition: int) -> None:
    role = realm.roles.make(f"produce:{topic_of(realm.connection, partition)}")
    owner = realm.login(role)
    producer = init_producer_id(owner, None, timeout_ms=60_000)
    append_one(owner, batch(partition, b"0", producer=producer, sequence=0))
    assert kept_sequences(owner, producer, [partition, new_topic(realm.connection)[0]]) == [0, None]
    with refuses(errors.AuthorizationFailed):
        kept_sequences(realm.guest("produce"), producer, [partition])


def test_members_of_a_share_group_are_those_that_may_use_it(realm: Realm, partition: int) -> None:
    """Who knows a member's number neither takes its records nor answers for them."""
    group = ShareGroup(realm.connection, partition, name="orders-shared")
    plain(realm.connection, partition, b"0")
    billing, everybody = realm.guest("consume:group:orders-shared", "consume", "produce"), realm.guest("consume", "produce")
    member = group.join("a")
    asked = Acquiring(group.name, member, 1, [partition], 1, 1 << 20)
    answers = one_answer(group.name, member, partition)
    steps: list[Callable[[Connection], object]] = [
        lambda c: acquire_records_together(c, [asked._replace(call_number=2)]),
        lambda c: acquire_records(c, asked._replace(answers=answers, call_number=3)),
        lambda c: acknowledge_records(c, answers, call_number=4),
        lambda c: answer_in(c, Writer(c).name, answers),
        lambda c: append_and_decide(c, Writer(c).name, [], answers=answers),
        lambda c: acknowledge_in_session(c, answers),
        lambda c: last_share_call(c, group.name, member),
    ]
    group.acquire("a", call=1)
    for step in steps:
        with refuses(errors.AuthorizationFailed, group=group.name):
            step(everybody)
    assert group.spans == [(0, 0, "acquired", 1)]
    for step in steps:
        with contextlib.suppress(errors.InvalidRecordState):  # the first answer has taken it
            step(billing)
    assert group.spans == []
    assert last_share_call(realm.connection, group.name, member) > 0
    assert last_share_call(realm.guest("consume:group:others-shared", "consume"), "others-shared", member) == 0


def test_a_consumer_sees_the_lag_and_the_members_of_the_groups_that_it_uses(realm: Realm, partition: int) -> None:
    plain(realm.connection, partition, b"0")
    ours, theirs = unique("ours"), unique("theirs")
    for group in (ours, theirs):
        commit_offsets(realm.connection, {GroupMetadata(group): {partition: OffsetAndMetadata(0)}})
    shares = [ShareGroup(realm.connection, partition, name=f"{group}-shared") for group in (ours, theirs)]
    for share in shares:
        share.acquire("a")
    realm.roles.make("consume", "consume:group:theirs*")
    join(realm.connection, ours, "member", session_timeout_ms=60_000)
    worker = realm.roles.make("consume", "consume:group:ours*")
    with msgtx.connect(realm.roles.url_of(worker)) as client:
        admin = client.admin
        assert admin.groups.describe(ours).lag == 1
        assert [member.member_id for member in admin.groups.members(ours)] == ["member"]
        assert [group.group for group in admin.groups.list()] == [ours]
        assert admin.shares.describe(shares[0].name).lag == 1
        assert [group.group for group in admin.shares.list()] == [shares[0].name]
        looks: list[Callable[[], object]] = [
            lambda: admin.groups.describe(theirs),
            lambda: admin.groups.members(theirs),
            lambda: admin.shares.describe(shares[1].name),
        ]
        for look in looks:
            with pytest.raises(errors.AuthorizationFailed, match=r"--can observe` is enough$") as refused:
                look()
            assert "admin" not in str(refused.value)


def test_a_consumer_sees_the_lag_of_its_group_on_its_own_topics(realm: Realm) -> None:
    """It is not told how many dead letters there are where it may not look."""
    (topic, (partition,)), (_, (other,)) = named_topic(realm.connection), named_topic(realm.connection)
    group = unique("group")
    for each in (partition, other):
        plain(realm.connection, each, b"0")
        commit_offsets(realm.connection, {GroupMetadata(group): {each: OffsetAndMetadata(0)}})
    share = ShareGroup(realm.connection, partition, name=unique("lag"))
    share.acquire("a")
    ShareGroup(realm.connection, other, name=share.name).acquire("b")
    for right in ("consume", "observe"):
        with msgtx.connect(realm.roles.url_of(realm.roles.make(f"{right}:{topic}"))) as client:
            assert [one.topic for one in client.admin.groups.describe(group).partitions] == [topic]
            described = client.admin.shares.describe(share.name)
            assert [one.topic for one in described.partitions] == [topic]
            assert described.dead_letters is None


def test_who_may_use_a_share_group_is_no_other_member_of_it(realm: Realm, partition: int) -> None:
    """What is shown of a member is not enough to act for it."""
    group = ShareGroup(realm.connection, partition, name="shared-alone")
    plain(realm.connection, partition, b"0")
    group.acquire("a")
    other = realm.guest("consume", "produce")
    (row,) = other.execute("select * from msgtx.describe_members(%s)", [group.name]).fetchall()
    (span,) = other.execute("select * from msgtx.share_spans where group_name = %s", [group.name]).fetchall()
    shown = {value for value in (*row, *span) if isinstance(value, int)}
    assert group.numbers["a"] not in shown
    who = {"member_id": "a", "client_host": None, "client_process": None, "session_timeout_ms": 10_000, "topics": ()}
    for number in (None, new_member_number()):
        with refuses(errors.InvalidRequest, group=group.name):
            join_share_group(other, group.name, number=number, **who)  # type: ignore[arg-type]
        assert not leave_group(other, group.name, "a", number=number)
    for number in shown | {1}:
        with pytest.raises(errors.UnknownMember):
            acknowledge_records(other, one_answer(group.name, number, partition), call_number=None)
        with pytest.raises(errors.UnknownMember):
            heartbeat(other, group.name, member_number=number, member_id="a", group_instance_id=None, number=9)
    assert group.spans == [(0, 0, "acquired", 1)]
    assert leave_group(other, group.name, "a", number=group.numbers["a"])  # it proves to be this member


def rejection(group: ShareGroup, member: int) -> AnswerColumns:
    return AnswerColumns((group.name,), (member,), (group.partition,), (0,), (0,), ("reject",), ("mine",), (None,))


def test_dead_letters_are_written_where_a_right_leads(realm: Realm, partition: int) -> None:
    """Not where the name of a group does, which a member chooses: neither by an answer, nor at the limit, nor by a sweep."""
    name, plain_role = unique("secret"), realm.guest("consume:topic*", "produce:topic*")
    realm.connection.execute("select msgtx.create_topic(%s, 1)", [f"{name}-dead-letters"])
    plain(realm.connection, partition, b"0")
    who = {"client_host": None, "client_process": None, "session_timeout_ms": 1_000_000}

    def written() -> int:
        (found,) = realm.connection.execute(
            "select count(*) from msgtx.record_batch join msgtx.partition using (partition_id)"
            " join msgtx.topic using (topic_id) where name = %s", [f"{name}-dead-letters"],
        ).fetchone() or (None,)  # fmt: skip
        return int(found)

    number = join_share_group(plain_role, name, member_id="b", topics=(), **who).number  # type: ignore[arg-type]
    realm.connection.execute("update msgtx.share_group set auto_offset_reset = 'earliest', delivery_count_limit = 1")
    group = ShareGroup.__new__(ShareGroup)
    group.connection, group.partition, group.name = realm.connection, partition, name
    acquire_records(plain_role, Acquiring(name, number, 1, [partition], 1, 1 << 20))
    answers, writer = rejection(group, number), Writer(plain_role)
    for step in (
        lambda: acknowledge_records(plain_role, answers, call_number=None),
        lambda: acquire_records(plain_role, Acquiring(name, number, 2, [partition], 1, 1 << 20, answers)),
        lambda: acknowledge_in_transaction(plain_role, writer.name, answers, call_number=3),
        lambda: append_and_decide(plain_role, writer.name, [], answers=answers),
        lambda: acknowledge_in_session(plain_role, answers),
        lambda: ensure_dead_letters(plain_role, name),
    ):
        with refuses(errors.AuthorizationFailed, group=name, right="produce"):
            step()
    release = AnswerColumns((name,), (number,), (partition,), (0,), (0,), ("release",), (None,), (None,))
    acknowledge_records(plain_role, release, call_number=4)
    realm.connection.execute("select msgtx.settle_shares()")
    assert written() == 0
    assert acquire_records(plain_role, Acquiring(name, number, 5, [partition], 1, 1 << 20)).records == []
    assert written() == 0
    realm.connection.execute("update msgtx.share_group set writes_dead_letters = true")
    acquire_records(plain_role, Acquiring(name, number, 6, [partition], 1, 1 << 20))
    assert written() == 1


def test_a_member_that_may_produce_lets_its_group_write_dead_letters(realm: Realm) -> None:
    name = unique("secret")

    def allowed(*rights: str, member: str) -> bool:
        who = {"client_host": None, "client_process": None, "session_timeout_ms": 10_000, "topics": ()}
        join_share_group(realm.guest(*rights), name, member_id=member, **who)  # type: ignore[arg-type]
        return bool(realm.connection.execute(
            "select writes_dead_letters from msgtx.share_group join msgtx.consumer_group using (group_id)"
            " where name = %s", [name],
        ).fetchone()[0])  # type: ignore[index]  # fmt: skip

    assert not allowed("consume", member="a")
    assert not allowed("consume", "produce", member="b"), "it would have to make the topic"
    realm.connection.execute("select msgtx.create_topic(%s, 1)", [f"{name}-dead-letters"])
    assert not allowed("consume", "produce:topic*", member="c")
    assert allowed("consume", "produce", member="d")


def test_what_is_in_flight_is_seen_by_those_who_may_use_the_group(realm: Realm, partition: int) -> None:
    for name in ("share-billing", "share-open"):
        ShareGroup(realm.connection, partition, name=name)
        realm.connection.execute(
            "insert into msgtx.share_state (group_id, partition_id, version, next_offset, spans) values ("
            " (select group_id from msgtx.consumer_group where name = %s), %s, 1, 5, array["
            " row(2, 4, 'rejected', 1, 0, null, null, null, null, null, null, 'no')::msgtx.share_span])",
            [name, partition],
        )
    everybody, billing = realm.guest("consume"), realm.guest("consume", "consume:group:share-billing")
    watching, elsewhere, administrator = (
        realm.guest("admin:topic*"),
        realm.guest("consume:another*", "admin:another*"),
        realm.guest("admin"),
    )
    views = {"share_groups": "name"} | dict.fromkeys(
        ("share_partitions", "share_spans", "spans_of_share_groups()"), "group_name"
    )
    for view, column in views.items():
        seen = f"select {column} from msgtx.{view} where {column} like 'share-%%' order by 1"
        assert realm.connection.execute(seen).fetchall() == [("share-billing",), ("share-open",)]
        assert everybody.execute(seen).fetchall() == [("share-open",)]
        assert billing.execute(seen).fetchall() == [("share-billing",)]
        for each in (watching, administrator):
            assert each.execute(seen).fetchall() == [("share-billing",), ("share-open",)]
        assert elsewhere.execute(seen).fetchall() == []


def test_groups_that_nobody_was_granted_are_for_all(realm: Realm, partition: int) -> None:
    assert allowed(realm.guest("consume"), "open", partition)


def test_a_group_is_for_those_that_were_granted_it(realm: Realm, partition: int) -> None:
    everybody, billing = realm.guest("consume"), realm.guest("consume", "consume:group:billing*", "consume:group:exact")
    administrator, owner = realm.guest("consume", "admin"), realm.roles.make()
    realm.roles.sql(f"grant {realm.roles.owner} to {owner}")
    for group, who_may in (("billing", False), ("billing-2", False), ("exact", False), ("exact-2", True), ("bill", True)):
        assert allowed(everybody, group, partition) is who_may, group
        # A role that was granted some names may use only those.
        assert allowed(billing, group, partition) is (group in {"billing", "billing-2", "exact"}), group
        assert allowed(administrator, group, partition)
        assert allowed(realm.connection, group, partition)
        with contextlib.closing(realm.roles.connect(owner)) as caller:
            assert allowed(caller, group, partition)
    seen = "select distinct group_name from msgtx.group_offsets union select name from msgtx.consumer_groups"
    assert {name for (name,) in everybody.execute(seen)} >= {"exact-2", "bill"}
    assert not {name for (name,) in everybody.execute(seen)} & {"billing", "billing-2", "exact"}
    assert {name for (name,) in billing.execute(seen)} == {"billing", "billing-2", "exact"}
    assert expire_holders(billing, [partition]) == [], "who reads without a group needs no right on any"
    assert expire_holders(billing, [partition], "billing") == [], "nor does who may use the group need to administer a topic"
    # A role that administers a topic sees how far groups have read it.
    watching = realm.guest("admin:topic*")
    assert {name for (name,) in watching.execute(seen)} >= {"billing", "billing-2", "exact", "bill"}
    assert committed_offsets(watching, "billing", [partition])
    assert committed_offsets(everybody, "billing", None) == {}, "of all topics: of those of which it may be told"
    assert expire_holders(watching, [partition], "billing") == []
    elsewhere = realm.guest("consume", "admin:another*")
    with pytest.raises(errors.AuthorizationFailed):
        committed_offsets(elsewhere, "billing", [partition])
    with pytest.raises(errors.AuthorizationFailed):
        expire_holders(elsewhere, [partition], "billing")
    # A right on topics of a name is none on a group of that name, and leaves the groups that nobody was granted.
    namesake = realm.guest("consume", "admin:billing*")
    with refuses(errors.AuthorizationFailed, group="billing"):
        join(namesake, "billing", "a", session_timeout_ms=100)
    join(namesake, "bill", "a", session_timeout_ms=100)
    member = realm.roles.make("consume")
    realm.roles.sql(f"grant {realm.roles.made[1]} to {member}")
    with contextlib.closing(realm.roles.connect(member)) as inheriting:
        assert allowed(inheriting, "billing", partition)
    assert realm.roles.revoke(realm.roles.made[1], "consume:group:billing*")
    assert allowed(everybody, "billing", partition)
    assert not allowed(billing, "billing", partition)


@pytest.mark.parametrize("rights", [("consume",), ("consume", "consume:group:billing")])
def test_a_group_without_a_name_is_answered_to_all_alike(realm: Realm, rights: tuple[str, ...]) -> None:
    """Also to who may use only some names: no grant would help."""
    answer = realm.guest(*rights).execute("select error from msgtx.heartbeat_group(null, 1, 'a', null, 1)").fetchone()
    assert answer == ("UnknownMember",)


def test_a_role_that_was_made_anew_was_granted_no_group(realm: Realm, partition: int) -> None:
    """Nor has a member of it the rights of the one that is gone."""
    role, member = realm.roles.make("consume", "consume:group:billing"), realm.roles.make("consume")
    realm.roles.sql(f"drop owned by {role}")
    realm.roles.sql(f"drop role {role}")
    realm.roles.sql(f"create role {role}")
    realm.roles.sql(f"grant {role} to {member}")
    with contextlib.closing(realm.roles.connect(member)) as caller:
        assert not allowed(caller, "billing", partition)
        realm.roles.grant(role, "consume:group:billing")
        assert allowed(caller, "billing", partition)


def test_offsets_of_a_transaction_are_those_of_a_group_that_the_caller_may_use(realm: Realm, partition: int) -> None:
    realm.guest("consume:group:billing")
    caller = realm.guest("consume", "produce")
    for group, refused in (("billing", True), ("another", False)):
        writer = Writer(caller)
        expected = pytest.raises(errors.AuthorizationFailed) if refused else contextlib.nullcontext()
        with expected:
            writer.commit_whole(writer.row(partition, b"x"), offsets=offsets_of((group, partition, 1)))
        with expected:
            writer.commit(offsets_of((group, partition, 1)))
        with expected:
            append_unless_locked(caller, writer.name, [writer.row(partition, b"x")], offsets_of((group, partition, 1)))


# ── transactional ids ──


def test_a_transactional_id_is_for_those_that_were_granted_it(realm: Realm, partition: int) -> None:
    """Both were granted it, so each may end what the other has begun, like two instances of one service."""
    other, one, two = (
        realm.guest("produce", "consume"),
        *(realm.guest("produce", "produce:transactional_id:pay-*") for _ in range(2)),
    )
    writer = Writer(one, "pay-1")
    writer.send(partition, b"half")
    with refuses(errors.AuthorizationFailed, transactional_id="pay-1"):
        init_producer_id(other, "pay-1", timeout_ms=60_000)
    with refuses(errors.AuthorizationFailed, transactional_id="free"):
        init_producer_id(one, "free", timeout_ms=60_000)
    Writer(other, "free")
    assert end_transaction(two, writer.name, "resolve").value == "ABORTED"
    mark(realm.connection)
    shown = dict(other.execute("select producer_id, transactional_id from msgtx.transactions").fetchall())
    assert shown[writer.name.producer_id] is None
    assert describe_transaction(other, "pay-1") is None
    described = describe_transaction(realm.connection, "pay-1")
    assert described is not None
    assert described.transaction_id == writer.name
    with pytest.raises(errors.AuthorizationFailed):
        begin_attempt(other, BatchName("pay-app", "query", 1), timeout_ms=60_000)


def test_who_may_not_use_a_transactional_id_sees_its_transactions_without_it(realm: Realm, partition: int) -> None:
    realm.guest("produce:transactional_id:secret-*")  # from now on an id is for those that were granted it
    writer = Writer(realm.connection, "secret-1")
    writer.send_and_commit(partition, b"a")
    writer.send(partition, b"b")
    seal(realm.connection, writer.name, "external", tails=writer.tails)
    attempt = begin_attempt(realm.connection, BatchName("secret-app", "query", 1), timeout_ms=60_000)
    assert attempt is not None
    append_one(realm.connection, batch(partition, b"c", producer=(attempt, 0), number=0, sequence=0), flushed=False)
    topic = topic_of(realm.connection, partition)
    consumer = realm.roles.make(f"consume:{topic}")
    observer, granted = (
        realm.roles.make("observe"),
        realm.roles.make(f"consume:{topic}", "produce:transactional_id:secret-1"),
    )
    for role, ident in ((consumer, None), (observer, "secret-1"), (granted, "secret-1")):
        with msgtx.connect(realm.roles.url_of(role)) as client:
            transactions = client.admin.transactions
            assert transactions.show(writer.name).transactional_id == ident
            app = transactions.show(TransactionId(attempt, 0, 0)).app_id
            assert app == (None if role != observer else "secret-app")
            assert client.admin.producers.history(writer.id.producer_id).transactional_id == ident
            (blocking,) = (one for one in transactions.blocking() if one.transaction_id == writer.name)
            assert blocking.transactional_id == ident
            assert ("secret" in blocking.advice) == (ident is not None)
            if ident is None:
                for look in (transactions.show, client.admin.producers.history):
                    with refuses(errors.TransactionalIdNotFound, transactional_id="secret-1"):
                        look("secret-1")
    fence_producer(realm.connection, "secret-1")


def test_ids_that_nobody_was_granted_are_taken_over_as_ever(realm: Realm, partition: int) -> None:
    """The role that initialized an id last has it."""
    one, two = realm.guest("produce"), realm.guest("produce")
    name = unique("id")
    first = Writer(one, name)
    first.send(partition, b"aborted")
    second = Writer(two, name)
    second.send(partition, b"committed")
    second.commit()
    with refuses(errors.AuthorizationFailed, reason="owner"):
        first.send(partition, b"more")


def test_an_id_that_is_granted_to_others_is_lost_to_whom_had_it(realm: Realm, partition: int) -> None:
    """Also to who initialized it last: what it has open is ended by those that were granted the id."""
    writer = Writer(realm.guest("produce"), "pay-1")
    writer.send(partition, b"half")
    granted = realm.guest("produce", "produce:transactional_id:pay-*")
    with refuses(errors.AuthorizationFailed, transactional_id="pay-1"):
        writer.send(partition, b"more")
    assert end_transaction(granted, writer.name, "resolve").value == "ABORTED"


def test_who_administers_every_topic_may_use_ids_once_they_are_granted(realm: Realm, partition: int) -> None:
    """Then it may use all names; until then, and without a name, an id is that of the role that initialized it."""
    administrator, other = realm.guest("produce", "admin"), realm.guest("produce")
    writer, unnamed = Writer(other, unique("id")), init_producer_id(other, None, timeout_ms=60_000)
    writer.send(partition, b"own")
    for granted in (False, True):
        if granted:
            realm.guest("produce:transactional_id:pay-*")
        with contextlib.nullcontext() if granted else refuses(errors.AuthorizationFailed, reason="owner"):
            append_one(administrator, writer.row(partition, b"more"))
        with refuses(errors.AuthorizationFailed, reason="owner"):
            append_one(administrator, batch(partition, b"forged", producer=unnamed, sequence=0))


def test_a_saved_snapshot_is_replaced_and_deleted_by_whom_it_belongs_to(realm: Realm) -> None:
    """Others read it. It belongs to the role that saved it; the owner may do anything."""
    one, two = realm.guest("consume"), realm.guest("consume")
    name, incarnation = unique("cut"), describe_installation(realm.connection).incarnation
    first, second = f"{incarnation} first", f"{incarnation} second"
    save_snapshot(one, name, first, replace=False)
    assert save_snapshot(two, name, first, replace=True), "the same one again changes nothing"
    for change in (lambda: save_snapshot(two, name, second, replace=True), lambda: delete_snapshot(two, name)):
        with refuses(errors.AuthorizationFailed, name=name, reason="owner"):
            change()
    assert [each.snapshot for each in saved_snapshots(two, name)] == [first]
    with pytest.raises(errors.SnapshotExists):
        save_snapshot(two, name, second, replace=False)
    save_snapshot(one, name, second, replace=True)
    save_snapshot(realm.connection, name, first, replace=True)
    assert delete_snapshot(one, name), "who saved it has it, also after the owner replaced it"
    assert not delete_snapshot(two, name)


def test_of_a_saved_snapshot_a_role_sees_its_topics(realm: Realm) -> None:
    ours, theirs = unique("ours"), unique("theirs")
    name, incarnation = unique("cut"), describe_installation(realm.connection).incarnation
    whole = f"{incarnation} {ours}:0=1@1 {theirs}:0=2@2,1=3@3"
    save_snapshot(realm.connection, name, whole, replace=False)
    save_snapshot(realm.connection, f"{name}-empty", str(incarnation), replace=False)
    for right in ("consume", "observe", "admin"):
        caller = realm.guest(f"{right}:{ours}")
        assert [each.snapshot for each in saved_snapshots(caller, name)] == [f"{incarnation} {ours}:0=1@1"]
        assert [each.name for each in saved_snapshots(caller) if each.name.startswith(name)] == [name, f"{name}-empty"]
    nobody = realm.guest("consume:nothing")
    assert [each.name for each in saved_snapshots(nobody) if each.name.startswith(name)] == [f"{name}-empty"]
    save_snapshot(nobody, f"{name}-own", whole, replace=False)
    assert [each.snapshot for each in saved_snapshots(nobody, f"{name}-own")] == [whole], "who saved it knows it"
    with pytest.raises((errors.AuthorizationFailed, psycopg.errors.InsufficientPrivilege)):
        saved_snapshots(realm.guest("produce"))


# ── producer ids ──

Forgery = Callable[[Connection, Writer, int], object]
NAMED: dict[str, Forgery] = {
    "append": lambda c, w, p: append_one(c, w.row(p, b"forged")),
    "decide": lambda c, w, p: decide(c, w.name, "COMMIT", tails={p: 0}),
    "abort": lambda c, w, p: decide(c, w.name, "ABORT", tails={p: 0}),
    "append_and_decide": lambda c, w, p: append_and_decide(c, w.name, [w.row(p, b"forged")]),
    "append_unless_locked": lambda c, w, p: append_unless_locked(c, w.name, [w.row(p, b"forged")]),
    "seal": lambda c, w, p: seal(c, w.name, "external", tails={p: 0}),
    "acknowledge": lambda c, w, p: answer_in(c, w.name, one_answer(unique("share"), 1, p)),
    "complete": lambda c, w, p: complete_prepared(c, w.name, "COMMIT"),
    "resolve": lambda c, w, p: end_transaction(c, w.name, "resolve"),
    "as an administrator": lambda c, w, p: end_transaction(c, w.name, "admin"),
    "raise its epoch": lambda c, w, p: init_producer_id(
        c, None, timeout_ms=60_000, expected=ProducerId(w.name.producer_id, w.name.producer_epoch)
    ),
}


@pytest.mark.parametrize("whose", ["another", "owners"])
@pytest.mark.parametrize("call", NAMED)
def test_a_producer_id_is_its_roles(realm: Realm, call: str, whose: str, partition: int) -> None:
    """Readers see ids: a role that knows one must not commit half of another role's transaction (I1, I4, I6)."""
    writer = Writer(realm.connection if whose == "owners" else realm.guest("produce"), unique("id"))
    writer.send(partition, b"half")
    with pytest.raises(errors.AuthorizationFailed, match=r"is not of role|lacks the right to end"):
        NAMED[call](realm.guest("produce", "consume"), writer, partition)
    assert transaction_outcome(realm.connection, writer.name).outcome.value == "OPEN"
    writer.send(partition, b"whole")
    writer.commit()
    assert values(realm.connection, partition) == [b"half", b"whole"]


@pytest.mark.parametrize("whose", ["another", "owners"])
def test_an_idempotent_producers_id_is_its_roles(realm: Realm, whose: str, partition: int) -> None:
    """It has no row. If its next batch were forged, the real one would be answered as a duplicate, and lost (I1)."""
    mine, other = realm.connection if whose == "owners" else realm.guest("produce"), realm.guest("produce")
    producer = init_producer_id(mine, None, timeout_ms=60_000)
    append_one(mine, batch(partition, b"one", producer=producer, sequence=0))
    with refuses(errors.AuthorizationFailed, reason="owner"):
        append_one(other, batch(partition, b"forged", producer=producer, sequence=1))
    assert append_one(mine, batch(partition, b"two", producer=producer, sequence=1)).duplicate is False
    raised = init_producer_id(mine, None, timeout_ms=60_000, expected=producer)
    with refuses(errors.AuthorizationFailed, reason="owner"):
        append_one(other, batch(partition, b"forged", producer=raised, sequence=0))
    append_one(mine, batch(partition, b"three", producer=raised, sequence=0))
    assert values(realm.connection, partition) == [b"one", b"two", b"three"]


def test_a_producer_id_is_also_of_those_that_have_its_roles_rights(realm: Realm, partition: int) -> None:
    team, member, owner = realm.roles.make("produce"), realm.roles.make(), realm.roles.make()
    realm.roles.sql(f"grant {team} to {member}")
    realm.roles.sql(f"grant {realm.roles.owner} to {owner}")
    with contextlib.closing(realm.roles.connect(team)) as caller:
        writer = Writer(caller)
        writer.send(partition, b"team")
    for role in (member, owner):
        with contextlib.closing(realm.roles.connect(role)) as caller:
            writer.connection = caller
            writer.send(partition, role.encode())
    with refuses(errors.AuthorizationFailed, reason="owner"):
        append_one(realm.guest("produce"), writer.row(partition, b"forged"))


def test_ids_of_an_earlier_version_are_whose_they_were(realm: Realm, partition: int) -> None:
    """That version did not note it; producers that run during the upgrade continue. What is initialized is noted."""
    writer = Writer(realm.connection)
    producer = init_producer_id(realm.connection, None, timeout_ms=60_000)
    assert writer.id.producer_id < producer.producer_id
    with realm.connection.transaction(), pytest.raises(errors.AuthorizationFailed):
        append_one(realm.guest("produce"), batch(partition, b"x", producer=producer, sequence=0))
    realm.connection.execute("update msgtx.installation set first_owned_producer_id = %s", [producer.producer_id + 1])
    append_one(realm.guest("produce"), batch(partition, b"x", producer=producer, sequence=0))
    with refuses(errors.AuthorizationFailed, reason="owner"):
        append_one(realm.guest("produce"), writer.row(partition, b"forged"))
    realm.connection.execute("update msgtx.installation set first_owned_producer_id = 0")


def test_a_batch_of_spark_is_decided_by_whom_its_attempts_are(realm: Realm, partition: int) -> None:
    mine, other = realm.guest("produce"), realm.guest("produce")
    name = BatchName(unique("app"), "query", 1)
    attempt = begin_attempt(mine, name, timeout_ms=60_000)
    assert attempt is not None
    append_one(mine, batch(partition, b"x", producer=(attempt, 0), number=0, sequence=0))
    accepted = [Attempt(attempt, {partition: 0}, 1)]
    with refuses(errors.AuthorizationFailed, reason="owner"):
        decide_batch(other, name, accepted)
    with refuses(errors.AuthorizationFailed, reason="owner"):
        abort_batch(other, name)
    assert decide_batch(mine, name, accepted).error is None
    assert values(realm.connection, partition) == [b"x"]


def test_batches_of_an_application_are_for_those_that_were_granted_its_name(realm: Realm) -> None:
    """A fence row of another role would have the application skip its own batch; nor is one told which is the newest."""
    granted, other = realm.guest("produce", "produce:transactional_id:pay-*"), realm.guest("produce")
    of = BatchName("pay-app", "", 1)
    steps: list[Callable[[Connection], object]] = [
        lambda c: begin_attempt(c, of, timeout_ms=60_000),
        lambda c: renew_attempts(c, of, session_ms=1_000, timeout_ms=60_000),
        lambda c: abort_batch(c, of),
        lambda c: decide_batch(c, of, []),
    ]
    for step in steps:
        with refuses(errors.AuthorizationFailed, transactional_id="pay-app"):
            step(other)
    assert not is_batch_committed(realm.connection, of)
    for caller in (granted, realm.connection):
        for step in steps:
            step(caller)
    assert is_batch_committed(realm.connection, of)
    newest = BatchName("pay-app", "query", 2)
    assert decide_batch(granted, newest, []).error is None
    old = newest._replace(batch_id=0)
    assert isinstance(decide_batch(granted, old, []).error, errors.BatchConflict)
    with refuses(errors.AuthorizationFailed, transactional_id="pay-app"):
        decide_batch(other, old, [])


@pytest.mark.parametrize(
    "statement",
    [
        "select * from msgtx.decide(1, 0, 0, 'ABORT', in_decided_by => 'coordinator')",
        "select * from msgtx.decide(1, 0, 0, 'ABORT', in_decided_by => null)",
        "select msgtx.end_transaction(1, 0, 0, 'timeout')",
        "select msgtx.end_transaction(1, 0, 0, null)",
    ],
)
def test_nobody_says_that_somebody_else_decided(realm: Realm, statement: str) -> None:
    """By it clients distinguish a fence from a timeout, and doctor names it."""
    for caller in (realm.guest("produce", "admin"), realm.connection):
        with pytest.raises(Exception, match="no reason to"):
            caller.execute(statement)


def test_a_producer_id_tells_whose_it_is(realm: Realm) -> None:
    """The owner's are small; those of another role have a part of their own, and no two roles the same."""
    roles = [realm.guest("produce") for _ in range(2)]
    for transactional_id in (None, "tagged"):
        tags = set()
        for number, caller in enumerate([realm.connection, *roles]):
            name = None if transactional_id is None else f"{transactional_id}-{number}"
            tags.add(init_producer_id(caller, name, timeout_ms=60_000).producer_id >> 40)
        assert len(tags) == 3
        assert 0 in tags


def test_who_administers_nothing_ends_no_transaction_as_an_administrator(realm: Realm, partition: int) -> None:
    """Not even its own: `decided_by` would say what is not so. Who administers every topic ends any."""
    for rights, refused in ((("produce",), True), (("produce", "admin"), False)):
        caller = realm.guest(*rights)
        writer = Writer(caller)
        writer.send(partition, b"own")
        with refuses(errors.AuthorizationFailed, right="admin") if refused else contextlib.nullcontext():
            assert end_transaction(caller, writer.name, "admin").value == "ABORTED"
        assert end_transaction(caller, writer.name, "resolve").value == "ABORTED"


def test_where_a_partition_ends_is_told_to_who_administers_it(realm: Realm, partition: int) -> None:
    """A refusal because of an offset names the topic and both ends."""
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match=f"admin on the topic of partition {partition}"):
        realm.guest("admin:own").execute("select msgtx.delete_records(%s::int[], '{77}')", [[partition]])


# ── the command line, the client ──


def test_names_are_granted_from_the_command_line(realm: Realm, capfd: pytest.CaptureFixture[str]) -> None:
    def cli(*arguments: str) -> tuple[int, str, str]:
        capfd.readouterr()
        code = run(("--url", realm.roles.url, "db", *arguments))
        return code, *capfd.readouterr()

    role = realm.roles.make()
    for right in (("consume", "--group", "billing*"), ("produce", "--transactional-id", "a b")):
        code, out, _ = cli("grant", "--role", role, "--can", *right, "-o", "json")
        assert code == 0
    shown = [(row["can"], row["resource"], row["name"]) for row in json.loads(out)]
    assert shown == [("consume", "group", "billing*"), ("produce", "transactional_id", "a b")]
    code, _, told = cli("grant", "--role", role, "--can", "produce", "--group", "billing")
    assert (code, "a right on a group is one to consume" in told) == (2, True)
    code, _, told = cli("grant", "--role", role, "--can", "consume", "--group", "a", "--topic", "b")
    assert (code, "grant one after the other" in told) == (2, True)
    assert cli("revoke", "--role", role, "--can", "consume", "--group", "billing")[0] == 2
    assert cli("revoke", "--role", role, "--can", "consume", "--group", "billing*")[0] == 0
    assert realm.roles.read() == [(role, "produce", "transactional_id:a b", True)]


@pytest.mark.parametrize("name", ["", "*a", "a**", "a*b", "x" * 250])
@pytest.mark.parametrize("right", ["consume:group:", "produce:transactional_id:"])
def test_a_name_or_a_prefix_is_granted(realm: Realm, name: str, right: str) -> None:
    role = realm.roles.make()
    for change in (realm.roles.grant, realm.roles.revoke):
        with refuses(errors.ConfigError, name=name, reason="pattern"):
            change(role, right + name)


def test_a_consumer_of_a_group_that_is_not_its_own_is_told_what_to_ask_for(realm: Realm, partition: int) -> None:
    realm.roles.make("consume:group:theirs")
    with msgtx.connect(realm.roles.url_of(realm.roles.make("consume"))) as client:
        refused = refuses(errors.AuthorizationFailed, group="theirs")
        with client.consumer(group="theirs", enable_auto_commit=False) as consumer, refused:
            consumer.subscribe(pattern=".*")
        with client.consumer(group="ours", enable_auto_commit=False) as consumer:
            consumer.subscribe(pattern=".*")
            consumer.poll(0.1)
            assert consumer.assignment()


# ── share groups from the shell ──


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("shares", "list"), 0, ""),
        (("shares", "describe", "GROUP"), 1, "lacks the right to use group GROUP"),
        (
            ("shares", "configure", "GROUP", "--max-record-locks", "5"),
            1,
            "permission denied for function configure_share_group",
        ),
        (("shares", "delete", "GROUP", "--yes"), 1, "lacks the right to use group GROUP"),
        (
            ("shares", "reset-offsets", "GROUP", "--all-topics", "--to-latest", "--yes"),
            1,
            "lacks the right to use group GROUP",
        ),
        (("shares", "redrive", "GROUP", "--yes"), 1, "lacks the right to use group GROUP"),
        (("consume", "TOPIC", "--share", "GROUP", "--no-follow"), 1, "lacks the right to use group GROUP"),
        (("consume", "TOPIC", "--share", "free", "--no-follow"), 0, ""),
    ],
)
def test_a_login_without_the_right_is_told_in_one_line(
    realm: Realm, client: msgtx.Client, capfd: pytest.CaptureFixture[str], arguments: tuple[str, ...], code: int, words: str
) -> None:
    """I16."""
    topic, group = unique("topic"), unique("share")
    client.topics.create(topic)
    client.admin.shares.configure(group, {})
    realm.roles.make(f"consume:group:{group}")
    url = realm.roles.url_of(realm.roles.make(f"consume:{topic}"))
    before = client.admin.shares.describe(group)
    given = [each.replace("GROUP", group).replace("TOPIC", topic) for each in arguments]
    assert run(["--url", url, *given]) == code
    told = capfd.readouterr().err
    assert words.replace("GROUP", group) in told
    assert told.count("\n") == (code > 0)
    assert client.admin.shares.describe(group) == before
