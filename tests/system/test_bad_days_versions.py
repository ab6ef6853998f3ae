"""Bad days: the functions are renewed while clients call them."""

import concurrent.futures
from collections.abc import Callable

import pytest

import msgtx
from msgtx import OutputRecord
from msgtx.client import Client
from msgtx.database.pool import Engine
from msgtx.database.schema import migrate
from tests.databases import install
from tests.system.scenarios import FAST, PATIENCE_SECONDS, read_all

pytestmark = pytest.mark.long

RENEWALS = 4


def renew(url: str) -> None:
    """Drop all functions and create them again, as an upgrade with changed texts does."""
    with Engine(url, pool_size=1) as engine, engine.transaction() as connection:
        connection.exec_driver_sql("update msgtx.installation set functions_hash = 'another build'")
        assert migrate.upgrade(connection).functions_renewed


def test_an_upgrade_under_busy_clients_stops_and_loses_nothing(make_database: Callable[..., str]) -> None:
    url = make_database(schema=False)
    install(url)
    stop = False

    def produce(client: Client) -> int:
        sent = 0
        with client.producer(linger_ms=0, **FAST) as producer:
            while not stop:
                futures = [producer.send("in", str(sent + i).encode(), partition=(sent + i) % 2) for i in range(4)]
                for future in futures:
                    future.result(PATIENCE_SECONDS)
                sent += len(futures)
        return sent

    with msgtx.connect(url) as client, concurrent.futures.ThreadPoolExecutor(2) as threads:
        client.topics.create("in", partitions=2)
        client.topics.create("out", partitions=2)
        producing = threads.submit(produce, client)
        processing = threads.submit(
            client.process, "in", to="out", group="g", transactional_id="t", transaction_ms=2, idle_timeout=1,
            transform=lambda record: OutputRecord(record.value, partition=record.partition), **FAST,
        )  # fmt: skip
        try:
            for _ in range(RENEWALS):
                renew(url)
                concurrent.futures.wait([producing, processing], timeout=0.3)
        finally:
            stop = True
        total = producing.result(PATIENCE_SECONDS)
        processing.result(PATIENCE_SECONDS)
        expected = {p: [str(number) for number in range(total) if number % 2 == p] for p in (0, 1)}
        for topic in ("in", "out"):
            assert {p: [value for _, value in rows] for p, rows in read_all(client, topic).items()} == expected
