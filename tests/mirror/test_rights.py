"""Which rights the role of a mirror needs at each end, as docs/operations/mirrors.md has it."""

import uuid
from collections.abc import Callable, Iterator

import pytest

import msgtx
from msgtx import errors
from msgtx.store.mirrors import take_over_mirror
from msgtx.store.transactions.producers import init_producer_id
from tests.databases import Server
from tests.mirror.conftest import contents
from tests.refusals import refuses
from tests.roles import Roles, open_roles

Unique = Callable[[str], str]


@pytest.fixture
def source_roles(server: Server, database_url: str) -> Iterator[Roles]:
    """Roles of the source."""
    with open_roles(server, database_url) as made:
        yield made


@pytest.fixture
def target_roles(server: Server, target_url: str) -> Iterator[Roles]:
    """Roles of the target."""
    with open_roles(server, target_url) as made:
        yield made


def test_a_role_with_few_rights_at_each_end_runs_a_mirror(
    client: msgtx.Client, target: msgtx.Client, wide: str, source_roles: Roles, target_roles: Roles, unique: Unique
) -> None:
    name = unique("mirror")
    target.topics.create(wide, partitions=3)
    reader = source_roles.make(f"consume:{wide}")
    writer = target_roles.make(f"produce:{wide}", f"produce:transactional_id:mirror.{name}")
    client.producer().send(wide, b"1", partition=2).result()
    with msgtx.connect(source_roles.url_of(reader)) as source, msgtx.connect(target_roles.url_of(writer)) as end:
        assert source.mirror(wide, name=name, target=end, until_caught_up=True).records == 1
        client.producer().send(wide, b"2", partition=2).result()
        assert source.mirror(wide, name=name, target=end, until_caught_up=True).records == 1
    assert contents(target, wide) == contents(client, wide)


def test_a_role_with_rights_makes_the_topics_of_its_mirror(
    client: msgtx.Client, target: msgtx.Client, wide: str, source_roles: Roles, target_roles: Roles, unique: Unique
) -> None:
    writer = target_roles.make(f"produce:{wide}", f"admin:{wide}")
    client.producer().send(wide, b"1", partition=2).result()
    with msgtx.connect(target_roles.url_of(writer)) as end:
        assert client.mirror(wide, name=unique("mirror"), target=end, until_caught_up=True).records == 1
    assert contents(target, wide) == contents(client, wide)


def test_a_role_without_the_transactional_id_takes_no_mirror_over(
    client: msgtx.Client, target: msgtx.Client, wide: str, target_roles: Roles, unique: Unique
) -> None:
    name = unique("mirror")
    target_roles.make("produce:transactional_id:mirror.*")
    stranger = target_roles.make("produce:other", "produce:transactional_id:other")
    client.producer().send(wide, b"1", partition=0).result()
    client.mirror(wide, name=name, target=target, until_caught_up=True)
    with msgtx.connect(target_roles.url_of(stranger)) as end:
        with refuses(errors.AuthorizationFailed):
            client.mirror(wide, name=name, target=end, until_caught_up=True)
        with end.runtime.engine.connection() as connection:
            mine = init_producer_id(connection, "other", timeout_ms=60_000)
            with refuses(errors.MirrorFenced, name=name):
                take_over_mirror(connection, name, uuid.uuid4(), mine, is_new=True, address="")
    assert client.mirror(wide, name=name, target=target, until_caught_up=True).records == 0
