"""The site in Chromium, opened from a disk: it asks no other host, its search finds, and nothing of its code is cut."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from tests.docs.test_references import site

SITE: Final = Path(__file__).parents[2] / "build" / "site"
CHROMIUM: Final = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
# All pages but that of an address that is not there: only a server shows it.
HTML: Final = sorted({path.relative_to(SITE).as_posix() for path in SITE.rglob("*.html")} - {"404.html"})
THEMES: Final = ("default", "slate")
WIDTHS: Final = (1280, 400)
SOUGHT: Final[dict[str, str]] = site().SOUGHT
BEHIND: Final = tuple(name.replace(".md", ".html") for name in site().BEHIND)
# The blocks of code that are cut, or wrapped where each line should fit; and whether the page is wider than the window.
CUT: Final = """
([fits, themes]) => themes.flatMap((theme) => {
  document.body.setAttribute('data-md-color-scheme', theme);
  const cut = [...document.querySelectorAll('pre > code')].filter((code) => {
    if (fits) code.style.whiteSpace = 'pre';
    const found = code.scrollWidth > code.clientWidth;
    code.style.whiteSpace = '';
    return found;
  }).map((code) => code.textContent.slice(0, 200));
  return document.documentElement.scrollWidth > innerWidth ? [...cut, 'the page'] : cut;
})
"""
FOUND: Final = """
(found) => found.map((each) => new URL(each.querySelector('a').href).pathname.split('/site/').pop())
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    assert CHROMIUM is not None, "there is no Chromium (Debian: apt-get install chromium)"
    assert len(HTML) > 100, "there is no site: make docs"
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page whose requests to other places than the disk fail the test."""
    context = browser.new_context(viewport={"width": WIDTHS[0], "height": 800}, offline=True)
    context.set_default_timeout(120_000)
    asked: list[str] = []
    context.on("request", lambda request: asked.append(request.url))
    yield context.new_page()
    context.close()
    assert [url for url in asked if not url.startswith((SITE.as_uri(), "data:", "about:"))] == []


def test_nothing_of_any_page_is_cut(page: Page) -> None:
    """In both themes: a wide window shows each line of code on one line, a narrow one wraps it."""
    cut: dict[tuple[str, int], list[str]] = {}
    for name in HTML:
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": 800})
            if width == WIDTHS[0]:
                page.goto(f"{SITE.as_uri()}/{name}", wait_until="domcontentloaded")
            if found := page.evaluate(CUT, [width == WIDTHS[0], THEMES]):
                cut[name, width] = found
    assert cut == {}


def search(page: Page, words: str) -> list[str]:
    """Return the pages that the box finds for these words, in its order."""
    box = page.locator(".md-search__input")
    box.fill("")
    box.press_sequentially(words)
    page.locator(".md-search-result__meta", has_text="matching document").wait_for()
    page.wait_for_function("() => document.querySelectorAll('.md-search-result__item').length > 0")
    return page.eval_on_selector_all(".md-search-result__item", FOUND)


@pytest.mark.parametrize("words", SOUGHT)
def test_a_search_finds_its_page_first(page: Page, words: str) -> None:
    """Then the other pages for users, then those of the code."""
    page.goto(f"{SITE.as_uri()}/index.html")
    found = search(page, words)
    assert found[0] == SOUGHT[words].replace(".md", ".html")
    assert sorted(found, key=lambda name: name.startswith(BEHIND)) == found


def test_the_front_page_shows_what_it_is(page: Page) -> None:
    page.goto(f"{SITE.as_uri()}/index.html")
    code = page.locator(".front pre > code").inner_text()
    assert "msgtx.publish(session" in code
    assert "session.commit()" in code
    assert page.locator("th", has_text="pgmq").count() == 1
    for picture in page.locator("article img").all():
        picture.scroll_into_view_if_needed()
        assert picture.evaluate("(img) => img.decode().then(() => img.naturalWidth)") > 0
    assert page.locator(".md-copyright").inner_text().startswith("msgtx ")
    assert page.locator(".md-footer__link--next").count() == 1


def test_no_file_of_the_site_names_a_script_or_style_of_another_host() -> None:
    for name in (*HTML, "404.html"):
        text = (SITE / name).read_text(encoding="utf-8")
        for tag in ('src="http', 'src="//', '<link rel="stylesheet" href="http', "preconnect"):
            assert tag not in text, name
