"""Workers of one group that copy keyed input, as `msgtx process` runs them; and the producer of that input."""

import itertools
import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

from msgtx import Client, Consumer, OutputRecord, Producer, Record
from msgtx.cli import main as cli
from tests.histories.history import Recorder
from tests.histories.recorded import ConsumerTape, ProducerTape, text_of

if TYPE_CHECKING:
    from tests.histories.workers import Life, World

RELAYED, RELAY_TARGET, RELAY_GROUP = "storm-input", "storm-output", "storm"
RELAY_PARTITIONS: Final = 12
KEYS: Final = 60
SEND_SECONDS: Final = 0.01  # between two pieces of input
PATIENCE_SECONDS: Final = 60.0
SESSION_TIMEOUT_MS: Final = 1_500
SETTINGS: Final = {
    "MSGTX_SESSION_TIMEOUT_MS": SESSION_TIMEOUT_MS,
    "MSGTX_HEARTBEAT_INTERVAL_MS": 200,
    "MSGTX_TRANSACTION_TIMEOUT_MS": 3_000,  # what a killed worker leaves open is aborted during the storm
    "MSGTX_RETRY_BACKOFF_MS": 20,
}
SLOW, SLOW_SECONDS = 0.002, 0.05  # this share of the records takes this long: kills hit open transactions
_counts: Final = {RELAYED: RELAY_PARTITIONS, RELAY_TARGET: RELAY_PARTITIONS}
copied: Callable[[Record], OutputRecord]  # the transform that the command line names; `relay` sets it


def keyed(world: "World") -> None:
    """Send keyed input all the time: the records of a key are in one partition."""
    producer = world.client.producer(linger_ms=0)
    tape = ProducerTape(producer, world.recorder, _counts)
    with producer:
        while not world.finish.now:
            for _ in range(world.random.randint(1, 9)):
                producer.send(RELAYED, world.value(), key=b"key-%d" % world.random.randrange(KEYS))
            tape.settle()
            world.finish.wait(SEND_SECONDS)
        producer.flush(PATIENCE_SECONDS)
        tape.settle()


def relay(life: "Life") -> NoReturn:
    """Be `msgtx process`, as a worker of the group: its own clients, whose calls are recorded."""
    _record(Recorder(Path(life.folder), life.process), random.Random(f"{life.seed} {life.process}"))
    os.environ.update(MSGTX_DATABASE_URL=life.url, **{name: str(value) for name, value in SETTINGS.items()})
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    cli.main(["process", RELAYED, RELAY_TARGET, f"{__name__}:copied", "--group", RELAY_GROUP,
              "--transactional-id", life.name, "--transaction-ms", "50"])  # fmt: skip


def _record(recorder: Recorder, chance: random.Random) -> None:
    """Record all producers and consumers that this process makes from now on."""
    global copied
    make_producer, make_consumer = Client.producer, Client.consumer
    labels: list[str] = []
    numbers = itertools.count()

    def producer(client: Client, **settings: Any) -> Producer:
        made = make_producer(client, **settings)
        labels.append(ProducerTape(made, recorder, _counts).label)
        return made

    def consumer(client: Client, *topics: str, **settings: Any) -> Consumer:
        made = make_consumer(client, *topics, **settings)
        made.subscribe = ConsumerTape(made, recorder).subscribe  # type: ignore[method-assign]
        return made

    def copy(record: Record) -> OutputRecord:
        if chance.random() < SLOW:
            time.sleep(SLOW_SECONDS)
        output = f"{text_of(record.value)}>s@{labels[-1]}:{next(numbers)}"
        return OutputRecord(output.encode(), key=record.key)

    Client.producer, Client.consumer, copied = producer, consumer, copy  # type: ignore[method-assign]
