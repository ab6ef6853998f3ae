"""One Spark session for the run: starting one takes five seconds."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from msgtx.spark_jobs import session


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A local Spark with two cores; tasks may be tried four times, as in a cluster."""
    made = session.session("msgtx-tests", master="local[2,4]")
    made.sparkContext.setLogLevel("OFF")
    yield made
    session.end()
