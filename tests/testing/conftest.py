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
    def prepare(url: str) -> None:
        with connect(url, create=True) as client:
            shop.open_shop(client)

    with given(server.superuser_url) as made:
        made.make_template(prepare)
        yield made
