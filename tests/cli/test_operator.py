"""The operator's verbs: producers of a partition, hanging transactions, doctor, verify."""

from collections.abc import Callable

from msgtx import Client
from tests.cli.program import Ended

Msgtx = Callable[..., Ended]
SECONDS = 30.0


def test_the_producers_of_a_topic_are_shown(msgtx: Msgtx, client: Client, wide: str) -> None:
    with client.producer(transactional_id=wide) as producer:
        producer.begin_transaction()
        producer.send(wide, b"a", partition=0)
        producer.send(wide, b"b", partition=2)
        producer.flush(SECONDS)
        rows = msgtx("transactions", "describe-producers", wide, "-o", "jsonl").rows
        assert [(row["partition"], row["transaction_start_offset"]) for row in rows] == [(0, 0), (2, 0)]
        assert set(rows[0]) == {
            "partition", "producer_id", "epoch", "coordinator_epoch", "last_sequence", "last_timestamp",
            "transaction_start_offset",
        }  # fmt: skip
        one = msgtx("transactions", "describe-producers", wide, "--partition", "2", "-o", "jsonl").rows
        assert one == rows[1:]
        table = msgtx("transactions", "describe-producers", wide).out
        assert table.startswith(b"partition")
        assert len(table.splitlines()) == 3
        producer.abort_transaction()
    assert msgtx("transactions", "describe-producers", wide, "--partition", "3").code == 2
    assert msgtx("transactions", "describe-producers", "nowhere").code == 2


def test_hanging_transactions_are_shown_with_what_ends_them(msgtx: Msgtx, client: Client, topic: str) -> None:
    find = ("transactions", "find-hanging", "--topic", topic)
    with client.producer(transactional_id=topic) as producer:
        name = str(producer.begin_transaction().id)
        producer.send(topic, b"a")
        producer.flush(SECONDS)
        assert msgtx(*find, "-o", "jsonl").rows == []
        (row,) = msgtx(*find, "--max-transaction-timeout", "0", "-o", "jsonl").rows
        assert (row["topic"], row["partition"], row["transaction_id"], row["start_offset"]) == (topic, 0, name, 0)
        assert row["advice"] == f"`msgtx transactions abort {name}`"
        assert msgtx(*find, "--partition", "0", "--max-transaction-timeout", "0.5", "-o", "jsonl").rows == []
        assert f"abort {name}".encode() in msgtx(*find, "--max-transaction-timeout", "0").out
        assert msgtx("transactions", "abort", name, "--yes").code == 0
        assert msgtx(*find, "--max-transaction-timeout", "0", "-o", "jsonl").rows == []
    assert msgtx("transactions", "find-hanging", "--partition", "0").code == 2
