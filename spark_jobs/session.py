"""Spark sessions that can read and write msgtx: Java, the JDBC driver, and the settings for it.

A session is the one that runs, the one of `spark-submit`, one on a server of Spark Connect, or a new one with a JVM of its
own. That JVM writes into a file instead of on the user's terminal, is out of reach of Ctrl-C, and ends with its standard
input: so it ends with Python, however Python ends.
"""

import contextlib
import logging
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pyspark
from py4j.protocol import Py4JJavaError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException, PySparkRuntimeError
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession
from pyspark.sql.utils import is_remote

from msgtx.errors import ConfigError
from msgtx.spark_jobs.runtime.java import find_java
from msgtx.spark_jobs.runtime.jdbc import DRIVER, has_driver, jdbc_jar
from msgtx.spark_jobs.runtime.jvm_log import JvmLog

LOCAL: Final = "local[*]"
CONNECT: Final = "sc://"  # how the address of a server of Spark Connect begins
ENDING_S: Final = 20.0  # for the JVM to remove its temporary files; killed afterwards
UNRESPONSIVE: Final = "All masters are unresponsive"
GIB: Final = 1 << 30
DRIVER_MEMORY_GIB: Final = (1, 4)  # of a local run, which is driver and executors in one: a quarter of the memory
USUAL: Final[Mapping[str, str]] = {
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",  # it would go into the file
    "spark.log.level": "ERROR",
}

_output: JvmLog | None = None  # the output of the JVM that we started


def session(name: str = "msgtx", *, master: str | None = None, debug: bool = False, **settings: object) -> SparkSession:
    """Return a Spark session that has the JDBC driver: the running one if there is one, else a new one.

    `master` is spark-submit's or that of Spark's own configuration, else `local[*]`; `sc://HOST:PORT`, or `SPARK_REMOTE`, is
    a server of Spark Connect. `settings` are Spark's, by their names with dots (`**{"spark.sql.shuffle.partitions": 8}`),
    and win over everything. `debug`: the JVM writes on stderr. Raise `ConfigError` if there is no Java, no driver, or the
    JVM refuses the settings.
    """
    wanted = {key: _text(value) for key, value in settings.items()}
    server = master if master is not None and master.startswith(CONNECT) else os.environ.get("SPARK_REMOTE")
    if server is not None or is_remote():
        return _connected(server, wanted)
    os.environ.setdefault("PYSPARK_PYTHON", wanted.get("spark.pyspark.python", sys.executable))
    _hush_py4j()
    if SparkContext._active_spark_context is None:
        with _own_interrupt():
            _start(name, master=master, settings=wanted, debug=debug)
    builder = SparkSession.Builder()
    for key, value in wanted.items():
        builder = builder.config(key, value)
    made = builder.getOrCreate()
    _load_driver(made)
    return made


@contextlib.contextmanager
def opened(name: str, *, master: str | None = None, debug: bool = False, **settings: object) -> Iterator[SparkSession]:
    """Hold a session for the block; one that was started for it ends with it, and its JVM as well."""
    ran = SparkContext._active_spark_context is not None or (is_remote() and SparkSession.getActiveSession() is not None)
    try:
        yield session(name, master=master, debug=debug, **settings)
    except BaseException:
        if not ran:
            with contextlib.suppress(Exception):  # a call that a signal broke off; the signal is reported, or the failure
                end()
        raise
    if not ran:
        end()


def end() -> None:
    """Stop the session and wait for the end of the JVM that was started for it. Another `session` starts anew."""
    global _output  # noqa: PLW0603 - a process has one JVM
    gateway = SparkContext._gateway
    active = SparkSession.getActiveSession() or SparkSession._instantiatedSession
    if is_remote():
        if active is not None:
            active.stop()
        os.environ.pop("SPARK_CONNECT_MODE_ENABLED", None)  # else Spark would look for a server again
        return
    try:
        if active is not None:
            active.stop()
        elif SparkContext._active_spark_context is not None:
            SparkContext._active_spark_context.stop()
    finally:
        process = getattr(gateway, "proc", None)
        if gateway is not None and process is not None:
            with contextlib.suppress(Exception):  # of a JVM that is gone already
                gateway.shutdown()
            _wait_for(process)
            SparkContext._gateway = SparkContext._jvm = None
        if _output is not None:
            _output.close()
            _output = None


def told_by_jvm() -> str:
    """Return the end of the output of the JVM that we started; empty if another program started it."""
    return "" if _output is None else _output.tail()


def _hush_py4j() -> None:
    """Silence Py4J's log of each call and its traceback of a Ctrl-C: the code that catches it knows."""
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    logging.getLogger().addFilter(_is_news)


def _is_news(record: logging.LogRecord) -> bool:
    return record.msg != "KeyboardInterrupt while sending command."


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


# ── the start ──


def _connected(server: str | None, settings: Mapping[str, str]) -> SparkSession:
    """Return the session on a server of Spark Connect, with the driver if the server has none."""
    builder = SparkSession.Builder()
    if server is not None:
        builder = builder.remote(server)
    for key, value in settings.items():
        builder = builder.config(key, value)
    made = builder.getOrCreate()
    try:
        _ = made.read.format("jdbc").options(driver=DRIVER, url="jdbc:none:", dbtable="none").load().columns
    except PySparkException as error:
        if "ClassNotFoundException" in str(error):
            made.addArtifacts(str(jdbc_jar()))
    return made


def _start(name: str, *, master: str | None, settings: Mapping[str, str], debug: bool) -> None:
    """Start the context; with a JVM of our own, unless there is one already (spark-submit's, or of an earlier session)."""
    configured = _configured()
    chosen = master or settings.get("spark.master")
    if SparkContext._gateway is None and "PYSPARK_GATEWAY_PORT" not in os.environ:
        chosen = chosen or configured.get("spark.master") or LOCAL
        wanted = {**_defaults(local=chosen.startswith("local")), **configured, **settings, "spark.master": chosen}
        if debug:
            wanted["spark.log.level"] = settings.get("spark.log.level", "WARN")
        jars = f"{wanted.get('spark.jars', '')},{wanted.get('spark.jars.packages', '')}".split(",")
        if not has_driver(jars):
            wanted["spark.jars"] = ",".join(filter(None, [wanted.get("spark.jars"), str(jdbc_jar())]))
        conf = SparkConf(loadDefaults=False).setAll(list(wanted.items()))
        gateway = _launch(conf, local=chosen.startswith("local"), debug=debug)
    else:
        gateway = None
        SparkContext._ensure_initialized()
        conf = SparkConf()
        for key, value in USUAL.items():
            conf.setIfMissing(key, value)
        conf.setAll(list(settings.items()))
        if chosen or not conf.contains("spark.master"):
            conf.setMaster(chosen or LOCAL)
    if not (conf.contains("spark.app.name") and gateway is None and "PYSPARK_GATEWAY_PORT" in os.environ):
        conf.setAppName(name)
    try:
        try:
            context = SparkContext(conf=conf, gateway=gateway)
            _hush_accumulators(context)
            stopped = context._jsc.sc().isStopped()
        except Py4JJavaError:  # Spark stopped the context while it still made it
            _require_master(conf)
            raise
        _require_master(conf, stopped=stopped)
    except BaseException:
        SparkContext._gateway = SparkContext._gateway or gateway
        with contextlib.suppress(Exception):
            end()
        raise


def _hush_accumulators(context: SparkContext) -> None:
    """Silence the traceback of PySpark's server of accumulators, whose connection ends with the JVM."""
    server: Any = context._accumulatorServer
    tell = server.handle_error

    def handle_error(*arguments: object) -> None:
        if not isinstance(sys.exception(), EOFError | ConnectionError):
            tell(*arguments)

    server.handle_error = handle_error


def _require_master(conf: SparkConf, *, stopped: bool = False) -> None:
    """Raise `ConfigError` if the master does not answer: Spark says that only in its log, and stops a little later."""
    if UNRESPONSIVE in told_by_jvm() or stopped:
        raise ConfigError(
            f"Spark's master {conf.get('spark.master')} does not answer: is it reachable from here, and of this version?"
        )


@contextlib.contextmanager
def _own_interrupt() -> Iterator[None]:
    """Keep a program's own way to handle Ctrl-C, which Spark's would replace."""
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread() and before not in {None, signal.default_int_handler}:
            signal.signal(signal.SIGINT, before)


def _launch(conf: SparkConf, *, local: bool, debug: bool) -> Any:
    """Start a JVM. Raise `ConfigError` with its own words if it refuses."""
    global _output  # noqa: PLW0603 - a process has one JVM
    surroundings = {"JAVA_HOME": str(find_java().home)}
    if local and "SPARK_LOCAL_IP" not in os.environ:
        surroundings["SPARK_LOCAL_IP"] = "127.0.0.1"  # a host whose own name cannot be resolved is fine, too
    _output = None if debug else JvmLog()
    try:
        with _environment(surroundings):
            pipes = {} if _output is None else {"stdout": _output.file, "stderr": _output.file}
            return launch_gateway(conf, popen_kwargs={"start_new_session": True, **pipes})  # type: ignore[no-untyped-call]
    except PySparkRuntimeError as error:
        why = _reason(told_by_jvm()) or error
        if _output is not None:
            _output.close()
            _output = None
        raise ConfigError(f"Spark's Java does not start: {why}") from error


def _reason(told: str) -> str:
    """Pick the line with the reason from the output of a JVM."""
    lines = [line.strip() for line in told.splitlines() if line.strip()]
    telling = [line for line in lines if re.match(r"(Error|Exception|Invalid|Unrecognized|\S*(Exception|Error):)", line)]
    return re.sub(r'^Exception in thread "\w+" (?:\w+\.)+(?=\w+: )', "", (telling or lines or [""])[0])


def _defaults(*, local: bool) -> dict[str, str]:
    """Return the defaults for our jobs."""
    if not local:
        return dict(USUAL)
    least, most = DRIVER_MEMORY_GIB
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // GIB
    return {
        **USUAL,
        "spark.driver.memory": f"{min(most, max(least, memory // 4))}g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": str(2 * len(os.sched_getaffinity(0))),
    }


def _configured() -> dict[str, str]:
    """Return the settings of Spark's own configuration file: they count more than our defaults."""
    home = os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent
    file = Path(os.environ.get("SPARK_CONF_DIR") or Path(home, "conf")) / "spark-defaults.conf"
    if not file.is_file():
        return {}
    lines = [line.strip() for line in file.read_text(encoding="utf-8").splitlines()]
    found = [re.split(r"\s*=\s*|\s+", line, maxsplit=1) for line in lines if line.startswith("spark.")]
    return {pair[0]: pair[1] for pair in found if len(pair) == 2}


@contextlib.contextmanager
def _environment(changes: Mapping[str, str]) -> Iterator[None]:
    """Change the environment for the block: a JVM reads it when it starts."""
    before = {key: os.environ.get(key) for key in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for key, value in before.items():
            if value is None:
                del os.environ[key]
            else:
                os.environ[key] = value


def _wait_for(process: "subprocess.Popen[bytes]") -> None:
    if process.stdin is not None:
        with contextlib.suppress(OSError):
            process.stdin.close()  # the JVM's end
    try:
        process.wait(ENDING_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _load_driver(spark: SparkSession) -> None:
    """Give the driver to a session that another program started without it."""
    jvm = spark.sparkContext._jvm
    assert jvm is not None, "a session has its JVM"
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    try:
        jvm.java.lang.Class.forName(DRIVER, False, loader)
    except Exception as error:  # Py4J's, which has no type that says which class of Java
        if "ClassNotFoundException" not in str(error):
            raise
        escaped = str(jdbc_jar()).replace("\\", "\\\\").replace("'", "\\'")
        spark.sql(f"ADD JAR '{escaped}'")
