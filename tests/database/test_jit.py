"""With PostgreSQL's default settings no statement of everyday use is compiled: that takes longer than the work."""

from collections.abc import Iterator

import pytest
import sqlalchemy
from sqlalchemy.orm import Session

import msgtx
from msgtx import TopicPartition, orm
from tests.databases import Connection, Server

FILES = "select name from pg_ls_dir('.') name where name like '%.bc'"


class Compiler:
    """Sees what the server compiles for a database: the server writes it into its folder."""

    def __init__(self, administrator: Connection) -> None:
        self.connection = administrator
        self._before = self._files()

    def _files(self) -> set[tuple[str]]:
        return set(self.connection.execute(FILES).fetchall())

    def compiled(self) -> bool:
        """Return whether anything was compiled since the start."""
        return self._files() > self._before


@pytest.fixture
def compiler(server: Server, database_url: str) -> Iterator[Compiler]:
    """A compiler with PostgreSQL's default settings."""
    name = sqlalchemy.make_url(database_url).database
    with server.administrator(name) as administrator:
        administrator.execute(f"alter database {name} set jit = on")
        administrator.execute(f"alter database {name} set jit_dump_bitcode = on")
        yield Compiler(administrator)


def test_nothing_is_compiled_in_everyday_use(compiler: Compiler, database_url: str) -> None:
    engine = sqlalchemy.create_engine(sqlalchemy.make_url(database_url).set(drivername="postgresql+psycopg"))
    with msgtx.connect(database_url) as client:
        client.topics.create("orders", partitions=6)
        for number in range(3):
            with client.producer(transactional_id="till") as producer:
                with producer.transaction() as transaction:
                    for key in range(60):
                        producer.send("orders", b"x", key=b"%d" % key)
                    transaction.send_offsets({TopicPartition("orders", index): number for index in range(6)}, "group")
                with producer.transaction():
                    for key in range(60):
                        producer.send("orders", b"x", key=b"%d" % key)
                    producer.flush()
                with producer.transaction() as transaction:
                    producer.send("orders", b"x")
                    token = transaction.prepare()
                client.complete(token, commit=True)
            with client.producer() as producer:
                for key in range(60):
                    producer.send("orders", b"x", key=b"%d" % key)
                producer.send("orders", b"x", dedup_key=str(number))
            for level in ("READ COMMITTED", "SERIALIZABLE"):
                with Session(engine.execution_options(isolation_level=level)) as session:
                    orm.publish(session, "orders", b"x", key=b"k")
                    session.commit()
            with Session(engine) as session:
                session.execute(sqlalchemy.text("select msgtx.publish('orders', 'x')"))
                session.commit()
            with client.consumer("orders", group="readers", auto_offset_reset="earliest") as consumer:
                assert consumer.poll(10.0)
                consumer.commit()
            client.sweep()
            client.admin.groups.list()
            client.admin.groups.describe("readers")
            client.admin.transactions.list()
            assert client.read(client.snapshot(["orders"]))
    engine.dispose()
    assert not compiler.compiled()


def test_what_a_server_compiles_is_seen(compiler: Compiler) -> None:
    """This shows that the test before can fail, wherever the server has a compiler."""
    compiler.connection.execute("set jit = on")
    compiler.connection.execute("set jit_dump_bitcode = on")
    compiler.connection.execute("set jit_above_cost = 0")
    compiler.connection.execute("select g from generate_series(1, 10) g order by -g").fetchall()
    assert (compiler.compiled(),) == compiler.connection.execute("select pg_jit_available()").fetchone()
