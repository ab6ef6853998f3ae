"""A standby is promoted: what each kind of client is told, as docs/operations/high-availability.md says in its table."""

import contextlib
import logging
import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

import msgtx
from msgtx.database.pool import POOLED_SECONDS
from tests.databases import connect, wait_until
from tests.pooler import pooler
from tests.replication import Pair, replicated
from tests.system.kinds import KINDS, Log, Place, Steps, Told

pytestmark = pytest.mark.slow

PAGE: Final = Path(__file__).parents[2] / "docs/operations/high-availability.md"


@dataclass
class Event:
    """Clients of all kinds, each with a database of its own, on the way through an event."""

    clients: dict[str, tuple[Place, Steps]]
    is_lossy: bool
    is_pooled: bool

    def ends(self, kind: str) -> Told:
        """Let a client go on behind the event; return what it was told."""
        _, steps = self.clients[kind]
        with pytest.raises(StopIteration) as ended:
            next(steps)
        found: Told = ended.value.value
        return found


@pytest.fixture(scope="module", params=["lost", "kept", "recovered", "pooled"])
def event(request: pytest.FixtureRequest, make_database: Callable[..., str]) -> Iterator[Event]:
    """A primary that is lost with its last acknowledgements, or with none, since the standby had confirmed them.

    Or it is replaced by a backup that is recovered to a moment before them; or a pooler leads to it, and then to the other.
    """
    is_lossy = request.param != "kept"
    with logged() as log, replicated() as pair, ExitStack() as ending:
        if not is_lossy:
            pair.confirm_by("walreceiver")
        running = ending.enter_context(pooler(pair.primary.create_database())) if request.param == "pooled" else None
        made = Event({}, is_lossy, is_pooled=running is not None)
        for kind in asked_for(request):
            place = made_place(pair, make_database(), log)
            if running is not None:
                place.url = running.url(place.standby_url)
            if not is_lossy:
                place.expected = [b"kept", b"lost", b"next"]
            steps = KINDS[kind](place)
            ending.callback(steps.close)
            made.clients[kind] = (place, steps)
        for _, steps in made.clients.values():
            next(steps)
        pair.catch_up()
        if is_lossy:
            pair.fall_behind()
        with pair.primary.administrator() as primary:
            (moment,) = primary.execute("select clock_timestamp()").fetchall()[0]
        for _, steps in made.clients.values():
            next(steps)
        answered(pair)
        lost_at = time.monotonic()
        if request.param == "recovered":
            pair.recover_to(moment)
        else:
            pair.fail_over()
        if running is not None:
            running.lead_to(pair.on_standby(pair.primary.url("postgres")))
            wait_until(lambda: time.monotonic() - lost_at > POOLED_SECONDS, "clients ask again who answers")
        yield made


def asked_for(request: pytest.FixtureRequest) -> list[str]:
    """Return the kinds whose tests this run has: every day it is one."""
    names = {item.name.rpartition("-")[2] for item in request.session.items if item.path == request.path}
    return [kind for kind in KINDS if f"{kind}]" in names]


@contextlib.contextmanager
def logged() -> Iterator[Log]:
    log, logger = Log(), logging.getLogger("msgtx")
    logger.addHandler(log)
    try:
        yield log
    finally:
        logger.removeHandler(log)


def made_place(pair: Pair, elsewhere: str, log: Log) -> Place:
    """Make a database with an incarnation of its own: a process knows databases by that."""
    url = pair.primary.create_database()
    with connect(url) as connection:
        connection.execute("select msgtx.change_incarnation()")
    with msgtx.connect(url) as client:
        client.topics.create("t")
        client.topics.create("out")
    with msgtx.connect(elsewhere) as client:
        client.topics.create("t")
    return Place(pair.on_either(url), pair.on_standby(url), elsewhere, log)


def answered(pair: Pair) -> None:
    """Wait until the primary has answered every call."""
    busy = "select count(*) - 1 from pg_stat_activity where backend_type = 'client backend' and state = 'active'"
    with pair.primary.administrator() as primary:
        wait_until(lambda: primary.execute(busy).fetchone() == (0,), "every call is answered")


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_client_is_told(event: Event, kind: str) -> None:
    """I1, I4, I14: of a loss as the page says; of nothing if nothing was lost.

    A user's own session behind a pooler may be one of before the failover, and then tells nothing.
    """
    found = event.ends(kind)
    if event.is_pooled and not found:
        found = expected()[kind] & {"msgtx.session"}
    assert found == (expected()[kind] if event.is_lossy else set())


def expected() -> dict[str, Told]:
    """Return what a client is told, by kind: the names in the second column of the page's table."""
    _, _, table = PAGE.read_text(encoding="utf-8").partition("| client | is told | then |\n|---|---|---|\n")
    rows = [line.split("|")[1:3] for line in table.partition("\n\n")[0].splitlines()]
    return {kind.replace("`", "").strip(): set(re.findall(r"`([\w.]+)`", told)) for kind, told in rows}


def test_the_page_has_a_row_for_each_kind() -> None:
    assert list(expected()) == list(KINDS)
