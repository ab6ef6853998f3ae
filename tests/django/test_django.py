"""Messages and workers in Django's `atomic()`: rows, messages and offsets are one commit (I6, I10)."""

import asyncio
import contextlib
import unittest
from collections.abc import Callable
from typing import Any

import pytest

import msgtx
from msgtx import DeadLetter, Record, Skip, Stop, errors
from tests.databases import as_djangos
from tests.django.conftest import Site
from tests.refusals import refuses

with contextlib.suppress(ModuleNotFoundError):  # each test says it: fixture `use`
    from asgiref.sync import sync_to_async
    from django.core.checks import run_checks
    from django.core.exceptions import SynchronousOnlyOperation
    from django.core.handlers.base import BaseHandler
    from django.core.management import call_command
    from django.db import DatabaseError, connections, transaction
    from django.http import HttpRequest, HttpResponse
    from django.test import RequestFactory, TestCase
    from django.utils.connection import ConnectionDoesNotExist

    from msgtx.django import WorkerCommand, publish
    from msgtx.django.checks import check_schema
    from msgtx.django.test import MsgtxTestCase


def worker(site: Site, handler: Callable[[Any], object] | None = None, **settings: Any) -> "WorkerCommand":
    """A command that stores the topic's numbers, or does something else with a record."""

    class Command(WorkerCommand):
        topics = (site.topic,)
        group = site.topic

        def handle_record(self, record: Record) -> None:
            (handler or store)(record)

    def store(record: Record) -> None:
        site.insert(int(record.value or b""))

    Command.settings = {"idle_timeout": 0.2, **settings}
    return Command()


# ── publish ──


def test_a_record_comes_with_the_rows_of_its_block(site: Site) -> None:
    with transaction.atomic(using="shop"):
        site.insert(1)
        publish(site.topic, b"x", key=b"k")
        assert (site.rows(), site.values()) == ([], [])
    assert (site.rows(), site.values()) == ([1], [b"x"])


def test_a_block_that_raises_takes_its_records_back(site: Site) -> None:
    with contextlib.suppress(ZeroDivisionError), transaction.atomic(using="shop"):
        publish(site.topic, b"gone")
        raise ZeroDivisionError
    with transaction.atomic(using="shop"):
        publish(site.topic, b"kept")
        with contextlib.suppress(ZeroDivisionError), transaction.atomic(using="shop"):
            publish(site.topic, b"gone, too")
            raise ZeroDivisionError
    assert site.values() == [b"kept"]


def test_a_record_outside_a_block_is_there_at_once(site: Site) -> None:
    publish(site.topic, b"x")
    publish(site.topic, json={"id": 1})
    assert site.values() == [b"x", b'{"id":1}']


@pytest.mark.parametrize("using", ["nowhere", ""])
def test_another_alias_is_not_taken_for_the_one_of_the_settings(site: Site, using: str) -> None:
    with pytest.raises(ConnectionDoesNotExist):
        publish(site.topic, b"x", using=using)
    assert site.values() == []


def test_a_view_with_atomic_requests_publishes_if_it_answers(site: Site, use: Callable[..., None]) -> None:
    use(ATOMIC_REQUESTS=True)

    def view(request: "HttpRequest") -> "HttpResponse":
        publish(site.topic, request.GET["value"].encode())
        return HttpResponse(str(1 // len(request.GET["value"])))

    answer = BaseHandler().make_view_atomic(view)
    answer(RequestFactory().get("/", {"value": "x"}))
    with pytest.raises(ZeroDivisionError):
        answer(RequestFactory().get("/", {"value": ""}))
    assert site.values() == [b"x"]


def test_an_async_view_publishes_in_a_thread_of_djangos(site: Site) -> None:
    def place() -> None:
        with transaction.atomic(using="shop"):
            publish(site.topic, b"in a thread")
        connections["shop"].close()

    async def view() -> None:
        with pytest.raises(SynchronousOnlyOperation):
            publish(site.topic, b"in the loop")
        await sync_to_async(place)()

    asyncio.run(view())
    assert site.values() == [b"in a thread"]


def test_a_refused_record_has_its_block_rolled_back(site: Site) -> None:
    """Else PostgreSQL would answer the COMMIT of a failed SQL transaction with a rollback, and Django would not notice."""
    with pytest.raises(transaction.TransactionManagementError), transaction.atomic(using="shop"):  # noqa: PT012
        site.insert(1)
        with contextlib.suppress(errors.UnknownTopicOrPartition):
            publish("no-such-topic", b"x")
        site.insert(2)
    assert site.rows() == []


def test_a_batch_stands_in_a_block(site: Site) -> None:
    site.send(b"1", b"2")
    settings: dict[str, Any] = {"auto_offset_reset": "earliest", "enable_auto_commit": False}
    with site.client.consumer(site.topic, group=site.topic, **settings) as consumer:
        for end in (ZeroDivisionError, None):
            with contextlib.suppress(ZeroDivisionError), transaction.atomic(using="shop"):
                with consumer.batch(connections["shop"], 30.0) as records:
                    for record in records:
                        site.insert(int(record.value or b""))
                if end is not None:
                    raise end
    assert (site.rows(), site.lag) == ([1, 2], 0)


# ── workers ──


def test_a_worker_writes_each_row_once(site: Site) -> None:
    site.send(*(b"%d" % number for number in range(20)))
    call_command(worker(site))
    assert (site.rows(), site.lag) == (list(range(20)), 0)


def test_a_batch_of_records_is_handled_at_once(site: Site) -> None:
    site.send(b"1", b"2", b"3")
    call_command(worker(site, lambda records: [site.insert(int(each.value)) for each in records], batch=True))
    assert (site.rows(), site.lag) == ([1, 2, 3], 0)


def test_a_record_that_fails_is_a_dead_letter_with_its_offset(site: Site) -> None:
    site.client.topics.create(f"{site.topic}-dead")
    site.send(b"1", b"poison", b"3")
    call_command(worker(site, failure=DeadLetter(f"{site.topic}-dead", after=0)))
    assert (site.rows(), site.values(f"{site.topic}-dead"), site.lag) == ([1, 3], [b"poison"], 0)


def test_a_commit_that_fails_leaves_no_offset(site: Site) -> None:
    site.send(b"1", b"2", b"3")

    def handler(record: Record) -> None:
        for _ in range(1 + (record.value == b"2")):
            site.insert(int(record.value or b""))

    call_command(worker(site, handler, failure=Skip(0)))
    assert (site.rows(), site.lag) == ([1, 3], 0)


def test_functions_of_on_commit_run_behind_the_commit(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    """One that fails is logged: the record is done."""
    site.send(b"1", b"2")
    seen: list[list[int]] = []

    def handler(record: Record) -> None:
        site.insert(int(record.value or b""))
        transaction.on_commit(lambda: seen.append(site.rows()), using="shop")
        if record.value == b"2":
            transaction.on_commit(lambda: 1 // 0, using="shop")

    call_command(worker(site, handler))
    assert seen == [[1], [1, 2]]
    assert (site.rows(), site.lag) == ([1, 2], 0)
    assert "on_commit failed" in caplog.text


def test_a_handler_that_catches_an_error_within_atomic_has_failed(site: Site) -> None:
    """Django would roll back, and say nothing."""
    site.send(b"1")

    def handler(record: Record) -> None:
        site.insert(int(record.value or b""))
        with contextlib.suppress(DatabaseError), transaction.atomic(using="shop", savepoint=False):
            connections["shop"].cursor().execute("select 1 / 0")

    with refuses(errors.IllegalState, reason="failed"):
        call_command(worker(site, handler, failure=Stop()))
    with refuses(errors.IllegalState, reason="rolled back"):
        call_command(worker(site, lambda _: transaction.set_rollback(True, using="shop"), failure=Stop()))
    assert (site.rows(), site.lag) == ([], 1)


def test_a_savepoint_of_the_handlers_is_its_own(site: Site) -> None:
    site.send(b"1")

    def handler(record: Record) -> None:
        with contextlib.suppress(DatabaseError), transaction.atomic(using="shop"):
            connections["shop"].cursor().execute("select 1 / 0")
        site.insert(int(record.value or b""))
        publish(site.topic + "-out", b"x")

    site.client.topics.create(site.topic + "-out")
    call_command(worker(site, handler))
    assert (site.rows(), site.values(site.topic + "-out"), site.lag) == ([1], [b"x"], 0)


@pytest.mark.parametrize("age", [0, None])
def test_a_connection_that_is_lost_is_another_try(site: Site, use: Callable[..., None], age: int | None) -> None:
    use(CONN_MAX_AGE=age)
    site.send(b"1", b"2")
    ended: list[int] = []

    def handler(record: Record) -> None:
        site.insert(int(record.value or b""))
        if record.value == b"2" and not ended:
            ended.append(connections["shop"].connection.info.backend_pid)
            site.outside.execute("select pg_terminate_backend(%s, 10000)", ended)

    call_command(worker(site, handler))
    assert (site.rows(), site.lag) == ([1, 2], 0)


def test_a_command_without_a_method_says_what_is_missing(site: Site) -> None:
    site.send(b"1")

    class Empty(WorkerCommand):
        topics = (site.topic,)
        group = site.topic
        settings = {"failure": Stop()}  # noqa: RUF012

    with pytest.raises(NotImplementedError):
        call_command(Empty(), idle_timeout="200ms")


# ── checks ──


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"database": "shop"}, []),
        ({"databse": "shop"}, ["msgtx.E001"]),
        ({"database": "nowhere"}, ["msgtx.E002"]),
        ({"database": "default"}, ["msgtx.E003"]),
    ],
)
def test_checks_name_what_is_wrong(use: object, settings_of: Any, given: dict[str, str], expected: list[str]) -> None:
    settings_of.MSGTX = given
    assert [found.id for found in run_checks() if found.id.startswith("msgtx")] == expected


def test_a_database_without_the_schema_is_reported(use: Callable[..., None], make_database: Callable[..., str]) -> None:
    assert check_schema(databases=["shop"]) == []
    assert check_schema(databases=["default"]) == []
    use(**as_djangos(make_database(schema=False)))
    (found,) = check_schema(databases=["shop"])
    assert found.id == "msgtx.E005"
    assert "msgtx db init" in found.msg


def test_django_has_nothing_to_migrate(site: Site) -> None:
    call_command("makemigrations", "--check", "--dry-run", verbosity=0)
    call_command("migrate", database="shop", verbosity=0)
    assert msgtx.connect(site.url).topics.list()


# ── the test case ──


def test_a_test_case_of_djangos_own_leaves_no_record(site: Site) -> None:
    """It rolls back what a test did; before, it checks all deferred constraints."""

    class Shop(TestCase):  # type: ignore[misc]  # Django has no types
        databases = ("shop",)

        def test_one(self) -> None:
            publish(site.topic, b"x")

    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromTestCase(Shop).run(result)
    assert (result.testsRun, result.errors, result.failures, site.values()) == (1, [], [], [])


def test_the_test_case_makes_the_schema_and_finds_its_topics_empty(
    use: Callable[..., None], make_database: Callable[..., str]
) -> None:
    use(**as_djangos(make_database(schema=False)))
    seen: list[list[bytes | None]] = []

    class Shop(MsgtxTestCase):
        databases = ("shop",)
        topics = ("orders",)

        def test_one(self) -> None:
            publish("orders", b"x")
            seen.append([record.value for record in self.published("orders")])

        def test_two(self) -> None:
            publish("orders", b"y")
            handled: list[bytes | None] = []

            class Command(WorkerCommand):
                topics = ("orders",)
                group = "g"

                def handle_record(self, record: Record) -> None:
                    handled.append(record.value)

            self.work(Command())
            seen.append(handled)

    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromTestCase(Shop).run(result)
    assert (result.errors, result.failures) == ([], [])
    assert seen == [[b"x"], [b"y"]]


@pytest.fixture
def settings_of(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Django's settings, which are as before after the test."""
    from django.conf import settings

    monkeypatch.setattr(settings, "MSGTX", settings.MSGTX)
    return settings
