"""The ends of a mirror in Kafka (`pip install 'msgtx[kafka]'`), and the mirrors whose progress a cluster has."""

import time

from msgtx.errors import ConfigError
from msgtx.mirror.kafka_address import parse_kafka
from msgtx.types import MirrorDescription, MirrorPlace

try:
    from msgtx.mirror import kafka_progress
    from msgtx.mirror.kafka_client import Cluster
    from msgtx.mirror.kafka_source import KafkaSource
    from msgtx.mirror.kafka_target import KafkaTarget
except ImportError as error:
    raise ConfigError(f"mirrors from and to Kafka need confluent-kafka: pip install 'msgtx[kafka]' ({error})") from error

__all__ = ["KafkaSource", "KafkaTarget", "forget_kafka_mirror", "mirrors"]


def mirrors(url: str) -> list[MirrorDescription]:
    """Return the mirrors to a cluster, by name, with how far they have copied each partition."""
    now = time.time_ns() // 1_000_000
    return [
        MirrorDescription(
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
        )
        for name, one in sorted(kafka_progress.read_mirrors(Cluster(parse_kafka(url))).items())
    ]


def forget_kafka_mirror(url: str, name: str) -> None:
    """Remove the progress of a mirror to a cluster, and fence the mirror. Raise `MirrorNotFound`."""
    kafka_progress.forget_mirror(Cluster(parse_kafka(url)), name)
