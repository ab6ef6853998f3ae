"""Jobs on a standalone cluster: a master, two workers, executors in processes of their own."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import msgtx
from tests.databases import Connection, wait_until
from tests.spark.cluster import Cluster, cluster
from tests.spark.programs import PATIENCE_SECONDS, start_python

ROWS = 2000
SMALL = ("--conf", "spark.executor.memory=512m", "--conf", "spark.driver.memory=1g")


@pytest.fixture(scope="module")
def lost() -> "Iterator[subprocess.Popen[str]]":
    """A session whose master does not answer. Spark tries for a minute: the other tests run meanwhile."""
    program = """
from msgtx.spark_jobs import session
try:
    session.session(master="spark://127.0.0.1:1")
except Exception as error:
    print(type(error).__name__, error)
"""
    with start_python(program, env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"}) as process:
        yield process
        process.kill()


@pytest.fixture(scope="module")
def running(lost: object, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(tmp_path_factory.mktemp("cluster")) as made:
        yield made


def start(running: Cluster, client: msgtx.Client, *arguments: str, **environment: str) -> "subprocess.Popen[str]":
    """Start a job of the command line on the cluster."""
    return subprocess.Popen(
        [sys.executable, "-m", "msgtx.cli", "-o", "jsonl", "spark", *arguments, "--master", running.url, *SMALL],
        env={**os.environ, "MSGTX_DATABASE_URL": client.secret_url, "SPARK_LOCAL_IP": "127.0.0.1", **environment},
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def ended(process: "subprocess.Popen[str]") -> dict[str, Any]:
    out, told = process.communicate(timeout=PATIENCE_SECONDS)
    assert (process.returncode, told) == (0, ""), told
    found: dict[str, Any] = json.loads(out)
    return found


def write_files(folder: Path, files: int) -> None:
    folder.mkdir()
    for file in range(files):
        rows = range(file * ROWS, file * ROWS + ROWS)
        (folder / f"{file}.json").write_text("".join(f'{{"n": {row}, "pad": "{"x" * 100}"}}\n' for row in rows))


def values(client: msgtx.Client, topic: str) -> list[int]:
    return sorted(json.loads(record.value or b"")["n"] for record in client.read(client.snapshot([topic])))


def test_files_go_in_and_come_out_once(running: Cluster, spark: SparkSession, client: msgtx.Client, tmp_path: Path) -> None:
    client.topics.create("through", partitions=4)
    write_files(tmp_path / "in", 4)
    report = ended(start(running, client, "import", "through", str(tmp_path / "in"), "--key-column", "n"))
    assert (report["files"], report["records"]) == (4, 4 * ROWS)
    assert running.used_workers() == {"worker-0", "worker-1"}
    exported = ended(start(running, client, "export", "through", "--to", str(tmp_path / "out")))
    assert (exported["batch"], exported["records"]) == (1, 4 * ROWS)
    rows = spark.read.parquet(str(tmp_path / "out")).select("key", "value").collect()
    assert sorted(int(row.key) for row in rows) == list(range(4 * ROWS)) == values(client, "through")


def test_an_executor_that_is_killed_in_its_task_changes_nothing(
    running: Cluster, client: msgtx.Client, connection: Connection, tmp_path: Path
) -> None:
    """Its attempt is aborted, another one counts (I1, I4)."""
    client.topics.create("killed", partitions=4)
    write_files(tmp_path / "in", 8)
    with start(running, client, "import", "killed", str(tmp_path / "in"), "--batch-size", "1") as process:
        wait_until(
            lambda: connection.execute("select 1 from msgtx.spark_attempt where app_id like 'import:killed%'").fetchone(),
            "a task writes",
            seconds=PATIENCE_SECONDS,
        )
        os.kill(running.executors()[0], signal.SIGKILL)
        report = ended(process)
    assert (report["files"], report["records"]) == (8, 8 * ROWS)
    assert values(client, "killed") == list(range(8 * ROWS))
    undecided = connection.execute("select count(*) from msgtx.transactions where state = 'Ongoing'").fetchone()
    assert undecided == (0,)


@pytest.mark.parametrize(
    ("environment", "told"),
    [
        ({"PYSPARK_PYTHON": "/nowhere/python3"}, "Spark's workers have no Python at /nowhere/python3"),
        ({"PYSPARK_PYTHON": "PLAIN"}, "the Python of Spark's workers has no "),
    ],
    ids=["no python", "no msgtx"],
)
def test_workers_that_lack_something_are_told_in_one_line(
    running: Cluster, client: msgtx.Client, tmp_path: Path, environment: dict[str, str], told: str
) -> None:
    """Their Python does not exist, or has only Spark's own modules."""
    topic = tmp_path.name
    client.topics.create(topic)
    write_files(tmp_path / "in", 1)
    plain = tmp_path / "python3"
    plain.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')  # without site-packages
    plain.chmod(0o755)
    chosen = {name: value.replace("PLAIN", str(plain)) for name, value in environment.items()}
    process = start(running, client, "import", topic, str(tmp_path / "in"), **chosen)
    _, error = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 2, error
    assert told in error
    assert error.count("\n") == 1


def test_a_master_that_does_not_answer_is_told_in_one_line(lost: "subprocess.Popen[str]") -> None:
    out, told = lost.communicate(timeout=PATIENCE_SECONDS)
    assert out.startswith("ConfigError Spark's master spark://127.0.0.1:1 does not answer")
    assert (out.count("\n"), told) == (1, "")
