"""`client.admin.transactions.page`: transactions in an order, page by page, as the role sees their names."""

from collections.abc import Iterator

import pytest

import msgtx
from msgtx import errors
from msgtx.rules.transaction import SORTS
from msgtx.store.transactions.producers import fence_producer
from tests.admin.conftest import Realm
from tests.databases import Connection
from tests.refusals import refuses
from tests.store.steps import Writer, named_topic, unique


@pytest.fixture
def writers(connection: Connection) -> Iterator[list[Writer]]:
    """Five producers whose ids have one beginning; the third one's transaction is open, the fifth one has none."""
    name, (partition,) = unique("listed"), named_topic(connection)[1]
    made = [Writer(connection, f"{name}-{letter}") for letter in "cabed"]
    for writer in made[:2]:
        writer.send_and_commit(partition, b"a")
    made[2].send(partition, b"open")
    made[3].send_and_abort(partition, b"b")
    yield made
    made[2].abort()


def pages(client: msgtx.Client, sort: str, prefix: str = "", states: list[str] | None = None, most: int = 2) -> list[int]:
    """Return the producers of all pages, in order."""
    found: list[int] = []
    after: int | None = None
    while True:
        page = client.admin.transactions.page(states, prefix=prefix, sort=sort, after=after, most=most)
        found += [one.producer_id for one in page.transactions]
        if (after := page.after) is None:
            return found


@pytest.mark.parametrize("sort", SORTS)
def test_pages_have_each_transaction_once_in_order(
    client: msgtx.Client, connection: Connection, writers: list[Writer], sort: str
) -> None:
    prefix = writers[0].transactional_id[:-1]
    by_id = [writer.id.producer_id for writer in sorted(writers, key=lambda writer: writer.transactional_id)]
    wanted = sorted(by_id) if sort.endswith("producer_id") else by_id
    assert pages(client, sort, prefix) == (wanted[::-1] if sort.startswith("-") else wanted)
    # Those without a transactional id are in one place, too.
    with client.producer() as producer:
        producer.send(named_topic(connection)[0], b"a")
    connection.execute("update msgtx.producer set transactional_id = null where producer_id = any(%s)", [by_id[:3]])
    everything = pages(client, sort, most=3)
    assert len(everything) == len(set(everything))
    nameless = [each for each in everything if each in by_id[:3]]
    assert nameless == sorted(nameless, reverse=sort.startswith("-"))
    if sort == "transactional_id":
        assert everything[-3:] == nameless
    assert everything == [one.producer_id for one in client.admin.transactions.list(sort=sort)]


def test_states_and_prefixes_are_chosen_in_the_database(client: msgtx.Client, writers: list[Writer]) -> None:
    prefix = writers[0].transactional_id[:-1]
    for states, wanted in (
        (["Ongoing", "Prepared"], [writers[2]]),
        (["PrepareAbort", "CompleteAbort"], [writers[3]]),
        (["Empty"], [writers[4]]),
        (["Prepared"], []),
        (["Ongoing", "Empty"], [writers[2], writers[4]]),
    ):
        found = client.admin.transactions.page(states, prefix=prefix)
        assert [one.producer_id for one in found.transactions] == [writer.id.producer_id for writer in wanted]
    assert client.admin.transactions.page(prefix=f"{prefix}%").transactions == []
    assert client.admin.transactions.page(prefix=f"{prefix}a").transactions[0].producer_id == writers[1].id.producer_id
    assert [one.producer_id for one in client.admin.transactions.list(prefix=prefix, pattern=".*-[ab]")] == [
        writers[1].id.producer_id,
        writers[2].id.producer_id,
    ]
    assert len(client.admin.transactions.list(prefix=prefix, most=3)) == 3


def test_a_place_that_is_gone_is_refused(client: msgtx.Client) -> None:
    with refuses(errors.InvalidRequest, name="after"):
        client.admin.transactions.page(after=2**40)
    assert client.admin.transactions.page(after=2**40, sort="producer_id").transactions == []


def test_a_page_ends_its_look_and_says_where(client: msgtx.Client, connection: Connection) -> None:
    connection.execute(
        "insert into msgtx.producer (producer_id, epoch, transactional_id, timeout_ms, initialized_at, shard)"
        " select 1000000 + n, 0, 'look-' || n, 1, now(), 0 from generate_series(1, 20001) n"
    )
    try:
        page = client.admin.transactions.page(["CompleteCommit"], prefix="look-", sort="producer_id")
        assert (page.transactions, page.after) == ([], 1_020_000)
        page = client.admin.transactions.page(["CompleteCommit"], prefix="look-", sort="producer_id", after=page.after)
        assert (page.transactions, page.after) == ([], None)
        assert client.admin.transactions.list(["CompleteCommit"], prefix="look-") == []
    finally:
        connection.execute("delete from msgtx.producer where transactional_id like 'look-%'")


def test_a_hidden_name_neither_chooses_nor_sorts(realm: Realm, client: msgtx.Client) -> None:
    topic, (partition,) = named_topic(realm.connection)
    prefix = unique("hidden")
    theirs, ours = Writer(realm.connection, f"{prefix}-a"), Writer(realm.connection, f"{prefix}-b")
    elsewhere = Writer(realm.connection, f"{prefix}-c")
    for writer in (theirs, ours):
        writer.send_and_commit(partition, b"a")
    elsewhere.send_and_commit(named_topic(realm.connection)[1][0], b"a")
    role = realm.roles.make(f"consume:{topic}", f"produce:transactional_id:{prefix}-b")
    with msgtx.connect(realm.roles.url_of(role)) as reader:
        found = reader.admin.transactions.page()
        assert [(one.transactional_id, one.producer_id) for one in found.transactions] == [
            (f"{prefix}-b", ours.id.producer_id),
            (None, theirs.id.producer_id),
        ]
        assert pages(reader, "transactional_id", most=1) == [ours.id.producer_id, theirs.id.producer_id]
        assert pages(reader, "transactional_id", prefix) == [ours.id.producer_id]
        with refuses(errors.InvalidRequest, name="after"):
            reader.admin.transactions.page(after=elsewhere.id.producer_id)


# ── what one transaction blocks ──


def test_one_transaction_tells_what_it_blocks_and_no_other(
    client: msgtx.Client, connection: Connection, realm: Realm
) -> None:
    topic, (first, second) = named_topic(connection, 2)
    _, (other,) = named_topic(connection)
    ahead, behind = Writer(connection), Writer(connection)
    ahead.send(first, b"a")
    behind.send(first, b"b")
    behind.send(second, b"c")
    behind.send(other, b"d")
    (one,) = client.admin.transactions.blocking(transaction=behind.name)
    assert one.transaction_id == behind.name
    assert {(place.topic, place.partition) for place in one.partitions} >= {(topic, 1)}
    assert (topic, 0) not in {(place.topic, place.partition) for place in one.partitions}  # the other one does
    for name in (str(ahead.name), ahead.transactional_id):
        assert [each.transaction_id for each in client.admin.transactions.blocking(transaction=name)] == [ahead.name]
    with msgtx.connect(realm.roles.url_of(realm.roles.make(f"observe:{topic}"))) as reader:
        (seen,) = reader.admin.transactions.blocking(transaction=behind.name)
        assert [place.topic for place in seen.partitions] == [topic]
    ahead.abort()
    assert client.admin.transactions.blocking(transaction=ahead.name) == []
    fence_producer(connection, behind.transactional_id)
    with refuses(errors.TransactionalIdNotFound, transactional_id="nobody's"):
        client.admin.transactions.blocking(transaction="nobody's")
