"""The binary parameters: PostgreSQL reads what is encoded here."""

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import hypothesis
import psycopg
import psycopg.types.json
import pytest
from hypothesis import strategies as st

from msgtx.database.calls import batch_array
from msgtx.database.pool import Engine
from msgtx.database.wire import LARGE_BYTES, Arriving, BatchColumns, Cursor, Int4Array, Int8Array, TextArray
from tests.databases import Connection, wait_until
from tests.links import HoldingBack

texts = st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=20)
int4 = st.integers(-(2**31), 2**31 - 1)
int8 = st.integers(-(2**63), 2**63 - 1)
# Large ones too: they are copied in another way.
bytea = st.one_of(st.none(), st.binary(max_size=40), st.binary(min_size=1, max_size=4).map(lambda part: part * LARGE_BYTES))


@pytest.fixture(scope="module")
def session(engine: Engine) -> Iterator[Connection]:
    connection = engine.dedicated()
    yield connection
    connection.close()


def asked(session: Connection, statement: str, *arguments: Any) -> Any:
    cursor = Cursor(session)
    cursor.execute(statement, arguments)
    row = cursor.fetchone()
    assert row is not None
    return row if len(row) > 1 else row[0]


@hypothesis.given(st.lists(int8, max_size=20))
def test_bigint_arrays(session: Connection, items: list[int]) -> None:
    assert asked(session, "select %s::int8[]", Int8Array(items)) == items


@hypothesis.given(st.lists(st.one_of(st.none(), int4), max_size=20))
def test_int_arrays_with_nulls(session: Connection, items: list[int | None]) -> None:
    assert asked(session, "select %s::int4[]", Int4Array(items)) == items


@hypothesis.given(st.lists(st.one_of(st.none(), texts), max_size=20))
def test_text_arrays_with_nulls(session: Connection, items: list[str | None]) -> None:
    assert asked(session, "select %s::text[]", TextArray(items)) == items


@hypothesis.given(int8)
def test_every_int_is_a_bigint(session: Connection, number: int) -> None:
    assert asked(session, "select %s, pg_typeof(%s)::text", number, number) == (number, "bigint")


@st.composite
def rows(draw: st.DrawFn) -> BatchColumns:
    values = draw(st.lists(bytea, min_size=1, max_size=8))
    size = len(values)

    def column(items: st.SearchStrategy[Any]) -> Any:
        return draw(st.one_of(st.none(), st.lists(items, min_size=size, max_size=size)))

    counts = column(st.integers(0, 3))
    headers = sum(counts or ())
    return BatchColumns(
        partition_id=draw(st.integers(0, 2**31 - 1)),
        producer_id=draw(st.one_of(st.none(), int8)),
        producer_epoch=draw(st.one_of(st.none(), int4)),
        transaction_number=draw(st.one_of(st.none(), int8)),
        base_sequence=draw(st.one_of(st.none(), int8)),
        max_timestamp=draw(int8),
        keys=column(bytea),
        values=values,
        timestamps=column(int8),
        header_counts=counts,
        header_keys=None if counts is None else draw(st.lists(texts, min_size=headers, max_size=headers)),
        header_values=None if counts is None else draw(st.lists(bytea, min_size=headers, max_size=headers)),
    )


@hypothesis.given(st.lists(rows(), max_size=4))
def test_batches_come_back_as_they_were(session: Connection, batches: list[BatchColumns]) -> None:
    cursor = Cursor(session)
    cursor.execute("select b.* from unnest(%s::msgtx.batch[]) b", [batch_array(session, batches)])
    fields = (
        "partition_id", "producer_id", "producer_epoch", "transaction_number", "base_sequence", "max_timestamp",
        "keys", "values", "timestamps", "header_counts", "header_keys", "header_values",
    )  # fmt: skip
    expected = [tuple(getattr(batch, name) for name in fields) for batch in batches]
    assert cursor.fetchall() == expected


@pytest.mark.parametrize("size", [(1 << 16) - 1, 1 << 16, (1 << 16) + 1, 300_000])
def test_values_around_the_table_of_lengths(session: Connection, size: int) -> None:
    contents = [b"x" * size, None, b"", b"y"]
    plain = [value for value in contents if value is not None]
    for values in (contents, plain, plain[::-1]):
        row = BatchColumns(1, None, None, None, None, 0, None, values)
        assert asked(session, 'select b."values" from unnest(%s::msgtx.batch[]) b', batch_array(session, [row])) == values


def test_a_nul_is_refused_by_postgresql(session: Connection) -> None:
    with pytest.raises(psycopg.DataError):
        asked(session, "select %s::text[]", TextArray(["a\0b"]))


def test_json_is_read_in_our_way_whatever_the_process_has_set(session: Connection) -> None:
    psycopg.types.json.set_json_loads(lambda text: text)
    try:
        ((found,),) = Cursor(session).execute("""select '{"a": [1, 1.5, "x", null]}'::jsonb""").fetchall()
    finally:
        psycopg.types.json.set_json_loads(json.loads)
    assert found == {"a": [1, 1.5, "x", None]}


def test_the_end_of_an_answer_is_not_waited_for(database_url: str) -> None:
    """libpq would wait for it and hold Python's lock: no thread of the process would run until it comes."""
    with contextlib.closing(HoldingBack(database_url)) as relay, psycopg.connect(relay.url) as session:
        raw, arriving = session.pgconn, Arriving()
        relay.hold()
        raw.send_query(b"select 1")
        wait_until(lambda: (raw.consume_input(), not raw.is_busy())[1], "the first result has arrived")
        assert arriving.take(raw) is None, "the answer has no end yet"
        relay.release()
        (answer,) = wait_until(lambda: (raw.consume_input(), arriving.take(raw))[1], "the whole answer has arrived")
        assert answer.get_value(0, 0) == b"1"
