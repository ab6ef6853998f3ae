"""What `make demo CONSOLE=1` shows to somebody who has read nothing: only what can be seen is pressed."""

import io
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect
from rich.console import Console

import msgtx
from msgtx.cli.programs import demo
from tests.console.test_browser import chromium, opened, served  # noqa: F401 - a fixture
from tests.system.test_demo import LINES, write_input

pytestmark = pytest.mark.long


@pytest.fixture
def toured(make_database: Callable[..., str], tmp_path: Path) -> Iterator[tuple[str, demo.Report]]:
    """The console behind the demo, and the demo's report."""
    url = make_database()
    quiet = Console(file=io.StringIO())
    report = demo.run(
        url=url,
        input_path=write_input(tmp_path / "orders.csv", list(demo.generated_lines(LINES))),
        output=quiet,
        progress=quiet,
    )
    with msgtx.connect(url) as client:
        assert len(demo.sights(client, report)) == 3
        with served(client, sign_in=False, allow_changes=True) as address:
            yield address, report


def menu(page: Page, name: str) -> None:
    page.get_by_role("navigation", name="Pages").get_by_role("link", name=name, exact=True).click()
    expect(page.get_by_role("navigation", name="Pages").locator("[aria-current=page]")).to_have_text(name)


def test_a_stranger_finds_what_the_demo_has_left(
    chromium: Browser,  # noqa: F811 - the fixture
    toured: tuple[str, demo.Report],
) -> None:
    address, report = toured
    main = "#main"
    with opened(chromium) as page:
        page.goto(address)

        # The aborted transaction of the killed worker: who decided it, and what it held back.
        menu(page, "Transactions")
        page.get_by_role("link", name=demo.WORKERS[0]).first.click()
        page.locator(main).get_by_role("link", name=demo.WORKERS[0]).first.click()
        page.get_by_role("link", name=str(report.killed), exact=True).click()
        expect(page.get_by_role("heading", level=1)).to_contain_text(str(report.killed))
        expect(page.locator(main)).to_contain_text("aborted by fence")
        expect(page.locator(main)).to_contain_text("readers of committed records waited")

        # The invoice, and the groups that have processed it.
        page.get_by_role("searchbox").first.fill(report.invoice)
        page.keyboard.press("Enter")
        page.locator("ul.hits a").first.click()
        expect(page.locator(main)).to_contain_text(report.invoice)
        expect(page.locator(main)).to_contain_text("done at")
        expect(page.get_by_role("link", name=demo.GROUP)).to_be_visible()

        # The dead letter, and its reason.
        menu(page, "Overview")
        page.locator(main).get_by_role("link", name=demo.MAILERS).first.click()
        page.get_by_role("link", name=f"{demo.MAILERS}-dead-letters").first.click()
        page.locator(main).get_by_role("link", name="0", exact=True).first.click()
        page.locator("table.records").get_by_role("link", name="0", exact=True).click()
        expect(page.locator(main)).to_contain_text(demo.FULL)

        # The way back.
        menu(page, "Share groups")
        page.locator(main).get_by_role("link", name=demo.MAILERS).first.click()
        page.get_by_role("link", name=re.compile("redrive", re.IGNORECASE)).first.click()
        page.get_by_role("button", name="Preview").click()
        expect(page.locator(main)).to_contain_text("send 1 dead letter")
        page.get_by_role("button", name=re.compile("redrive", re.IGNORECASE)).click()
        expect(page.get_by_role("status")).to_contain_text("Done")
