"""The README's lines about Python and about sessions run as written."""

import re
from pathlib import Path

import pytest

import msgtx
from tests.databases import Connection


def test_the_lines_of_the_readme_run(database_url: str, connection: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    """One block after the other, as a reader would; each uses the client of the first."""
    monkeypatch.setenv("MSGTX_DATABASE_URL", database_url)
    text = (Path(msgtx.__file__).parent.parent / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text[: text.index("## Use it from Spark")], re.DOTALL)
    assert len(blocks) == 4
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), names)  # noqa: S102 - our own README
    client = names["client"]
    assert isinstance(client, msgtx.Client)
    orders = sorted(record.value or b"" for record in client.read(client.snapshot(["orders"])))
    names["engine"].dispose()  # type: ignore[attr-defined]  # SQLAlchemy's
    client.close()
    assert orders == [b'{"id": %d}' % number for number in (1, 2, 3, 5, 7, 8, 9)]
    rows = connection.execute("select id, count(*) from shop_order group by id order by id").fetchall()
    assert rows == [(2, 1), (3, 1), (4, 3), (9, 1)], "a row for each order that was read once"
