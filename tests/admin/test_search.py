"""`client.search` and `msgtx search`: from a text to the places where somebody may want to go."""

import json
from collections.abc import Callable

import pytest

import msgtx
from msgtx import SearchKind, errors
from msgtx.store.groups.groups import commit_offsets
from msgtx.types import GroupMetadata, OffsetAndMetadata
from tests.admin.conftest import Realm
from tests.cli.conftest import msgtx as program  # noqa: F401 - a fixture
from tests.cli.program import Ended
from tests.databases import Connection
from tests.refusals import refuses
from tests.store.steps import Writer, named_topic, plain, unique

pytestmark = pytest.mark.slow


def named(found: msgtx.SearchAnswer) -> list[tuple[str, str]]:
    return [(hit.kind, hit.name) for hit in found.hits]


def test_a_place_is_read_as_messages_write_it(client: msgtx.Client, connection: Connection) -> None:
    topic, (partition,) = named_topic(connection)
    plain(connection, partition, b"x", b"y")
    for text, kind, name in (
        (f"{topic}/0/1", SearchKind.RECORD, f"{topic}-0@1"),
        (f" {topic}-0@1 ", SearchKind.RECORD, f"{topic}-0@1"),
        (f"{topic}/0/9", SearchKind.PARTITION, f"{topic}-0"),
        (f"{topic}/0", SearchKind.PARTITION, f"{topic}-0"),
        (f"{topic}-0", SearchKind.PARTITION, f"{topic}-0"),
        (topic, SearchKind.TOPIC, topic),
    ):
        assert named(client.search(text))[0] == (kind, name), text
    record = client.search(f"{topic}/0/1").hits[0].record
    assert record is not None
    assert (record.offset, record.value) == (1, b"y")
    for text in (f"{topic}/1/0", f"{topic}/0/", "nowhere/0/0", f"{topic}@1"):
        assert client.search(text).hits == [], text


def test_transactions_ids_groups_snapshots_and_producers_are_found_by_name(
    client: msgtx.Client, connection: Connection
) -> None:
    topic, (partition,) = named_topic(connection)
    stem = unique("stem")
    writer = Writer(connection, f"{stem}-id")
    name = writer.send_and_commit(partition, b"x")
    commit_offsets(connection, {GroupMetadata(f"{stem}-group"): {partition: OffsetAndMetadata(1)}})
    client.admin.shares.configure(f"{stem}-shares", {})
    client.topics.create(f"{stem}.topic")
    client.topics.create(stem)
    client.snapshots.save(f"{stem}-cut", client.snapshot([topic]))
    assert named(client.search(str(name))) == [(SearchKind.TRANSACTION, str(name))]
    assert client.search(str(name)).hits[0].text == "transaction, committed by client"
    assert named(client.search(stem)) == [
        (SearchKind.TOPIC, stem),
        (SearchKind.TRANSACTIONAL_ID, f"{stem}-id"),
        (SearchKind.TOPIC, f"{stem}.topic"),
        (SearchKind.GROUP, f"{stem}-group"),
        (SearchKind.SHARE_GROUP, f"{stem}-shares"),
        (SearchKind.SNAPSHOT, f"{stem}-cut"),
    ]
    assert (SearchKind.PRODUCER, str(writer.id.producer_id)) in named(client.search(str(writer.id.producer_id)))
    assert client.search("9.9.9").hits == []
    similar = client.search(f"{stem}-grup").similar
    assert f"{stem}-group" in [hit.name for hit in similar]


def test_records_are_found_by_key_and_by_words_in_json(client: msgtx.Client, connection: Connection) -> None:
    topics = [named_topic(connection)[0] for _ in range(2)]
    word = unique("Zürich")
    stored = (
        (word.encode(), b"by its key"),
        (None, json.dumps({"deep": [{"city": f"8001 {word}, CH"}]}).encode()),  # with an escape for ü
        (None, json.dumps({"city": word}, ensure_ascii=False).encode()),
        (None, json.dumps({"city": word + "x", word: 1}).encode()),
        (None, word.encode()),
        (None, b'{"number": 536365987}'),
        (None, None),
    )
    with client.producer() as producer:
        for number, (key, value) in enumerate(stored):
            producer.send(topics[number % 2], value, key=key)
            producer.flush()
    found = client.search(word)
    assert [hit.record.value for hit in found.hits if hit.record] == [stored[at][1] for at in (2, 1, 0)]
    assert found.is_complete
    assert [hit.kind for hit in client.search("536365987").hits] == [SearchKind.RECORD]
    assert client.search("53636598").hits == []
    assert len(client.search(word, limit=1).hits) == 1
    assert client.search(word, contents=False).hits == []


def test_a_search_can_be_stopped_and_says_so(client: msgtx.Client, connection: Connection) -> None:
    _, (partition,) = named_topic(connection)
    plain(connection, partition, b"x", keys=[b"stopped"])

    class AtOnce:
        def is_set(self) -> bool:
            return True

    found = client.search("stopped", stop=AtOnce())
    assert (found.hits, found.is_complete) == ([], False)


@pytest.mark.parametrize(
    "text", ["%", "_", ".*", "(", "\\", "'; drop table msgtx.topic; --", "\x1b[2J\u202e", "a" * 5_000, "9" * 30, "1/2/3/4"]
)
def test_a_hostile_text_is_a_text(client: msgtx.Client, connection: Connection, text: str) -> None:
    topic, (partition,) = named_topic(connection)
    plain(connection, partition, json.dumps({"it": f"<{text}>"}).encode(), keys=[b"hostile"])
    (found,) = [hit.record for hit in client.search(text).hits if hit.record and hit.record.topic == topic]
    assert found.key == b"hostile"


def test_an_empty_text_is_refused(client: msgtx.Client) -> None:
    for text in ("", " \n"):
        with refuses(errors.InvalidRequest, name="text"):
            client.search(text)
    with refuses(errors.InvalidRequest, name="text"):
        client.search("a\0b")


def test_a_role_finds_its_topics_alone(client: msgtx.Client, connection: Connection, realm: Realm) -> None:
    (mine, (first,)), (hidden, (second,)) = named_topic(connection), named_topic(connection)
    stem = unique("owned")
    for partition in (first, second):
        Writer(connection, f"{stem}-{partition}").send_and_commit(partition, b'{"it": "found"}', keys=[stem.encode()])
        commit_offsets(connection, {GroupMetadata(f"{stem}-{partition}"): {partition: OffsetAndMetadata(1)}})
    client.snapshots.save(stem, client.snapshot([mine]))
    everything = named(client.search(stem))
    assert len(everything) == 7
    for right, expected in (
        (f"consume:{mine}", [entry for entry in everything if entry[1] != f"{stem}-{second}" and hidden not in entry[1]]),
        (
            f"observe:{mine}",
            [
                (SearchKind.TRANSACTIONAL_ID, f"{stem}-{first}"),
                (SearchKind.GROUP, f"{stem}-{first}"),
                (SearchKind.SNAPSHOT, stem),
            ],
        ),
        (f"produce:{mine}", []),
    ):
        with msgtx.connect(realm.roles.url_of(realm.roles.make(right))) as guest:
            assert sorted(named(guest.search(stem))) == sorted(expected), right
            assert guest.search(f"{hidden}/0/0").hits == []
            assert named(guest.search(f"{mine}/0/0"))[0][0] == ("partition" if right.startswith("produce") else "record")
            assert hidden not in [hit.name for hit in guest.search(hidden + "x").similar]


def test_the_command_shows_the_same(program: Callable[..., Ended], client: msgtx.Client) -> None:  # noqa: F811
    topic = unique("searched")
    client.topics.create(topic)
    with client.producer() as producer:
        producer.send(topic, json={"id": 1}, key=b"\x1b[2Jkey")
    done = program("search", "\x1b[2Jkey", "-o", "json")
    (hit,) = json.loads(done.out)["hits"]
    assert (done.code, hit["kind"], hit["record"]["value"]) == (0, "record", {"id": 1})
    table = program("search", f"{topic}/0/0")
    assert table.code == 0
    assert all(letter == "\n" or letter.isprintable() for letter in table.out.decode())
    missing = program("search", topic + "x")
    assert (missing.code, topic in missing.out.decode()) == (1, True)
    assert json.loads(program("search", topic + "x", "-o", "json").out)["similar"][0]["name"] == topic
    assert program("search", "").code == 2
