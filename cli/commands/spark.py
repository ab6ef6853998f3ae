"""`msgtx spark`: the table of contents of the jobs, each in the module of its name, loaded when it is used."""

import importlib
from typing import Final

import click

from msgtx.cli.terminal.invocation import Group

MODULES: Final = {
    "pipeline": "pipeline",
    "export": "export",
    "import": "import_files",  # a keyword of Python
    "expire": "expire",
    "audit": "audit",
    "report": "report",
    "status": "status",
}


class Jobs(Group):
    """The jobs by name. Each module calls its own one `command`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names, in the order of the help."""
        return list(MODULES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a job."""
        if cmd_name not in MODULES:
            return None
        found = importlib.import_module(f"msgtx.cli.spark.{MODULES[cmd_name]}").command
        assert isinstance(found, click.Command)
        return found


@click.group("spark", cls=Jobs)
def command() -> None:
    """Run a job on Spark: in this process, or on a cluster (--master). `status` shows what jobs have committed.

    A job needs the extra `spark`: pip install 'msgtx[spark]'. Java and PostgreSQL's
    JDBC driver are found on the machine, or fetched. On a cluster, the workers'
    Python needs msgtx, too (PYSPARK_PYTHON names it). Each job
    can also be run with `spark-submit spark_jobs/JOB.py` and the same options.
    """
