"""Every option of `format("msgtx")` in Spark. `make generate` writes the tables of the reference.

To add an option, add its row. Rules over several options are in `msgtx.spark_jobs.reading.read_options` and
`msgtx.spark_jobs.writing.write_options`.
"""

from dataclasses import dataclass
from typing import Final

REFUSED: Final = "refused"
IGNORED: Final = "ignored"
SAME: Final = "the same"  # Spark's Kafka connector has an option of this name and meaning
CUT_DELAY: Final = "1s"  # a few micro-batches: what was decided in the meantime is whole in the next look
TRANSACTION_TIMEOUT: Final = "10min"
BATCH_OUTAGE_TIMEOUT: Final = "1min"  # somebody waits for a batch, and can run it again; nobody watches a stream


@dataclass(frozen=True, slots=True)
class Option:
    """An option. `says`: a sentence in Markdown. `kafka`: what Spark's Kafka connector has for it.

    `batch`, `stream`: the default there, as a user writes it; None: it has none. `REFUSED` and `IGNORED` say what becomes
    of the option.
    """

    name: str
    says: str
    batch: str | None = None
    stream: str | None = None
    kafka: str | None = None

    def default(self, *, streaming: bool) -> str | None:
        """Return the default, if there is one; of an option that is refused or ignored, that of the other kind of query."""
        here, there = (self.stream, self.batch) if streaming else (self.batch, self.stream)
        return there if here in {REFUSED, IGNORED} else here


Options = tuple[Option, ...]


def defaults(options: Options, *, streaming: bool) -> dict[str, str]:
    """Return the defaults of all options that have one."""
    found = {one.name: one.default(streaming=streaming) for one in options}
    return {name: value for name, value in found.items() if value is not None}


_URL: Final = Option(
    "url",
    "the database, as of `msgtx.connect`; without it `MSGTX_DATABASE_URL` of the driver counts",
    kafka="`kafka.bootstrap.servers`",
)
_ON_FAILOVER: Final = Option(
    "on_failover",
    "as of `msgtx.connect`; by default the setting of the driver counts ([after a failover](#after-a-failover))",
)
_OUTAGE_TIMEOUT: Final = Option(
    "outage_timeout",
    "how long to wait for a database that is away; a stream waits as long as it takes",
    batch=BATCH_OUTAGE_TIMEOUT,
)

SOURCE: Final[Options] = (
    Option("subscribe", "topics, separated by commas; give this, `subscribePattern` or `assign`", kafka=SAME),
    Option("subscribePattern", "a regular expression (Python's) of the names of topics", kafka=f"{SAME}, Java's expression"),
    Option("assign", 'partitions: `{"orders": [0, 1]}`', kafka=SAME),
    Option(
        "group",
        "the source begins at the committed offsets of this consumer group; a sink with the same `group` commits them; with"
        " any other sink they follow the checkpoint",
        kafka="`kafka.group.id`, which commits nothing",
    ),
    Option(
        "startingOffsets",
        "where to begin: `earliest`, `latest` (in streams), or for each partition an offset, -2 (earliest) or -1 (latest):"
        ' `{"orders": {"0": 23}}`; with `group` it counts for partitions without a committed offset, by default `earliest`',
        batch="earliest",
        stream="latest",
        kafka=SAME,
    ),
    Option("startingTimestamp", "begin at the first record at or after this time, in ms since 1970", kafka=SAME),
    Option("startingOffsetsByTimestamp", 'the same for each partition: `{"orders": {"0": 1790000000000}}`', kafka=SAME),
    Option(
        "startingOffsetsByTimestampStrategy",
        "what a partition without such a record does: `error`, or `latest`",
        batch="error",
        stream="error",
        kafka=SAME,
    ),
    Option("endingOffsets", "where to end: `latest`, or an offset for each partition", "latest", REFUSED, kafka=SAME),
    Option("endingTimestamp", "end before the first record at or after this time", stream=REFUSED, kafka=SAME),
    Option("endingOffsetsByTimestamp", "the same for each partition", stream=REFUSED, kafka=SAME),
    Option("start", "begin at this cut, which `client.snapshot` has returned"),
    Option(
        "snapshot", "end at this cut; by default at one of this moment: all of each transaction, or nothing", stream=REFUSED
    ),
    Option("failOnDataLoss", "end with an error if records that were to be read are gone", "true", "true", kafka=SAME),
    Option("includeHeaders", "add the column `headers`", "false", "false", kafka=SAME),
    Option("minPartitions", "at least so many tasks", kafka=SAME),
    Option("maxRecordsPerPartition", "at most so many offsets in a task", kafka=SAME),
    Option(
        "maxOffsetsPerTrigger",
        "about so many offsets in a micro-batch, which holds whole transactions: up to eight times as many",
        batch=IGNORED,
        kafka="the same, but it divides transactions",
    ),
    Option("minOffsetsPerTrigger", "wait for so many offsets before a micro-batch", batch=IGNORED, kafka=SAME),
    Option("maxTriggerDelay", "but no longer than this", IGNORED, "15m", kafka=SAME),
    Option(
        "cut_delay_ms",
        "so long micro-batches divide no transaction; if none could end in this time, the next reads all that is committed",
        batch=REFUSED,
        stream=CUT_DELAY,
    ),
    _URL,
    Option("read_url", "a replica from which tasks read"),
    Option("replica_timeout_ms", "how long to wait until the replica has what is to be read", "1min", "1min"),
    _ON_FAILOVER,
    _OUTAGE_TIMEOUT,
)

SINK: Final[Options] = (
    Option("topic", "the topic of all records, instead of the column `topic`", kafka=SAME),
    Option(
        "group",
        "commit the offsets of the sources that have the same `group` with the records; names the query, as `txnAppId` does",
        batch=REFUSED,
    ),
    Option(
        "txnAppId",
        "the application, which writes each batch once; a stream needs it, or `group`",
        kafka="none; it is Delta's option",
    ),
    Option("txnVersion", "the number of the batch; with `txnAppId`", stream=REFUSED, kafka="none; it is Delta's option"),
    Option(
        "transaction_timeout_ms",
        "a batch that takes longer is aborted; at most `transaction_max_timeout_ms` of the installation",
        TRANSACTION_TIMEOUT,
        TRANSACTION_TIMEOUT,
        kafka="none: its sink has no transactions",
    ),
    Option(
        "partitioner",
        "how a key chooses its partition: `crc32`, or `murmur2` as Kafka's Java client does",
        "crc32",
        "crc32",
        kafka="`kafka.partitioner.class`",
    ),
    _URL,
    _ON_FAILOVER,
    _OUTAGE_TIMEOUT,
)
