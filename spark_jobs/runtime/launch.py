"""`spark-submit spark_jobs/JOB.py ARGUMENTS` as `msgtx spark JOB ARGUMENTS`."""

import sys
from typing import NoReturn


def launch(job: str) -> NoReturn:
    """Run a job of the command line with this program's arguments, and exit."""
    from msgtx.cli.main import main  # the one import upwards: see the contract in pyproject.toml

    main(["spark", job, *sys.argv[1:]])
