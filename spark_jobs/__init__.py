"""Spark: committed ranges read through JDBC, batches written exactly once; the jobs behind `msgtx spark`."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from msgtx.spark_jobs.batch import BatchReport
    from msgtx.spark_jobs.sink import write_transactional
else:
    # Imported at first use: Spark starts a dozen Python processes for one query, and each imports this package.
    _HOMES = {"BatchReport": "msgtx.spark_jobs.batch", "write_transactional": "msgtx.spark_jobs.sink"}

    def __getattr__(name: str) -> object:
        """Import a name from its home."""
        from importlib import import_module

        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return globals().setdefault(name, getattr(import_module(_HOMES[name]), name))


__all__ = ["BatchReport", "write_transactional"]
