"""The ends of a mirror in Kafka (`pip install 'msgtx[kafka]'`), and the mirrors whose progress a cluster has."""

import builtins
import time
from dataclasses import replace

from msgtx.errors import ConfigError, MirrorNotFound
from msgtx.mirror.kafka_address import parse_kafka
from msgtx.mirror.kafka_stored import StoredMirror
from msgtx.types import MirrorDescription, MirrorPlace

try:
    from msgtx.mirror import kafka_progress
    from msgtx.mirror.kafka_client import Cluster
    from msgtx.mirror.kafka_source import KafkaSource
    from msgtx.mirror.kafka_target import KafkaTarget
except ImportError as error:
    raise ConfigError(f"mirrors from and to Kafka need confluent-kafka: pip install 'msgtx[kafka]' ({error})") from error

__all__ = ["KafkaMirrors", "KafkaSource", "KafkaTarget"]


class KafkaMirrors:
    """The mirrors that copy to a cluster, as `client.admin.mirrors` has those that copy to a database."""

    def __init__(self, url: str) -> None:
        """`url`: the address of the cluster. Raise `ConfigError`."""
        self._cluster = Cluster(parse_kafka(url))

    def list(self) -> builtins.list[MirrorDescription]:
        """Return the mirrors by name."""
        return [
            replace(_described(name, one), places=())
            for name, one in sorted(kafka_progress.list_mirrors(self._cluster).items())
        ]

    def describe(self, name: str) -> MirrorDescription:
        """Return a mirror, and how far it has copied each partition. Raise `MirrorNotFound`."""
        found = kafka_progress.list_mirrors(self._cluster, name).get(name)
        if found is None:
            raise MirrorNotFound(f"there is no mirror {name!r} to {self._cluster.address}", name=name)
        return _described(name, found)

    def reset(self, name: str) -> None:
        """Forget a mirror and its progress, as `client.admin.mirrors.reset` does. Raise `MirrorNotFound`."""
        self.describe(name)
        kafka_progress.forget_mirror(self._cluster, name)


def _described(name: str, one: StoredMirror) -> MirrorDescription:
    now = time.time_ns() // 1_000_000
    return MirrorDescription(
        name=name,
        source=one.progress.source,
        source_address=one.source_address,
        host=one.host,
        process=one.process,
        started_at=one.started_at,
        moved_ms=max(0, now - one.moved_at),
        seen_ms=max(0, now - one.seen_at),
        records=one.records,
        lag_records=one.lag.records,
        lag_ms=one.lag.age_ms,
        places=tuple(MirrorPlace(*at, place.offset) for at, place in sorted(one.progress.places.items())),
        error=one.error,
    )
