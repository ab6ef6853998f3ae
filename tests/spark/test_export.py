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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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


@dataclass(frozen=True)
class Lake:
    """A topic, and the folder that it is exported to."""

    spark: SparkSession
    client: msgtx.Client
    topic: str
    folder: Path

    def produce(self, values: range, *, topic: str | None = None, abort: bool = False) -> None:
        with self.client.producer(transactional_id=f"of-{topic or self.topic}") as producer:
            producer.begin_transaction()
            for value in values:
                producer.send(topic or self.topic, b"%d" % value, key=b"%d" % value, headers=[("from", b"tests")])
            (producer.abort_transaction if abort else producer.commit_transaction)()

    def export(self, topics: str | list[str] | None = None, **options: Any) -> ExportReport:
        return export(self.spark, topics or self.topic, str(self.folder), **{"url": self.client.secret_url, **options})

    def read(self) -> list[int]:
        """The rows that a reader of the folder as one table sees."""
        rows = self.spark.read.parquet(str(self.folder)).select("value").collect()
        return sorted(int(bytes(row.value)) for row in rows)


@pytest.fixture
def lake(spark: SparkSession, client: msgtx.Client, tmp_path: Path) -> Lake:
    topic = unique("orders")
    client.topics.create(topic, partitions=3)
    return Lake(spark, client, topic, tmp_path)


def batches(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))


def test_each_run_writes_what_was_committed_since_the_last(lake: Lake) -> None:
    for first in range(0, 60, 20):
        lake.produce(range(first, first + 20))
        lake.produce(range(1000, 1010), abort=True)
        report = lake.export()
        assert (report.batch, report.records) == (first // 20 + 1, 20)
    assert lake.read() == list(range(60))
    assert lake.export().batch is None
    assert batches(lake.folder) == [HIDDEN, "batch=1", "batch=2", "batch=3"]


def test_the_folder_is_a_table_by_topic_and_date(lake: Lake) -> None:
    other = f"{lake.topic}-other"
    lake.client.topics.create(other)
    with lake.client.producer() as producer:
        producer.send(lake.topic, b"1", timestamp=1_700_000_000_000)  # 2023-11-14 22:13:20 UTC
        producer.send(other, b"2", timestamp=0)
    report = lake.export([lake.topic, other], by_date=True)
    assert (report.records, report.files) == (2, 2)
    rows = lake.spark.read.parquet(str(lake.folder)).orderBy("value").collect()
    assert [(row.topic, str(row.date), row.batch, bytes(row.value)) for row in rows] == [
        (lake.topic, "2023-11-14", 1, b"1"),
        (other, "1970-01-01", 1, b"2"),
    ]
    assert {"key", "value", "partition", "offset", "timestamp"} <= set(rows[0].asDict())


def test_the_manifest_says_which_offsets_and_files(lake: Lake) -> None:
    lake.produce(range(30))
    report = lake.export()
    manifest = json.loads((lake.folder / "batch=1" / MANIFEST).read_text())
    assert manifest["records"] == 30
    assert {each["end"] for each in manifest["partitions"]} == set(report.snapshot.ends.values())
    assert {each["start"] for each in manifest["partitions"]} == {None}
    files = {each["path"]: each["bytes"] for each in manifest["files"]}
    assert {name: (lake.folder / "batch=1" / name).stat().st_size for name in files} == files
    assert sum(files.values()) == manifest["bytes"] == report.bytes


def test_a_topic_that_is_exported_later_is_exported_from_its_beginning(lake: Lake) -> None:
    other = f"{lake.topic}-other"
    lake.client.topics.create(other)
    lake.produce(range(10))
    lake.export()
    lake.produce(range(10, 20), topic=other)
    assert lake.export(other).records == 10
    lake.produce(range(20, 30))
    assert lake.export().records == 10
    assert lake.read() == list(range(30))


@pytest.mark.parametrize(("moment", "after"), [("_write", True), ("rename", False), ("rename", True)])
def test_a_run_that_is_killed_leaves_a_whole_folder(lake: Lake, moment: str, after: bool) -> None:
    """SIGKILL around each step: readers see whole batches or none, and after the next run all of it once."""
    lake.produce(range(20))
    lake.export()
    lake.produce(range(20, 40))
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
module.export(session(master="local[2]"), {lake.topic!r}, {str(lake.folder)!r}, url=os.environ["URL"])
"""
    environment = {**os.environ, "URL": lake.client.secret_url}
    done = subprocess.run([sys.executable, "-c", program], env=environment, check=False, timeout=PATIENCE_SECONDS)
    assert done.returncode == -signal.SIGKILL
    published = moment == "rename" and after
    assert lake.read() == list(range(40 if published else 20))
    lake.produce(range(40, 50))
    assert lake.export().records == (10 if published else 30)
    assert lake.read() == list(range(50))
    assert list((lake.folder / HIDDEN).iterdir()) == []


@pytest.mark.parametrize(
    ("owner", "moment"), [(export_module, "_write"), (Folder, "files"), (Folder, "write"), (Folder, "rename")]
)
def test_of_two_exports_at_once_one_is_refused(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, owner: object, moment: str
) -> None:
    """Before each step of one export, the other one ends, and removes what is left."""
    lake.produce(range(20))
    real = getattr(owner, moment)

    def behind_the_other(*arguments: object, **settings: object) -> object:
        monkeypatch.setattr(owner, moment, real)
        assert lake.export().batch == 1
        return real(*arguments, **settings)

    monkeypatch.setattr(owner, moment, behind_the_other)
    with refuses(errors.IllegalState, reason="overtaken"):
        lake.export()
    assert lake.read() == list(range(20))
    assert list((lake.folder / HIDDEN).iterdir()) == []


def test_two_exports_that_end_at_once_write_one_batch(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    lake.produce(range(20))
    both_have_written = threading.Barrier(2)
    real = export_module._manifest

    def manifest(*arguments: object) -> dict[str, object]:
        both_have_written.wait(PATIENCE_SECONDS)
        return real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(export_module, "_manifest", manifest)

    def run() -> ExportReport | str:
        try:
            return lake.export()
        except errors.IllegalState as error:
            return str(error)

    with concurrent.futures.ThreadPoolExecutor(2) as executor:
        found = [each.result() for each in [executor.submit(run) for _ in range(2)]]
    assert collections.Counter(type(each) for each in found) == {ExportReport: 1, str: 1}
    assert "has written batch 1" in next(each for each in found if isinstance(each, str))
    assert lake.read() == list(range(20))


@pytest.mark.parametrize("rename", [Folder.rename, Folder._rename_by_hadoop])
def test_a_name_is_given_once(lake: Lake, rename: Callable[[Folder, str, str], bool]) -> None:
    folder = Folder(lake.spark, str(lake.folder / "a folder"))
    for name in ("one", "two"):
        folder.write(f"{name}/file", name)
    assert rename(folder, "one", "taken")
    assert not rename(folder, "two", "taken")
    assert folder.read("taken/file") == "one"
    assert folder.read("two/file") == "two"
    assert sorted(folder.children()) == ["taken", "two"]


def test_a_batch_without_a_manifest_is_written_again(lake: Lake) -> None:
    """This is left when a rename that takes many steps is interrupted."""
    lake.produce(range(20))
    lake.export()
    (lake.folder / "batch=1" / MANIFEST).unlink()
    assert lake.export().records == 20
    assert lake.read() == list(range(20))


def test_a_topic_that_was_made_again_is_refused(lake: Lake) -> None:
    lake.produce(range(5))
    lake.export()
    lake.client.topics.delete(lake.topic)
    lake.client.topics.create(lake.topic, partitions=3)
    lake.produce(range(50))
    with refuses(errors.IllegalState, reason="made again"):
        lake.export()


def test_what_retention_removed_before_its_export_is_told(lake: Lake) -> None:
    lake.produce(range(30))
    lake.export()
    lake.produce(range(30, 60))
    ends = lake.client.snapshot([lake.topic]).ends
    lake.client.admin.partitions.delete_records({partition: end - 1 for partition, end in ends.items()})
    with pytest.raises(errors.OffsetOutOfRange):
        lake.export()
    assert lake.read() == list(range(30))


def test_the_folder_of_another_database_is_refused(lake: Lake, make_database: Callable[..., str]) -> None:
    lake.produce(range(5))
    lake.export()
    with msgtx.connect(make_database(schema=False), create=True) as other:
        other.topics.create(lake.topic)
        with pytest.raises(errors.IncarnationChanged, match="export into a new folder"):
            lake.export(url=other.secret_url)


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"version": 2, "batch": 1}'])
def test_a_manifest_that_is_none_is_refused(lake: Lake, text: str) -> None:
    lake.produce(range(5))
    (lake.folder / "batch=1").mkdir()
    (lake.folder / "batch=1" / MANIFEST).write_text(text or "no JSON")
    with pytest.raises(errors.ConfigError, match=MANIFEST):
        lake.export()


@pytest.mark.parametrize(
    ("target", "error"), [("nosuch://place", errors.ConfigError), ("", errors.ConfigError)], ids=["scheme", "empty"]
)
def test_a_target_that_is_no_place_is_refused(lake: Lake, target: str, error: type[Exception]) -> None:
    with pytest.raises(error, match="is no folder that Spark can reach"):
        export(lake.spark, lake.topic, target, url=lake.client.secret_url)


def test_a_topic_that_is_not_there_is_refused(lake: Lake) -> None:
    with pytest.raises(errors.UnknownTopicOrPartition):
        lake.export("nowhere")
    assert list(lake.folder.iterdir()) == []
