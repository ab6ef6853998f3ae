"""The pictures of the documents: `make pictures` writes docs/pictures, from the data of the browser tests."""

import os
import shutil
import socket
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from playwright.sync_api import sync_playwright

import msgtx
from msgtx.database import embedded
from tests.console.test_browser import CHROMIUM, PAGES, fill, served
from tests.databases import scratch

FOLDER: Final = Path(msgtx.__file__).parents[1] / "docs" / "pictures"
SHOWN: Final = {
    "overview": "overview",
    "transaction": PAGES["open"],
    "messages": f"{PAGES['messages']}&path=customer&value=ada&rows=8",
    "record": "record?topic=invoices&partition=0&offset=0",
    "group": PAGES["group"],
    "share-group": PAGES["share"],
}
SIZE: Final = {"width": 1280, "height": 800}
MOST_BYTES: Final = 150_000
SIGNATURE: Final = b"\x89PNG\r\n\x1a\n"


def chunks(picture: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the kind and the contents of each chunk of a PNG."""
    assert picture.startswith(SIGNATURE)
    at = len(SIGNATURE)
    while at < len(picture):
        length, kind = struct.unpack(">I4s", picture[at : at + 8])
        yield kind, picture[at + 8 : at + 8 + length]
        at += 12 + length


def optimised(picture: bytes) -> bytes:
    """Return a PNG with the same pixels, compressed as well as zlib can, and without remarks."""
    found = list(chunks(picture))
    pixels = zlib.compress(zlib.decompress(b"".join(content for kind, content in found if kind == b"IDAT")), 9)
    kept = [(kind, content) for kind, content in found if kind in {b"IHDR", b"PLTE", b"tRNS"}]
    made = [*kept, (b"IDAT", pixels), (b"IEND", b"")]
    return SIGNATURE + b"".join(
        struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
        for kind, content in made
    )


def main() -> None:
    """Write the pictures."""
    assert CHROMIUM is not None, "there is no Chromium (Debian: apt-get install chromium)"
    socket.gethostname = lambda: "shop-1"
    home = scratch("msgtx-pictures-")
    os.environ["MSGTX_HOME"] = str(home / "home")
    os.environ["MSGTX_EMBEDDED"] = "quiet"
    try:
        with msgtx.connect(create=True) as client, sync_playwright() as playwright:
            fill(client)
            browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
            with served(client, sign_in=False, allow_changes=True) as address:
                page = browser.new_context(viewport=SIZE, color_scheme="light", reduced_motion="reduce").new_page()
                FOLDER.mkdir(exist_ok=True)
                for name, where in SHOWN.items():
                    page.goto(address + where)
                    picture = optimised(page.screenshot())
                    assert len(picture) < MOST_BYTES, name
                    (FOLDER / f"{name}.png").write_bytes(picture)
            browser.close()
    finally:
        embedded.stop(home / "home")
        shutil.rmtree(home)


if __name__ == "__main__":
    main()
