"""One Spark session for the run: starting one takes five seconds."""

from collections.abc import Iterator
from typing import Final

import pytest
from pyspark.sql import SparkSession

from msgtx.spark_jobs import session

# Queries of tests run for a moment. To optimise their code, and to collect garbage in parallel, took half of the time.
JAVA: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


@pytest.fixture(scope="session", autouse=True)
def quick_java(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Every Java of the tests is as quick, also those of the programs that they start."""
    folder = tmp_path_factory.mktemp("spark-conf")
    lines = [f"spark.{process}.extraJavaOptions {JAVA}\n" for process in ("driver", "executor")]
    (folder / "spark-defaults.conf").write_text("".join(lines), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_CONF_DIR", str(folder))
        yield


@pytest.fixture(scope="session")
def spark(quick_java: None) -> Iterator[SparkSession]:
    """A local Spark with two cores; tasks may be tried four times, as in a cluster."""
    made = session.session("msgtx-tests", master="local[2,4]")
    made.sparkContext.setLogLevel("OFF")
    yield made
    session.end()
