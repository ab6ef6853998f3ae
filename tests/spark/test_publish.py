"""`msgtx.publish` from Java: through the driver that Spark's JVM has."""

from pyspark.sql import SparkSession

import msgtx
from msgtx.database import jdbc
from tests.databases import Connection

SECONDS = 30.0


def test_java_publishes_in_its_own_transaction(spark: SparkSession, client: msgtx.Client, connection: Connection) -> None:
    client.topics.create("from-java", partitions=1)
    connection.execute("create table public.from_java (id int)")
    address = jdbc.address_of(connection)
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    properties = jvm.java.util.Properties()
    for name in ("user", "password"):
        properties.setProperty(name, address.properties[name])
    session = jvm.org.postgresql.Driver().connect(address.url, properties)
    try:
        session.setAutoCommit(False)
        for number, end in ((1, session.commit), (2, session.rollback), (3, session.commit)):
            session.createStatement().execute(f"insert into public.from_java values ({number})")
            call = session.prepareStatement(
                "select msgtx.publish(?, value => ?, key_bytes => ?, partition => ?, headers => ?::jsonb)"
            )
            call.setString(1, "from-java")
            call.setString(2, f"Überweisung {number}")
            call.setBytes(3, bytes([number]))
            call.setInt(4, 0)
            call.setString(5, '{"a": "b"}')
            call.execute()
            end()
    finally:
        session.close()
    with client.consumer("from-java", auto_offset_reset="earliest") as consumer:
        records = consumer.poll(SECONDS)
    assert [(record.offset, record.key, record.value, record.headers) for record in records] == [
        (offset, bytes([number]), f"Überweisung {number}".encode(), (("a", b"b"),)) for offset, number in ((0, 1), (1, 3))
    ]
    assert connection.execute("select id from public.from_java order by 1").fetchall() == [(1,), (3,)]
