"""The read model: what each customer has ordered, exactly once, whatever crashes.

Rows and offsets are one commit. Several of these processes divide the partitions; all orders of a customer are in one, so no
two of them change the same row.
"""

from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session, sessionmaker

import msgtx
from examples.orders.models import TOPIC, Revenue, open_database


def add(session: Session, record: msgtx.Record) -> None:
    """Add an order to its customer's revenue."""
    order = record.json()
    new = insert(Revenue).values(customer=order["customer"], orders=1, cents=order["cents"])
    more = {"orders": Revenue.orders + new.excluded.orders, "cents": Revenue.cents + new.excluded.cents}
    session.execute(new.on_conflict_do_update(index_elements=["customer"], set_=more))


def main() -> None:
    """Run until SIGTERM, which ends it behind a transaction, or Ctrl-C."""
    engine = open_database()
    with msgtx.connect() as client:
        client.process_into(sessionmaker(engine), add, TOPIC, group="revenue")
    engine.dispose()


if __name__ == "__main__":
    main()
