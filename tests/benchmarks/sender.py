"""Sends records at a rate: `sender.py msgtx|kafka ADDRESS TOPIC RATE SECONDS`, with either library's Python."""

import sys
import time
from collections.abc import Callable

LOTS = 50  # a second, at most: a record at a time costs more to wait for than to send
VALUE = b"x" * 100


def paced(send: Callable[[], object], rate: float, seconds: float) -> None:
    """Call `send` so many times a second."""
    began, sent = time.monotonic(), 0
    while (passed := time.monotonic() - began) < seconds:
        while sent < passed * rate:
            send()
            sent += 1
        time.sleep(1 / min(rate, LOTS))


def main(library: str, address: str, topic: str, rate: str, seconds: str) -> None:
    if library == "kafka":
        from confluent_kafka import Producer

        producer = Producer({"bootstrap.servers": address, "acks": "all", "enable.idempotence": True, "linger.ms": 5})

        def send() -> None:
            producer.produce(topic, VALUE)
            producer.poll(0)

        paced(send, float(rate), float(seconds))
        producer.flush()
        return
    import msgtx

    with msgtx.connect(address) as client, client.producer(linger_ms=5) as ours:
        paced(lambda: ours.send(topic, VALUE), float(rate), float(seconds))


if __name__ == "__main__":
    main(*sys.argv[1:])
