"""Which partition a key goes to: librdkafka's crc32 and Java's murmur2, bit for bit."""

from typing import Final
from zlib import crc32

_MULTIPLIER: Final = 0x5BD1E995
_SEED: Final = 0x9747B28C
_MASK: Final = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """Return Kafka's 32-bit murmur2 of `data`, unsigned. Source: `org.apache.kafka.common.utils.Utils.murmur2`."""
    h = (_SEED ^ len(data)) & _MASK
    whole = len(data) & ~3
    for at in range(0, whole, 4):
        k = int.from_bytes(data[at : at + 4], "little") * _MULTIPLIER & _MASK
        k = (k ^ (k >> 24)) * _MULTIPLIER & _MASK
        h = (h * _MULTIPLIER & _MASK) ^ k
    rest = data[whole:]
    if rest:
        h = (h ^ int.from_bytes(rest, "little")) * _MULTIPLIER & _MASK
    h = (h ^ (h >> 13)) * _MULTIPLIER & _MASK
    return h ^ (h >> 15)


def by_crc32(key: bytes, partitions: int) -> int:
    """Return the partition of a key as librdkafka's `consistent_random` chooses it."""
    return crc32(key) % partitions


def by_murmur2(key: bytes, partitions: int) -> int:
    """Return the partition of a key as Java's default partitioner chooses it."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions


PARTITIONERS: Final = {"crc32": by_crc32, "murmur2": by_murmur2}
