"""Fixtures of the tests of mirrors: a target beside the module's database, which is the source."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

import msgtx
from msgtx import Record


@pytest.fixture(scope="module")
def target_url(make_database: Callable[..., str]) -> str:
    """A database of its own."""
    return make_database()


@pytest.fixture
def target(target_url: str) -> Iterator[msgtx.Client]:
    """A client of the target."""
    with msgtx.connect(target_url) as client:
        yield client


@pytest.fixture
def copy(client: msgtx.Client, target: msgtx.Client) -> Callable[..., msgtx.MirrorReport]:
    """Copy topics of the source to the target until nothing is left."""
    return partial(client.mirror, target=target, until_caught_up=True)


@pytest.fixture
def wide(client: msgtx.Client, unique: Callable[[str], str]) -> str:
    """A topic of three partitions on the source."""
    name = unique("wide")
    client.topics.create(name, partitions=3)
    return name


def contents(client: msgtx.Client, *topics: str) -> dict[tuple[str, int], list[tuple[Any, ...]]]:
    """Return what a reader of committed records gets, by partition, without its offsets."""
    found: dict[tuple[str, int], list[tuple[Any, ...]]] = {}
    for record in client.read(client.snapshot(topics)):
        found.setdefault((record.topic, record.partition), []).append(columns(record))
    return found


def columns(record: Record) -> tuple[Any, ...]:
    """Return the columns of a record that a mirror keeps."""
    return (record.key, record.value, record.timestamp, tuple(record.headers))
