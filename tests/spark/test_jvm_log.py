"""What a JVM writes reaches the user's log: each warning once, and each outage from its begin to its end."""

import logging
import os

import pytest

from msgtx.spark_jobs.runtime.jvm_log import JvmLog

AWAY, BACK = "WARNING msgtx.database: the database is away: closed", "INFO msgtx.database: the database is back after 1.6 s"
REPEATED = "WARNING msgtx.spark_jobs: maxOffsetsPerTrigger is ignored"


def test_two_outages_of_the_same_length_are_told_twice(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "msgtx")
    log = JvmLog()
    for line in (REPEATED, REPEATED, AWAY, AWAY, BACK, AWAY, BACK):
        os.write(log.file.fileno(), f"msgtx: {line}\n".encode())
    log.close()
    told = [f"{each.levelname} {each.name}: {each.getMessage()}" for each in caplog.records]
    assert told == [REPEATED, AWAY, BACK, AWAY, BACK]
