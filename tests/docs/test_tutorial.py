"""The tutorial's order service, put together from its page: it works, and survives what the page says it survives."""

import contextlib
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

import msgtx
from tests.databases import LOOK_SECONDS, PATIENCE_SECONDS, connect, wait_until
from tests.docs.snippets import TUTORIAL, snippets

pytestmark = pytest.mark.long

Start = Callable[..., "subprocess.Popen[str]"]
CUSTOMERS: Final = ("ada", "bob", "cy", "dee")
ORDERS: Final = 120
RUBBISH: Final = b"rubbish"
QUICK: Final = {"MSGTX_SESSION_TIMEOUT_MS": "1500", "MSGTX_HEARTBEAT_INTERVAL_MS": "100", "MSGTX_MAX_POLL_RECORDS": "5"}
# What fails now and then: `add` of the page, with an exception in one call of seven, after it has written its rows.
UNRELIABLE: Final = """
import itertools, sys
from shop import worker
calls, add = itertools.count(1), worker.add
def unreliable(session, record):
    add(session, record)
    if next(calls) % 7 == 0:
        raise ConnectionError("planted")
worker.add = unreliable
worker.main()
"""


@pytest.fixture(scope="module")
def url(make_database: Callable[..., str]) -> str:
    return make_database(schema=False)


@pytest.fixture(scope="module")
def environment(url: str) -> dict[str, str]:
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "MSGTX_DATABASE_URL": url, "PATH": programs}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, environment: dict[str, str]) -> Path:
    """The folder of the project: the page's files, and its commands in their order."""
    folder = tmp_path_factory.mktemp("orders")
    (folder / "shop").mkdir()
    (folder / "tests").mkdir()
    (folder / "shop" / "__init__.py").touch()
    for block in snippets("python", "sh", page=TUTORIAL):
        if block.language == "sh":
            subprocess.run(["bash", "-euo", "pipefail", "-c", block.text], cwd=folder, env=environment, check=True)
        else:
            assert block.title is not None
            (folder / block.title).write_text(block.text, encoding="utf-8")
    return folder


@pytest.fixture
def start(project: Path, environment: dict[str, str]) -> Iterator[Start]:
    """Start Python in the project's folder; what still runs at the end is killed."""
    started: list[subprocess.Popen[str]] = []

    def begin(*arguments: str, **more: str) -> "subprocess.Popen[str]":
        command = [sys.executable, *arguments]
        given = {**environment, **QUICK, **more}
        started.append(subprocess.Popen(command, cwd=project, env=given, stderr=subprocess.PIPE, text=True))
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        process.communicate()


def service(start: Start) -> int:
    """Start the service. Returns its port."""
    process = start("-m", "uvicorn", "--port=0", "--no-access-log", "shop.service:app")
    assert process.stderr is not None
    said = next(line for line in process.stderr if "running on" in line)
    return int(re.findall(r":(\d+) ", said)[0])


def order(port: int, customer: str, reference: int) -> int:
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_SECONDS)) as connection:
        sent = {"customer": customer, "reference": str(reference), "cents": reference + 1}
        connection.request("POST", "/orders", json.dumps(sent), {"content-type": "application/json"})
        return connection.getresponse().status


def ask(url: str, statement: str) -> list[tuple[Any, ...]]:
    with connect(url) as connection:
        return connection.execute(statement).fetchall()


def test_the_commands_may_be_given_again(project: Path, environment: dict[str, str]) -> None:
    """All but those that write the project's first files: they are written once."""
    lines = [line for block in snippets("sh", page=TUTORIAL) for line in block.text.splitlines()]
    again = [line for line in lines if not re.search(r"alembic (init|revision)", line)]
    assert len(again) >= 5
    subprocess.run(["bash", "-euo", "pipefail", "-c", "\n".join(again)], cwd=project, env=environment, check=True)


def test_its_own_tests_pass(project: Path, environment: dict[str, str]) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests"]
    given = {**environment, "MSGTX_DATABASE_URL": "postgresql:///none", "MSGTX_TEST_DATABASE_URL": superuser(environment)}
    ran = subprocess.run(command, cwd=project, env=given, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "4 passed" in ran.stdout


def superuser(environment: dict[str, str]) -> str:
    """Return the address of a role that may create databases: the one of the tests' server."""
    from msgtx.database import embedded

    return environment.get("MSGTX_TEST_DATABASE_URL") or embedded.superuser_url()


def test_nothing_is_lost_or_doubled(url: str, project: Path, start: Start) -> None:
    """Orders come in while workers are killed, raise exceptions, and meet a message that no one can handle."""
    port = service(start)
    unreliable = project / "unreliable.py"
    unreliable.write_text(UNRELIABLE, encoding="utf-8")

    def counted() -> int:
        return int(ask(url, "select coalesce(sum(orders), 0) from revenue")[0][0])

    worker = start(str(unreliable))
    for number in range(ORDERS):
        assert order(port, CUSTOMERS[number % len(CUSTOMERS)], number) == 201
        if number == ORDERS // 3:
            with msgtx.connect(url) as client, client.producer() as producer:
                producer.send("orders", RUBBISH, key=b"ada")
            wait_until(lambda: counted() > 10, "the first worker has begun")
            worker.send_signal(signal.SIGKILL)
            worker = start(str(unreliable))
    assert order(port, "ada", 0) == 409
    wait_until(lambda: counted() >= ORDERS, "all orders are summed up", seconds=3 * PATIENCE_SECONDS)
    wait_until(lambda: dead(url) == [RUBBISH], "the message that cannot be handled is set aside")
    time.sleep(10 * LOOK_SECONDS)
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(PATIENCE_SECONDS) == 0
    stored = "select customer, count(*), sum(cents) from orders group by customer order by customer"
    assert ask(url, "select customer, orders, cents from revenue order by customer") == ask(url, stored)
    assert ask(url, "select count(*) from orders") == [(ORDERS,)]
    with msgtx.connect(url) as client:
        assert client.admin.groups.describe("revenue").lag == 0


def dead(url: str) -> list[bytes | None]:
    with msgtx.connect(url) as client:
        return [record.value for record in client.read(client.snapshot(["orders-dead"]))]
