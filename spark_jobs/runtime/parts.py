"""Work in the database that is done by many tasks at once: each has a connection, and looks at parts of it.

A typed error of a task comes back as a value. Spark would wrap it in pages of its own, and try it again even if that is of
no use; a task repeats what fails for a passing condition.
"""

import math
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeVar

from pyspark.sql import SparkSession

from msgtx import errors
from msgtx.client import Client
from msgtx.database.connection import LONG_ANSWER_SECONDS, RawConnection
from msgtx.database.pool import Engine
from msgtx.spark_jobs.runtime.connect import require_classic
from msgtx.spark_jobs.runtime.outage import BATCH_OUTAGE_SECONDS, patient, persevering
from msgtx.types import Snapshot

TASKS_PER_CORE: Final = 4  # at least, as long as there is work, so that a slow one at the end does not hold up the rest
MOST_TASKS: Final = 10_000  # of one job: the driver keeps each of them
PIECES_OF_A_TASK: Final = 8  # dealt around, so that no task gets all of a slow log; a task's connection serves them all

Part = TypeVar("Part")
Answer = TypeVar("Answer")
Range = tuple[int, int, int]  # partition id, start, end


@dataclass(frozen=True, slots=True)
class Database:
    """Where tasks look: the URL, and the incarnation that they must find there. Picklable."""

    url: str = field(repr=False)  # with its password: never to be printed
    incarnation: str
    outage_timeout: float | None = BATCH_OUTAGE_SECONDS

    @classmethod
    def of(cls, client: Client, snapshot: Snapshot) -> "Database":
        """Return the database of a client, as it was when the snapshot was taken."""
        return cls(client.secret_url, snapshot.incarnation)

    def ask(self, look: Callable[[RawConnection], Answer]) -> Answer:
        """Look at it. Raise `IncarnationChanged` if the database is another one by now."""
        with patient(Engine(self.url, pool_size=1, silence=LONG_ANSWER_SECONDS), self.outage_timeout) as engine:
            engine.expect(uuid.UUID(self.incarnation))
            return persevering(engine, look)


@dataclass(frozen=True, slots=True)
class Failed:
    """A typed error of a task."""

    error: errors.MsgtxError


def divided(ranges: Mapping[int, tuple[int, int]], records_of_a_task: int) -> list[Range]:
    """Divide ranges by partition id into pieces, of which some make a task; longer ones if there would be too many."""
    total = sum(end - start for start, end in ranges.values())
    step = max(math.ceil(records_of_a_task / PIECES_OF_A_TASK), math.ceil(total / MOST_TASKS))
    return [
        (partition_id, at, min(at + step, end))
        for partition_id, (start, end) in ranges.items()
        for at in range(start, end, step)
    ]


def on_executors(
    spark: SparkSession,
    look: Callable[[RawConnection, Sequence[Part]], Answer],
    parts: Sequence[Part],
    *,
    database: Database,
    tasks: int,
) -> list[Answer]:
    """Deal parts to about `tasks` tasks, and return the answer of `look` for each task. Its arguments are pickled.

    Raise the error of a task that fails.
    """
    require_classic()
    context = spark.sparkContext
    count = min(len(parts), max(tasks, TASKS_PER_CORE * context.defaultParallelism), MOST_TASKS)
    if not count:
        return []
    hands = [parts[index::count] for index in range(count)]
    answers = context.parallelize(hands, count).map(partial(_answer, database, look)).collect()
    for failed in (each for each in answers if isinstance(each, Failed)):
        raise failed.error
    return [each for each in answers if not isinstance(each, Failed)]


def _answer(
    database: Database, look: Callable[[RawConnection, Sequence[Part]], Answer], hand: Sequence[Part]
) -> Answer | Failed:
    """Look at a hand of parts, on an executor."""
    try:
        return database.ask(lambda connection: look(connection, hand))
    except errors.MsgtxError as error:
        return Failed(error)
