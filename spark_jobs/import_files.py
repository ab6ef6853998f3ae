"""Files into a topic, each exactly once: after an interrupted run, the next one imports the missing files.

Files are written in batches, each of which is one transaction. With a batch, a fence row for each of its files is committed:
the file's address is an application of its own, whose batch is the time of the file's last change. So it does not matter how
files are divided over batches, nor whether files came since, nor whether two imports run at once. The batches are of an
application that only this run has: two runs with the same files do not end each other's transactions, and the first
commit counts. A killed run's attempts end with its session, as those of any batch (`SESSION_MS`).
"""

import itertools
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import sqlalchemy
from pyspark.sql import SparkSession

from msgtx import errors
from msgtx.client import connect as connect_client
from msgtx.database.calls import driver_of
from msgtx.database.connection import RawConnection
from msgtx.database.pool import Engine
from msgtx.settings import OnFailover
from msgtx.spark_jobs.batch import TRANSACTION_TIMEOUT_MS
from msgtx.spark_jobs.files.rows import WHOLE_ROW, Columns, read_files
from msgtx.spark_jobs.runtime.failure import translated
from msgtx.spark_jobs.runtime.folder import File, files_of
from msgtx.spark_jobs.runtime.launch import launch
from msgtx.spark_jobs.runtime.outage import BATCH_OUTAGE_SECONDS, again, patient, persevering
from msgtx.spark_jobs.sink import write_batch
from msgtx.store.spark import BatchName, decide_batch, flush_committed, is_batch_committed

__all__ = ["Columns", "ImportReport", "import_files"]

FORMATS: Final = ("parquet", "csv", "json")
ENDINGS: Final = {".parquet": "parquet", ".csv": "csv", ".json": "json", ".jsonl": "json", ".ndjson": "json"}
PACKED: Final = (".gz", ".bz2", ".zst", ".lz4", ".snappy")
BATCH_BYTES: Final = 256 * 1024 * 1024  # seconds to write: far below the timeout of a transaction
BATCH_FILES: Final = 500  # each costs a row and a lock with the commit


@dataclass(frozen=True, slots=True)
class ImportReport:
    """The counts of a run. `skipped`: files that were imported before."""

    files: int
    skipped: int
    batches: int
    records: int


class _FasterError(Exception):
    """Takes a batch back: another import has committed one of its files."""


def import_files(
    spark: SparkSession,
    topic: str,
    paths: str | Sequence[str],
    *,
    url: str | None = None,
    format: str | None = None,
    columns: Columns = WHOLE_ROW,
    encoding: str | None = None,
    options: Mapping[str, str] | None = None,
    app_id: str | None = None,
    batch_bytes: int = BATCH_BYTES,
    transaction_timeout_ms: int = TRANSACTION_TIMEOUT_MS,
    told: Callable[[int, int], None] = lambda done, total: None,
    on_failover: OnFailover | None = None,
) -> ImportReport:
    """Write the rows of files to a topic. A file that was imported before, under this `app_id`, is passed by.

    `paths`: files, folders or wildcards; `format`: parquet, csv or json, by the files' names if not given; `encoding`: of
    CSV files; `options` are those of Spark's reader. `app_id` names the import (default: by the topic); `told` is called
    with how many of how many bytes are written. A batch ends after `batch_bytes`, and never within a file. Raise
    `ConfigError` if there are no files, `InvalidRequest` for a missing column, an unreadable file or row, or a file
    that was changed after its import.
    """
    said = {**(options or {}), **({} if encoding is None else {"encoding": encoding})}
    app = app_id or f"import:{topic}"
    run = f"{app}#{uuid.uuid4().hex}"
    numbers = itertools.count()
    files = files_of(spark, [paths] if isinstance(paths, str) else list(paths))
    kind = format or _format(files)
    with connect_client(url, on_failover=on_failover) as client:
        engine = patient(client.runtime.engine, BATCH_OUTAGE_SECONDS)
        again(engine, lambda: client.topics.describe(topic))
        missing = _not_imported(engine, app, files)
        report = ImportReport(0, len(files) - len(missing), 0, 0)
        total = sum(file.size for file in files)
        while missing:
            told(total - sum(file.size for file in missing), total)
            batch = next(divided(missing, batch_bytes))
            name = BatchName(run, "", next(numbers))  # of no other try: that one may be committed
            try:
                with translated():
                    rows = read_files(spark, batch, kind, columns=columns, options=said)
                    written = write_batch(
                        engine,
                        rows,
                        topic,
                        app_id=name.app_id,
                        batch_id=name.batch_id,
                        read=None,
                        statements=_fences(app, name, batch),
                        transaction_timeout_ms=transaction_timeout_ms,
                    )
                assert not written.skipped, f"{name} is this run's own, and new"
            except _FasterError:
                left = _not_imported(engine, app, missing)
                assert len(left) < len(missing), "whoever was faster has imported a file of this batch"
                missing = left
                continue
            report = ImportReport(
                report.files + len(batch), report.skipped, report.batches + 1, report.records + written.records
            )
            missing = missing[len(batch) :]
    return report


def divided(files: Sequence[File], batch_bytes: int) -> Iterator[list[File]]:
    """Divide files, in their order, over batches of about so many bytes: at least one file each."""
    batch: list[File] = []
    size = 0
    for file in files:
        if batch and (size + file.size > batch_bytes or len(batch) == BATCH_FILES):
            yield batch
            batch, size = [], 0
        batch.append(file)
        size += file.size
    if batch:
        yield batch


def _format(files: Sequence[File]) -> str:
    """Return the format that the files' names say. Raise `ConfigError` if they do not, or differ."""
    found: dict[str | None, str] = {}
    for file in files:
        name = file.uri.rpartition("/")[2].lower()
        for ending in PACKED:
            name = name.removesuffix(ending)
        found.setdefault(ENDINGS.get(f".{name.rpartition('.')[2]}"), file.uri)
    if None in found:
        raise errors.ConfigError(f"{found[None]} does not say its format: give one of {', '.join(FORMATS)}")
    if len(found) > 1:
        raise errors.ConfigError(f"{' and '.join(sorted(found.values()))} are of different formats: import them one by one")
    (kind,) = found
    assert kind is not None, "refused above"
    return kind


# ── once ──


def _file_app(app: str, file: File) -> str:
    return f"{app}:{file.uri}"


def _not_imported(engine: Engine, app: str, files: Sequence[File]) -> list[File]:
    """Return the files that are not imported. Raise `InvalidRequest` for one that was changed after its import."""

    def look(connection: RawConnection) -> list[File]:
        missing = []
        for file in files:
            name = _file_app(app, file)
            if is_batch_committed(connection, BatchName(name, "", file.modified_ms)):
                continue
            if is_batch_committed(connection, BatchName(name, "", 0)):
                raise errors.InvalidRequest(
                    f"{file.uri} was changed after its import, and its rows are in the topic already: give what is new a "
                    f"name of its own, or import it again under another --app-id"
                )
            missing.append(file)
        if len(missing) < len(files):
            flush_committed(connection)
        return missing

    return persevering(engine, look)


def _fences(app: str, name: BatchName, batch: Sequence[File]) -> Callable[[sqlalchemy.Connection], None]:
    """Return the function that commits the files' fence rows with the batch."""

    def insert(connection: sqlalchemy.Connection) -> None:
        for file in batch:
            decided = decide_batch(driver_of(connection), BatchName(_file_app(app, file), "", file.modified_ms), [])
            if decided.skipped:
                if is_batch_committed(driver_of(connection), name):
                    return  # this run's own: the answer to its first COMMIT was lost
                raise _FasterError

    return insert


if __name__ == "__main__":
    launch("import")
