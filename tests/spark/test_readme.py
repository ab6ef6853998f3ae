"""The pages about Spark: their code runs as written."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import msgtx
from tests.databases import Server
from tests.docs.snippets import snippets

# Of the orders 0 to 3, in two partitions: what each page writes to `invoices`.
WRITTEN = {
    "docs/how-to/spark.md": [b"0", b"1", b"2", b"2", b"2", b"3"],
    "docs/how-to/spark-sql.md": [b"0", b"1", b"2", b"3"],
    "docs/porting.md": [b"0", b"1", b"1", b"2", b"2", b"3", b"3"],
}


@pytest.mark.parametrize("page", WRITTEN)
def test_the_code_of_the_page_runs(page: str, spark: SparkSession, server: Server, tmp_path: Path) -> None:
    """On the embedded database: processes that Spark starts find it as the program does."""
    (code,) = [each for each in snippets("python", page=page) if each.title == "Spark"]
    with msgtx.connect() as client:
        for name in ("orders", "invoices"):
            client.topics.create(name, partitions=2)
        with client.producer(transactional_id="page") as producer, producer.transaction():
            for number in range(4):
                producer.send("orders", b"%d" % number, partition=number % 2)
        names: dict[str, object] = {}
        lines = code.text.replace("checkpoints/copy", str(tmp_path / "checkpoint"))
        exec(compile(lines, code.page, "exec"), names)  # noqa: S102 - our own page
        if isinstance(made := names.get("client"), msgtx.Client):
            made.close()
        found = sorted(record.value or b"" for record in client.read(client.snapshot(["invoices"])))
        for name in ("orders", "invoices"):
            client.topics.delete(name)
    assert found == WRITTEN[page]
