"""Fixtures of the tests of messages in users' sessions: an application's engine, and a table of its own."""

import functools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import sqlalchemy
from sqlalchemy import orm

import msgtx.orm
from tests.databases import Connection
from tests.store.steps import unique

LEVELS = ("READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE")
NARROW: dict[str, Any] = {"pool_size": 1, "max_overflow": 0, "pool_timeout": 5}


class Base(orm.DeclarativeBase):
    """The application's models."""


class Order(Base):
    """A business row. A number may be there twice until the COMMIT, not longer."""

    __tablename__ = "orders"
    __table_args__ = (sqlalchemy.UniqueConstraint("number", name="orders_number", deferrable=True, initially="DEFERRED"),)
    id: orm.Mapped[int] = orm.mapped_column(primary_key=True)
    number: orm.Mapped[int]


def insert(number: int) -> sqlalchemy.Insert:
    """A statement that adds an order."""
    return sqlalchemy.insert(Order).values(number=number)


def application_url(url: str) -> str:
    """Return the address as an application's engine takes it."""
    return sqlalchemy.make_url(url).set(drivername="postgresql+psycopg").render_as_string(hide_password=False)


def refuse_the_next(engine: sqlalchemy.Engine) -> None:
    """Have another listener refuse one commit: behind msgtx's own, if that has one by now."""
    refusals = [ZeroDivisionError]

    def listener(_: sqlalchemy.Connection) -> None:
        while refusals:
            raise refusals.pop()

    sqlalchemy.event.listen(engine, "commit", listener)


@dataclass
class Shop:
    """An application: its engines, its table of orders, and a topic of three partitions. `connection`: another program's."""

    url: str
    client: msgtx.Client
    connection: Connection
    topic: str
    engines: list[sqlalchemy.Engine] = field(default_factory=list)

    def engine(self, url: str | None = None, **options: Any) -> sqlalchemy.Engine:
        """Make an engine, at another address if one is given; it is disposed of at the end."""
        self.engines.append(sqlalchemy.create_engine(application_url(url or self.url), **options))
        return self.engines[-1]

    @functools.cached_property
    def app(self) -> sqlalchemy.Engine:
        """An engine whose pool has one connection."""
        return self.engine(**NARROW)

    def make_topic(self, **settings: Any) -> str:
        """Make another topic. Returns its name."""
        name = unique("other")
        self.client.topics.create(name, **settings)
        return name

    def producer(self, **settings: Any) -> msgtx.Producer:
        """Make a transactional producer with an id of its own."""
        return self.client.producer(transactional_id=unique("id"), **settings)

    def send(self, *values: bytes, partition: int = 0, **named: Any) -> None:
        """Send values to the topic, beside all sessions."""
        with self.client.producer() as producer:
            for value in values:
                producer.send(self.topic, value, partition=partition, **named)

    def publish(self, engine: sqlalchemy.Engine, *values: bytes, topic: str | None = None, **named: Any) -> None:
        """Publish values in one SQL transaction."""
        with orm.Session(engine) as session:
            for value in values:
                msgtx.orm.publish(session, topic or self.topic, value, **named)
            session.commit()

    def seen(self, topic: str | None = None) -> tuple[list[bytes | None], list[int]]:
        """What another connection sees of a topic (or of the shop's) and of the table, in one statement."""
        row = self.connection.execute(
            "select array(select r.value from msgtx.committed_records_now r where r.topic = %s"
            ' order by r.partition, r."offset"),'
            " array(select number from orders order by number)",
            [topic or self.topic],
        ).fetchone()
        assert row is not None
        return row[0], row[1]

    def rows(self) -> list[int]:
        """The numbers of the orders."""
        return self.seen()[1]

    def read(self, topic: str | None = None) -> list[msgtx.Record]:
        """The records of a topic, or of the shop's."""
        return list(self.client.read(self.client.snapshot([topic or self.topic])))

    def nothing_is_open(self) -> bool:
        """Whether no transaction holds a reader up."""
        return not self.connection.execute(
            "select from msgtx.transactions where state in ('Ongoing', 'Prepared')"
        ).fetchall()

    def outcome(self, transaction: msgtx.TransactionId) -> msgtx.Outcome:
        """What has become of a transaction."""
        return self.client.transaction_outcome(transaction)


@pytest.fixture
def shop(database_url: str, client: msgtx.Client, connection: Connection) -> Iterator[Shop]:
    """An application whose table is empty."""
    connection.execute(
        "create table if not exists orders (id int generated by default as identity primary key, number int not null,"
        " constraint orders_number unique (number) deferrable initially deferred)"
    )
    connection.execute("truncate orders")
    made = Shop(database_url, client, connection, unique("topic"))
    client.topics.create(made.topic, partitions=3)
    yield made
    for engine in made.engines:
        engine.dispose()


@pytest.fixture(params=LEVELS)
def leveled(request: pytest.FixtureRequest, shop: Shop) -> sqlalchemy.Engine:
    """An engine at each isolation level; its pool has one connection."""
    return shop.engine(isolation_level=request.param, **NARROW)


@pytest.fixture
def session(leveled: sqlalchemy.Engine) -> Iterator[orm.Session]:
    """A session at each level."""
    with orm.Session(leveled) as made:
        yield made
