"""The console in Chromium: what a person sees, and what only a browser can show. Screenshots go to build/console."""

import contextlib
import json
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import uvicorn
from playwright.sync_api import Browser, Page, expect, sync_playwright

import msgtx
from msgtx import Client, console
from msgtx.console import serving
from msgtx.types import Acknowledgement
from tests.databases import Server
from tests.roles import PASSWORD, open_roles
from tests.store.steps import new_mirror

CHROMIUM: Final = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
PICTURES: Final = Path(msgtx.__file__).parent.parent / "build" / "console"
AXE: Final = Path(__file__).with_name("axe") / "axe.min.js"
THEMES: Final = ("light", "dark")
WIDTHS: Final = (1280, 360)
PAGES: Final = {
    "overview": "overview?findings=all",
    "topics": "topics",
    "topic": "topic?name=orders",
    "partition": "partition?topic=orders",
    "messages": "messages?topic=orders&isolation=read_uncommitted",
    "held": "messages?topic=payments&isolation=read_uncommitted",
    "found": "messages?topic=orders&path=customer&value=ada&rows=3",
    "followed": "messages?topic=payments&follow=on&isolation=read_uncommitted",
    "hostile": "messages?topic=hostile",
    "record": "record?topic=orders&partition=0&offset=3",
    "transactions": "transactions",
    "transaction": "transaction?id=shop",
    "open": "transaction?id=worker-7",
    "producer": "producer?id=shop",
    "cuts": "cuts",
    "cut": "cut?name=monday",
    "difference": "difference?start=monday",
    "spark": "spark",
    "database": "database",
    "groups": "groups",
    "group": "group?name=billing",
    "shares": "shares",
    "share": "share?name=mailers",
    "mirrors": "mirrors",
    "mirror": "mirror?name=reports",
    "search": "search?q=536365",
    "nothing": "topic?name=nothing",
}
EMPTY: Final = ("overview", "topics", "transactions", "groups", "shares", "mirrors", "search", "cuts", "spark", "database")


@pytest.fixture(scope="module")
def filled(make_database: Callable[..., str]) -> Iterator[Client]:
    """A shop."""
    with msgtx.connect(make_database()) as client:
        fill(client)
        yield client


def fill(client: Client) -> None:
    """Make a shop: orders, a worker that holds payments back, groups, dead letters, hostile records."""
    for name, partitions in (("orders", 6), ("invoices", 3), ("payments", 2), ("hostile", 1)):
        client.topics.create(name, partitions)
    with client.producer(transactional_id="shop") as producer:
        for invoice in range(8):
            producer.begin_transaction()
            for line in range(30):
                order = {"invoice": 536365 + invoice, "line": line, "customer": "ada", "amount": 12.5}
                producer.send("orders", json.dumps(order).encode(), key=b"%d" % (536365 + invoice))
                if line % 10 == 0:
                    producer.flush(10.0)
            producer.send("invoices", b"total", partition=invoice % 3)
            (producer.abort_transaction if invoice % 3 == 2 else producer.commit_transaction)()
    client.snapshots.save("monday", client.snapshots.take(["orders", "invoices"]).snapshot)
    with client.producer() as producer:
        producer.send("orders", b'{"invoice": 536373}', key=b"536373")
        for value in (b"<script>alert(1)</script>\0", bytes(range(256)), b"x" * 200_000, "\u202egnp.exe".encode(), None):
            producer.send("hostile", value, key=b"<img src=x onerror=alert(1)>")
    settings: dict[str, Any] = {"auto_offset_reset": "earliest", "enable_auto_commit": False}
    with client.consumer("orders", "payments", group="billing", **settings) as consumer:
        consumer.poll(5.0, 50)
        consumer.commit()
    client.admin.shares.configure("mailers", {"auto_offset_reset": "earliest"})
    with client.share_consumer("invoices", group="mailers", acknowledgement_mode="explicit") as member:
        for number, record in enumerate(member.poll(5.0)):
            member.acknowledge(record, Acknowledgement.ACCEPT if number % 3 else Acknowledgement.REJECT)
        member.commit()
        member.poll(0.0)
    with client.runtime.engine.connection() as connection:
        new_mirror(connection, "reports", lag=(3, 4_500))
    worker = client.producer(transactional_id="worker-7", transaction_timeout_ms="15min")
    worker.init_transactions()
    worker.begin_transaction()
    for number in range(25):
        worker.send("payments", b"%d" % number, partition=0)
    worker.flush(10.0)


@contextlib.contextmanager
def served(client: Client, **settings: Any) -> Iterator[str]:
    """Serve a console; the address ends with a slash."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        application = console.app(client, **settings)
        server = serving.ConsoleServer(
            uvicorn.Config(application, log_level="warning", timeout_graceful_shutdown=1), application
        )
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}/"
        finally:
            server.should_exit = True
            thread.join(30.0)


@pytest.fixture(scope="module")
def address(filled: Client) -> Iterator[str]:
    """The console of the shop."""
    with served(filled, sign_in=False) as found:
        yield found


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """One browser for all tests."""
    assert CHROMIUM is not None, "there is no Chromium (Debian: apt-get install chromium)"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@contextlib.contextmanager
def opened(browser: Browser, *, expected: tuple[str, ...] = (), **settings: Any) -> Iterator[Page]:
    """Open a page. Errors in the browser's console, also reports of the CSP, fail the test."""
    context = browser.new_context(**settings)
    page = context.new_page()
    told: list[str] = []
    page.on("console", lambda message: told.append(message.text) if message.type in {"error", "warning"} else None)
    page.on("pageerror", lambda error: told.append(str(error)))
    page.on("dialog", lambda dialog: (told.append(f"dialog {dialog.message}"), dialog.dismiss()))
    yield page
    context.close()
    assert [text for text in told if not any(words in text for words in expected)] == []


def violations(page: Page) -> list[str]:
    """Return what axe-core finds."""
    page.evaluate(AXE.read_text(encoding="utf-8"))
    found = page.evaluate("axe.run({runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa', 'best-practice']})")
    return [f"{each['id']}: {node['html'][:200]}" for each in found["violations"] for node in each["nodes"]]


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", PAGES)
def test_a_page_fits_is_accessible_and_has_no_errors(
    chromium: Browser, address: str, name: str, width: int, theme: str
) -> None:
    size = {"width": width, "height": 800}
    with opened(chromium, expected=("404",), viewport=size, color_scheme=theme, reduced_motion="reduce") as page:
        page.goto(address + PAGES[name])
        PICTURES.mkdir(parents=True, exist_ok=True)
        page.screenshot(path=PICTURES / f"{name}-{theme}-{width}.png", full_page=True)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert violations(page) == []


@pytest.mark.parametrize("name", EMPTY)
def test_an_empty_page_says_what_to_do(chromium: Browser, make_database: Callable[..., str], name: str) -> None:
    with msgtx.connect(make_database()) as client, served(client, sign_in=False) as empty, opened(chromium) as page:
        page.goto(empty + name)
        page.screenshot(path=PICTURES / f"empty-{name}.png", full_page=True)
        expect(page.locator(".empty").first).to_be_visible()
        assert violations(page) == []


def test_a_wide_screen_is_used(chromium: Browser, address: str) -> None:
    with opened(chromium, viewport={"width": 2560, "height": 1200}) as page:
        for name in ("overview", "messages"):
            page.goto(address + PAGES[name])
            page.screenshot(path=PICTURES / f"{name}-light-2560.png")
            assert page.evaluate("document.documentElement.scrollWidth") <= 2560


def test_a_person_signs_in_and_out(chromium: Browser, filled: Client, server: Server) -> None:
    url = filled.secret_url
    with open_roles(server, url) as roles, served(filled) as asked:
        role = roles.make("observe", "consume:orders")
        with opened(chromium, expected=("403",)) as page:
            page.goto(asked + "topics?filter=orders")
            page.screenshot(path=PICTURES / "sign-in.png")
            assert violations(page) == []
            page.get_by_label("Role").fill(role)
            page.get_by_label("Password").fill("wrong")
            page.get_by_role("button", name="Sign in").click()
            expect(page.get_by_role("alert")).to_contain_text("refuses")
            page.get_by_label("Password").fill(PASSWORD)
            page.get_by_role("button", name="Sign in").click()
            expect(page.get_by_role("link", name="orders", exact=True)).to_be_visible()
            assert page.evaluate("document.cookie") == ""
            page.get_by_role("button", name="Sign out").click()
            expect(page.get_by_label("Password")).to_be_visible()
            page.go_back()
            page.reload()
            expect(page.get_by_label("Password")).to_be_visible()


def test_a_page_follows_the_database_and_stands_still_when_asked(chromium: Browser, filled: Client, address: str) -> None:
    with opened(chromium) as page:
        page.goto(address + "topics")
        filled.topics.create("arrived")
        expect(page.get_by_role("link", name="arrived")).to_be_visible(timeout=15_000)
        page.get_by_role("link", name="Live").click()
        expect(page.get_by_role("link", name="Paused")).to_be_visible()
        filled.topics.delete("arrived")
        time.sleep(5)  # longer than two polls: nothing may happen
        expect(page.get_by_role("link", name="arrived")).to_be_visible()
        page.get_by_role("link", name="Paused").click()
        expect(page.get_by_role("link", name="arrived")).to_have_count(0)


def test_a_page_follows_new_records_until_it_is_paused(chromium: Browser, filled: Client, address: str) -> None:
    filled.topics.create("tail", if_not_exists=True)
    with opened(chromium) as page, filled.producer() as producer:
        page.goto(address + "messages?topic=tail")
        page.get_by_role("link", name="Follow").click()
        producer.send("tail", b"<b>first</b>")
        producer.flush()
        expect(page.locator("table.records tbody tr").first).to_contain_text("<b>first</b>", timeout=15_000)
        producer.send("tail", b"second")
        producer.flush()
        expect(page.locator("table.records tbody tr").first).to_contain_text("second", timeout=15_000)
        page.get_by_role("link", name="Live").click()
        expect(page.get_by_role("link", name="Paused")).to_be_visible()
        producer.send("tail", b"third")
        producer.flush()
        time.sleep(5)  # longer than two polls: nothing may happen
        expect(page.locator("table.records tbody tr").first).to_contain_text("second")
        page.get_by_role("link", name="Paused").click()
        expect(page.locator("table.records tbody tr").first).to_contain_text("third")


def test_records_are_found_by_a_json_field_in_pages(chromium: Browser, address: str) -> None:
    with opened(chromium) as page:
        page.goto(address + "messages?topic=orders&rows=20")
        page.get_by_label("JSON field").fill("customer")
        page.get_by_label("that is").fill("ada")
        page.keyboard.press("Enter")
        expect(page.locator("table.records tbody tr")).not_to_have_count(0)
        assert "path=customer" in page.url
        page.get_by_label("that is").fill("<script>alert(1)</script>")
        page.keyboard.press("Enter")
        expect(page.locator(".empty")).to_contain_text("No record fits")


def test_a_filter_works_as_one_types_and_its_address_can_be_shared(chromium: Browser, address: str) -> None:
    with opened(chromium) as page:
        page.goto(address + "topics")
        page.get_by_role("searchbox", name="Filter by name").press_sequentially("pay")
        expect(page.get_by_role("link", name="orders", exact=True)).to_have_count(0)
        expect(page.get_by_role("link", name="payments")).to_be_visible()
        assert "filter=pay" in page.url
        page.reload()
        expect(page.get_by_role("link", name="payments")).to_be_visible()
        expect(page.get_by_role("link", name="orders", exact=True)).to_have_count(0)
        page.get_by_role("link", name="payments").click()
        page.go_back()
        expect(page.get_by_role("link", name="orders", exact=True)).to_have_count(0)


def test_keys_search_move_and_help(chromium: Browser, address: str) -> None:
    with opened(chromium) as page:
        page.goto(address + "topics?live=off")
        page.keyboard.press("j")
        page.keyboard.press("j")
        first, second = page.locator("[data-rows] tbody tr a").all()[:2]
        expect(second).to_be_focused()
        page.keyboard.press("k")
        expect(first).to_be_focused()
        page.keyboard.press("?")
        expect(page.get_by_role("dialog")).to_be_visible()
        assert violations(page) == []
        page.keyboard.press("Escape")
        page.keyboard.press("/")
        page.keyboard.type("orders/0/3")
        page.keyboard.press("Enter")
        page.locator("ul.hits a").first.click()
        expect(page.get_by_role("heading", name="Record 3")).to_be_visible()


def test_times_are_of_the_readers_zone_and_utc_without_scripts(chromium: Browser, address: str) -> None:
    where = address + PAGES["record"]
    with opened(chromium, timezone_id="Asia/Tokyo") as page:
        page.goto(where)
        time_ = page.locator("time").first
        utc = time_.get_attribute("title") or ""
        assert utc.endswith(" UTC")
        assert int(time_.inner_text()[11:13]) == (int(utc[11:13]) + 9) % 24
    with opened(chromium, java_script_enabled=False) as page:
        page.goto(where)
        assert page.locator("time").first.inner_text().endswith("UTC")
        page.goto(address + "topics")
        page.get_by_role("searchbox", name="Filter by name").fill("pay")
        page.keyboard.press("Enter")
        expect(page.locator("tbody tr")).to_have_count(1)


# ── changes ──


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("width", WIDTHS)
def test_a_dead_letter_is_sent_back_once(chromium: Browser, filled: Client, width: int, theme: str) -> None:
    group = f"sorters-{theme}-{width}"
    filled.admin.shares.configure(group, {"auto_offset_reset": "earliest"})
    with filled.share_consumer("invoices", group=group, acknowledgement_mode="explicit") as member:
        for record in member.poll(5.0):
            member.acknowledge(record, Acknowledgement.REJECT)
        member.commit()
        member.poll(0.0)
    letters = filled.admin.shares.describe(group).dead_letters
    assert letters
    size = {"width": width, "height": 800}

    def seen(name: str) -> None:
        page.screenshot(path=PICTURES / f"{name}-{theme}-{width}.png", full_page=True)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert violations(page) == []

    with (
        served(filled, sign_in=False, allow_changes=True) as changing,
        opened(chromium, viewport=size, color_scheme=theme, reduced_motion="reduce") as page,
    ):
        page.goto(changing + f"share?name={group}")
        seen("share-changes")
        page.get_by_role("link", name="Redrive dead letters").click()
        page.get_by_label("At most").fill("1")
        seen("change-form")
        page.get_by_role("button", name="Preview").click()
        expect(page.get_by_text("It would send 1 dead letter of share group '" + group)).to_be_visible()
        seen("change-preview")
        page.get_by_role("button", name="Redrive dead letters").dblclick()
        expect(page.get_by_role("status")).to_contain_text("Done")
        seen("change-done")
        page.reload()
        expect(page.get_by_role("status")).to_contain_text("Done")
        page.go_back()  # the form: nothing is sent again
        assert filled.admin.shares.describe(group).dead_letters == letters - 1


@pytest.mark.parametrize("name", ["billing", "nothing"])
@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("width", WIDTHS)
def test_a_form_and_its_preview_are_accessible(chromium: Browser, filled: Client, width: int, theme: str, name: str) -> None:
    size = {"width": width, "height": 800}
    with (
        served(filled, sign_in=False, allow_changes=True) as changing,
        opened(chromium, expected=("404",), viewport=size, color_scheme=theme, reduced_motion="reduce") as page,
    ):
        page.goto(changing + f"change/groups-reset-offsets?group={name}&target=duration")
        assert violations(page) == []
        page.get_by_label("Value").fill("1h")
        page.get_by_role("button", name="Preview").click()
        page.screenshot(path=PICTURES / f"change-reset-{name}-{theme}-{width}.png", full_page=True)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert violations(page) == []
        if name == "nothing":  # the form again, with what was filled in
            expect(page.get_by_role("alert")).to_contain_text("no consumer group")
            expect(page.get_by_label("Value")).to_have_value("1h")
        else:
            expect(page.get_by_role("button", name="Reset offsets")).to_be_visible()


def test_a_change_needs_no_scripts(chromium: Browser, filled: Client) -> None:
    filled.topics.create("short-lived")
    with served(filled, sign_in=False, allow_changes=True) as changing, opened(chromium, java_script_enabled=False) as page:
        page.goto(changing + "topic?name=short-lived")
        page.get_by_role("link", name="Delete topic").click()
        page.get_by_role("button", name="Preview").click()
        page.get_by_role("button", name="Delete topic").click()
        expect(page.get_by_role("status")).to_contain_text("Done")
    assert "short-lived" not in filled.topics.list()
