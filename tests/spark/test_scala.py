"""Scala without Python: the recipe of the documentation, run by spark-shell (I5, I6, I10, I15)."""

import contextlib
import os
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import psycopg
import pyspark
import pytest
import sqlalchemy

import msgtx
from msgtx.spark_jobs.runtime.java import find_java
from msgtx.spark_jobs.runtime.jdbc import jdbc_jar
from tests.databases import wait_until
from tests.docs.snippets import snippets
from tests.spark.programs import PATIENCE_SECONDS, surroundings

# What the recipe's `run` does under failures. Each printed line is compared below.
FURTHER: Final = """
import org.apache.spark.TaskContext
import org.apache.spark.sql.functions.{col, udf}

def tell(what: String)(work: => Any): Unit =
  println(s"TOLD $what: " + scala.util.Try(work).recover { case error => error.getMessage.takeWhile(_ != '\\n') }.get)
def more(count: Int): Unit = Msgtx.connected(url) { connection =>
  Msgtx.ask(connection, "select msgtx.publish('orders', n::text, n::text) from generate_series(1, ?) n", count)
}

tell("again")(run(url, "invoicing", 1, "orders", "invoices")(_.select("key", "value")))
more(50)
val failing = udf { value: Array[Byte] =>
  if (TaskContext.get().attemptNumber() == 0 && new String(value).endsWith("7")) throw new RuntimeException("first attempt")
  value
}
tell("retried")(run(url, "invoicing", 2, "orders", "invoices")(_.select(col("key"), failing(col("value")).as("value"))))
more(10)
val hopeless = udf { value: Array[Byte] => if (new String(value) == "7") throw new RuntimeException("hopeless"); value }
tell("failed")(run(url, "invoicing", 3, "orders", "invoices")(_.select(col("key"), hopeless(col("value")).as("value"))) )
tell("next run")(run(url, "invoicing", 3, "orders", "invoices")(_.select("key", "value")))
tell("nothing new")(run(url, "invoicing", 4, "orders", "invoices")(_.select("key", "value")))
tell("conflict") {
  run(url, "invoicing", 6, "orders", "invoices") { records =>
    more(5)
    run(url, "invoicing", 5, "orders", "invoices")(_.select("key", "value"))
    records.select("key", "value")
  }
}

val cut = Msgtx.connected(url)(Msgtx.ask(_, "select msgtx.cut('orders')").head)
val predicates = Msgtx.connected(url)(Msgtx.ask(_, "select predicate from msgtx.ranges(?, 3)", cut))
val options = new Properties
options.put("driver", "org.postgresql.Driver")
more(1)
val whole = spark.read.jdbc(url, "msgtx.committed_records_now", predicates, options)
val three = whole.select("partition", "offset", "timestamp").collect()
val rows = three.map(row => (row.getInt(0), row.getLong(1), row.getLong(2)))
println(s"TOLD rows: ${rows.length} ${rows.map(row => (row._1, row._2)).distinct.length}")
val middle = rows.map(_._3).sorted.apply(rows.length / 2)
val random = new scala.util.Random(44)
def comparison(): (String, ((Int, Long, Long)) => Boolean) = {
  val number = random.nextInt(60)
  random.nextInt(7) match {
    case 0 => (s"partition = ${number % 3}", _._1 == number % 3)
    case 1 => (s"offset >= $number", _._2 >= number)
    case 2 => (s"offset < $number", _._2 < number)
    case 3 => (s"offset in ($number, 3, null)", row => row._2 == number || row._2 == 3)
    case 4 => (s"timestamp <= $middle", _._3 <= middle)
    case 5 => (s"partition is not null and not offset = $number", _._2 != number)
    case _ => ("topic = 'orders'", _ => true)
  }
}
val wrong = (1 to 40).filter { _ =>
  val ((one, first), (other, second), both) = (comparison(), comparison(), random.nextBoolean())
  val found = whole.where(s"($one) ${if (both) "and" else "or"} ($other)").count()
  found != rows.count(row => if (both) first(row) && second(row) else first(row) || second(row))
}
println(s"TOLD wrong: ${wrong.length}")
spark.conf.set("spark.sql.maxMetadataStringLength", 1000)
val some = whole.where("partition = 0 and offset < 9 and timestamp > 5 and topic = 'orders'")
val pushed = some.queryExecution.executedPlan.toString.split("PushedFilters").last
val names = Seq("partition", "offset", "timestamp", "topic").filter(name => pushed.contains(s"($name,"))
println(s"TOLD pushed: ${names.mkString(" ")}")
val view = s"driver 'org.postgresql.Driver', url '$url', dbtable 'msgtx.committed_records'"
spark.sql(s"CREATE TEMPORARY VIEW log USING jdbc OPTIONS ($view)")
val seen = spark.sql("SELECT offset FROM log WHERE topic = 'orders' AND partition = 0 AND offset >= 3 AND offset < 5")
println(s"TOLD view: ${seen.collect().map(_.getLong(0)).sorted.mkString(" ")}")
System.exit(0)
"""

# Two batches of a program that is killed in each: the second one is of a stream.
KILLED: Final = """
import org.apache.spark.sql.streaming.Trigger

println("TOLD run: " + run(url, "killed", 1, "in", "out")(_.select("key", "value")))
spark.readStream.text("lines").selectExpr("binary(value) as key", "binary(value) as value").writeStream
  .foreachBatch { (rows: DataFrame, batch: Long) =>
    writeBatch("out")(rows, batch)
    if (sys.env.contains("STAYS")) Thread.sleep(Long.MaxValue)
  }
  .option("checkpointLocation", "checkpoint").trigger(Trigger.AvailableNow()).start().awaitTermination()
println("TOLD stream: true")
System.exit(0)
"""


def test_the_recipe_reads_and_writes_exactly_once(client: msgtx.Client, database_url: str, tmp_path: Path) -> None:
    for name in ("orders", "invoices"):
        client.topics.create(name, partitions=3, retention_ms=-1)
    with client.producer() as producer:
        for at in range(1, 101):
            producer.send("orders", b"%d" % at, key=b"%d" % at)
    with shell(tmp_path, database_url, FURTHER) as program:
        out, error = program.communicate(timeout=PATIENCE_SECONDS)
    told = answers(out)
    conflict, failed = told.pop("conflict", ""), told.pop("failed", "")
    assert told == {
        "again": "false", "retried": "true", "next run": "true", "nothing new": "true", "rows": "165 165", "wrong": "0",
        "pushed": "partition offset timestamp topic", "view": "3 4",
    }, out + error  # fmt: skip
    assert "is at offset" in conflict
    assert "hopeless" in failed or "aborted due to stage failure" in failed
    orders, invoices = (
        Counter((record.key, record.value) for record in client.read(client.snapshot([name])))
        for name in ("orders", "invoices")
    )
    orders.subtract({(b"1", b"1"): 1})  # the last record came behind the last batch
    assert invoices == orders
    assert sum(invoices.values()) == 165


@pytest.mark.long
def test_a_driver_that_is_killed_in_its_batch_loses_and_repeats_nothing(
    make_database: Callable[[], str], tmp_path: Path
) -> None:
    """I4: killed within commit_batch; then behind it, before Spark's checkpoint knows of the batch."""
    url = make_database()
    (tmp_path / "lines").mkdir()
    (tmp_path / "lines" / "1.txt").write_text("".join(f"{at}\n" for at in range(100, 200)))
    with msgtx.connect(url) as client, psycopg.connect(url, autocommit=True) as connection:
        for name in ("orders", "invoices", "in", "out"):  # the recipe itself has nothing to do
            client.topics.create(name, partitions=3, retention_ms=-1)
        with client.producer() as producer:
            for at in range(100):
                producer.send("in", b"%d" % at, key=b"%d" % at)

        def kill(program: "subprocess.Popen[str]", moment: str, query: str) -> None:
            wait_until(lambda: connection.execute(query).fetchone(), moment, seconds=PATIENCE_SECONDS)
            os.killpg(program.pid, signal.SIGKILL)

        def written() -> list[int]:
            return sorted(int(record.value or b"") for record in client.read(client.snapshot(["out"])))

        with psycopg.connect(url) as other, shell(tmp_path, url, KILLED) as program:
            other.execute("select pg_advisory_xact_lock(1836279554, hashtext('killed'))")
            waits = "select 1 from pg_locks join pg_stat_activity using (pid) where not granted and query ~ 'commit_batch'"
            kill(program, "the commit waits for its group", waits)
        assert written() == []
        with shell(tmp_path, url, KILLED, STAYS="1") as program:
            committed = "select 1 from msgtx.spark_batch where app_id not in ('invoicing', 'killed')"
            kill(program, "the stream's batch is committed", committed)
        with shell(tmp_path, url, KILLED) as program:
            out, error = program.communicate(timeout=PATIENCE_SECONDS)
        assert answers(out) == {"run": "false", "stream": "true"}, out + error
        assert written() == list(range(200))


@contextlib.contextmanager
def shell(folder: Path, url: str, program: str, **environment: str) -> "Iterator[subprocess.Popen[str]]":
    """Run spark-shell with the recipe of the documentation and a program behind it. It ends with the block."""
    recipe = "".join(each.text for each in snippets("scala", page="docs/how-to/spark-sql.md"))
    (folder / "recipe.scala").write_text(recipe + program, encoding="utf-8")
    given = sqlalchemy.make_url(url)
    process = subprocess.Popen(
        [
            Path(pyspark.__file__).parent / "bin" / "spark-shell", "--master", "local[2,4]", "--jars", jdbc_jar(),
            "--conf", "spark.ui.enabled=false", "--conf", "spark.log.level=OFF", "-i", folder / "recipe.scala",
        ],
        env=surroundings({
            "JDBC_URL": f"jdbc:postgresql://{given.host}:{given.port}/{given.database}"
                        f"?user={given.username}&password={given.password}",
            "JAVA_HOME": str(find_java().home), "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": "/none", **environment,
        }),
        cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    with process:
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def answers(out: str) -> dict[str, str]:
    """Return what a program has told, by name."""
    return dict(line[5:].split(": ", 1) for line in out.splitlines() if line.startswith("TOLD "))
