"""The README's lines about Spark run as written."""

import re
from pathlib import Path

from pyspark.sql import SparkSession

import msgtx
from tests.databases import Server


def test_the_lines_of_the_readme_run(spark: SparkSession, server: Server, tmp_path: Path) -> None:
    """On the embedded database: processes that Spark starts find it as the program does."""
    text = (Path(msgtx.__file__).parent.parent / "README.md").read_text(encoding="utf-8")
    part = text[text.index("## Use it from Spark") :]
    code = re.search(r"```python\n(.*?)```", part, re.DOTALL)
    assert code is not None
    with msgtx.connect() as client:
        for name in ("orders", "invoices"):
            client.topics.create(name, partitions=2)
        with client.producer(transactional_id="readme") as producer, producer.transaction():
            for number in range(4):
                producer.send("orders", b"%d" % number, partition=number % 2)
        names: dict[str, object] = {}
        lines = code[1].replace("checkpoints/copy", str(tmp_path / "checkpoint"))
        exec(compile(lines, "README.md", "exec"), names)  # noqa: S102 - our own README
        assert isinstance(names["client"], msgtx.Client)
        names["client"].close()
        found = sorted(record.value or b"" for record in client.read(client.snapshot(["invoices"])))
        for name in ("orders", "invoices"):
            client.topics.delete(name)
    assert found == [b"0", b"1", b"2", b"2", b"2", b"3"]
