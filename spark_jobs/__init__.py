"""Spark: committed ranges read through JDBC, batches written exactly once; the jobs behind `msgtx spark`."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from msgtx.spark_jobs.batch import BatchReport
    from msgtx.spark_jobs.read import read_committed
    from msgtx.spark_jobs.sink import write_transactional
    from msgtx.spark_jobs.source import register
else:
    # Imported at first use: Spark starts a dozen Python processes for one query, and each imports this package.
    _HOMES = {"BatchReport": "batch", "read_committed": "read", "register": "source", "write_transactional": "sink"}

    def __getattr__(name: str) -> object:
        """Import a name from its home."""
        from importlib import import_module

        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return globals().setdefault(name, getattr(import_module(f"{__name__}.{_HOMES[name]}"), name))


__all__ = ["BatchReport", "read_committed", "register", "write_transactional"]
