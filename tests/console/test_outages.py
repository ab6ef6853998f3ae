"""A page that is open while its database is away: it says so in words, and recovers by itself."""

import contextlib
import http.cookiejar
import os
import shutil
import signal
import socket
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import pytest

import msgtx
from msgtx import Client
from msgtx.console import viewers
from msgtx.console.page import Page, Query
from msgtx.console.pages import PAGES
from msgtx.console.viewers import CONNECTIONS
from msgtx.database import embedded
from msgtx.database.embedded import postmaster
from tests.console.conftest import token
from tests.console.test_browser import served
from tests.databases import Server, scratch, use_server, wait_until
from tests.replication import replicated
from tests.roles import PASSWORD, Roles, open_roles

pytestmark = pytest.mark.long
OF_CONSOLES = "from pg_stat_activity where application_name = 'msgtx console'"
PATIENCE = 60.0  # for a page to recover: a poll may rest for half a minute


class Person:
    """Somebody who has signed in and looks at a page: what it says now, and what its live updates have said."""

    def __init__(self, address: str, role: str) -> None:
        self.address = address.rstrip("/")
        self._browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar()))
        form = {"role": role, "password": PASSWORD, "token": token(self.page("sign-in")[1])}
        data = urllib.parse.urlencode(form).encode()
        request = urllib.request.Request(f"{self.address}/sign-in", data, {"origin": self.address})  # noqa: S310 - http
        self._browser.open(request, timeout=PATIENCE).close()
        self.fragments: list[str] = []

    def page(self, path: str) -> tuple[int, str]:
        """Return the status and the text of a page."""
        try:
            with self._browser.open(f"{self.address}/{path}", timeout=PATIENCE) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    @contextlib.contextmanager
    def looking(self, path: str) -> Iterator[None]:
        """Keep a page's stream open within."""
        stream = self._browser.open(f"{self.address}/{path}", timeout=PATIENCE)

        def read() -> None:
            event = ""
            with contextlib.suppress(OSError, ValueError, AttributeError):  # closed while it reads
                for line in stream:
                    if line.startswith(b"data: "):
                        event += line[6:].decode()
                    elif line == b"\n" and event:
                        self.fragments.append(event)
                        event = ""

        thread = threading.Thread(target=read)
        thread.start()
        try:
            yield
        finally:
            stream.fp.raw._sock.shutdown(socket.SHUT_RDWR)
            thread.join(PATIENCE)
            stream.close()

    def sees(self, words: str) -> None:
        """Wait until the newest live update says this."""
        wait_until(lambda: self.fragments and words in self.fragments[-1], f"the page says {words!r}", seconds=PATIENCE)


@pytest.fixture(scope="module")
def home() -> Iterator[Path]:
    """The folder of a server that tests stop and freeze."""
    folder = scratch("msgtx-outages-")
    try:
        embedded.start(folder / "home")
        yield folder / "home"
    finally:
        signal_all(folder / "home", signal.SIGCONT)
        embedded.stop(folder / "home")
        shutil.rmtree(folder)


@pytest.fixture(scope="module")
def server(home: Path) -> Server:
    """This server, for tests."""
    return use_server(embedded.superuser_url(home))


@pytest.fixture
def place(server: Server) -> Iterator[Roles]:
    """A database with a topic `orders`, and its roles."""
    url = server.create_database()
    with msgtx.connect(url) as client:
        client.topics.create("orders")
    with open_roles(server, url) as roles:
        yield roles
    server.drop_database(url)


def signal_all(home: Path, number: signal.Signals) -> None:
    """Send a signal to a server and all of its sessions."""
    running = postmaster.read_pid_file(home / "data")
    assert running is not None
    children = Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split()
    for pid in [running.pid, *map(int, children)]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def consoles(server: Server) -> int:
    """Return how many connections of consoles the server has."""
    with server.administrator() as administrator:
        row = administrator.execute(
            "select count(*) from pg_stat_activity where application_name = 'msgtx console'"
        ).fetchone()
    assert row is not None
    return int(row[0])


@contextlib.contextmanager
def open_page(server: Callable[[], Server], url: str, role: str, capfd: Any) -> Iterator[Person]:
    """Look at the page of topics. At the end nothing has leaked, and no log has a traceback."""
    with msgtx.connect(url) as client:
        with served(client) as address:
            person = Person(address, role)
            with person.looking("topics.live"):
                person.sees("orders")
                yield person
                person.sees("orders")
                status, text = person.page("topics")
                assert (status, "orders" in text) == (200, True)
                wait_until(lambda: consoles(server()) <= CONNECTIONS, "no connection is left over")
        wait_until(lambda: consoles(server()) == 0, "the console has closed its connections")
    told = capfd.readouterr()
    assert "Traceback" not in told.err + told.out


@pytest.mark.parametrize("kind", ["fast", "immediate"])
def test_a_page_says_that_the_server_is_away_and_recovers(
    home: Path, server: Server, place: Roles, capfd: pytest.CaptureFixture[str], kind: str
) -> None:
    with open_page(lambda: server, place.url, place.make("observe"), capfd) as person:
        if kind == "fast":
            assert embedded.stop(home)
        else:
            running = postmaster.read_pid_file(home / "data")
            assert running is not None
            os.kill(running.pid, signal.SIGQUIT)
            wait_until(lambda: not postmaster.works_in(home / "data", running.pid), "the server is gone")
        status, text = person.page("topics")
        assert (status, "The database does not answer" in text) == (503, True)
        person.sees("recovers by itself")
        embedded.start(home)


def test_a_page_follows_a_failover(capfd: pytest.CaptureFixture[str]) -> None:
    with replicated() as pair:
        url = pair.primary.create_database()
        with msgtx.connect(url) as client:
            client.topics.create("orders")
        role = Roles(pair.primary, url).make("observe")
        standby = Server(embedded.superuser_url(pair.home / "standby"), pair.primary.role, pair.primary.password)
        pair.catch_up()
        with open_page(lambda: standby, pair.on_either(url), role, capfd):
            pair.catch_up()
            pair.fail_over()


def test_a_page_says_that_the_server_does_not_answer(
    home: Path, server: Server, place: Roles, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(viewers, "SILENCE_SECONDS", 2.0)
    with open_page(lambda: server, place.url, place.make("observe"), capfd) as person:
        signal_all(home, signal.SIGSTOP)
        began = time.monotonic()
        status, text = person.page("topics")
        assert time.monotonic() - began < 30.0
        assert (status, "The database does not answer" in text) == (503, True)
        person.sees("recovers by itself")
        signal_all(home, signal.SIGCONT)


def test_a_changed_password_is_told_and_a_new_sign_in_helps(
    server: Server, place: Roles, capfd: pytest.CaptureFixture[str]
) -> None:
    role = place.make("observe")
    with open_page(lambda: server, place.url, role, capfd) as person:
        place.sql(f"alter role {role} password 'other'")
        end_sessions(place)
        wait_until(lambda: person.page("topics")[0] == 403, "the page says that the role is refused")
        assert "password" in person.page("topics")[1]
        person.sees("recovers by itself")
        place.sql(f"alter role {role} password '{PASSWORD}'")


def test_a_role_that_was_dropped_is_told(server: Server, place: Roles, capfd: pytest.CaptureFixture[str]) -> None:
    role = place.make("observe")
    with open_page(lambda: server, place.url, role, capfd) as person:
        place.sql(f"drop owned by {role}")
        place.sql(f"drop role {role}")
        status, text = person.page("topics")
        assert status == 403, text
        person.sees("recovers by itself")
        end_sessions(place)
        wait_until(lambda: person.page("topics")[0] == 403, "the page says that the role is refused")
        place.sql(f"create role {role} login password '{PASSWORD}'")
        place.grant(role, "observe")


def test_a_right_that_was_revoked_is_told(server: Server, place: Roles, capfd: pytest.CaptureFixture[str]) -> None:
    role = place.make("observe")
    with open_page(lambda: server, place.url, role, capfd) as person:
        place.revoke(role, "observe")
        status, text = person.page("topic?name=orders")
        assert status in {403, 404}, text
        wait_until(lambda: "orders" not in person.fragments[-1], "the page shows nothing of it", seconds=PATIENCE)
        place.grant(role, "observe")


def test_pages_of_a_role_take_as_many_threads_as_it_has_connections(place: Roles, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else forty slow ones would be all that the console draws, for anybody."""
    lock = threading.Lock()
    at_once: list[int] = [0]
    drawn: list[int] = []

    def slow(client: Client, query: Query) -> Page:
        with lock:
            at_once[0] += 1
            drawn.append(at_once[0])
        time.sleep(0.1)
        with lock:
            at_once[0] -= 1
        return PAGES["topics"](client, query)

    monkeypatch.setitem(cast("dict[str, object]", PAGES), "spark", slow)
    with msgtx.connect(place.url) as client, served(client) as address:
        person = Person(address, place.make("observe"))
        with ThreadPoolExecutor(12) as threads:
            assert {status for status, _ in threads.map(person.page, ["spark"] * 24)} == {200}
    assert (len(drawn), max(drawn)) == (24, CONNECTIONS)


def end_sessions(place: Roles) -> None:
    """End the console's connections: it has to sign in anew."""
    place.sql(f"select pg_terminate_backend(pid) {OF_CONSOLES}")
