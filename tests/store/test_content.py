"""Functions over the content of records have a value for all bytes."""

import pytest

from msgtx.database.calls import query
from msgtx.store.append.append import append
from tests.databases import Connection
from tests.odd_records import CONTENTS
from tests.store.sharing import ShareGroup
from tests.store.steps import batch, values

MANY = bytes(40_000_000)  # its escaped form is longer than PostgreSQL's longest text would be ten times over


@pytest.mark.parametrize("content", CONTENTS, ids=lambda content: ascii(content)[:30])
def test_a_time_of_delivery_is_digits_and_all_else_is_none(connection: Connection, content: bytes) -> None:
    ((at,),) = query(connection, "select round(extract(epoch from msgtx.delivery_time(%s)) * 1000)", content)
    digits = content.isdigit() and len(content) <= 14 and content.isascii()
    assert at == (int(content) if digits else None)


@pytest.mark.parametrize("content", CONTENTS, ids=lambda content: ascii(content)[:30])
def test_the_text_of_a_header_is_its_ascii_or_escaped(connection: Connection, content: bytes) -> None:
    ((text,),) = query(connection, "select msgtx.header_text(%s, 300)", content)
    if len(content) > 300:
        assert text is None
    elif content.isascii() and b"\0" not in content and b"\\" not in content:
        assert text == content.decode()
    else:
        assert "\\" in text


@pytest.mark.parametrize("content", CONTENTS, ids=lambda content: ascii(content)[:30])
def test_a_value_is_json_or_none(connection: Connection, content: bytes) -> None:
    ((found,),) = query(connection, "select msgtx.value_json(%s)::text", content)
    readable = content.startswith((b"{", b"[", b'"', b"null", b"true")) or content.strip().isdigit()
    assert found is None or readable or float(found) is not None


@pytest.mark.parametrize(
    ("content", "is_json"),
    [
        (b"1e308", True),
        (b"-1e308", True),
        (b"0." + b"1" * 5_000, True),
        (b"1e-5000", True),
        (b'"1e5000 and ' + b"9" * 5_000 + b'"', True),
        (b"[" * 499 + b"]" * 499, True),
        (b"[" + b"[]," * 2_000 + b"{}]", True),
        (b"1e309", False),
        (b'{"a": [1, {"b": -1e5000}]}', False),
        (b"9" * 5_000, False),
        (b"[" * 501 + b"]" * 501, False),
        (b'{"a": ' * 600 + b"1" + b"}" * 600, False),
    ],
    ids=lambda given: ascii(given)[:30],
)
def test_json_that_common_readers_refuse_is_none(connection: Connection, content: bytes, is_json: bool) -> None:
    """Python's, for one, which reads what an application selects."""
    ((found,),) = connection.execute("select msgtx.value_json(%s)", [content]).fetchall()
    assert (found is not None) == is_json


def test_large_contents_have_a_value_too(connection: Connection) -> None:
    row = query(
        connection, "select msgtx.delivery_time(%s), msgtx.header_text(%s, 300), msgtx.value_json(%s)", MANY, MANY, MANY
    )
    assert row == [(None, None, None)]


@pytest.mark.parametrize("ordering", ["none", "key"])
def test_a_share_group_is_given_every_record_whatever_its_header_of_delivery_is(
    connection: Connection, partition: int, ordering: str
) -> None:
    headers = [
        [("msgtx.deliver-at", content)] for content in CONTENTS if not (content.isdigit() and len(content) in {13, 14})
    ]
    rows = [batch(partition, *[b"%d" % at for at in range(len(headers))], headers=headers)]
    append(connection, rows)
    group = ShareGroup(connection, partition, ordering=ordering)
    assert len(values(connection, partition)) == len(headers)
    group.acquire("a")
    assert group.spans == [(0, len(headers) - 1, "acquired", 1)]
