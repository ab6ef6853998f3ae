"""Patroni's leader is killed, switched over and frozen, under one client of each kind (I1, I5, I6, I9, I10, I17)."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.failovers.clients import Clients
from tests.patroni.cluster import Cluster, patroni

DATABASES: Final = 4


@pytest.fixture(scope="module")
def running() -> Iterator[tuple[Cluster, list[str]]]:
    """A cluster, and databases that its first leader has made.

    A server that was promoted copies the sequence of an unlogged table as zeros with `create database … template`.
    """
    with patroni() as (cluster, server):
        yield cluster, [server.create_database() for _ in range(DATABASES)]


@pytest.fixture
def cluster(running: tuple[Cluster, list[str]]) -> Cluster:
    return running[0]


@pytest.fixture
def clients(running: tuple[Cluster, list[str]], make_database: Callable[..., str], tmp_path: Path) -> Iterator[Clients]:
    """Clients at work, on a database of their own."""
    cluster, urls = running
    cluster.await_health()
    made = Clients(cluster.on_all(urls.pop()), make_database(), tmp_path)
    try:
        made.start()
        yield made
    finally:
        made.close()


def go_on(cluster: Cluster, clients: Clients) -> None:
    """Wait until each client was answered and all members follow again; then nothing is lost, doubled or torn."""
    clients.await_answers(time.monotonic_ns())
    cluster.await_health()
    clients.await_answers(time.monotonic_ns())
    clients.finish()
    assert not clients.judge()


def test_an_administrator_switches_over(cluster: Cluster, clients: Clients) -> None:
    leader = cluster.await_health()
    cluster.switch_over(leader)
    assert cluster.await_leader(other_than=leader)
    go_on(cluster, clients)


def test_a_server_that_is_killed_is_started_again_by_its_patroni(cluster: Cluster, clients: Clients) -> None:
    cluster.kill_server(cluster.await_health())
    go_on(cluster, clients)


def test_a_leader_that_is_killed_with_its_patroni_has_a_successor_and_comes_back_as_a_standby(
    cluster: Cluster, clients: Clients
) -> None:
    leader = cluster.await_health()
    cluster.kill(leader)
    cluster.await_promotion(other_than=leader)
    cluster.restart(leader)
    go_on(cluster, clients)


def test_a_frozen_leader_that_has_lost_the_lock_confirms_nothing_and_is_demoted(cluster: Cluster, clients: Clients) -> None:
    """Its open sessions live, and write; no standby confirms that."""
    leader = cluster.await_health()
    with cluster.frozen(leader):
        cluster.await_promotion(other_than=leader)
    go_on(cluster, clients)
