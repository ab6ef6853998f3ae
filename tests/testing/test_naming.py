"""Names of boundaries: the verb and the object of a statement. No word, type or list is cut in the middle."""

import psycopg
import pytest

from msgtx.testing import Faults, protocol
from msgtx.testing.naming import LOOKED_AT, shortened
from tests.testing import shop

MANY = ", ".join(f"column_{number}" for number in range(20))
TYPES = "%(customer)s::VARCHAR, %(orders)s::INTEGER, %(cents)s::INTEGER"


@pytest.mark.parametrize(
    ("statement", "name"),
    [
        ("COMMIT", "COMMIT"),
        ("insert into sales values ($1, $2)", "insert into sales"),
        ("insert into sales select * from other", "insert into sales"),
        (
            f"INSERT INTO revenue (customer, orders, cents) VALUES ({TYPES}) ON CONFLICT (customer) DO UPDATE SET cents = 1",
            "INSERT INTO revenue (customer, orders, cents)",
        ),
        (
            "insert into revenue as r(customer, cents) select p0::VARCHAR, p1::INTEGER from (values ($1)) as imp(p0, p1)",
            "insert into revenue as r (customer, cents)",
        ),
        ('insert into "my shop"."an order" ("an id", b) values ($1)', 'insert into "my shop"."an order" ("an id", b)'),
        (f"insert into wide ({MANY}) values ($1)", "insert into wide (column_0, column_1, column_2, column_3, …)"),
        (
            "update revenue set orders = orders + $1, cents=greatest(cents, $2) where id = 1",
            "update revenue set orders, cents",
        ),
        ("update only revenue as r set (a, b) = (select 1, 2 where true), c = $1", "update only revenue as r set (a, b), c"),
        ("update t x set whereabouts = $1::text, n = case when a = b then 1 end from u", "update t x set whereabouts, n"),
        (
            f"update t set {MANY.replace(',', ' = $1,')} = $1",
            "update t set column_0, column_1, column_2, column_3, …",
        ),
        (f"select shop.book({TYPES})::int as booked", "select shop.book"),
        ("select * from book($1, (select 2)) b", "select * from book"),
        ("CALL book($1)", "CALL book"),
        ("select count(*) from sales", "select count(*) from sales"),
        (
            f"select lower(customer), {MANY} from sales where cents = $1",
            "select lower(customer), column_0, column_1, column_2 …",
        ),
        (f"create unlogged table if not exists wide ({MANY})", "create unlogged table if not exists wide"),
        ("merge into revenue using (select 1) s on s.a = revenue.a when matched then delete", "merge into revenue"),
        (
            f"delete from sales where customer = $1::character varying and id in ({MANY})",
            "delete from sales where customer = $1::character varying …",
        ),
        (
            f"with new as (insert into sales ({MANY}) values ($1) returning id) select id from new",
            "with new as (insert into sales (column_0, column_1 …",
        ),
        ("x" * 100, "x" * 60 + " …"),
    ],
)
def test_a_name_says_what_is_done_and_to_what(statement: str, name: str) -> None:
    assert shortened(statement) == name
    assert shortened(name.removesuffix(" …").removesuffix(", …)")) in name


@pytest.mark.parametrize(
    "statement", ["", "insert into", "update", "update t set", "select f(", "(" * 2 * LOOKED_AT, "select )("]
)
def test_no_statement_is_too_odd_for_a_name(statement: str) -> None:
    assert len(shortened(statement)) <= len(statement)


@pytest.mark.parametrize(
    "wanted",
    [
        "insert into sales",
        "INSERT INTO sales (customer, cents)",
        "insert into sales (customer",
        "insert into sales (customer, cents) values ('ada', 1) on conflict do nothing",
    ],
)
def test_a_call_is_found_by_its_beginning_and_by_its_whole_text(
    msgtx_database: str, msgtx_faults: Faults, wanted: str
) -> None:
    with psycopg.connect(shop.conninfo(msgtx_database), autocommit=True) as connection:
        connection.execute("create table sales (customer text, cents int)")
        lost = msgtx_faults.lost_call(wanted)
        with pytest.raises(psycopg.OperationalError):
            connection.execute("insert into sales (customer, cents) values ('bob', 2) on conflict do nothing")
    assert lost.fired.is_set()


def test_values_are_no_part_of_a_name() -> None:
    assert shortened(protocol.plain("insert into sales (a)\n values ('x) set y = 1, (', 7)")) == "insert into sales (a)"
