"""The console, asked without a browser: as a role that is signed in, or as nobody."""

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

import msgtx as library
from msgtx import console
from tests.cli.conftest import msgtx  # noqa: F401 - a fixture: the command line, whose rows a twin has
from tests.databases import Server
from tests.roles import PASSWORD, Roles, open_roles
from tests.topics import topic  # noqa: F401 - a fixture

HOST = "http://127.0.0.1:8123"
Browse = Callable[..., TestClient]


@pytest.fixture
def roles(server: Server, database_url: str) -> Iterator[Roles]:
    """Make roles that end with the test."""
    with open_roles(server, database_url) as made:
        yield made


@pytest.fixture
def browse(client: library.Client) -> Iterator[Browse]:
    """Ask a console of the module's database: `browse(sign_in=False)`; it keeps cookies and follows no redirect."""
    made: list[TestClient] = []

    def open_(*, peer: str = "127.0.0.1", base_url: str = HOST, **settings: Any) -> TestClient:
        application = console.app(client, **settings)
        browser = TestClient(application, base_url=base_url, client=(peer, 50_000), follow_redirects=False)
        browser.__enter__()
        made.append(browser)
        return browser

    yield open_
    for each in made:
        each.__exit__(None, None, None)


@pytest.fixture
def owner(browse: Browse) -> TestClient:
    """A console without a sign-in: it sees all."""
    return browse(sign_in=False)


def token(text: str) -> str:
    """Return the token of a page's form."""
    found = re.search(r'name="token" value="([0-9a-f]{64})"', text)
    assert found is not None, text
    return found[1]


def sign_in(browser: TestClient, role: str, password: str = PASSWORD, **more: str) -> Any:
    """Send the form as a browser does. Returns the answer."""
    form = {"role": role, "password": password, "token": token(browser.get("/sign-in").text), **more}
    return browser.post("/sign-in", data=form, headers={"origin": str(browser.base_url).rstrip("/")})
