"""The read model: what each customer has ordered, exactly once, whatever crashes.

Rows and offsets are one commit. Several of these processes divide the partitions; all orders of a customer are in one, so no
two of them change the same row.
"""

import json
import signal
import threading
from collections.abc import Iterable

import sqlalchemy
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

import msgtx
from examples.orders.models import TOPIC, Revenue, open_database


def add(session: Session, records: Iterable[msgtx.Record]) -> None:
    """Add orders to their customers' revenue."""
    for record in records:
        order = json.loads(record.value or b"{}")
        new = insert(Revenue).values(customer=order["customer"], orders=1, cents=order["cents"])
        more = {"orders": Revenue.orders + new.excluded.orders, "cents": Revenue.cents + new.excluded.cents}
        session.execute(new.on_conflict_do_update(index_elements=["customer"], set_=more))


def follow(engine: sqlalchemy.Engine, consumer: msgtx.Consumer, stopping: threading.Event) -> None:
    """Take orders over until `stopping` is set."""
    while not stopping.is_set():
        records = consumer.poll()
        if not records:
            continue
        try:
            with Session(engine) as session:
                add(session, records)
                consumer.commit(session=session)
                session.commit()
        except msgtx.errors.AbortableError:  # another process has these partitions now: it reads them from the same place
            consumer.rewind()


def main() -> None:
    """Run until Ctrl-C or SIGTERM."""
    stopping = threading.Event()
    engine = open_database()
    with msgtx.connect() as client:
        consumer = client.consumer(TOPIC, group="revenue", enable_auto_commit=False, auto_offset_reset="earliest")

        def stop(*_: object) -> None:
            stopping.set()
            consumer.stop()

        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, stop)
        follow(engine, consumer, stopping)
    engine.dispose()


if __name__ == "__main__":
    main()
