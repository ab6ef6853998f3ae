"""The tables: the service's orders, and the read model's revenue."""

import contextlib
import os

import sqlalchemy
from sqlalchemy import CheckConstraint, UniqueConstraint
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

import msgtx

TOPIC = "orders"


class Base(DeclarativeBase):
    """What both processes create if it is missing."""


class Order(Base):
    """An order. `reference` is the customer's own name for it: one that is sent twice is refused the second time."""

    __tablename__ = "orders"
    __table_args__ = (
        CheckConstraint("cents > 0"),
        # Looked at by the COMMIT only, when the message is written already: it is taken back with the row.
        UniqueConstraint("customer", "reference", deferrable=True, initially="DEFERRED"),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    customer: Mapped[str]
    reference: Mapped[str]
    cents: Mapped[int]


class Revenue(Base):
    """What a customer has ordered until now."""

    __tablename__ = "revenue"

    customer: Mapped[str] = mapped_column(primary_key=True)
    orders: Mapped[int]
    cents: Mapped[int]


def open_database() -> sqlalchemy.Engine:
    """Return an engine for the database in MSGTX_DATABASE_URL, with its tables, its topic and msgtx's schema made."""
    address = sqlalchemy.make_url(os.environ["MSGTX_DATABASE_URL"])
    engine = sqlalchemy.create_engine(address.set(drivername="postgresql+psycopg"), pool_pre_ping=True)
    with engine.begin() as connection:
        connection.execute(sqlalchemy.select(sqlalchemy.func.pg_advisory_xact_lock(1)))  # one process makes them
        Base.metadata.create_all(connection)
    with msgtx.connect(create=True) as client, contextlib.suppress(msgtx.errors.TopicExists):
        client.topics.create(TOPIC, partitions=3)
    return engine
