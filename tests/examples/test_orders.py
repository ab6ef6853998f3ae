"""The order service and its read model agree, whatever fails, on what was ordered and summed up (examples/orders)."""

import contextlib
import http.client
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

import msgtx
from examples.orders.models import TOPIC, Base, Revenue
from examples.orders.read_model import add
from msgtx.testing import Faults, committed, run_worker
from tests.databases import LOOK_SECONDS, PATIENCE_SECONDS, wait_until

pytestmark = pytest.mark.slow

ROOT = Path(msgtx.__file__).parent.parent
Query = Callable[[str], list[tuple[object, ...]]]
ReadModel = Callable[[], "subprocess.Popen[bytes]"]
CUSTOMERS = ["ada", "bob", "cy", "dee", "eve"]  # of the test with crashes
THEIRS = f"where customer = any(array{CUSTOMERS})"


class Service:
    """The service as a process, which may be killed and started again."""

    def start(self) -> None:
        command = [sys.executable, "-m", "uvicorn", "--port=0", "--no-access-log", "examples.orders.service:app"]
        self.process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
        assert self.process.stderr is not None
        said = next(line for line in self.process.stderr if "running on" in line)
        self.port = int(re.findall(r":(\d+) ", said)[0])

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()

    def ask(self, method: str, path: str, sent: object = None) -> tuple[int, dict[str, object]]:
        """Return status and answer. Raise `OSError`, `HTTPException` without one."""
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_SECONDS)) as connection:
            connection.request(method, path, json.dumps(sent), {"content-type": "application/json"})
            answer = connection.getresponse()
            return answer.status, json.load(answer)

    def order(self, customer: str, reference: object, cents: int) -> int:
        return self.ask("POST", "/orders", {"customer": customer, "reference": str(reference), "cents": cents})[0]


@pytest.fixture(scope="module")
def service(make_database: Callable[..., str]) -> Iterator[Service]:
    """The service on a fresh database, which has no tables of it yet and no schema of msgtx."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("MSGTX_DATABASE_URL", make_database(schema=False))
        made = Service()
        made.start()
        yield made
        made.kill()


@pytest.fixture
def query(service: Service) -> Iterator[Query]:
    """Ask the service's database."""
    with msgtx.connect() as client, client.runtime.engine.connection() as connection:
        yield lambda statement: connection.execute(statement).fetchall()


@pytest.fixture
def read_model(service: Service) -> Iterator[ReadModel]:
    """Start read models; those still running at the end are killed."""
    started: list[subprocess.Popen[bytes]] = []
    # A few records a commit, so that kills hit between commits and in them; a killed member is removed from the group soon.
    settings = {"MAX_POLL_RECORDS": "3", "SESSION_TIMEOUT_MS": "1500", "HEARTBEAT_INTERVAL_MS": "100"}
    environment = {**os.environ, **{f"MSGTX_{name}": value for name, value in settings.items()}}

    def start() -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-m", "examples.orders.read_model"]
        started.append(subprocess.Popen(command, cwd=ROOT, env=environment))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


def published(*customers: str) -> list[dict[str, object]]:
    with msgtx.connect() as client:
        orders = [record.json() for record in committed(client, "orders")]
    return [order for order in orders if order["customer"] in customers]


def working() -> set[int | None]:
    """The read model's processes that have partitions."""
    with msgtx.connect() as client:
        return {member.client_process for member in client.admin.groups.members("revenue") if member.owned}


def test_an_order_is_stored_and_published(service: Service) -> None:
    sent = {"customer": "fay", "reference": "1", "cents": 1250}
    status, placed = service.ask("POST", "/orders", sent)
    assert status == 201
    assert placed == {"id": placed["id"], **sent}
    assert service.ask("GET", f"/orders/{placed['id']}") == (200, placed)
    assert published("fay") == [placed]
    assert service.ask("GET", "/orders/0")[0] == 404


def test_an_order_that_is_refused_publishes_nothing(service: Service) -> None:
    """At once, by the statement; and late, by the COMMIT, when its message is written."""
    assert service.order("gil", 1, 100) == 201
    assert service.order("gil", 2, 0) == 409
    assert service.order("gil", 1, 200) == 409
    assert service.order("hal", 1, 300) == 201
    assert service.ask("POST", "/orders", {"customer": "gil"})[0] == 422
    assert sorted((found["customer"], found["cents"]) for found in published("gil", "hal")) == [("gil", 100), ("hal", 300)]


def test_all_that_was_ordered_is_published_and_summed_up_once(service: Service, read_model: ReadModel, query: Query) -> None:
    """Service and read model are killed in the middle, and two of them work at once; some orders are refused."""
    failures: list[BaseException] = []

    def insist(customer: str, number: int) -> None:
        """Order like a client without an answer: again, under the same reference."""
        for attempt in itertools.count():
            try:
                status = service.order(customer, number, number + 1)
            except (OSError, http.client.HTTPException):
                time.sleep(LOOK_SECONDS)
                continue
            assert status == 201 or (attempt > 0 and status == 409)
            return

    def send(first: int) -> None:
        try:
            for number in range(first, 160, 2):
                insist(CUSTOMERS[number % len(CUSTOMERS)], number)
                if number % 7 == 0:
                    with contextlib.suppress(OSError, http.client.HTTPException):
                        assert service.order("ada", "never", -1) == 409
        except BaseException as error:
            failures.append(error)
            raise

    def counted() -> int:
        assert not failures
        return int(str(query(f"select coalesce(sum(orders), 0) from revenue {THEIRS}")[0][0]))

    senders = [threading.Thread(target=send, args=(first,)) for first in range(2)]
    for sender in senders:
        sender.start()
    for goal in (20, 60):
        running = read_model()
        wait_until(lambda goal=goal: counted() >= goal, f"{goal} orders are in the read model")
        running.kill()
    service.kill()
    service.start()
    last = [read_model(), read_model()]
    wait_until(lambda: working() == {running.pid for running in last}, "both have partitions")
    for sender in senders:
        sender.join()
    wait_until(lambda: counted() >= 160, "all orders are in the read model")
    for running in last:
        running.send_signal(signal.SIGTERM)
        assert running.wait(PATIENCE_SECONDS) == 0
    ordered = query(f"select id, customer, reference, cents from orders {THEIRS} order by id")
    assert {(customer, reference, cents) for _, customer, reference, cents in ordered} == {
        (CUSTOMERS[number % len(CUSTOMERS)], str(number), number + 1) for number in range(160)
    }
    names = ("id", "customer", "reference", "cents")
    assert sorted(tuple(each[name] for name in names) for each in published(*CUSTOMERS)) == ordered
    summed = query("select customer, orders, cents from revenue order by customer")
    assert summed == query("select customer, count(*), sum(cents) from orders group by customer order by customer")


@pytest.mark.long
def test_the_read_model_counts_each_order_once_whatever_breaks(msgtx_client: msgtx.Client, msgtx_faults: Faults) -> None:
    engine = msgtx_client.engine()
    Base.metadata.create_all(engine)
    engine.dispose()
    with msgtx_client.producer() as producer:
        for cents in (100, 200):
            producer.send(TOPIC, json={"customer": "ada", "cents": cents}, key=b"ada")

    def work(client: msgtx.Client) -> None:
        run_worker(client, add, TOPIC, group="revenue")

    def check(client: msgtx.Client) -> None:
        engine = client.engine()
        with Session(engine) as session:
            assert [(each.orders, each.cents) for each in session.scalars(select(Revenue))] == [(2, 300)]
        engine.dispose()

    assert msgtx_faults.every_boundary(work, check) > 12
