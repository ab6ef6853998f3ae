"""`transactions prepared` and `complete`: an outside decision, made by an operator or a script."""

import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from msgtx import Client
from tests.cli.program import Ended

Msgtx = Callable[..., Ended]


@pytest.fixture
def token(client: Client, topic: str) -> str:
    """A transaction of one record that waits for its decision; its producer is gone."""
    with client.producer(transactional_id=topic) as producer, producer.transaction() as transaction:
        producer.send(topic, b"a")
        return str(transaction.prepare())


def values(msgtx: Msgtx, topic: str) -> list[str]:
    read = msgtx("consume", topic, "--from-beginning", "--no-follow", "-o", "jsonl")
    assert read.code == 0, read.err
    return [row["value"] for row in read.rows]


def test_what_waits_is_listed_with_its_token_and_since_when(msgtx: Msgtx, topic: str, token: str) -> None:
    rows = msgtx("transactions", "prepared", "-o", "jsonl").rows
    (row,) = [row for row in rows if row["transactional_id"] == topic]
    assert (row["token"], row["partitions"]) == (token, 1)
    since = datetime.fromisoformat(row["prepared_at"])
    assert timedelta(0) <= datetime.now(UTC) - since < timedelta(minutes=1)
    table = msgtx("transactions", "prepared").out.decode()
    assert table.startswith("token")
    assert token in table
    listed = msgtx("transactions", "list", "-o", "jsonl").rows
    assert [each["state"] for each in listed if each["transactional_id"] == topic] == ["Prepared"]


@pytest.mark.parametrize(("flag", "outcome", "seen"), [("--commit", "COMMIT", ["a"]), ("--abort", "ABORT", [])])
def test_a_token_decides_and_may_do_so_again(
    msgtx: Msgtx, topic: str, token: str, flag: str, outcome: str, seen: list[str]
) -> None:
    assert values(msgtx, topic) == []
    for _ in range(2):
        done = msgtx("transactions", "complete", token, flag, "--yes", "-o", "jsonl")
        assert done.code == 0, done.err
        assert done.rows[0]["outcome"] == {"COMMIT": "COMMITTED", "ABORT": "ABORTED"}[outcome]
    assert values(msgtx, topic) == seen
    rows = msgtx("transactions", "prepared", "-o", "jsonl").rows
    assert topic not in [row["transactional_id"] for row in rows]
    other = msgtx("transactions", "complete", token, "--abort" if flag == "--commit" else "--commit")
    other.refuses(f"stays so: {outcome} by", code=1)
    assert values(msgtx, topic) == seen


def test_nothing_is_decided_without_a_yes_or_in_a_dry_run(msgtx: Msgtx, topic: str, token: str) -> None:
    refused = msgtx("transactions", "complete", token, "--commit", stdin=b"n\n")
    assert (refused.code, "nothing was changed" in refused.err) == (1, True)
    dry = msgtx("transactions", "complete", token, "--commit", "--dry-run")
    assert (dry.code, "would commit transaction" in dry.err) == (0, True)
    assert values(msgtx, topic) == []
    assert msgtx("transactions", "complete", token, "--commit", stdin=b"y\n").code == 0
    assert values(msgtx, topic) == ["a"]


def test_a_token_that_decides_nothing_here_is_refused_in_one_line(msgtx: Msgtx, topic: str, token: str) -> None:
    name, _, incarnation = token.partition("@")
    producer_id, epoch, number = name.split(".")
    cases = {
        "nonsense": (2, "is no token"),
        f"{name}@nonsense": (2, "is no token"),
        f"{name}@{uuid.uuid4()}": (1, "incarnation"),
        f"{producer_id}.{epoch}.{int(number) + 1}@{incarnation}": (1, "not prepared"),
        f"999999.0.0@{incarnation}": (1, "not prepared"),
    }
    for wrong, (code, text) in cases.items():
        msgtx("transactions", "complete", wrong, "--commit", "--yes").refuses(text, code=code)
    msgtx("transactions", "complete", token).refuses("--commit")
    assert values(msgtx, topic) == []
