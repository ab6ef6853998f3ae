"""One Spark session for the run: starting one takes five seconds."""

from collections.abc import Iterator
from typing import Final

import pytest
from pyspark.sql import SparkSession

from msgtx.spark_jobs import session

# Queries of tests run for a moment. To optimise their code, and to collect garbage in parallel, took half of the time.
JAVA: Final = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A local Spark with two cores; tasks may be tried four times, as in a cluster."""
    made = session.session("msgtx-tests", master="local[2,4]", **JAVA)
    made.sparkContext.setLogLevel("OFF")
    yield made
    session.end()
