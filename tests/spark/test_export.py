"""The job `export`: committed records as Parquet, each once, whatever happens to a run."""

import collections
import concurrent.futures
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import msgtx
from msgtx import errors
from msgtx.spark_jobs import export as export_module
from msgtx.spark_jobs.export import HIDDEN, MANIFEST, ExportReport, export
from msgtx.spark_jobs.runtime.folder import Folder
from tests.refusals import refuses
from tests.store.steps import unique

PATIENCE_SECONDS = 120.0


@pytest.fixture
def topic(client: msgtx.Client) -> str:
    name = unique("orders")
    client.topics.create(name, partitions=3)
    return name


def produce(client: msgtx.Client, topic: str, values: range, *, abort: bool = False) -> None:
    with client.producer(transactional_id=f"of-{topic}") as producer:
        producer.begin_transaction()
        for value in values:
            producer.send(topic, b"%d" % value, key=b"%d" % value, headers=[("from", b"tests")])
        (producer.abort_transaction if abort else producer.commit_transaction)()


def read(spark: SparkSession, folder: Path) -> list[int]:
    """The rows that a reader of the folder as one table sees."""
    rows = spark.read.parquet(str(folder)).select("value").collect()
    return sorted(int(bytes(row.value)) for row in rows)


def batches(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))


def test_each_run_writes_what_was_committed_since_the_last(
    spark: SparkSession, client: msgtx.Client, topic: str, tmp_path: Path
) -> None:
    for first in range(0, 60, 20):
        produce(client, topic, range(first, first + 20))
        produce(client, topic, range(1000, 1010), abort=True)
        report = export(spark, topic, str(tmp_path), url=client.secret_url)
        assert (report.batch, report.records) == (first // 20 + 1, 20)
    assert read(spark, tmp_path) == list(range(60))
    assert export(spark, topic, str(tmp_path), url=client.secret_url).batch is None
    assert batches(tmp_path) == [HIDDEN, "batch=1", "batch=2", "batch=3"]


def test_the_folder_is_a_table_by_topic_and_date(
    spark: SparkSession, client: msgtx.Client, topic: str, tmp_path: Path
) -> None:
    other = f"{topic}-other"
    client.topics.create(other)
    with client.producer() as producer:
        producer.send(topic, b"1", timestamp=1_700_000_000_000)  # 2023-11-14 22:13:20 UTC
        producer.send(other, b"2", timestamp=0)
    report = export(spark, [topic, other], str(tmp_path), url=client.secret_url, by_date=True)
    assert (report.records, report.files) == (2, 2)
    rows = spark.read.parquet(str(tmp_path)).orderBy("value").collect()
    assert [(row.topic, str(row.date), row.batch, bytes(row.value)) for row in rows] == [
        (topic, "2023-11-14", 1, b"1"),
        (other, "1970-01-01", 1, b"2"),
    ]
    assert {"key", "value", "partition", "offset", "timestamp"} <= set(rows[0].asDict())


def test_the_manifest_says_which_offsets_and_files(
    spark: SparkSession, client: msgtx.Client, topic: str, tmp_path: Path
) -> None:
    produce(client, topic, range(30))
    report = export(spark, topic, str(tmp_path), url=client.secret_url)
    manifest = json.loads((tmp_path / "batch=1" / MANIFEST).read_text())
    assert manifest["records"] == 30
    assert {each["end"] for each in manifest["partitions"]} == set(report.snapshot.ends.values())
    assert {each["start"] for each in manifest["partitions"]} == {None}
    files = {each["path"]: each["bytes"] for each in manifest["files"]}
    assert {name: (tmp_path / "batch=1" / name).stat().st_size for name in files} == files
    assert sum(files.values()) == manifest["bytes"] == report.bytes


def test_a_topic_that_is_exported_later_is_exported_from_its_beginning(
    spark: SparkSession, client: msgtx.Client, topic: str, tmp_path: Path
) -> None:
    other = f"{topic}-other"
    client.topics.create(other)
    produce(client, topic, range(10))
    export(spark, topic, str(tmp_path), url=client.secret_url)
    produce(client, other, range(10, 20))
    assert export(spark, other, str(tmp_path), url=client.secret_url).records == 10
    produce(client, topic, range(20, 30))
    assert export(spark, topic, str(tmp_path), url=client.secret_url).records == 10
    assert read(spark, tmp_path) == list(range(30))


@pytest.mark.parametrize(("moment", "after"), [("_write", True), ("rename", False), ("rename", True)])
def test_a_run_that_is_killed_leaves_a_whole_folder(
    spark: SparkSession, client: msgtx.Client, topic: str, tmp_path: Path, moment: str, after: bool
) -> None:
    """SIGKILL around each step: readers see whole batches or none, and after the next run all of it once."""
    folder = tmp_path / "exported"
    produce(client, topic, range(20))
    export(spark, topic, str(folder), url=client.secret_url)
    produce(client, topic, range(20, 40))
    owner = "Folder" if moment == "rename" else "module"
    program = f"""
import os, signal
from msgtx.spark_jobs import export as module
from msgtx.spark_jobs.runtime.folder import Folder
from msgtx.spark_jobs.session import session
real = {owner}.{moment}
def killed(*arguments, **settings):
    if {after}:
        real(*arguments, **settings)
    os.kill(os.getpid(), signal.SIGKILL)
{owner}.{moment} = killed
module.export(session(master="local[2]"), {topic!r}, {str(folder)!r}, url=os.environ["URL"])
"""
    done = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, "URL": client.secret_url}, check=False, timeout=PATIENCE_SECONDS
    )
    assert done.returncode == -signal.SIGKILL
    published = moment == "rename" and after
    assert read(spark, folder) == list(range(40 if published else 20))
    produce(client, topic, range(40, 50))
    assert export(spark, topic, str(folder), url=client.secret_url).records == (10 if published else 30)
    assert read(spark, folder) == list(range(50))
    assert list((folder / HIDDEN).iterdir()) == []


@pytest.mark.parametrize(
    ("owner", "moment"), [(export_module, "_write"), (Folder, "files"), (Folder, "write"), (Folder, "rename")]
)
def test_of_two_exports_at_once_one_is_refused(
    spark: SparkSession,
    client: msgtx.Client,
    topic: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    owner: object,
    moment: str,
) -> None:
    """Before each step of one export, the other one ends, and removes what is left."""
    produce(client, topic, range(20))
    real = getattr(owner, moment)

    def behind_the_other(*arguments: object, **settings: object) -> object:
        monkeypatch.setattr(owner, moment, real)
        assert export(spark, topic, str(tmp_path), url=client.secret_url).batch == 1
        return real(*arguments, **settings)

    monkeypatch.setattr(owner, moment, behind_the_other)
    with refuses(errors.IllegalState, reason="overtaken"):
        export(spark, topic, str(tmp_path), url=client.secret_url)
    assert read(spark, tmp_path) == list(range(20))
    assert list((tmp_path / HIDDEN).iterdir()) == []


def test_two_exports_that_end_at_once_write_one_batch(
    spark: SparkSession, client: msgtx.Client, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    produce(client, topic, range(20))
    both_have_written = threading.Barrier(2)
    real = export_module._manifest

    def manifest(*arguments: object) -> dict[str, object]:
        both_have_written.wait(PATIENCE_SECONDS)
        return real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(export_module, "_manifest", manifest)

    def run() -> ExportReport | str:
        try:
            return export(spark, topic, str(tmp_path), url=client.secret_url)
        except errors.IllegalState as error:
            return str(error)

    with concurrent.futures.ThreadPoolExecutor(2) as executor:
        found = [each.result() for each in [executor.submit(run) for _ in range(2)]]
    assert collections.Counter(type(each) for each in found) == {ExportReport: 1, str: 1}
    assert "has written batch 1" in next(each for each in found if isinstance(each, str))
    assert read(spark, tmp_path) == list(range(20))


@pytest.mark.parametrize("rename", [Folder.rename, Folder._rename_by_hadoop])
def test_a_name_is_given_once(spark: SparkSession, tmp_path: Path, rename: Callable[[Folder, str, str], bool]) -> None:
    folder = Folder(spark, str(tmp_path / "a folder"))
    for name in ("one", "two"):
        folder.write(f"{name}/file", name)
    assert rename(folder, "one", "taken")
    assert not rename(folder, "two", "taken")
    assert folder.read("taken/file") == "one"
    assert folder.read("two/file") == "two"
    assert sorted(folder.children()) == ["taken", "two"]


def test_a_batch_without_a_manifest_is_written_again(
    spark: SparkSession, client: msgtx.Client, topic: str, tmp_path: Path
) -> None:
    """This is left when a rename that takes many steps is interrupted."""
    produce(client, topic, range(20))
    export(spark, topic, str(tmp_path), url=client.secret_url)
    (tmp_path / "batch=1" / MANIFEST).unlink()
    assert export(spark, topic, str(tmp_path), url=client.secret_url).records == 20
    assert read(spark, tmp_path) == list(range(20))


def test_a_topic_that_was_made_again_is_refused(
    spark: SparkSession, client: msgtx.Client, topic: str, tmp_path: Path
) -> None:
    produce(client, topic, range(5))
    export(spark, topic, str(tmp_path), url=client.secret_url)
    client.topics.delete(topic)
    client.topics.create(topic, partitions=3)
    produce(client, topic, range(50))
    with refuses(errors.IllegalState, reason="made again"):
        export(spark, topic, str(tmp_path), url=client.secret_url)


def test_what_retention_removed_before_its_export_is_told(
    spark: SparkSession, client: msgtx.Client, topic: str, tmp_path: Path
) -> None:
    produce(client, topic, range(30))
    export(spark, topic, str(tmp_path), url=client.secret_url)
    produce(client, topic, range(30, 60))
    ends = client.snapshot([topic]).ends
    client.admin.partitions.delete_records({partition: end - 1 for partition, end in ends.items()})
    with pytest.raises(errors.OffsetOutOfRange):
        export(spark, topic, str(tmp_path), url=client.secret_url)
    assert read(spark, tmp_path) == list(range(30))


def test_the_folder_of_another_database_is_refused(
    spark: SparkSession, client: msgtx.Client, topic: str, tmp_path: Path, make_database: Callable[..., str]
) -> None:
    produce(client, topic, range(5))
    export(spark, topic, str(tmp_path), url=client.secret_url)
    with msgtx.connect(make_database(schema=False), create=True) as other:
        other.topics.create(topic)
        with pytest.raises(errors.IncarnationChanged, match="export into a new folder"):
            export(spark, topic, str(tmp_path), url=other.secret_url)


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"version": 2, "batch": 1}'])
def test_a_manifest_that_is_none_is_refused(
    spark: SparkSession, client: msgtx.Client, topic: str, tmp_path: Path, text: str
) -> None:
    produce(client, topic, range(5))
    (tmp_path / "batch=1").mkdir()
    (tmp_path / "batch=1" / MANIFEST).write_text(text or "no JSON")
    with pytest.raises(errors.ConfigError, match=MANIFEST):
        export(spark, topic, str(tmp_path), url=client.secret_url)


@pytest.mark.parametrize(
    ("target", "error"), [("nosuch://place", errors.ConfigError), ("", errors.ConfigError)], ids=["scheme", "empty"]
)
def test_a_target_that_is_no_place_is_refused(
    spark: SparkSession, client: msgtx.Client, topic: str, target: str, error: type[Exception]
) -> None:
    with pytest.raises(error, match="is no folder that Spark can reach"):
        export(spark, topic, target, url=client.secret_url)


def test_a_topic_that_is_not_there_is_refused(spark: SparkSession, client: msgtx.Client, tmp_path: Path) -> None:
    with pytest.raises(errors.UnknownTopicOrPartition):
        export(spark, "nowhere", str(tmp_path), url=client.secret_url)
    assert list(tmp_path.iterdir()) == []
