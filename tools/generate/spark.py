"""What follows from `msgtx/declared/spark.py`: the tables of the reference."""

from msgtx.declared import spark
from msgtx.declared.spark import IGNORED, REFUSED


def options(subject: str) -> list[str]:
    """Return the table of options of `SOURCE` or `SINK`."""
    return [
        "| option | in a batch | in a stream | Spark's Kafka connector | |",
        "|---|---|---|---|---|",
        *(
            f"| `{one.name}` | {shown(one.batch)} | {shown(one.stream)} | {one.kafka or '–'} | {one.says} |"
            for one in getattr(spark, subject)
        ),
    ]


def shown(default: str | None) -> str:
    """Return a default, or what becomes of the option."""
    return "–" if default is None else default if default in {REFUSED, IGNORED} else f"`{default}`"
