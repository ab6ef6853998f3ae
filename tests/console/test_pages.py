"""Pages show what the command line prints, as text, in bounded pieces, and only what a role may see."""

import contextlib
import json
import operator
import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from starlette.testclient import TestClient

from msgtx import Client
from msgtx.console.page import ROWS
from msgtx.console.pages import records
from msgtx.types import Acknowledgement
from tests.cli.program import Ended
from tests.console.conftest import Browse, sign_in
from tests.databases import Clock, wait_until
from tests.roles import Roles
from tests.store.steps import new_mirror, unique

Msgtx = Callable[..., Ended]
# Ages, sentences with times in them, and sessions of the server.
CHANGING = {
    "lag_ms",
    "moved_ms",
    "seen_ms",
    "bytes",
    "live_rows",
    "dead_rows",
    "rows_since_vacuum",
    "last_vacuum",
    "text",
    "data",
    "connections",
    "snapshot_holders",
}
HOSTILE = "<script>alert(1)</script>\u202egnp\u2066'\"&amp;"


@pytest.fixture
def topic(client: Client) -> str:
    """A topic with a committed, an aborted and an open transaction, read by a group and a share group."""
    name = unique("console")
    client.topics.create(name, 2)
    with client.producer(transactional_id=f"{name}-writer") as producer:
        for end in (producer.commit_transaction, producer.abort_transaction):
            producer.begin_transaction()
            for number in range(5):
                producer.send(name, b'{"number": %d}' % number, key=b"k%d" % number, partition=0, headers=(("h", b"1"),))
            end()
    with client.consumer(name, group=f"{name}-readers", auto_offset_reset="earliest", enable_auto_commit=False) as consumer:
        consumer.poll(5.0, 2)
        consumer.commit()
    client.admin.shares.configure(f"{name}-workers", {"auto_offset_reset": "earliest"})
    with client.share_consumer(name, group=f"{name}-workers", acknowledgement_mode="explicit") as member:
        for number, record in enumerate(member.poll(5.0)):
            member.acknowledge(record, Acknowledgement.ACCEPT if number else Acknowledgement.REJECT)
        member.commit()
        member.poll(0.0)
    with client.runtime.engine.connection() as connection:
        new_mirror(connection, f"{name}-mirror", lag=(3, 4_500))
    client.snapshots.save(f"{name}-cut", client.snapshots.take([name]).snapshot)
    with client.producer() as plain:
        plain.send(name, b"later", partition=1)
    return name


TWINS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "overview": ("overview", "findings", ("doctor",)),
    "lag": ("overview", "lags", ("groups", "lag")),
    "disk": ("overview", "disk", ("db", "status")),
    "topics": ("topics?rows=500", "topics", ("topics", "list")),
    "topic": ("topic?name={topic}", "topic", ("topics", "describe", "{topic}")),
    "progress": ("partition?topic={topic}", "progress", ("topics", "progress", "{topic}", "--partition", "0")),
    "positions": ("topic?name={topic}", "progress", ("topics", "progress", "{topic}")),
    "messages": (
        "messages?topic={topic}&at=1",
        "records",
        ("consume", "{topic}", "--partition", "0", "--offset", "1", "--no-follow"),
    ),
    "uncommitted": (
        "messages?topic={topic}&at=4&isolation=read_uncommitted",
        "records",
        ("consume", "{topic}", "--partition", "0", "--offset", "4", "--no-follow", "--isolation", "read_uncommitted"),
    ),
    "rows": ("messages?topic={topic}", "rows_of_log", ("topics", "rows", "{topic}", "--partition", "0")),
    "activity": ("overview", "activity", ("activity",)),
    "key": (
        "messages?topic={topic}&key=k2",
        "records",
        ("find", "{topic}", "--key", "k2", "--partition", "0", "--before", "10", "--no-groups"),
    ),
    "json": (
        "messages?topic={topic}&path=number&value=2&before=9",
        "records",
        ("find", "{topic}", "--json", "number=2", "--partition", "0", "--before", "9", "--no-groups"),
    ),
    "record": ("record?topic={topic}&partition=0&offset=3", "record", ("find", "{topic}", "--offset", "0:3")),
    "transactions": ("transactions?rows=500", "transactions", ("transactions", "list")),
    "aborted": (
        "transactions?rows=500&state=CompleteAbort",
        "transactions",
        ("transactions", "list", "--state", "CompleteAbort"),
    ),
    "filtered": (
        "transactions?filter={topic}&sort=-producer_id&rows=1",
        "transactions",
        ("transactions", "list", "--prefix", "{topic}", "--sort", "-producer_id", "--most", "1"),
    ),
    "prepared": ("transactions", "prepared", ("transactions", "prepared")),
    "blocking": ("transactions", "blocking", ("transactions", "blocking")),
    "transaction": ("transaction?id={topic}-writer", "transaction", ("transactions", "show", "{topic}-writer")),
    "blocked": ("transaction?id={topic}-writer", "blocking", ("transactions", "blocking", "{topic}-writer")),
    "producer": ("producer?id={topic}-writer", "history", ("transactions", "history", "{topic}-writer")),
    "mirrors": ("mirrors?rows=500", "mirrors", ("mirror", "list")),
    "mirror": ("mirror?name={topic}-mirror", "mirror", ("mirror", "describe", "{topic}-mirror")),
    "cuts": ("cuts?rows=500&sort=name", "cuts", ("offsets", "snapshots")),
    "cut": ("cut?name={topic}-cut", "cut", ("offsets", "snapshots", "{topic}-cut")),
    "spark": ("spark?rows=500", "queries", ("spark", "status")),
    "database": ("database", "described", ("db", "status")),
    "search": ("search?q={topic}", "hits", ("search", "{topic}", "--limit", "20")),
    "groups": ("groups?rows=500", "groups", ("groups", "list")),
    "group": ("group?name={topic}-readers", "group", ("groups", "describe", "{topic}-readers")),
    "members": ("group?name={topic}-readers", "members", ("groups", "members", "{topic}-readers")),
    "shares": ("shares?rows=500", "shares", ("shares", "list")),
    "share": ("share?name={topic}-workers", "share", ("shares", "describe", "{topic}-workers")),
}


def twin_of(address: str) -> str:
    path, _, query = address.partition("?")
    return f"/{path}.json?{query}"


@pytest.mark.parametrize("name", TWINS)
def test_a_twin_has_the_rows_of_the_command_line(
    owner: TestClient, msgtx: Msgtx, topic: str, clock: Clock, name: str
) -> None:
    clock(datetime.now(UTC))
    address, part, command = TWINS[name]

    def both() -> tuple[Any, Any]:
        printed = msgtx(*(word.format(topic=topic) for word in command), "-o", "json").out
        found = owner.get(twin_of(address.format(topic=topic))).json()[part]
        return without_ages(found), without_ages(json.loads(printed))

    found, printed = both()
    if found != printed:  # markers are written a second after a commit, perhaps between the two looks
        wait_until(lambda: operator.eq(*both()), f"both show the same: {found}, {printed}")


def without_ages(value: Any) -> Any:
    """Leave out what changes between two looks."""
    if isinstance(value, dict):
        return {name: without_ages(each) for name, each in value.items() if name not in CHANGING}
    return [without_ages(each) for each in value] if isinstance(value, list) else value


@pytest.mark.parametrize("name", TWINS)
def test_a_page_is_drawn_and_names_its_command(owner: TestClient, topic: str, name: str) -> None:
    address, _, command = TWINS[name]
    answer = owner.get(f"/{address.format(topic=topic)}")
    assert answer.status_code == 200
    assert f"msgtx {command[0]}" in answer.text
    assert "style=" not in answer.text
    assert "<style" not in answer.text
    assert "onclick" not in answer.text


@pytest.mark.parametrize(
    ("address", "status"),
    [
        ("topic?name=nothing", 404),
        ("mirror?name=nothing", 404),
        ("topic", 400),
        ("partition?topic=nothing", 404),
        ("partition?topic={topic}&partition=9", 404),
        ("messages?topic=nothing", 404),
        ("messages?topic={topic}&partition=9", 404),
        ("messages?topic={topic}&at=x", 400),
        ("messages?topic={topic}&time=yesterday", 400),
        ("messages?topic={topic}&isolation=none", 400),
        ("messages?topic={topic}&rows=100000", 400),
        ("messages?topic={topic}&path=a=b&value=1", 400),
        ("messages?topic={topic}&value=1", 400),
        ("messages?topic={topic}&follow=yes", 400),
        ("messages?topic={topic}&key=k&before=99999999999999999999", 400),
        ("messages?topic={topic}&path=a%00b&value=1", 400),
        ("messages?topic={topic}&key=a%00b", 200),
        ("messages?topic={topic}&path=..&value=", 200),
        ("messages?topic={topic}&path=a&value=%EF%BF%BD%F0%9F%92%A9&before=0", 200),
        ("messages?topic={topic}&path=number&value=2&before=9223372036854775807", 200),
        ("group?name=nothing", 404),
        ("share?name=nothing", 404),
        ("transaction?id=nothing", 404),
        ("producer?id=nothing", 404),
        ("producer?id=99999999", 404),
        ("cut?name=nothing", 404),
        ("difference?start=nothing", 404),
        ("difference", 400),
        ("topics?sort=password", 400),
        ("transactions?sort=state", 400),
        ("transactions?after=99999999", 400),
        ("topics?page=99999999999999999999", 400),
        ("topics?filter=" + "x" * 2_000, 400),
        ("nothing", 404),
    ],
)
def test_what_is_not_there_or_not_understood_is_told(owner: TestClient, topic: str, address: str, status: int) -> None:
    path = address.format(topic=topic)
    assert owner.get(f"/{path}").status_code == status
    assert owner.get(twin_of(path)).status_code == status


def test_a_record_that_is_gone_is_told(owner: TestClient, topic: str) -> None:
    assert "There is no record at this offset" in owner.get(f"/record?topic={topic}&partition=0&offset=4711").text


# ── hostile text ──


def test_hostile_records_are_text(client: Client, owner: TestClient) -> None:
    name = unique("hostile")
    client.topics.create(name)
    values = [HOSTILE.encode(), b"zero \0 byte", bytes(range(256)), b'{"a": "</pre><script>alert(1)</script>"}', None, b""]
    with client.producer() as producer:
        for value in values:
            producer.send(
                name, value, key=HOSTILE.encode() if value else b"\xff\xfe", headers=((HOSTILE, HOSTILE.encode()),)
            )
    pages = [f"/messages?topic={name}&view={view}" for view in ("auto", "text", "json", "hex")]
    pages += [f"/record?topic={name}&offset={offset}&view=text" for offset in range(len(values))]
    pages += [f"/search?q={HOSTILE}", f"/topics?filter={HOSTILE}", f"/messages?topic={name}&key={HOSTILE}"]
    pages += [f"/messages?topic={name}&path={HOSTILE.replace('=', '')}&value={HOSTILE}"]
    for page in pages:
        text = owner.get(page).text
        assert "<script>alert" not in text, page
        assert not {letter for letter in text if not letter.isprintable()} - {"\n", "\t", "\u202f"}, page
        assert "&lt;script&gt;alert" in text or "hex" in page or "offset=" in page, page


def test_hostile_names_are_text_and_lead_to_their_pages(client: Client, owner: TestClient) -> None:
    client.topics.create(name := unique("named"))
    group = f"a/../b?c=d&e#f {HOSTILE}"
    with client.producer(transactional_id=group) as producer:
        producer.begin_transaction()
        producer.send(name, b"x")
        producer.commit_transaction()
    with client.consumer(name, group=group, auto_offset_reset="earliest", enable_auto_commit=False) as consumer:
        consumer.poll(5.0)
        consumer.commit()
    for page, where, argument in (
        ("/groups?rows=500", "/group", {"name": group}),
        ("/transactions?rows=500", "/transaction", {"id": group}),
    ):
        text = owner.get(page).text
        assert "<script>alert" not in text
        assert "\u202e" not in text
        answer = owner.get(where, params=argument)
        assert answer.status_code == 200
        assert "<script>alert" not in answer.text
        assert str(answer.request.url).partition("?")[2].replace("%20", "+") in text.replace("&amp;", "&").replace(
            "%20", "+"
        )


def test_a_large_value_is_cut_and_can_be_seen(client: Client, owner: TestClient) -> None:
    name = unique("large")
    client.topics.create(name)
    with client.producer() as producer:
        for _ in range(3):
            producer.send(name, b"x" * 1_000_000)
    page = owner.get(f"/messages?topic={name}")
    assert len(page.text) < 50_000
    assert "1000000 B" in page.text or "976.6 KiB" in page.text
    assert len(owner.get(f"/record?topic={name}&offset=0").text) < 100_000
    assert len(owner.get(f"/record.json?topic={name}&offset=0").json()["record"][0]["value"]) == 1_000_000


# ── bounded pages ──


def test_a_table_is_cut_into_pages_that_an_address_names(client: Client, owner: TestClient) -> None:
    name = unique("wide")
    client.topics.create(name, 120)
    page = owner.get(f"/topic?name={name}").text
    assert page.count("/messages?topic=") == ROWS
    assert "1 of 3" in page
    last = owner.get(f"/topic?name={name}&page=3&sort=-partition").text
    assert "partition=19" in last
    assert "partition=20" not in last
    assert owner.get(f"/topic?name={name}&page=99").text.count("/messages?topic=") == 20


def test_transactions_are_paged_and_keep_filter_and_order(client: Client, owner: TestClient) -> None:
    name = unique("followed")
    client.topics.create(name)
    for number in range(5):
        with client.producer(transactional_id=f"{name}-{number}") as producer, producer.transaction():
            producer.send(name, b"x")
    address: str | None = f"/transactions?filter={name}&sort=-transactional_id&rows=2"
    found = []
    while address is not None:
        text = owner.get(address).text
        found += re.findall(rf">({name}-[0-9])</a>", text)
        later = re.search(r'rel="next" href="([^"]+)"', text)
        address = later[1].replace("&amp;", "&") if later else None
        assert address is None or f"filter={name}&sort=-transactional_id&rows=2" in address
    assert found == [f"{name}-{number}" for number in (4, 3, 2, 1, 0)]


def test_records_are_paged_older_and_newer(client: Client, owner: TestClient) -> None:
    name = unique("paged")
    client.topics.create(name)
    with client.producer() as producer:
        for number in range(25):
            producer.send(name, b"%d" % number)
    newest = owner.get(f"/messages.json?topic={name}&rows=10").json()["records"]
    assert [each["offset"] for each in newest] == list(range(15, 25))
    page = owner.get(f"/messages?topic={name}&rows=10&at=10").text
    assert "at=0" in page
    assert "at=20" in page
    later = owner.get(f"/messages.json?topic={name}&rows=10&time=2999-01-01T00:00").json()["records"]
    assert later == []


def test_a_search_goes_back_in_pages_and_says_where_it_stopped(
    client: Client, owner: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.topics.create(name := unique("paged"))
    with client.producer() as producer:
        for number in range(5):
            producer.send(name, b'{"customer": {"id": "%d"}}' % (number % 2))
    asked = f"?topic={name}&path=customer.id&value=0&rows=2"
    page = owner.get(f"/messages{asked}").text
    assert "before=2" in page
    assert "These are the last 2 that fit" in page
    page = owner.get(f"/messages{asked}&before=2").text
    assert "back to the beginning of the log" in page
    assert "before=" not in page.partition("<footer")[0].partition('class="pager"')[2]
    monkeypatch.setattr(records, "SHOWING_SECONDS", 0.0)
    page = owner.get(f"/messages{asked}").text
    assert "ended in front of offset 5" in page
    assert "before=5" in page


def test_who_may_only_observe_searches_for_no_contents(browse: Browse, roles: Roles, topic: str) -> None:
    browser = browse()
    sign_in(browser, roles.make(f"observe:{topic}"))
    answer = browser.get(f"/messages?topic={topic}&path=number&value=2")
    assert answer.status_code == 403
    assert "number: 2" not in answer.text


def test_a_page_that_follows_shows_the_newest_first(client: Client, owner: TestClient) -> None:
    client.topics.create(name := unique("followed"))
    with client.producer() as producer:
        for number in range(5):
            producer.send(name, b"%d" % number)
    page = owner.get(f"/messages?topic={name}&follow=on&rows=3").text
    assert 'sse-connect="/messages.live?' in page
    assert [int(each) for each in re.findall(r"offset=(\d+)\">", page)] == [4, 3, 2]
    assert "sse-connect" not in owner.get(f"/messages?topic={name}&follow=on&at=1").text
    assert "sse-connect" not in owner.get(f"/messages?topic={name}").text


def test_the_difference_of_two_cuts_is_counted_and_leads_to_its_records(client: Client, owner: TestClient) -> None:
    name = unique("cut")
    client.topics.create(name, 2)
    with client.producer(transactional_id=name) as producer:
        for cut in ("before", "after"):
            with producer.transaction():
                producer.send(name, b"a", partition=1)
                producer.send(name, b"b", partition=1)
            client.snapshots.save(f"{name}-{cut}", client.snapshots.take([name]).snapshot)
    with client.producer() as plain:
        plain.send(name, b"c", partition=0)
    (row,) = owner.get(f"/difference.json?start={name}-before&end={name}-after").json()["ranges"]
    assert (row["partition"], row["start"], row["end"], row["records"], row["transactions"]) == (1, 2, 4, 2, 1)
    now = owner.get(f"/difference.json?start={name}-before&sort=partition").json()["ranges"]
    assert [(each["partition"], each["records"]) for each in now] == [(0, 1), (1, 2)]
    text = owner.get(f"/difference?start={name}-before&end={name}-after").text
    assert f"/messages?topic={name}&amp;partition=1&amp;at=2" in text
    assert "1 are the same" in text
    assert "Nothing was committed" in owner.get(f"/difference?start={name}-after&end={name}-after").text
    assert owner.get(f"/difference?start={name}-after&end={name}-before").status_code == 400
    assert f"/difference?start={name}-before" in owner.get("/cuts?rows=500").text


def test_a_topic_that_was_made_again_differs_from_its_start(client: Client, owner: TestClient) -> None:
    name = unique("again")
    for number in range(2):
        if number:
            client.topics.delete(name)
        client.topics.create(name, 1)
        with client.producer() as producer:
            producer.send(name, b"a")
        client.snapshots.save(f"{name}-{number}", client.snapshots.take([name]).snapshot)
    address = f"start={name}-0&end={name}-1"
    (row,) = owner.get(f"/difference.json?{address}").json()["ranges"]
    assert (row["start"], row["end"], row["records"]) == (0, 1, 1)
    assert "0 are the same" in owner.get(f"/difference?{address}").text


def test_a_difference_too_large_for_a_page_says_so(
    client: Client, owner: TestClient, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("msgtx.console.pages.cuts.MOST_OFFSETS", 0)
    text = owner.get(f"/difference?start={topic}-cut").text
    assert "the command counts them" in text
    assert f"msgtx offsets ranges --from {topic}-cut" in text


def test_members_are_paged_beside_the_partitions(client: Client, owner: TestClient, topic: str) -> None:
    group = f"{topic}-crew"
    with contextlib.ExitStack() as stack:
        for number in range(3):
            consumer = stack.enter_context(client.consumer(topic, group=group, group_instance_id=f"static-{number}"))
            consumer.poll(0.0)
        address = f"/group?name={group}&member_rows=2&rows=1"
        assert len(set(re.findall(r"static-[0-9]", owner.get(address).text.partition('id="members"')[2]))) == 2
        last = owner.get(f"{address}&member_page=2").text
        assert len(set(re.findall(r"static-[0-9]", last.partition('id="members"')[2]))) == 1
        assert "member_page=1" in last


def test_groups_stand_on_the_bar_of_their_partition(client: Client, owner: TestClient, topic: str) -> None:
    text = owner.get(f"/partition?topic={topic}").text
    svg = text[text.index('<svg class="log positions"') :].partition("</svg>")[0]
    assert f"{topic}-readers"[:20] in svg
    assert f"{topic}-workers"[:20] in svg
    assert f"/partition?topic={topic}&amp;partition=0" in owner.get(f"/topic?name={topic}").text


# ── what a role may see ──


def test_a_role_sees_its_topic_alone(browse: Browse, roles: Roles, client: Client, topic: str) -> None:
    mine = unique("mine")
    client.topics.create(mine)
    with client.producer() as producer:
        producer.send(mine, b"my value")
    browser = browse()
    sign_in(browser, roles.make(f"consume:{mine}", "consume:group:mine", "produce:transactional_id:mine"))
    assert [each["name"] for each in browser.get("/topics.json").json()["topics"]] == [mine]
    assert "my value" in browser.get(f"/messages?topic={mine}").text
    for page in ("topic?name={0}", "partition?topic={0}", "messages?topic={0}", "record?topic={0}&offset=0"):
        answer = browser.get(f"/{page.format(topic)}")
        assert answer.status_code in {403, 404}
        assert "number" not in answer.text
    for page in (
        "group?name={0}-readers",
        "share?name={0}-workers",
        "transaction?id={0}-writer",
        "producer?id={0}-writer",
        "cut?name={0}-cut",
    ):
        assert browser.get(f"/{page.format(topic)}").status_code in {403, 404}
    for page in ("groups", "shares", "transactions", "cuts", f"search?q={topic}"):
        text = browser.get(f"/{page}").text
        assert f"{topic}-" not in text.replace(f"q={topic}", "")
    overview = browser.get("/overview")
    assert overview.status_code == 200
    assert topic not in overview.text


def test_an_observer_sees_places_and_no_contents(browse: Browse, roles: Roles, topic: str) -> None:
    browser = browse()
    sign_in(browser, roles.make(f"observe:{topic}"))
    assert browser.get(f"/topic?name={topic}").status_code == 200
    record = browser.get(f"/record.json?topic={topic}&offset=0").json()["record"][0]
    assert record["outcome"] == "committed"
    assert record["value"] is None


def test_a_part_that_a_role_may_not_see_leaves_the_others(browse: Browse, roles: Roles) -> None:
    browser = browse()
    sign_in(browser, roles.make("observe:nothing"))
    found = browser.get("/overview.json").json()
    assert found["lags"] is None
    assert "msgtx db grant" in found["failures"]["lags"]
    assert found["open"] == []


# ── mounted in another application ──


def test_a_mounted_console_leads_to_its_own_pages(client: Client, topic: str) -> None:
    from starlette.applications import Starlette
    from starlette.routing import Mount

    from msgtx import console

    outer = Starlette(routes=[Mount("/ops/console", console.app(client, sign_in=False))])
    browser = TestClient(outer, base_url="http://127.0.0.1:8123", follow_redirects=False)
    assert browser.get("/ops/console/").headers["location"] == "/ops/console/overview"
    text = browser.get(f"/ops/console/topic?name={topic}").text
    addresses = [each.partition('"')[0] for each in text.split('href="')[1:]]
    assert all(each.startswith(("/ops/console/", "#")) for each in addresses)
    assert browser.get("/ops/console/static/console.css").status_code == 200
    asked = TestClient(Starlette(routes=[Mount("/ops", console.app(client))]), base_url="http://127.0.0.1:8123")
    assert asked.get("/ops/topics", follow_redirects=False).headers["location"] == "/ops/sign-in?next=topics"
