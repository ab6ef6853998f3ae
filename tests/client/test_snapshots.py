"""Snapshots: a cut as a value, and what reading it gives (I14, I15)."""

import pickle
from collections.abc import Callable

import pytest

import msgtx
from msgtx import Snapshot, TopicPartition, errors
from tests.databases import Connection

Unique = Callable[[str], str]
INCARNATION = "0f8fad5b-d9cb-469f-a165-70867728950e"


def values(client: msgtx.Client, cut: Snapshot, start: Snapshot | None = None) -> list[bytes | None]:
    return [record.value for record in client.read(cut, start)]


def test_a_cut_leaves_out_what_an_open_transaction_holds_back(client: msgtx.Client, wide: str, unique: Unique) -> None:
    with (
        client.producer(transactional_id=unique("open")) as open_one,
        client.producer(transactional_id=unique("split")) as split,
    ):
        with split.transaction():
            for partition in range(3):
                split.send(wide, b"whole", partition=partition)
        open_one.begin_transaction()
        open_one.send(wide, b"open", partition=0).result(10)
        with split.transaction():
            for partition in range(3):
                split.send(wide, b"behind", partition=partition)
        cut = client.snapshot([wide])
        assert cut.ends == {TopicPartition(wide, partition): 1 for partition in range(3)}
        assert values(client, cut) == [b"whole"] * 3
        open_one.abort_transaction()
    later = client.snapshot([wide])
    assert values(client, later, cut) == [b"behind"] * 3
    assert values(client, later) == [b"whole", b"behind"] * 3
    assert values(client, cut) == [b"whole"] * 3, "an earlier cut reads the same"


def test_two_topics_are_cut_together(client: msgtx.Client, topic: str, wide: str, unique: Unique) -> None:
    with client.producer(transactional_id=unique("id")) as producer, producer.transaction():
        producer.send(topic, b"one")
        producer.send(wide, b"two", partition=2)
    cut = client.snapshot([topic, wide])
    assert sorted(filter(None, values(client, cut))) == [b"one", b"two"]
    assert values(client, cut, cut) == []
    assert client.snapshot([]).ends == {}


def test_text_and_pickle_bring_a_cut_back(client: msgtx.Client, wide: str) -> None:
    cut = client.snapshot([wide])
    assert Snapshot.parse(str(cut)) == cut == pickle.loads(pickle.dumps(cut))  # noqa: S301 - our own
    text = f"{INCARNATION} a.b-c_d:0=1,12=34 z:0=0"
    assert str(Snapshot.parse(text)) == text
    assert Snapshot.parse(INCARNATION).ends == {}


@pytest.mark.parametrize(
    "text", ["", "x", "orders:0=1", f"{INCARNATION} orders", f"{INCARNATION} orders:0=-1", f"{INCARNATION} o:=1"]
)
def test_a_text_that_is_no_snapshot_is_refused(text: str) -> None:
    with pytest.raises(errors.InvalidRequest):
        Snapshot.parse(text)


def test_what_cannot_be_read_says_why(client: msgtx.Client, topic: str, unique: Unique, connection: Connection) -> None:
    with pytest.raises(errors.UnknownTopicOrPartition):
        client.snapshot([unique("nowhere")])
    with pytest.raises(TypeError):
        client.snapshot(topic)
    begin = client.snapshot([topic])
    with client.producer() as producer:
        for value in (b"a", b"b", b"c"):
            producer.send(topic, value).result(10)
    cut = client.snapshot([topic])
    with pytest.raises(errors.IncarnationChanged):
        values(client, Snapshot(cut.ends, INCARNATION))
    with pytest.raises(errors.LogTruncated):
        values(client, Snapshot({TopicPartition(topic, 0): 9}, cut.incarnation))
    client.admin.partitions.delete_records({TopicPartition(topic, 0): 2})
    with pytest.raises(errors.OffsetOutOfRange, match="retention"):
        values(client, cut, begin)
    assert values(client, cut) == [b"c"]
