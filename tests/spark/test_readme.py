"""The page about Spark: its code runs as written."""

from pathlib import Path

from pyspark.sql import SparkSession

import msgtx
from tests.databases import Server
from tests.docs.snippets import snippets


def test_the_code_of_the_page_runs(spark: SparkSession, server: Server, tmp_path: Path) -> None:
    """On the embedded database: processes that Spark starts find it as the program does."""
    (code,) = [each for each in snippets("python") if each.title == "Spark"]
    with msgtx.connect() as client:
        for name in ("orders", "invoices"):
            client.topics.create(name, partitions=2)
        with client.producer(transactional_id="page") as producer, producer.transaction():
            for number in range(4):
                producer.send("orders", b"%d" % number, partition=number % 2)
        names: dict[str, object] = {}
        lines = code.text.replace("checkpoints/copy", str(tmp_path / "checkpoint"))
        exec(compile(lines, code.page, "exec"), names)  # noqa: S102 - our own page
        assert isinstance(names["client"], msgtx.Client)
        names["client"].close()
        found = sorted(record.value or b"" for record in client.read(client.snapshot(["invoices"])))
        for name in ("orders", "invoices"):
            client.topics.delete(name)
    assert found == [b"0", b"1", b"2", b"2", b"2", b"3"]
