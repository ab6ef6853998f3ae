"""Mirrors: `client.mirror`, from its arguments to the loop."""

import contextlib
from collections.abc import Sequence

from msgtx import arguments, errors
from msgtx.client import Client, connect
from msgtx.database.address import public_url
from msgtx.database.pool import KEEPALIVES
from msgtx.mirror import kafka_address
from msgtx.mirror.asked import Asked, asked
from msgtx.mirror.ends import Source, Target
from msgtx.mirror.kafka_address import KafkaAddress
from msgtx.mirror.loop import MirrorLoop
from msgtx.mirror.source import DatabaseSource, database_of
from msgtx.mirror.target import DatabaseTarget
from msgtx.settings import MirrorSettings
from msgtx.types import MirrorReport


def mirror(
    client: Client,
    topics: Sequence[str],
    name: str,
    source: str | Client | None,
    target: str | Client | None,
    settings: MirrorSettings,
) -> MirrorReport:
    """Copy topics between a client's database and another end; see `Client.mirror`."""
    wanted = asked(name, topics, settings)
    if (source is None) == (target is None):
        raise errors.ConfigError("a mirror has one other end: name its source or its target", name="source")
    client.runtime.require_open()
    with contextlib.ExitStack() as block:
        ends: list[Client | KafkaAddress] = []
        for argument, given in (("source", source), ("target", target)):
            if given is None:
                ends.append(client)
            elif not isinstance(given, str):
                ends.append(arguments.an_instance(argument, given, Client, "an address or a Client"))
            elif kafka_address.is_kafka(given):
                ends.append(kafka_address.parse_kafka(given))
            else:
                ends.append(block.enter_context(connect(given)))
        return _mirror(client, wanted, *ends)


def _mirror(
    client: "Client", wanted: Asked, source: "Client | KafkaAddress", target: "Client | KafkaAddress"
) -> MirrorReport:
    if (
        isinstance(source, Client)
        and isinstance(target, Client)
        and database_of(source.runtime.engine) == database_of(target.runtime.engine)
    ):
        raise errors.ConfigError(
            f"source and target are one database, {target!r}: a mirror has two", name="target", reason="one database"
        )
    address = public_url(source.runtime.engine.url) if isinstance(source, Client) else str(source)
    with (
        contextlib.closing(_source_of(wanted, source)) as reading,
        contextlib.closing(_target_of(wanted, target, address)) as writing,
        client.runtime.ending(wanted.stop) as ending,
    ):
        return MirrorLoop(wanted, reading, writing, ending).run()


def _source_of(wanted: Asked, end: Client | KafkaAddress) -> Source:
    """Return the end of a mirror that is read."""
    if isinstance(end, Client):
        engine, listener = end.runtime.engine, end.runtime.listener
        return DatabaseSource(engine, listener, wanted.chosen, required=wanted.topics, skip_removed=wanted.skip_removed)
    from msgtx.mirror.kafka import KafkaSource

    return KafkaSource(
        end,
        wanted.chosen,
        required=wanted.topics,
        skip_removed=wanted.skip_removed,
        outage_timeout=wanted.outage_timeout,
    )


def _target_of(wanted: Asked, end: Client | KafkaAddress, source_address: str) -> Target:
    """Return the end of a mirror that is written to."""
    if isinstance(end, Client):
        engine = end.runtime.engine
        return DatabaseTarget(
            engine,
            wanted.name,
            sessions=end.engine(
                pool_size=1,
                isolation_level="READ COMMITTED",
                pool_reset_on_return=None,
                connect_args={name: value for name, value in KEEPALIVES.items() if name not in engine.parameters},
            ),
            make_producer=lambda transactional_id: end.producer(
                transactional_id=transactional_id, transaction_timeout_ms="15min", delivery_timeout_ms="30s"
            ),
            topics_now=end.runtime.topics_now,
            address=source_address,
            repartition=wanted.repartition,
        )
    from msgtx.mirror.kafka import KafkaTarget

    return KafkaTarget(
        end,
        wanted.name,
        source_address=source_address,
        repartition=wanted.repartition,
        outage_timeout=wanted.outage_timeout,
    )
