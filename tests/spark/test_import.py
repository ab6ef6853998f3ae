"""The job `import`: files into a topic, each once, whatever happens to a run."""

import collections
import concurrent.futures
import csv
import gzip
import io
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import msgtx
from msgtx import Record, errors
from msgtx.database.pool import Engine
from msgtx.spark_jobs import batch as batch_module
from msgtx.spark_jobs import import_files as import_module
from msgtx.spark_jobs import sink
from msgtx.spark_jobs.batch import BatchReport
from msgtx.spark_jobs.export import export
from msgtx.spark_jobs.files.csv_rows import Dialect, rows_of
from msgtx.spark_jobs.import_files import BATCH_FILES, Columns, ImportReport, divided, import_files
from msgtx.spark_jobs.runtime.folder import File
from msgtx.store.spark import DecidedBatch
from tests.databases import wait_until
from tests.odd_records import odd_records
from tests.store.steps import unique

PATIENCE_SECONDS = 120.0


@dataclass(frozen=True)
class Intake:
    """A topic of two partitions, and a folder of files."""

    spark: SparkSession
    client: msgtx.Client
    topic: str
    folder: Path

    def run(self, *paths: str, **options: Any) -> ImportReport:
        """Import what is in the folder, or at some paths in it."""
        found = [str(self.folder / each) for each in paths or [""]]
        return import_files(self.spark, self.topic, found, url=self.client.secret_url, **options)

    def read(self) -> list[Record]:
        return sorted(self.client.read(self.client.snapshot([self.topic])), key=lambda record: record.value or b"")

    def values(self) -> list[int]:
        return sorted(json.loads(record.value or b"")["n"] for record in self.read())


@pytest.fixture
def intake(spark: SparkSession, client: msgtx.Client, tmp_path: Path) -> Intake:
    topic = unique("imported")
    client.topics.create(topic, partitions=2)
    return Intake(spark, client, topic, tmp_path)


def write_lines(folder: Path, files: int, lines: int = 10) -> list[int]:
    """JSON files with the numbers from 0 on. Returns the numbers."""
    folder.mkdir(exist_ok=True)
    for file in range(files):
        rows = range(file * lines, file * lines + lines)
        (folder / f"{file:03}.json").write_text("".join(f'{{"n": {row}}}\n' for row in rows))
    return list(range(files * lines))


def test_rows_become_records(intake: Intake) -> None:
    (intake.folder / "a.csv").write_text('id,place,text\n7,1,"a, b"\n8,0,\n')
    columns = Columns("id", "text", "place", headers={"from": "place"})
    report = intake.run("*.csv", columns=columns)
    assert report == ImportReport(files=1, skipped=0, batches=1, records=2)
    found = [(each.key, each.value, each.partition, each.headers) for each in intake.read()]
    assert found == [(b"8", None, 0, (("from", b"0"),)), (b"7", b"a, b", 1, (("from", b"1"),))]


def test_without_columns_a_row_is_a_json_object(intake: Intake) -> None:
    rows = intake.spark.createDataFrame([(1, "x", [1, 2])], "n int, `a b` string, list array<int>")
    rows.write.parquet(str(intake.folder / "in"))
    intake.run("in")
    (record,) = intake.read()
    assert json.loads(record.value or b"") == {"n": 1, "a b": "x", "list": [1, 2]}


def test_a_json_line_is_the_value_as_it_is(intake: Intake) -> None:
    lines = ['{"n": 12345678901234567890123, "x": 1.10, "id": "a\'b"}', '  {"z":null,  "id" : 5}', "3"]
    with gzip.open(intake.folder / "in.jsonl.gz", "wt") as file:
        file.write("\n".join([*lines, "", "  "]) + "\n")
    intake.run(columns=Columns(key="id", headers={"id": "id"}))
    found = {(each.value or b"").decode(): (each.key, dict(each.headers)["id"]) for each in intake.read()}
    assert found == {lines[0]: (b"a'b", b"a'b"), lines[1]: (b"5", b"5"), lines[2]: (None, None)}


def test_binary_columns_stay_as_they_are(intake: Intake) -> None:
    rows = intake.spark.createDataFrame([(b"\xff\x00", b"k")], "value binary, key binary")
    rows.selectExpr("*", "timestamp_millis(1700000000123) as at").write.parquet(str(intake.folder / "in"))
    columns = Columns("key", "value", timestamp="at")
    intake.run("in", columns=columns)
    (record,) = intake.read()
    assert (record.key, record.value, record.timestamp) == (b"k", b"\xff\x00", 1_700_000_000_123)


def test_a_file_is_imported_once(intake: Intake) -> None:
    written = write_lines(intake.folder / "in", files=2)

    def run() -> tuple[int, int, int]:
        report = intake.run("in")
        return report.files, report.skipped, report.records

    assert run() == (2, 0, 20)
    assert run() == (0, 2, 0)
    assert intake.values() == written
    written = write_lines(intake.folder / "more", files=1)
    (intake.folder / "more" / "000.json").rename(intake.folder / "in" / "-before-all.json")
    assert run() == (1, 2, 10)
    assert intake.values() == sorted(2 * written + list(range(10, 20)))


def test_a_run_that_is_killed_is_gone_on_with(intake: Intake) -> None:
    """SIGKILL after a batch's tasks have written, before its decision; earlier batches are committed.

    What they wrote is overdue soon, and then holds back nobody.
    """
    written = write_lines(intake.folder / "in", files=4)
    program = f"""
import itertools, os, signal
from msgtx.spark_jobs import import_files as module, sink
from msgtx.spark_jobs.session import session
real, calls = sink.decide, itertools.count()
def decide(*arguments, **settings):
    if next(calls) == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return real(*arguments, **settings)
sink.decide = decide
spark = session(master="local[2]")
module.import_files(spark, {intake.topic!r}, {str(intake.folder / "in")!r}, url=os.environ["URL"], batch_bytes=1,
                    transaction_timeout_ms=5_000)
"""
    environment = {**os.environ, "URL": intake.client.secret_url}
    done = subprocess.run([sys.executable, "-c", program], env=environment, check=False, timeout=PATIENCE_SECONDS)
    assert done.returncode == -signal.SIGKILL
    report = intake.run("in", batch_bytes=1)
    assert report == ImportReport(files=2, skipped=2, batches=2, records=20)
    wait_until(lambda: intake.values() == written, "what the killed run left is overdue")


@pytest.mark.parametrize("sizes", [(1, 1), (1, 1_000_000)], ids=["the same batches", "other batches"])
def test_two_imports_at_once_write_each_file_once(
    intake: Intake, monkeypatch: pytest.MonkeyPatch, sizes: tuple[int, int]
) -> None:
    """The second one begins when the first has written, and has written before that one commits."""
    written = write_lines(intake.folder / "in", files=4)
    begun, decisions = itertools.count(), itertools.count()
    wrote = [threading.Event(), threading.Event()]
    first_decided = threading.Event()
    begin, decide = sink.begins_again, sink.decide

    def begins_again(*arguments: Any, **settings: Any) -> bool:
        if next(begun) == 1:
            wrote[0].wait(PATIENCE_SECONDS)
        return begin(*arguments, **settings)

    def decided(*arguments: Any, **settings: Any) -> BatchReport:
        place = next(decisions)
        if place < 2:
            wrote[place].set()
            (wrote[1] if place == 0 else first_decided).wait(PATIENCE_SECONDS)
        try:
            return decide(*arguments, **settings)
        finally:
            first_decided.set()

    monkeypatch.setattr(sink, "begins_again", begins_again)
    monkeypatch.setattr(sink, "decide", decided)

    def run(size: int) -> ImportReport:
        return intake.run("in", batch_bytes=size)

    with concurrent.futures.ThreadPoolExecutor(2) as executor:
        reports = list(executor.map(run, sizes))
    assert intake.values() == written
    assert sum(report.records for report in reports) == len(written)


@pytest.mark.parametrize("is_known", [True, False], ids=["its own", "anybody's"])
def test_a_batch_whose_answer_was_lost_is_written_once(
    intake: Intake, monkeypatch: pytest.MonkeyPatch, is_known: bool
) -> None:
    """The decision is repeated. The files that are imported by then are this run's own, or taken for another one's."""
    written = write_lines(intake.folder / "in", files=2)

    def twice(_: Engine, work: Callable[[], DecidedBatch]) -> DecidedBatch:
        work()
        return work()

    committed = import_module.is_batch_committed
    monkeypatch.setattr(batch_module, "again", twice)
    monkeypatch.setattr(
        import_module,
        "is_batch_committed",
        lambda connection, name: committed(connection, name) and (is_known or "#" not in name.app_id),
    )
    report = intake.run("in", batch_bytes=1)
    assert (report.files, report.records) == ((2, 20) if is_known else (0, 0))
    assert intake.values() == written
    with intake.client.runtime.engine.connection() as connection:
        names = connection.execute(
            "select distinct app_id from msgtx.spark_batch where app_id like %s", [f"import:{intake.topic}#%"]
        ).fetchall()
    assert len(names) == 1, "a run has one application, however many batches"


def test_a_file_that_was_changed_after_its_import_is_refused(intake: Intake) -> None:
    written = write_lines(intake.folder / "in", files=1)
    intake.run("in")
    file = intake.folder / "in" / "000.json"
    at = file.stat().st_mtime + 10
    os.utime(file, (at, at))
    with pytest.raises(errors.InvalidRequest, match="was changed after its import"):
        intake.run("in")
    assert intake.values() == written
    again = intake.run("in", app_id="again")
    assert again.records == len(written)


@pytest.mark.parametrize(
    ("name", "content", "columns", "error", "told"),
    [
        ("a.csv", b"a,b\n1,2\n3\n", Columns(), errors.InvalidRequest, "a.csv, line 3: malformed row of 1 fields"),
        ("a.csv", b'a,b\n1,"2\n3,4\n', Columns(), errors.InvalidRequest, "malformed row: unexpected end of data"),
        ("a.csv", b"a,b\n1,\xe9\n", Columns(), errors.InvalidRequest, "line 2: the bytes e9 are not utf-8: name the encod"),
        ("a.csv", b"a,A\n1,2\n", Columns(), errors.InvalidRequest, "the header has two columns 'a' and 'A'"),
        ("a.csv", b"a,b\n1,2\n", Columns(key="c"), errors.InvalidRequest, "no column c in .*: it has a, b"),
        ("a.json", b'{"n": 1}\n{"n": \n', Columns(), errors.InvalidRequest, 'a line is no JSON: {"n":'),
        ("a.json", b'{"n": "\xe9"}\n', Columns(), errors.InvalidRequest, 'a line is no JSON: {"n":'),
        ("a.json", b'{"n": 1, "N": 2}\n', Columns(key="n"), errors.InvalidRequest, "a line has several members n"),
        ("a.json", b'{"p": 1.5}\n', Columns(partition="p"), errors.InvalidRequest, "'1.5'"),
        ("a.parquet", b"no parquet", Columns(), errors.InvalidRequest, "a.parquet"),
        ("a.csv", b"a,p\n1,x\n", Columns(partition="p"), errors.InvalidRequest, "'x'"),
        ("a.txt", b"a", Columns(), errors.ConfigError, "does not say its format"),
    ],
    ids=["ragged", "open quote", "encoding", "header", "column", "json", "json's encoding", "members", "json's partition",
         "parquet", "partition", "format"],
)  # fmt: skip
def test_what_cannot_be_read_is_refused_and_nothing_is_written(
    intake: Intake, name: str, content: bytes, columns: Columns, error: type[Exception], told: str
) -> None:
    """I16."""
    (intake.folder / name).write_bytes(content)
    with pytest.raises(error, match=told) as caught:
        intake.run(columns=columns)
    assert "\n" not in str(caught.value)
    assert intake.read() == []


def test_csv_files_are_read_as_they_were_written(intake: Intake) -> None:
    """By spreadsheets, by PostgreSQL, by hand. A file is not divided, however small the parts are that Spark reads."""
    texts = [
        'id,name\n1,"say ""hi"""\n2,"12 High St\nLondon"\n3,x"y"\n',
        '\ufeffid,name\r\n4,"a\r\nb"\r\n5,\r\n\r\n6,c:\\dir\\\n',
        "id,name\r7,é\u2028\r8,😀",
        'id,name\n9,"' + "long " * 25_000 + '"\n',
        "id,name\n" + "".join(f'{n},"{n}\n{n}"\n' for n in range(10, 5_000)),
        "",
        "id,name\n",
    ]
    expected = []
    for at, text in enumerate(texts):
        with gzip.open(intake.folder / f"{at}.csv.gz", "wb") if at % 2 else (intake.folder / f"{at}.csv").open("wb") as file:
            file.write(text.encode())
        expected += list(csv.DictReader(io.StringIO(text.removeprefix("\ufeff"), newline="")))
    before = intake.spark.conf.get("spark.sql.files.maxPartitionBytes")
    intake.spark.conf.set("spark.sql.files.maxPartitionBytes", 1_000)
    try:
        report = intake.run(columns=Columns(key="ID"))
    finally:
        intake.spark.conf.set("spark.sql.files.maxPartitionBytes", before)
    assert report.records == len(expected)
    found = {(each.key or b"").decode(): json.loads(each.value or b"") for each in intake.read()}
    assert found == {row["id"]: row for row in expected}


def test_csv_files_of_another_dialect_are_read_as_they_are_said_to_be(intake: Intake) -> None:
    (intake.folder / "a.csv").write_bytes("1;'caf\xe9; no. 1';-\n".encode("iso-8859-1"))
    intake.run(encoding="ISO-8859-1",
        options={"sep": ";", "quote": "'", "header": "false", "nullValue": "-", "multiLine": "true"},
    )  # fmt: skip
    (record,) = intake.read()
    assert json.loads(record.value or b"") == {"_c0": "1", "_c1": "caf\xe9; no. 1", "_c2": None}


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"encoding": "UTF-16"}, "'UTF-16' is no encoding that contains ASCII"),
        ({"encoding": "hex"}, "'hex' is no encoding"),
        ({"sep": "::"}, "sep is one character"),
        ({"mode": "PERMISSIVE"}, "option mode=PERMISSIVE is not for CSV files here"),
        ({"ignoreLeadingWhiteSpace": "true"}, "is not for CSV files here"),
        ({"header": "perhaps"}, "header is true or false"),
    ],
)
def test_a_dialect_that_is_none_is_refused(options: dict[str, str], told: str) -> None:
    with pytest.raises(errors.ConfigError, match=told):
        Dialect.parse(options)


PIECES = ["a", ",", ",", '"', '""', "\n", "\n", "\r", "\r\n", " ", "\0", "é", "\u2028"]


@pytest.mark.parametrize("seed", range(4))
def test_lines_of_csv_become_rows_as_those_of_pythons_reader(seed: int) -> None:
    """However they are divided among batches. What that one refuses is refused, too, and so is a row of another length."""
    chance = random.Random(seed)
    outcomes: collections.Counter[bool] = collections.Counter()
    for _ in range(200):
        text = "".join(chance.choices(PIECES, k=chance.randint(1, 14)))
        try:
            expected = [row for row in csv.reader(io.StringIO(text, newline=""), strict=True) if row]
            is_right = len({len(row) for row in expected}) <= 1
        except csv.Error:
            expected, is_right = [], False
        lines = text.encode().removesuffix(b"\n").split(b"\n")
        names = [f"c{at}" for at in range(len(expected[0]) if expected else 2)]
        try:
            made = list(rows_of(batches_of(lines, chance.randint(1, 4)), Dialect(header=False), names))
        except errors.InvalidRequest:
            assert not is_right, text
        else:
            assert is_right, text
            assert [list(row.values()) for each in made for row in each.to_pylist()] == expected
        outcomes[is_right] += 1
    assert min(outcomes.values()) > 20


def batches_of(lines: list[bytes], size: int) -> Iterator[pa.RecordBatch]:
    for at in range(0, len(lines), size):
        some = lines[at : at + size]
        yield pa.record_batch([pa.array(some, pa.binary()), pa.array(["f"] * len(some))], names=["line", "file"])


def test_parquet_files_of_other_columns_or_kinds_are_refused(intake: Intake) -> None:
    """A column that one file has not would be null there, a fraction cut, and a time in milliseconds read as seconds."""
    intake.spark.sql("select 1 as Id, 1.5d as part, 1700000000123L as at").write.parquet(str(intake.folder / "one"))
    intake.spark.sql("select 2 as id, 'x' as name").write.parquet(str(intake.folder / "two"))
    intake.spark.sql("select 'x' as id, 1.5d as part, 1700000000123L as at").write.parquet(str(intake.folder / "three"))
    for paths, columns, told in (
        (["one", "two"], Columns(), "has the columns id int, name string, and .* has id int, part double, at bigint"),
        (["one", "three"], Columns(), "has the columns id string, part double"),
        (["one"], Columns(partition="PART"), "column PART is double, and is to be a whole number"),
        (["one"], Columns(timestamp="at"), "column at is bigint, and is to be a timestamp"),
    ):
        with pytest.raises(errors.MsgtxError, match=told):
            intake.run(*paths, columns=columns)
    assert intake.read() == []
    intake.run("one", columns=Columns(key="ID"))
    assert [each.key for each in intake.read()] == [b"1"]


def test_odd_records_come_back_from_an_export(intake: Intake) -> None:
    """I16: accepted means that it can be passed on."""
    source, target = unique("odd"), unique("odd")
    for name in (source, target):
        intake.client.topics.create(name, max_message_bytes=4_000_000)
    with intake.client.producer() as producer:
        for record in odd_records(11, count=500):
            producer.send(source, record.value, key=record.key, timestamp=record.timestamp)
    export(intake.spark, source, str(intake.folder), url=intake.client.secret_url)
    columns = Columns("key", "value", timestamp="timestamp", headers={"was": "offset"})
    import_files(intake.spark, target, str(intake.folder / "batch=1"), url=intake.client.secret_url, columns=columns)
    sent, found = (
        sorted((each.timestamp, each.key or b"", each.value or b"", each.key is None, each.value is None) for each in
               intake.client.read(intake.client.snapshot([name])))
        for name in (source, target)
    )  # fmt: skip
    assert len(found) == 500
    assert found == sent


def test_files_of_different_formats_are_refused(intake: Intake) -> None:
    for name in ("a.csv", "b.json"):
        (intake.folder / name).write_text("x")
    with pytest.raises(errors.ConfigError, match="of different formats"):
        intake.run()


@pytest.mark.parametrize("path", ["nowhere", "nowhere/*.csv", ""], ids=["file", "pattern", "empty folder"])
def test_without_files_there_is_an_error(intake: Intake, path: str) -> None:
    with pytest.raises(errors.ConfigError, match="there is no file at"):
        intake.run(path)


def test_an_empty_file_is_imported_too(intake: Intake) -> None:
    (intake.folder / "a.json").touch()
    assert intake.run() == ImportReport(1, 0, 1, 0)
    assert intake.run() == ImportReport(0, 1, 0, 0)


def test_files_are_divided_in_their_order() -> None:
    sizes = [5, 5, 1, 20, 1, 1]
    files = [File(f"{number:02}", size, 0) for number, size in enumerate(sizes)]
    assert [[file.size for file in batch] for batch in divided(files, 10)] == [[5, 5], [1], [20], [1, 1]]
    many = [File("a", 0, 0)] * (BATCH_FILES + 1)
    assert collections.Counter(len(batch) for batch in divided(many, 10)) == {BATCH_FILES: 1, 1: 1}
