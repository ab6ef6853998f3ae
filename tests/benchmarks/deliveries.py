"""The processes that deliver a shop's messages: a consumer of the log, a poller of the outbox, a relay from outbox to log.

Each reports when it is ready, ends after `total` messages (below 0: not known yet), and reports what came when.
"""

import select
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection as Pipe
from typing import Any, Final

import msgtx
from tests.benchmarks import baselines

POLL_SECONDS: Final = 0.01
WAIT_SECONDS: Final = 0.1  # of a reader between wake-ups, until it checks whether all is done
TAKE: Final = "select id, topic, key, payload from shop.outbox order by id limit 500 for update skip locked"
REMOVE: Final = "delete from shop.outbox where id = any(%s)"


def read_log(url: str, topic: str, total: Any, pipe: Pipe) -> None:
    """Be a consumer in a group: its position is stored, just as a poller's deletions are."""
    found: list[tuple[str, float]] = []
    with msgtx.connect(url) as client, client.consumer(topic, group=topic, auto_offset_reset="earliest") as consumer:
        while not consumer.assignment():
            consumer.poll(0.01)
        pipe.send(None)
        while not 0 <= total.value <= len(found):
            records = consumer.poll(WAIT_SECONDS)
            now = time.perf_counter()
            found += [((record.key or b"").decode(), now) for record in records]
    pipe.send(found)


def read_outbox(url: str, notified: bool, total: Any, pipe: Pipe) -> None:
    """Be a poller that is also the subscriber."""
    found: list[tuple[str, float]] = []
    for rows in _taken(url, notified, total, pipe):
        now = time.perf_counter()
        found += [(key, now) for _, _, key, _ in rows]
    pipe.send(found)


def relay(url: str, notified: bool, total: Any, pipe: Pipe) -> None:
    """Be a poller that publishes: rows are deleted once the log has them."""
    with msgtx.connect(url) as client, client.producer(linger_ms=0) as producer:
        for rows in _taken(url, notified, total, pipe):
            for _, topic, key, payload in rows:
                producer.send(topic, payload.encode(), key=key.encode())
            producer.flush()
    pipe.send([("relayed", time.perf_counter())])


def _taken(url: str, notified: bool, total: Any, pipe: Pipe) -> Iterator[list[tuple[Any, ...]]]:
    """Yield the outbox's rows; each lot is deleted when the next is requested."""
    count = 0
    heard: list[object] = []
    with baselines.connect(url) as connection:
        if notified:
            connection.add_notify_handler(heard.append)
            connection.execute("listen shop_outbox")
        pipe.send(None)
        while not 0 <= total.value <= count:
            heard.clear()
            with connection.transaction():
                rows = connection.execute(TAKE).fetchall()
                if rows:
                    yield rows
                    connection.execute(REMOVE, [[row[0] for row in rows]])
            count += len(rows)
            if rows:
                continue
            if not notified:
                time.sleep(POLL_SECONDS)
            elif not heard and select.select([connection.pgconn.socket], [], [], WAIT_SECONDS)[0]:
                connection.pgconn.consume_input()
                while connection.pgconn.notifies() is not None:
                    pass
