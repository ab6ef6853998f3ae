"""Tables of Spark SQL: `CREATE TABLE … USING msgtx OPTIONS (…)`.

Spark hands a table's options to `DataSource.schema` only, once, when it makes the table. Later it hands out the columns, and
of the options those that a statement names (`WITH (…)`). So the first column carries the table's options (decision 0157).
"""

from collections.abc import Mapping
from typing import Final

from pyspark.sql.types import StructField, StructType

from msgtx.database.address import SECRETS, parse
from msgtx.declared.spark import SINK, SOURCE
from msgtx.errors import ConfigError
from msgtx.spark_jobs.reading.read_options import OF_KAFKA, SUBSCRIPTIONS, named

CARRIED: Final = "msgtx.options"  # in the metadata of the first column
_OPTION: Final = "option."  # Spark's mark of an option among a table's properties


def carrying(columns: StructType, properties: Mapping[str, str]) -> StructType:
    """Return the columns with the options of the table that is made; unchanged where none is.

    Raise `ConfigError` for an unknown option, and for a URL with a password: anybody who may see the table could read it.
    """
    given = {name.removeprefix(_OPTION): value for name, value in properties.items() if name.startswith(_OPTION)}
    if not given:
        return columns
    options = named(given, SOURCE + SINK, of_kafka=OF_KAFKA)
    for name in ("url", "read_url"):
        if name in options and set(SECRETS) & parse(options[name]).keys():
            raise ConfigError(
                f"{name} holds a password, and a table would show it: name the database in MSGTX_DATABASE_URL of the driver,"
                " or keep the password in a password file",
                name=name,
            )
    first, *others = columns.fields
    return StructType([StructField(first.name, first.dataType, first.nullable, {CARRIED: options}), *others])


def options_of(columns: StructType, given: Mapping[str, str]) -> dict[str, str]:
    """Return the options of a statement: those that it names, else those that its table carries."""
    carried: dict[str, str] = next((each.metadata[CARRIED] for each in columns if CARRIED in each.metadata), {})
    own = named(given, SOURCE + SINK, of_kafka=OF_KAFKA) if carried else dict(given)
    replaced = SUBSCRIPTIONS if own.keys() & set(SUBSCRIPTIONS) else ()
    return {name: value for name, value in carried.items() if name not in replaced} | own
