"""Consume–transform–produce on DataFrames, exactly once, without a checkpoint: the group's offsets say where it stands.

A batch reads committed ranges, from the group's offsets to a consistent cut, and commits its outputs and the ranges' ends in
one SQL transaction. After any crash the next run begins at the last commit; of two runs at once one commits.
"""

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

from pyspark.sql import DataFrame, SparkSession

from msgtx import errors
from msgtx.database.connection import until
from msgtx.database.pool import Engine
from msgtx.rules.boundary import Span
from msgtx.spark_jobs.batch import TRANSACTION_TIMEOUT_MS, BatchReport, Statements
from msgtx.spark_jobs.read import planned_frame
from msgtx.spark_jobs.reading import offsets
from msgtx.spark_jobs.reading.ends import Ends
from msgtx.spark_jobs.reading.read_options import ReadOptions, parse
from msgtx.spark_jobs.runtime.failure import translated
from msgtx.spark_jobs.runtime.launch import launch
from msgtx.spark_jobs.runtime.outage import again, outage_timeout_of, persevering
from msgtx.spark_jobs.runtime.primary import driver_engine
from msgtx.spark_jobs.sink import Read, write_batch
from msgtx.store.fetch.cuts import spans_of_transactions
from msgtx.store.fetch.fetch import LATEST, list_offsets
from msgtx.store.spark import last_batch
from msgtx.types import Isolation
from msgtx.units import Duration

INTERVAL_MS: Final = 500  # between the beginnings of two batches
MAX_OFFSETS: Final = 1_000_000  # of one batch: the first one after a long pause must end within the transaction timeout

Transform = Callable[[DataFrame], DataFrame]
Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class PipelineReport:
    """The counts of a run so far. `offsets_in`: at least as many as records that were read."""

    batches: int = 0
    offsets_in: int = 0
    records_out: int = 0
    seconds: float = 0.0


def run(
    spark: SparkSession,
    topics: str | Sequence[str],
    transform: Transform,
    *,
    group: str,
    to: str | None = None,
    url: str | None = None,
    once: bool = False,
    interval_ms: int = INTERVAL_MS,
    max_offsets: int = MAX_OFFSETS,
    transaction_timeout_ms: int = TRANSACTION_TIMEOUT_MS,
    statements: Statements | None = None,
    stop: threading.Event | None = None,
    on_batch: Callable[[PipelineReport], object] | None = None,
    outage_timeout: Duration | None = None,
    **options: object,
) -> PipelineReport:
    """Transform the records of topics into rows for `write_transactional`, batch by batch.

    `transform` gets a DataFrame as of `read_committed` and returns one; `to` is the topic, else each row names its own.
    `once`: all that is committed when the run begins, then the end; else until `stop`. `max_offsets`: of one batch, more
    only to hold a whole transaction. `options`: `starting_offsets` for a new group, `min_partitions`, `include_headers`,
    `read_url`, `on_failover` and others of `read_committed`. The group may have no members. `outage_timeout`: raise after
    so many seconds without the database (None: wait as long as it takes). Raise the errors of `read_committed` and
    `write_transactional`.
    """
    limit = outage_timeout_of(outage_timeout, default=None)
    asked = replace(parse({"subscribe": topics, "group": group, "url": url, **options}), outage_timeout=limit)
    with driver_engine(url, outage_timeout=limit, on_failover=asked.on_failover) as engine:
        pipeline = _Pipeline(
            spark,
            engine,
            asked,
            transform,
            group=group,
            to=to,
            max_offsets=max_offsets,
            timeout_ms=transaction_timeout_ms,
            statements=statements,
        )
        return pipeline.run(once=once, interval_ms=interval_ms, stop=stop or threading.Event(), on_batch=on_batch)


@dataclass(slots=True)
class _Pipeline:
    """Plans, transforms and writes one batch after the other."""

    spark: SparkSession
    engine: Engine
    asked: ReadOptions
    transform: Transform
    group: str
    to: str | None
    max_offsets: int
    timeout_ms: int
    statements: Statements | None
    ends: Ends = field(init=False)

    def __post_init__(self) -> None:
        self.ends = Ends(self._spans)

    def run(
        self,
        *,
        once: bool,
        interval_ms: int,
        stop: threading.Event,
        on_batch: Callable[[PipelineReport], object] | None,
    ) -> PipelineReport:
        done = PipelineReport()
        began = time.monotonic()
        if once:
            snapshot = self._in_outages(stop, lambda: offsets.latest(self.engine, self.asked))
            self.asked = replace(self.asked, snapshot=snapshot)
        while not stop.is_set():
            batch_began = time.monotonic()
            step = self._in_outages(stop, lambda: self._step(once=once))
            if step is None:
                break
            planned, chosen, written = step
            if written is not None:
                if not written.skipped:  # else another run was faster: the next look begins after its commit
                    seconds = time.monotonic() - began
                    done = PipelineReport(
                        done.batches + 1, done.offsets_in + chosen.size, done.records_out + written.records, seconds
                    )
                    if on_batch is not None:
                        on_batch(done)
                if once or planned.size > chosen.size:
                    continue
            if once:
                break
            stop.wait(max(0.0, interval_ms / 1_000 - (time.monotonic() - batch_began)))
        return replace(done, seconds=time.monotonic() - began)

    def _in_outages(self, stop: threading.Event, work: Callable[[], Answer]) -> Answer | None:
        """Repeat work while the database is away. Return None if `stop` has ended the wait for it."""

        def end() -> float:
            return 0.0 if stop.is_set() and self.engine.outages.since is not None else math.inf

        try:
            with until(end):
                return again(self.engine, work)
        except errors.DatabaseUnavailable:
            if not stop.is_set():
                raise
            return None

    def _step(self, *, once: bool) -> tuple[offsets.Plan, offsets.Plan, BatchReport | None]:
        """Do a batch from the group's offsets on, if there is something to read. An outage that ends it takes all back."""
        planned = offsets.plan(self.engine, self.asked)
        chosen = self._chosen(planned, once=once)
        return planned, chosen, self._batch(chosen) if chosen.size else None

    def _chosen(self, planned: offsets.Plan, *, once: bool) -> offsets.Plan:
        """Return the range of the next batch: whole transactions, unless nothing would be left to read."""
        stable: dict[int, int] = {}
        if not once:
            positions = {each.partition_id: LATEST for each in planned.ranges}
            found = persevering(
                self.engine, lambda connection: list_offsets(connection, positions, Isolation.READ_COMMITTED)
            )
            stable = {partition_id: at.last_stable_offset for partition_id, at in found.items()}
        return offsets.Plan(tuple(self.ends.choose(planned.ranges, stable, self.max_offsets)), planned.incarnation)

    def _spans(self, starts: Mapping[int, int], ends: Mapping[int, int]) -> list[Span]:
        return persevering(self.engine, lambda connection: spans_of_transactions(connection, starts, ends))

    def _batch(self, planned: offsets.Plan) -> BatchReport:
        newest = persevering(self.engine, lambda connection: last_batch(connection, self.group))
        rows = planned_frame(self.spark, self.engine, planned, self.asked)
        with translated():  # the tasks' reading through Java does not wait
            return write_batch(
                self.engine,
                self.transform(rows),
                self.to,
                app_id=self.group,
                batch_id=0 if newest is None else newest + 1,
                read=Read(self.group, planned.end, planned.start),
                statements=self.statements,
                transaction_timeout_ms=self.timeout_ms,
            )


if __name__ == "__main__":
    launch("pipeline")
