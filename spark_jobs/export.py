"""Committed records as Parquet, exactly once and incrementally: each run writes the new records since the last one.

A run is a batch: a folder `batch=N` with the files, by topic, and its manifest `_manifest.json` of offsets and files.
All of it is written under a hidden name and renamed in one step. So a reader of the folder sees a batch whole or not at
all, and of two runs at once one gets the number. The files of a killed run are hidden, and removed by the next.
"""

import json
import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

from msgtx import errors
from msgtx.client import Client
from msgtx.client import connect as connect_client
from msgtx.settings import OnFailover
from msgtx.spark_jobs.read import read_committed
from msgtx.spark_jobs.runtime.failure import translated
from msgtx.spark_jobs.runtime.folder import Folder
from msgtx.spark_jobs.runtime.launch import launch
from msgtx.spark_jobs.runtime.outage import BATCH_OUTAGE_SECONDS, again, patient
from msgtx.store.topics.topics import require_partitions
from msgtx.types import Snapshot, TopicPartition

HIDDEN: Final = "_msgtx"  # files that are being written
MANIFEST: Final = "_manifest.json"
VERSION: Final = 1  # of the manifest
_BATCH: Final = re.compile(r"batch=(\d{1,18})")


@dataclass(frozen=True, slots=True)
class ExportReport:
    """The counts of a run. `batch` None: nothing was new. `snapshot`: up to where, of all topics of the folder."""

    batch: int | None
    records: int
    files: int
    bytes: int
    snapshot: Snapshot


@dataclass(frozen=True, slots=True)
class Manifest:
    """Up to where a folder holds each partition, and the number of its last batch."""

    batch: int
    ends: Mapping[TopicPartition, int]
    ids: Mapping[TopicPartition, int]
    incarnation: str | None

    @classmethod
    def parse(cls, text: str, batch: int, place: str) -> "Manifest":
        """Read a manifest. Raise `ConfigError`."""
        try:
            found = json.loads(text)
            if found["version"] != VERSION or found["batch"] != batch:
                raise ValueError(f"version {found['version']}, batch {found['batch']}")
            rows = {TopicPartition(each["topic"], each["partition"]): each for each in found["partitions"]}
            ends = {partition: int(row["end"]) for partition, row in rows.items()}
            ids = {partition: int(row["partition_id"]) for partition, row in rows.items()}
            return cls(batch, ends, ids, str(found["incarnation"]))
        except (ValueError, KeyError, TypeError) as error:
            raise errors.ConfigError(f"{place} is no manifest of an export that this version knows: {error!r}") from error


def export(
    spark: SparkSession,
    topics: str | Sequence[str],
    target: str,
    *,
    url: str | None = None,
    read_url: str | None = None,
    by_date: bool = False,
    on_failover: OnFailover | None = None,
) -> ExportReport:
    """Write the records committed to topics since the last run as Parquet into a folder, on any file system of Spark.

    The files lie in `batch=N/topic=NAME`, with `by_date` in `…/date=YYYY-MM-DD` (of the timestamp, in UTC); columns as of
    `read_committed`. A batch ends at a consistent cut: it holds all of a transaction or nothing (I15). Further runs may
    name other topics. Raise `IllegalState` if another run was faster, or a topic was made again; `OffsetOutOfRange` if
    retention removed records before their export; `IncarnationChanged`.
    """
    names = [topics] if isinstance(topics, str) else list(dict.fromkeys(topics))
    folder = Folder(spark, target)
    with connect_client(url, on_failover=on_failover) as client:
        engine = patient(client.runtime.engine, BATCH_OUTAGE_SECONDS)
        return again(engine, lambda: _exported(spark, client, folder, names, read_url=read_url, by_date=by_date))


def _exported(
    spark: SparkSession, client: Client, folder: Folder, names: Sequence[str], *, read_url: str | None, by_date: bool
) -> ExportReport:
    """Do a run. One that an outage has broken off leaves nothing, and may be repeated."""
    last = _last(folder)
    cut = client.snapshot(names)
    ids = _ids(client, cut)
    _check(folder, last, cut, ids)
    whole = Snapshot({**last.ends, **cut.ends}, cut.incarnation)
    if all(last.ends.get(partition, 0) == end for partition, end in cut.ends.items()):
        return ExportReport(None, 0, 0, 0, whole)
    start = Snapshot({each: last.ends[each] for each in cut.ends if each in last.ends}, cut.incarnation)
    rows = read_committed(
        spark, names, url=client.secret_url, read_url=read_url, snapshot=cut, start=start, include_headers=True
    )
    number = last.batch + 1
    hidden = f"{HIDDEN}/{number}-{uuid.uuid4()}"
    try:
        with translated():
            records = _write(rows, folder.path(hidden), by_date=by_date)
            files = folder.files(hidden)
            prefix = folder.path(hidden) + "/"
            written = [{"path": file.uri.removeprefix(prefix), "bytes": file.size} for file in files]
            manifest = _manifest(number, last, whole, {**last.ids, **ids}, records, written)
            folder.write(f"{hidden}/{MANIFEST}", json.dumps(manifest, indent=1, ensure_ascii=False) + "\n")
            got_the_number = folder.rename(hidden, f"batch={number}")
    except (errors.MsgtxError, OSError):
        if f"batch={number}" not in folder.children():
            raise
        got_the_number = False  # the run that has the number removed the files of this one
    finally:
        folder.remove(hidden)
    if not got_the_number:
        raise errors.IllegalState(
            f"another export into {folder.uri} has written batch {number}: this one wrote nothing; run it again",
            reason="overtaken",
        )
    _sweep(folder, number)
    return ExportReport(number, records, len(files), sum(file.size for file in files), whole)


def _last(folder: Folder) -> Manifest:
    """Return the manifest of the newest batch. A batch without one was cut off where renaming takes many steps: it goes."""
    numbers = sorted((int(found[1]) for name in folder.children() if (found := _BATCH.fullmatch(name))), reverse=True)
    for number in numbers:
        place = f"batch={number}/{MANIFEST}"
        if text := folder.read(place):
            return Manifest.parse(text, number, folder.path(place))
        folder.remove(f"batch={number}")
    return Manifest(0, {}, {}, None)


def _ids(client: Client, cut: Snapshot) -> dict[TopicPartition, int]:
    with client.runtime.engine.connection() as connection:
        return dict(require_partitions(connection, cut.ends))


def _check(folder: Folder, last: Manifest, cut: Snapshot, ids: Mapping[TopicPartition, int]) -> None:
    """Refuse to continue if the folder holds other records than those before the cut."""
    if last.incarnation not in {None, cut.incarnation}:
        raise errors.IncarnationChanged(
            f"{folder.uri} was exported from incarnation {last.incarnation}, the database has {cut.incarnation} since a "
            f"failover, or is another one: export into a new folder"
        )
    for partition, end in sorted(cut.ends.items()):
        if last.ids.get(partition, ids[partition]) != ids[partition]:
            raise errors.IllegalState(
                f"topic {partition.topic} was deleted and made again since the last export into {folder.uri}: export it "
                f"into another folder",
                topic=partition.topic,
                reason="made again",
            )
        if last.ends.get(partition, 0) > end:
            raise errors.LogTruncated(
                f"{partition}: {folder.uri} holds records up to {last.ends[partition]}, the log ends at {end}: a crash of "
                f"the server took records back; export into a new folder"
            )


def _write(rows: DataFrame, place: str, *, by_date: bool) -> int:
    """Write the files. Returns the number of records."""
    counted = Observation()
    parts = ["topic"]
    if by_date:
        rows = rows.withColumn("date", F.to_date("timestamp"))
        parts.append("date")
    rows = rows.observe(counted, F.count(F.lit(1)).alias("records"))
    rows.write.partitionBy(*parts).parquet(place)
    return int(counted.get["records"])


def _manifest(
    number: int,
    last: Manifest,
    whole: Snapshot,
    ids: Mapping[TopicPartition, int],
    records: int,
    files: list[dict[str, Any]],
) -> dict[str, Any]:
    partitions = [
        {
            "topic": partition.topic,
            "partition": partition.partition,
            "partition_id": ids[partition],
            "start": last.ends.get(partition),
            "end": end,
        }
        for partition, end in sorted(whole.ends.items())
    ]
    return {
        "version": VERSION,
        "batch": number,
        "incarnation": whole.incarnation,
        "records": records,
        "bytes": sum(file["bytes"] for file in files),
        "partitions": partitions,
        "files": files,
    }


def _sweep(folder: Folder, number: int) -> None:
    """Remove the files of unfinished runs of this number or an earlier one: none of them can get it any more."""
    for name in folder.below(HIDDEN).children():
        found = re.fullmatch(r"(\d{1,18})-.*", name)
        if found and int(found[1]) <= number:
            folder.remove(f"{HIDDEN}/{name}")


if __name__ == "__main__":
    launch("export")
