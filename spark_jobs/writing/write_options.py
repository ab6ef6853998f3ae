"""The options of a writer: those of Spark's Kafka sink and of Delta's idempotent writes, and ours."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from msgtx.arguments import LARGEST_INT8
from msgtx.declared.spark import SINK, SOURCE, defaults
from msgtx.errors import ConfigError
from msgtx.settings import OnFailover
from msgtx.spark_jobs.reading.read_options import milliseconds_of, named
from msgtx.spark_jobs.runtime.outage import outage_timeout_of
from msgtx.spark_jobs.runtime.primary import on_failover_of

# Spark's own, and those of sources: a table or view has one set of options for SELECT and INSERT.
OF_OTHERS: Final = ("checkpointLocation", "queryName", "path", *(one.name for one in SOURCE))


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Where and as whom to write: the options of `declared.spark.SINK`.

    `url` carries a password: it is no part of the text of this object.
    """

    url: str | None = field(repr=False)
    topic: str | None
    group: str | None
    app_id: str | None  # of a stream: its group's name, if it has none of its own
    version: int | None
    transaction_timeout_ms: int
    partitioner: str
    on_failover: OnFailover
    outage_timeout: float | None  # seconds


def parse(options: Mapping[str, str], *, streaming: bool) -> WriteOptions:
    """Return the request of options. Raise `ConfigError`."""
    if not streaming and not options:
        raise ConfigError(
            "a write needs an option, such as topic or url: Spark hands over none of CREATE TABLE … AS SELECT, and none of a"
            " table whose columns were listed: CREATE TABLE … USING msgtx OPTIONS (…), then fill it by INSERT"
        )
    given = named(options, SINK, of_others=OF_OTHERS)
    for name, value in given.items():
        if not value:
            raise ConfigError(f"{name} is empty")
    if streaming and "txnVersion" in given:
        raise ConfigError("txnVersion is for batches: a stream counts its own")
    if not streaming and ("txnAppId" in given) != ("txnVersion" in given):
        raise ConfigError("txnAppId and txnVersion name a batch together: give both or none")
    if not streaming and "group" in given:
        raise ConfigError("group is for streams; for a batch use write_transactional(…, group=…, snapshot=…)")
    if streaming and not {"txnAppId", "group"} & given.keys():
        raise ConfigError(
            "nothing names the stream but its checkpoint, and if that is lost all is written twice: give the sink txnAppId,"
            " a name of your own for this query, or group, the same as at the source"
        )
    given = defaults(SINK, streaming=streaming) | given
    return WriteOptions(
        url=given.get("url"),
        topic=given.get("topic"),
        group=given.get("group"),
        app_id=given.get("txnAppId") or given.get("group"),
        version=_number(given, "txnVersion"),
        transaction_timeout_ms=milliseconds_of(given, "transaction_timeout_ms", least=1),
        partitioner=given["partitioner"],
        on_failover=on_failover_of(given.get("on_failover")),
        outage_timeout=outage_timeout_of(given.get("outage_timeout")),
    )


def _number(given: Mapping[str, str], name: str) -> int | None:
    value = given.get(name)
    if value is None:
        return None
    if not re.fullmatch(r"\s*[0-9]{1,19}\s*", value) or int(value) > LARGEST_INT8:
        raise ConfigError(f"{name} is a whole number of 0 to {LARGEST_INT8}, not {value!r}")
    return int(value)
