"""`client.admin.transactions.show` and `msgtx transactions show`: one transaction, and its timeline."""

import json

import pytest

import msgtx
from msgtx import Outcome, ShownTransaction, TransactionId, errors
from msgtx.store.transactions.transactions import mark
from tests.admin.conftest import Realm
from tests.databases import Connection
from tests.refusals import refuses
from tests.store.steps import Writer, named_topic, offsets_of, unique

SECONDS = 30.0


def events(found: ShownTransaction) -> list[tuple[str, int | None]]:
    return [(each.event, each.partition) for each in found.events]


def test_a_transaction_tells_its_timeline(client: msgtx.Client, connection: Connection) -> None:
    topic, ident = client.topics.create(unique("shown"), partitions=2).name, unique("it's <b>\u202e")
    with client.producer(transactional_id=ident) as producer:
        name = producer.begin_transaction().id
        for _ in range(2):
            producer.send(topic, b"a", partition=1)
            producer.flush(SECONDS)
        found = client.admin.transactions.show(name)
        assert (found.transactional_id, found.state, found.outcome) == (ident, "Ongoing", Outcome.OPEN)
        assert found.opened_at is not None
        assert found.timeout_ms is not None
        assert found.deadline == found.opened_at + found.timeout_ms
        assert events(found) == [("opened", None), ("first_batch", 1), ("last_batch", 1)]
        producer.commit_transaction()
    mark(connection, everything=True)
    found = client.admin.transactions.show(ident)
    assert found.transaction_id == name
    assert events(found)[-2:] == [("decided", None), ("marked", 1)]
    times = [each.at for each in found.events[1:] if each.at is not None]
    assert times == sorted(times)
    decided = found.events[-2]
    assert (decided.at, decided.who) == (found.decided_at, "client")
    assert decided.told == f"committed by client, process {found.client_process} on {found.client_host}"
    assert client.admin.transactions.show(str(name)).events == found.events


def test_what_is_not_stored_is_refused_with_what_outcome_tells(client: msgtx.Client) -> None:
    for unknown in (TransactionId(7, 0, 2**60), "7.0.1152921504606846976"):
        with refuses(errors.TransactionNotFound, given="7.0.1152921504606846976", producer_id=7):
            client.admin.transactions.show(unknown)
    with refuses(errors.TransactionalIdNotFound, transactional_id="nobody'; drop"):
        client.admin.transactions.show("nobody'; drop")
    idle = unique("idle")
    with client.producer(transactional_id=idle), refuses(errors.TransactionNotFound, transactional_id=idle):
        client.admin.transactions.show(idle)


def test_the_offsets_of_many_groups_come_in_steps(
    client: msgtx.Client,
    connection: Connection,
    database_url: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    from msgtx.cli.main import run

    monkeypatch.setattr("msgtx.admin.showing.SEARCHED_AT_ONCE", 2)
    _, partitions = named_topic(connection, 5)
    group = unique("group")
    name = Writer(connection).commit(offsets_of(*((group, partition, 1) for partition in partitions)))
    found = client.admin.transactions.show(name)
    steps = [found]
    while found.offsets_next is not None:
        found = client.admin.transactions.show(name, offsets_after=found.offsets_next)
        steps.append(found)
    assert len(steps) > 2
    assert [each.partition for found in steps for each in found.offsets] == [0, 1, 2, 3, 4]
    assert run(["--url", database_url, "transactions", "show", str(name), "-o", "json"]) == 0
    row = json.loads(capfd.readouterr().out)
    assert [each["partition"] for each in row["offsets"]] == [0, 1, 2, 3, 4]
    for wrong in ([-1, 0], "12", 7):
        with pytest.raises(errors.InvalidRequest):
            client.admin.transactions.show(name, offsets_after=wrong)  # type: ignore[arg-type]


def test_a_role_sees_the_partitions_and_groups_of_its_topics(realm: Realm) -> None:
    (ours, (mine,)), (theirs, (other,)) = named_topic(realm.connection), named_topic(realm.connection)
    writer, group = Writer(realm.connection), unique("group")
    writer.send(mine, b"a")
    writer.send(other, b"b")
    both = writer.commit(offsets_of((group, mine, 1), (group, other, 1)))
    hidden = writer.send_and_commit(other, b"c")
    alone = writer.commit(offsets_of((group, other, 2)))
    for right in ("observe", "consume", "admin"):
        with msgtx.connect(realm.roles.url_of(realm.roles.make(f"{right}:{ours}"))) as client:
            found = client.admin.transactions.show(both)
            assert found.partition_count == 1
            assert [each.topic for each in found.partitions] == [ours]
            assert [each.topic for each in found.offsets] == [ours]
            for name in (hidden, alone):
                with pytest.raises(errors.TransactionNotFound):
                    client.admin.transactions.show(name)
    with msgtx.connect(realm.roles.url_of(realm.roles.make("observe"))) as client:
        assert [each.topic for each in client.admin.transactions.show(both).partitions] == [ours, theirs]


def test_the_command_shows_it_to_people_and_programs(
    client: msgtx.Client, database_url: str, capfd: pytest.CaptureFixture[str]
) -> None:
    from msgtx.cli.main import run

    topic, ident = client.topics.create(unique("shown")).name, unique("shop")
    with client.producer(transactional_id=ident) as producer, producer.transaction() as transaction:
        producer.send(topic, b"abc")
        producer.send_offsets_to_transaction({msgtx.TopicPartition(topic, 0): 1}, unique("group"))
    show = ["--url", database_url, "transactions", "show"]
    assert run([*show, ident]) == 0
    lines = capfd.readouterr().out.splitlines()
    assert lines[0].startswith(f"transaction {transaction.id} of '{ident}'  ")
    assert any(line.startswith(f"  {topic}-0  offsets 0 to 0, 1 record of ") for line in lines)
    assert any(line.endswith(f"{topic}-0@1") for line in lines)
    assert "committed by client" in lines[-1] or "committed by client" in lines[-2]
    assert run([*show, str(transaction.id), "-o", "json"]) == 0
    row = json.loads(capfd.readouterr().out)
    assert (row["transaction_id"], row["outcome"]) == (str(transaction.id), "COMMITTED")
    assert row["decided_at"].endswith("Z")
    assert (row["partitions"][0]["topic"], row["partitions"][0]["partition"]) == (topic, 0)
    assert row["partitions"][0]["first_appended_at"].endswith("Z")
    assert [each["event"] for each in row["events"]][:2] == ["first_batch", "decided"]
    assert run([*show, "7.0.1152921504606846976"]) == 2
    assert "Traceback" not in capfd.readouterr().err
