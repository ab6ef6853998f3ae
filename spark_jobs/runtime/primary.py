"""The driver's connections, and with `on_failover=stop` the one primary that its tasks may use, too."""

from msgtx.config import ClientConfig, resolve
from msgtx.database.connection import Connection
from msgtx.database.opening import open_engine
from msgtx.database.pool import POOL_SIZE, Engine
from msgtx.settings import OnFailover
from msgtx.spark_jobs.runtime.outage import patient, persevering
from msgtx.store.operator.installation import describe_installation

Primary = tuple[int, int]  # system identifier and timeline


def on_failover_of(value: object) -> OnFailover:
    """Return the option `on_failover`; None: as the environment of the driver says. Raise `ConfigError`."""
    return resolve(ClientConfig, {} if value is None else {"on_failover": value}).on_failover


def driver_engine(
    url: str | None, *, outage_timeout: float | None, on_failover: OnFailover, pool_size: int = POOL_SIZE
) -> Engine:
    """Return an engine of the driver. With `stop` it refuses each primary but the one that answers now."""
    engine = patient(open_engine(url, pool_size=pool_size), outage_timeout)
    engine.on_failover = on_failover

    def begin(connection: Connection) -> None:
        engine.begin_with(connection, describe_installation(connection).incarnation)

    try:
        if on_failover == "stop":
            persevering(engine, begin)
    except BaseException:
        engine.close()
        raise
    return engine


def primary_of(engine: Engine) -> Primary | None:
    """Return the only primary that the tasks of this driver may use; None: they may use any."""
    return engine.server if engine.on_failover == "stop" else None
