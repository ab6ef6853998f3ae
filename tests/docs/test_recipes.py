"""Each recipe of docs/recipes does what its page says: its program is broken where the page makes a claim."""

import itertools
import os
import re
import types
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

import psycopg
import pytest

import msgtx
from msgtx import testing
from msgtx.testing import server as servers
from tests.databases import Server, set_clock, wait_until
from tests.docs.snippets import ROOT, snippets

pytestmark = pytest.mark.slow

PAGES: Final = sorted(path for path in (ROOT / "docs" / "recipes").glob("*.md") if path.name != "README.md")
LONGEST: Final = 40  # lines of a program


@pytest.fixture(scope="module")
def msgtx_server(server: Server) -> Iterator[testing.Postgres]:
    """The server of this run: the kit needs no other one."""
    with servers.given(server.superuser_url) as made:
        with made.making_template() as url:
            msgtx.connect(url, create=True).close()
        yield made


def program(name: str) -> Any:
    """Return a recipe's program as a module; what is below its `if __name__` has not run."""
    (block,) = (each for each in snippets("python") if each.page == f"docs/recipes/{name}.md")
    made = types.ModuleType(name)
    exec(compile("\n" * block.line + block.text, block.page, "exec"), made.__dict__)  # noqa: S102 - our own page
    return made


def execute(client: msgtx.Client, statement: str) -> None:
    with psycopg.connect(client.secret_url) as connection:
        connection.execute(statement)


def rows(client: msgtx.Client, query: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(client.secret_url) as connection:
        return connection.execute(query).fetchall()


def send(client: msgtx.Client, topic: str, *values: Any, key: bytes | None = None) -> None:
    with client.producer() as producer:
        for value in values:
            producer.send(topic, json=value, key=key)


def values(client: msgtx.Client, topic: str) -> list[Any]:
    return [record.json() for record in testing.committed(client, topic)]


def work(client: msgtx.Client, handler: Callable[..., object], topic: str, *, group: str, **settings: Any) -> None:
    """Run a worker until nothing is left that is due."""
    connect = partial(psycopg.connect, client.secret_url)
    testing.run_worker(client, handler, topic, group=group, sessions=connect, **settings)


def test_a_recipe_has_a_short_program_its_failures_and_its_limits() -> None:
    listed = re.findall(r"\]\(([\w-]+\.md)\) \|", (ROOT / "docs" / "recipes" / "README.md").read_text(encoding="utf-8"))
    assert sorted(listed) == [page.name for page in PAGES]
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        (code,) = re.findall(r"(?ms)^```python\n(.*?)^```", text)
        assert len([line for line in code.splitlines() if line]) <= LONGEST, page.name
        assert re.findall(r"(?m)^## (.+)$", text) == ["When it fails", "Do not use it when"], page.name


@pytest.mark.parametrize("kind", ["lost answer", "killed"])
def test_an_order_and_its_message_are_both_there_or_none(
    kind: Any, msgtx_database: str, msgtx_faults: testing.Faults
) -> None:
    outbox = program("outbox")
    with msgtx.connect(msgtx_database) as client:
        outbox.prepare(client)

    def place(client: msgtx.Client) -> None:
        outbox.place(client, {"id": 1, "customer": "ada", "cents": 1250})

    def check(client: msgtx.Client) -> None:
        assert rows(client, "select id from placed_order") == [(1,)]
        assert [order["id"] for order in values(client, "placed-orders")] == [1]

    assert msgtx_faults.every_boundary(place, check, kinds=[kind]) >= 3


@pytest.mark.parametrize("kind", ["lost answer", "killed"])
def test_a_webhook_that_comes_twice_is_booked_once(kind: Any, msgtx_database: str, msgtx_faults: testing.Faults) -> None:
    inbox = program("inbox")
    with msgtx.connect(msgtx_database) as client:
        inbox.prepare(client)

    def receive(client: msgtx.Client) -> None:
        inbox.receive(client, b'{"invoice": 7, "cents": 1250}', "evt_1")

    def check(client: msgtx.Client) -> None:
        receive(client)
        work(client, inbox.book, "payment-events", group="book")
        assert rows(client, "select invoice from paid") == [(7,)]

    assert msgtx_faults.every_boundary(receive, check, kinds=[kind]) >= 3


def test_a_webhook_without_an_id_is_known_by_its_body(msgtx_client: msgtx.Client) -> None:
    inbox = program("inbox")
    inbox.prepare(msgtx_client)
    for invoice in (7, 8, 7):
        inbox.receive(msgtx_client, b'{"invoice": %d, "cents": 1250}' % invoice)
    assert sorted(record.json()["invoice"] for record in testing.committed(msgtx_client, "payment-events")) == [7, 8]


def test_a_declined_trip_keeps_no_room_and_is_charged_once_whenever_its_worker_is_killed(
    msgtx_database: str, msgtx_faults: testing.Faults
) -> None:
    saga = program("saga")

    def pay(payment: str, cents: int) -> bool:
        """The payment service, which knows its idempotency keys."""
        with psycopg.connect(os.environ["MSGTX_DATABASE_URL"]) as service:
            service.execute("insert into payment values (%s) on conflict do nothing", [payment])
        return cents <= 1000

    saga.pay = pay
    with msgtx.connect(msgtx_database) as client:
        client.topics.create("trips")
        execute(client, saga.TABLE)
        execute(client, "create table payment (key text primary key)")
        send(client, "trips", {"id": 1, "cents": 9000, "step": "reserve"}, key=b"1")

    def travel(client: msgtx.Client) -> None:
        work(client, saga.step, "trips", group="trips")

    def check(client: msgtx.Client) -> None:
        assert [trip["step"] for trip in values(client, "trips")] == ["reserve", "charge", "cancel"]
        assert rows(client, "select trip, state from room") == [(1, "free")]
        assert rows(client, "select key from payment") == [("trip-1",)]

    assert msgtx_faults.every_boundary(travel, check, kinds=["killed"]) >= 3
    with msgtx.connect(msgtx_database) as client:
        send(client, "trips", {"id": 2, "cents": 900, "step": "reserve"}, key=b"2")
        travel(client)
        assert rows(client, "select trip, state from room order by 1") == [(1, "free"), (2, "booked")]


def test_each_item_of_an_order_reaches_each_service_once_whenever_the_splitting_worker_is_killed(
    msgtx_database: str, msgtx_faults: testing.Faults
) -> None:
    fan_out = program("fan-out")
    with msgtx.connect(msgtx_database) as client:
        client.topics.create("baskets")
        client.topics.create("items", partitions=2)
        execute(client, fan_out.TABLE)
        send(client, "baskets", {"id": 1, "items": ["tea", "mug", "pot"]})

    def split(client: msgtx.Client) -> None:
        testing.run_worker(client, fan_out.split, "baskets", group="split", to="items")

    def check(client: msgtx.Client) -> None:
        testing.assert_exactly_once(["tea", "mug", "pot"], values(client, "items"), by=(str, lambda one: one["item"]))

    assert msgtx_faults.every_boundary(split, check, kinds=["killed"]) >= 3
    with msgtx.connect(msgtx_database) as client:
        split(client)
        for service in ("stock", "mail"):
            work(client, partial(fan_out.note, service), "items", group=service)
        assert Counter(rows(client, "select service, item from seen_item")) == Counter(
            (service, item) for service in ("stock", "mail") for item in ("tea", "mug", "pot")
        )


def test_a_record_that_fails_comes_again_later_and_later_and_then_is_a_dead_letter(
    msgtx_client: msgtx.Client, msgtx_clock: testing.Clock
) -> None:
    retries = program("retries")
    pauses = [1, 2, 4, 8, 16, 32, 60]  # minutes
    deliveries = len(pauses) + 1
    tried: dict[tuple[str, int], float] = {}

    def partner(call: str, tries: int) -> None:
        ((tried[call, tries],),) = rows(msgtx_client, "select extract(epoch from msgtx.clock())::float8")
        if call == "slow":
            raise TimeoutError

    retries.partner = partner
    retries.prepare(msgtx_client)
    execute(msgtx_client, retries.TABLE)
    with msgtx_client.producer() as producer:
        for name in (b"slow", b"quick"):
            producer.send("calls", name, key=name)

    def is_set_aside() -> bool:
        work(msgtx_client, retries.call, "calls", group="callers", share_members=1)
        return msgtx_client.admin.shares.describe("callers").dead_letters == 1

    for pause in pauses:
        assert not is_set_aside()
        msgtx_clock.move(f"{pause}min")
    wait_until(is_set_aside)
    times = [tried["slow", number] for number in range(1, deliveries + 1)]
    gaps = [later - sooner for sooner, later in itertools.pairwise(times)]
    assert all(gap >= 60 * pause for gap, pause in zip(gaps, pauses, strict=True))
    assert rows(msgtx_client, "select call, tries from called") == [("quick", 1)]
    assert [letter.value for letter in testing.committed(msgtx_client, "callers-dead-letters")] == [b"slow"]


def test_a_reminder_waits_for_its_time_and_goes_to_those_who_have_not_paid(
    msgtx_client: msgtx.Client, msgtx_clock: testing.Clock
) -> None:
    jobs = program("delayed-jobs")
    jobs.prepare(msgtx_client)
    execute(msgtx_client, "insert into bill values (7, false), (8, false)")
    for bill in (7, 8, 7):
        jobs.schedule(msgtx_client, bill, delay="1h")
    work(msgtx_client, jobs.remind, "reminders", group="remind", share_members=1)
    assert rows(msgtx_client, "select bill from reminded") == []
    execute(msgtx_client, "update bill set paid = true where id = 8")
    msgtx_clock.move("1h")
    work(msgtx_client, jobs.remind, "reminders", group="remind", share_members=1)
    assert rows(msgtx_client, "select bill from reminded") == [(7,)]


def test_a_job_that_is_scheduled_again_after_a_lost_answer_is_done_once(
    msgtx_database: str, msgtx_faults: testing.Faults
) -> None:
    jobs = program("delayed-jobs")
    with msgtx.connect(msgtx_database) as client:
        jobs.prepare(client)
        execute(client, "insert into bill values (7, false)")

    def check(client: msgtx.Client) -> None:
        set_clock(client.secret_url, "1 hour")
        work(client, jobs.remind, "reminders", group="remind", share_members=1)
        assert rows(client, "select bill from reminded") == [(7,)]

    def schedule(client: msgtx.Client) -> None:
        jobs.schedule(client, 7, delay="1min")

    assert msgtx_faults.every_boundary(schedule, check, kinds=["lost answer"]) >= 1


def test_a_balance_is_that_of_its_events_whenever_a_command_is_broken_and_repeated(
    msgtx_database: str, msgtx_faults: testing.Faults
) -> None:
    accounts = program("event-sourcing")
    with msgtx.connect(msgtx_database) as client:
        accounts.prepare(client)

    def command(client: msgtx.Client) -> None:
        for version, cents in enumerate((500, -1000)):
            accounts.change(client, "ada", cents, version)

    def check(client: msgtx.Client) -> None:
        assert accounts.replay(client) == {"ada": 500}
        assert rows(client, "select cents, version from account") == [(500, 1)]
        assert not accounts.change(client, "ada", -200, 0), "decided on an old balance"

    assert msgtx_faults.every_boundary(command, check, kinds=["lost answer"]) >= 3


def test_readers_see_the_old_read_model_until_the_new_one_is_whole(
    msgtx_database: str, msgtx_faults: testing.Faults
) -> None:
    models = program("read-models")
    (block,) = (each for each in snippets("python") if each.page == "docs/recipes/read-models.md")
    left = block.text.replace('idle_timeout="1s"', 'stop=NothingLeft(client, name, "sales")')
    models.__dict__["NothingLeft"] = testing.NothingLeft
    exec(compile(left, block.page, "exec"), models.__dict__)  # noqa: S102 - our own page
    whole = [("ada", 300), ("bob", 7)]
    query = "select customer, cents from revenue order by customer"
    add = models.add

    def looked_at(table: object, connection: psycopg.Connection, record: msgtx.Record) -> None:
        assert connection.execute(query).fetchall() == whole
        add(table, connection, record)

    with msgtx.connect(msgtx_database) as client:
        client.topics.create("sales", partitions=2)
        for customer, cents in whole:
            send(client, "sales", {"customer": customer, "cents": cents}, key=customer.encode())
        models.build(client, 1)
    models.add = looked_at

    def build(client: msgtx.Client) -> None:
        models.build(client, 2)

    def check(client: msgtx.Client) -> None:
        assert rows(client, query) == whole
        assert rows(client, query.replace("revenue", "revenue_v2")) == whole

    assert msgtx_faults.every_boundary(build, check, kinds=["killed"]) >= 3


def test_each_change_of_a_table_is_published_once_in_order_and_none_that_was_rolled_back(
    msgtx_database: str, msgtx_faults: testing.Faults
) -> None:
    capture = program("change-capture")
    with msgtx.connect(msgtx_database) as client:
        capture.prepare(client)

    def change(client: msgtx.Client) -> None:
        with psycopg.connect(client.secret_url) as connection:
            connection.execute("insert into product values (1, 99) on conflict do nothing")
        with psycopg.connect(client.secret_url) as connection:
            with connection.transaction(force_rollback=True):
                connection.execute("update product set cents = 0")
            connection.execute("delete from product where cents = 0")

    def check(client: msgtx.Client) -> None:
        execute(client, "update product set cents = 100; delete from product")
        seen = [(one["change"], one["before"] or {}, one["after"] or {}) for one in values(client, "product-changes")]
        assert [(change, before.get("cents"), after.get("cents")) for change, before, after in seen] == [
            ("insert", None, 99),
            ("update", 99, 100),
            ("delete", 100, None),
        ]

    assert msgtx_faults.every_boundary(change, check, kinds=["killed"]) >= 3


def test_workers_share_a_rate_and_a_record_that_comes_again_takes_another_turn(
    msgtx_client: msgtx.Client, msgtx_faults: testing.Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = program("rate-limits")
    turns: list[float] = []
    monkeypatch.setattr(limits, "time", types.SimpleNamespace(sleep=turns.append))
    msgtx_client.topics.create("mails")
    msgtx_client.admin.shares.configure("mailers", {"auto_offset_reset": "earliest"})
    execute(msgtx_client, limits.TABLES)
    names = [b"ada", b"bob", b"cem"]
    with msgtx_client.producer() as producer:
        for name in names:
            producer.send("mails", name)
    limits.wait_for_turn(msgtx_client.secret_url, "partner")
    free = "select extract(epoch from free_at)::float8 from pace"
    ((first,),) = rows(msgtx_client, free)
    lost = msgtx_faults.lost_answer("insert into sent_mail")
    work(msgtx_client, partial(limits.mail, msgtx_client.secret_url), "mails", group="mailers", share_members=1)
    ((last,),) = rows(msgtx_client, free)
    assert lost.fired.is_set()
    assert sorted(rows(msgtx_client, "select address from sent_mail")) == [("ada",), ("bob",), ("cem",)]
    taken = len(turns) - 1
    assert taken > len(names)
    assert last - first >= 0.1 * taken - 1e-3  # ten a second


def test_a_record_whose_idle_transaction_was_ended_takes_another_turn(
    msgtx_client: msgtx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = program("rate-limits")
    turns: list[int] = []

    def sleep(_: float) -> None:
        (backend,) = turns[-1:]
        if len(turns) == 1:  # its turn comes when the server has ended its session
            wait_until(lambda: not rows(msgtx_client, f"select from pg_stat_activity where pid = {backend}"))

    def mail(connection: "psycopg.Connection[Any]", record: msgtx.Record) -> None:
        turns.append(connection.info.backend_pid)
        if len(turns) == 1:
            connection.execute("set local idle_in_transaction_session_timeout = '50ms'")
        limits.mail(msgtx_client.secret_url, connection, record)

    monkeypatch.setattr(limits, "time", types.SimpleNamespace(sleep=sleep))
    msgtx_client.topics.create("mails")
    execute(msgtx_client, limits.TABLES)
    with msgtx_client.producer() as producer:
        producer.send("mails", b"ada")
    work(msgtx_client, mail, "mails", group="mailers", share_members=1)
    assert len(turns) == 2
    assert rows(msgtx_client, "select address from sent_mail") == [("ada",)]
