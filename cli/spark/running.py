"""The common parts of all jobs: `--master`, `--conf`, the session, progress."""

import contextlib
import importlib.util
import logging
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import click

from msgtx.cli.terminal.interruption import deferred
from msgtx.cli.terminal.invocation import Command, Invocation
from msgtx.cli.terminal.progress import progress
from msgtx.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXTRA: Final = ("pyspark", "py4j", "pyarrow")
LOOK_S: Final = 0.3  # between two looks at the tasks


def require_extra() -> None:
    """Raise `ConfigError` if the extra `spark` is not installed."""
    missing = [name for name in EXTRA if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(f"Spark is not installed ({', '.join(missing)}): install the extra, pip install 'msgtx[spark]'")


@dataclass(slots=True)
class Wanted:
    """The session that the options ask for."""

    master: str | None = None
    settings: dict[str, str] = field(default_factory=dict)


def _wanted(context: click.Context) -> Wanted:
    found: Wanted = context.meta.setdefault("msgtx.spark", Wanted())
    return found


def _set_master(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    _wanted(context).master = value


def _set_settings(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> None:
    for value in values:
        key, sign, setting = value.partition("=")
        if not sign or not key.startswith("spark."):
            raise click.BadParameter(f"{value!r} is not spark.NAME=VALUE")
        _wanted(context).settings[key] = setting


class Job(Command):
    """A command that takes Spark's master and settings."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.params += [
            click.Option(
                ["--master"],
                metavar="URL",
                envvar="MSGTX_SPARK_MASTER",
                expose_value=False,
                callback=_set_master,
                help="Where Spark runs; sc://HOST:PORT for Spark Connect."
                "  [default: spark-submit's, Spark's configuration, local[*]]",
            ),
            click.Option(
                ["--conf"],
                metavar="KEY=VALUE",
                multiple=True,
                allow_from_autoenv=False,
                expose_value=False,
                callback=_set_settings,
                help="A setting of Spark's (repeatable).",
            ),
        ]


@contextlib.contextmanager
def running(invocation: Invocation, name: str, *, show_tasks: bool = True) -> "Iterator[SparkSession]":
    """Hold the session that the options ask for; with `show_tasks`, show its tasks during the block."""
    require_extra()
    with deferred():
        from pyspark.logger import PySparkLogger
        from pyspark.sql.utils import is_remote

        from msgtx.spark_jobs.runtime.failure import translated
        from msgtx.spark_jobs.session import opened
    if not invocation.debug:  # a line of JSON for what the command says in a sentence
        for context in ("DataFrame", "SQL"):
            PySparkLogger.getLogger(f"{context}QueryContextLogger").setLevel(logging.CRITICAL)
    wanted = _wanted(click.get_current_context())
    with (
        opened(f"msgtx {name}", master=wanted.master, debug=invocation.debug, **wanted.settings) as spark,
        translated(),  # as long as its Java is there, which is asked for causes
        _tasks_shown(spark, name) if show_tasks and not is_remote() else contextlib.nullcontext(),
    ):
        yield spark


@contextlib.contextmanager
def _tasks_shown(spark: "SparkSession", name: str) -> Iterator[None]:
    """Show the tasks of the stages that run, on a terminal."""
    if not sys.stderr.isatty():
        yield
        return
    over = threading.Event()
    with progress(name) as tell:

        def look() -> None:
            tracker = spark.sparkContext.statusTracker()
            while not over.wait(LOOK_S):
                stages = [stage for number in tracker.getActiveStageIds() if (stage := tracker.getStageInfo(number))]
                done, total = sum(stage.numCompletedTasks for stage in stages), sum(stage.numTasks for stage in stages)
                tell(done, f"{done} of {total} tasks" if total else "")

        watching = threading.Thread(target=look, name="msgtx-spark-progress", daemon=True)
        watching.start()
        try:
            yield
        finally:
            over.set()
            watching.join()
