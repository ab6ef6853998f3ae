"""Partitioners: exactly the results of librdkafka and Java."""

import zlib

import hypothesis
import pytest
from hypothesis import strategies as st

from msgtx.rules.partitioner import PARTITIONERS, by_crc32, by_murmur2, murmur2

# Kafka's own UtilsTest.testMurmur2, as signed 32-bit numbers.
JAVA = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


@pytest.mark.parametrize(("key", "expected"), JAVA.items())
def test_murmur2_is_javas(key: bytes, expected: int) -> None:
    assert murmur2(key) == expected & 0xFFFFFFFF
    assert by_murmur2(key, 7) == (expected & 0x7FFFFFFF) % 7


@hypothesis.given(st.binary(max_size=40))
def test_murmur2_fits_into_32_bits(key: bytes) -> None:
    assert 0 <= murmur2(key) < 1 << 32


@hypothesis.given(st.binary(max_size=40), st.integers(1, 1_000))
def test_crc32_is_zlibs(key: bytes, partitions: int) -> None:
    assert by_crc32(key, partitions) == zlib.crc32(key) % partitions


@pytest.mark.parametrize("name", PARTITIONERS)
def test_every_partition_is_reached_and_none_beyond(name: str) -> None:
    assert {PARTITIONERS[name](b"%d" % i, 12) for i in range(1_000)} == set(range(12))
