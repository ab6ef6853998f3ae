"""The kit's fixtures on the server of the tests, where each test finds a shop."""

from collections.abc import Iterator

import pytest

from msgtx.client import connect
from msgtx.testing import Postgres
from msgtx.testing.server import given
from tests.databases import Server
from tests.testing import shop


@pytest.fixture(scope="session")
def msgtx_server(server: Server) -> Iterator[Postgres]:
    with given(server.superuser_url) as made:
        with made.making_template() as url, connect(url, create=True) as client:
            shop.open_shop(client)
        yield made


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> shop.Impatient:
    clock = shop.Impatient()
    monkeypatch.setattr("msgtx.testing.working.time", clock)
    return clock
