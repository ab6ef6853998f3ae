"""A Kafka that takes connections and says nothing: no call of a mirror waits longer than it was told to."""

import socket
import time
from collections.abc import Callable, Iterator
from typing import Final

import pytest

from msgtx import errors
from msgtx.mirror.ends import PortionLimits, Progress
from msgtx.mirror.kafka import KafkaMirrors, KafkaSource, KafkaTarget
from msgtx.mirror.kafka_address import parse_kafka
from msgtx.mirror.kafka_client import KAFKA_ANSWER_SECONDS
from tests.refusals import refuses

BOUND: Final = 1.0  # of each call, in seconds


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of a server that never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"kafka://127.0.0.1:{server.getsockname()[1]}"


def _list(silent: str) -> None:
    KafkaMirrors(f"{silent}?socket.timeout.ms={int(BOUND * 1000)}").list()


def _read(silent: str) -> None:
    source = KafkaSource(parse_kafka(silent), lambda _: True, outage_timeout=BOUND)
    source.next(Progress(), PortionLimits(1, 1))


def _take_over(silent: str) -> None:
    KafkaTarget(parse_kafka(silent), "silent", source_address="", outage_timeout=BOUND).take_over()


@pytest.mark.parametrize("call", [_list, _read, _take_over])
def test_a_kafka_that_does_not_answer_is_away_after_the_time_that_was_asked_for(
    silent: str, call: Callable[[str], None]
) -> None:
    began = time.monotonic()
    with refuses(errors.KafkaUnavailable) as caught:
        call(silent)
    assert time.monotonic() - began < KAFKA_ANSWER_SECONDS
    assert silent in str(caught.value)
    assert "\n" not in str(caught.value)
