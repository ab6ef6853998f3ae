"""`msgtx find`: its exit codes, its JSON, and contents that would harm a terminal or a reader of JSON."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from msgtx import Client
from tests.cli.program import Ended
from tests.databases import Server
from tests.roles import Roles

pytestmark = pytest.mark.slow

Msgtx = Callable[..., Ended]

HOSTILE = [  # a value, and what JSON shows of it
    (None, {"value": None}),
    (b"", {"value": ""}),
    (b"\xff\xfe", {"value_base64": "//4="}),
    (b"\x1b[2J\x07\r\nmsgtx: all is well", {"value": "\x1b[2J\x07\r\nmsgtx: all is well"}),
    ("\u202e\u0085\u2028".encode(), {"value": "\u202e\u0085\u2028"}),
    (b'{"id": 305}', {"value": {"id": 305}}),
    (b'{"id": NaN}', {"value": '{"id": NaN}'}),
    (b'{"id": 1e999}', {"value": '{"id": 1e999}'}),
    (b'{"id": "\\ud800"}', {"value": {"id": "\ud800"}}),
    (b'{"id": ' + b"9" * 5000 + b"}", {"value": '{"id": ' + "9" * 5000 + "}"}),
    (b"[" * 5000 + b"]" * 5000, {"value": "[" * 5000 + "]" * 5000}),
]


@pytest.mark.parametrize(("value", "shown"), HOSTILE, ids=[repr(value)[:20] for value, _ in HOSTILE])
def test_what_a_record_holds_is_shown_and_does_no_harm(
    msgtx: Msgtx, client: Client, topic: str, value: bytes | None, shown: dict[str, Any]
) -> None:
    with client.producer() as producer:
        producer.send(topic, value, key=value, headers=[("h", value)])
    done = msgtx("find", topic, "-o", "jsonl")
    assert (done.code, done.err) == (0, "")
    row = json.loads(done.out, parse_constant=lambda constant: pytest.fail(f"{constant} is no JSON"))
    assert {name: content for name, content in row.items() if name.startswith("value")} == shown
    table = msgtx("find", topic)
    assert table.code == 0
    text = table.out.decode()
    assert all(letter == "\n" or letter.isprintable() for letter in text)
    assert text.startswith(f"{topic}-0@0 ")


def test_json_has_the_same_members_whatever_was_found(msgtx: Msgtx, client: Client, topic: str) -> None:
    with client.producer() as producer:
        producer.send(topic, b"plain")
    with client.producer(transactional_id=topic) as producer, producer.transaction():
        producer.send(topic, json={"id": 1}, key=b"ada", headers={"trace": b"4711"}, delay_ms="1h")
    inside, plain = msgtx("find", topic, "-o", "jsonl").rows
    assert inside.keys() == plain.keys()
    assert (inside["value"], inside["key"], inside["headers"][0]) == ({"id": 1}, "ada", {"key": "trace", "value": "4711"})
    assert (inside["outcome"], inside["transactional_id"]) == ("committed", topic)
    assert (plain["outcome"], plain["transaction_id"], plain["groups"], plain["dead_letters"]) == ("committed", None, [], [])
    assert json.loads(msgtx("find", topic, "-o", "json").out) == [inside, plain]


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (("--key", "nobody"), 1, "--since looks further back"),
        (("--offset", "0:9"), 1, "no record of"),
        (("--offset", "0:0", "--partition", "1"), 2, "another partition than --partition"),
        (("--offset", "0"), 2, "no PARTITION:OFFSET, such as 0:42"),
        (("--offset", "-1:0"), 2, "no PARTITION:OFFSET"),
        (("--offset", "9:0"), 2, "partition"),
        (("--partition", "9"), 2, "partition"),
        (("--json", "id"), 2, "a search in JSON is path.of.names=text"),
        (("--header", "trace"), 2, "one in headers name=content"),
        (("--since", "soon"), 2, "since"),
        (("--limit", "0"), 2, "limit"),
        (("--before", "3"), 2, "goes with --partition"),
        (("--no-groups",), 2, "goes with --before"),
        (("--before", "3", "--offset", "0:1"), 2, "without --offset"),
        (("--before", "0", "--partition", "0"), 1, "in front of offset 0"),
    ],
)
def test_nothing_found_and_a_wrong_search_have_exit_codes_of_their_own(
    msgtx: Msgtx, topic: str, options: tuple[str, ...], code: int, words: str
) -> None:
    done = msgtx("find", topic, *options)
    assert (done.code, done.out) == (code, b"")
    assert words in done.err


def test_pages_go_back_from_an_offset(msgtx: Msgtx, client: Client, topic: str) -> None:
    with client.producer() as producer:
        for number in range(5):
            producer.send(topic, b'{"customer": {"id": "%d"}}' % (number % 2))
    asked = ("find", topic, "--json", "customer.id=0", "--partition", "0", "--no-groups", "-o", "jsonl")
    first = msgtx(*asked, "--before", "5", "--limit", "2")
    assert [row["offset"] for row in first.rows] == [4, 2]
    assert "--before 2 continues it" in first.err
    last = msgtx(*asked, "--before", "2")
    assert [row["offset"] for row in last.rows] == [0]
    assert "--before" not in last.err


def test_nothing_found_is_an_empty_list_in_json(msgtx: Msgtx, topic: str) -> None:
    done = msgtx("find", topic, "-o", "json")
    assert (done.code, json.loads(done.out)) == (1, [])


@pytest.fixture
def roles(server: Server, database_url: str) -> Iterator[Roles]:
    """Logins with few rights."""
    made = Roles(server, database_url)
    yield made
    made.drop()


def test_contents_take_the_right_to_consume(msgtx: Msgtx, client: Client, topic: str, roles: Roles) -> None:
    with client.producer() as producer:
        producer.send(topic, b"secret", key=b"ada")
    observer, stranger = (roles.url_of(roles.make(right)) for right in (f"observe:{topic}", "observe:elsewhere"))
    (row,) = msgtx("--url", observer, "find", topic, "-o", "jsonl").rows
    assert (row["offset"], row["key"], row["value"], row["headers"]) == (0, None, None, [])
    msgtx("--url", observer, "find", topic, "--key", "ada").refuses("--can consume", code=1)
    msgtx("--url", stranger, "find", topic).refuses(f"there is no topic '{topic}'")
