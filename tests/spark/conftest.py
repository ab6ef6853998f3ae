"""One Spark session for the run: starting one takes five seconds."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from msgtx.spark_jobs import session
from tests.spark import quick_java, quick_python


@pytest.fixture(scope="session", autouse=True)
def quick_starts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Every Java and every worker of the tests is as quick, also those of the programs that they start."""
    folder = tmp_path_factory.mktemp("quick")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("SPARK_CONF_DIR", raising=False)
        patch.setenv("JAVA_HOME", str(quick_java.make_home(folder)))
        patch.setenv("PYSPARK_PYTHON", str(quick_python.make_program(folder)))
        yield


@pytest.fixture(scope="session")
def spark(quick_starts: None) -> Iterator[SparkSession]:
    """A local Spark with two cores; tasks may be tried four times, as in a cluster."""
    made = session.session("msgtx-tests", master="local[2,4]")
    made.sparkContext.setLogLevel("OFF")
    yield made
    session.end()
