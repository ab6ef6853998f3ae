"""The command line: which targets, which database, which Kafka."""

import argparse
import importlib
import os
import sys
import time
from pathlib import Path

from msgtx.client import connect
from msgtx.database import address
from msgtx.database.opening import open_engine
from tests.benchmarks.kafka import Kafka
from tests.benchmarks.peers import Queues
from tests.benchmarks.sheet import Settings, print_json, print_table, progress

# Each is a function of a module, which is imported when it is asked for: without Spark all others run.
TARGETS = {
    "r1": ("bulk", "bulk"),
    "r2": ("bulk", "transactions"),
    "r3": ("small", "one_record"),
    "r3-flush": ("flushing", "slow_flush"),
    "r4": ("reading", "isolation"),
    "r5": ("reading", "consuming"),
    "r6": ("latency", "latency"),
    "r7": ("growth", "open_snapshot"),
    "r7-sweep": ("sweeping", "sweeping"),
    "r8-read": ("spark_reading", "reading"),
    "r8-write": ("spark_writing", "writing"),
    "r8-pipeline": ("spark_writing", "end_to_end"),
    "r8-micro": ("spark_writing", "micro_batches"),
    "r8-kafka-read": ("spark_kafka", "reading"),
    "r8-kafka-write": ("spark_kafka", "writing"),
    "r8-kafka-pipeline": ("spark_kafka", "piping"),
    "r8-kafka-micro": ("spark_kafka", "micro_batches"),
    "r8-cuts": ("spark_writing", "cuts"),
    "r9": ("memory", "memory"),
    "r9-outbox": ("outbox", "outbox"),
    "r10": ("processing", "processing"),
    "r11-cleaning": ("cleaning", "cleaning"),
    "r12-groups": ("groups", "groups"),
    "r14-pace": ("pacing", "pacing"),
    "r14-size": ("size", "size"),
    "r13-queues": ("queues", "queues"),
    "r13-workers": ("work_queues", "workers"),
    "r13-burdens": ("work_queues", "burdens"),
    "r15-failover": ("failover", "failover"),
    "r16-mirrors": ("mirroring", "mirroring"),
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"{', '.join(TARGETS)} (default: all)")
    parser.add_argument("--url", help="the database (default: MSGTX_DATABASE_URL, else the embedded server)")
    parser.add_argument(
        "--socket", metavar="FOLDER", help="reach the same server through its Unix socket in this folder, not over TCP"
    )
    parser.add_argument("--kafka", metavar="HOST:PORT", help="a broker that does not flush")
    parser.add_argument("--kafka-fsync", metavar="HOST:PORT", help="a broker that flushes each append")
    parser.add_argument(
        "--kafka-scripts", default=os.environ.get("KAFKA_SCRIPTS"), metavar="FOLDER", help="with kafka_bench.py"
    )
    parser.add_argument(
        "--kafka-python",
        default=os.environ.get("KAFKA_PYTHON", sys.executable),
        metavar="PROGRAM",
        help="with confluent-kafka",
    )
    parser.add_argument(
        "--kafka-connector", type=Path, metavar="FOLDER", help="with the jars of spark-sql-kafka-0-10: r8-kafka-… with Kafka"
    )
    parser.add_argument(
        "--queues-script", default=os.environ.get("QUEUES_SCRIPT"), metavar="FILE", help="queue_bench.py: r13 with pgmq"
    )
    parser.add_argument(
        "--queues-python",
        default=os.environ.get("QUEUES_PYTHON", sys.executable),
        metavar="PROGRAM",
        help="with psycopg, pgmq and pika",
    )
    parser.add_argument("--rabbit", type=int, metavar="PORT", help="a RabbitMQ on this machine: r13 with quorum queues, too")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0, help="of one variant in one round")
    parser.add_argument("--records", type=int, default=10_000_000, help="of the larger database of r14-size")
    parser.add_argument("--json", type=Path, help="append the JSON lines to a file instead of printing them")
    options = parser.parse_args()
    wanted = options.targets or list(TARGETS)
    if unknown := set(wanted) - set(TARGETS):
        parser.error(f"unknown target {min(unknown)}; known are {', '.join(TARGETS)}")
    if (options.kafka or options.kafka_fsync) and not options.kafka_scripts:
        parser.error("--kafka needs --kafka-scripts (or KAFKA_SCRIPTS): the folder of kafka_bench.py")
    with open_engine(options.url) as engine:
        url = engine.url
    connect(None if engine.embedded else url).close()  # an embedded database gets its schema, a given one is checked
    if options.socket:
        url = address.conninfo({**address.parse(url), "host": options.socket})
        connect(url).close()
    brokers: dict[str, Kafka | None] = {"kafka": None, "kafka_fsync": None}
    for name in brokers:
        if bootstrap := getattr(options, name):
            brokers[name] = Kafka(
                options.kafka_python, Path(options.kafka_scripts), bootstrap, fsync=name == "kafka_fsync",
                seconds=options.seconds,
            )  # fmt: skip
    settings = Settings(
        url,
        **brokers,
        rounds=options.rounds,
        seconds=options.seconds,
        records=options.records,
        queues=_queues(options, url),
        connector=options.kafka_connector,
    )
    lines: list[dict[str, object]] = []
    began = time.monotonic()
    try:
        for name in wanted:
            progress(f"── {name} ──")
            module, function = TARGETS[name]
            lines += getattr(importlib.import_module(f"tests.benchmarks.{module}"), function)(settings)
            progress(f"{name}: {time.monotonic() - began:.0f} s so far")
    finally:
        for broker in (*settings.brokers, *settings.queues):
            broker.close()
        if lines:
            print_table(lines)
            if options.json is None:
                print_json(lines)
            else:
                with options.json.open("a") as file:
                    print_json(lines, file)
    return 0


def _queues(options: argparse.Namespace, url: str) -> list[Queues]:
    if not options.queues_script:
        return []
    script, dsn = Path(options.queues_script), address.conninfo(address.parse(url))
    found = [Queues("pgmq", options.queues_python, script, dsn=dsn, batched=3.0, one_by_one=2.0, forwarded=3.0)]
    if options.rabbit:
        found.append(Queues("RabbitMQ", options.queues_python, script, port=options.rabbit, batched=1.5))
    return found


if __name__ == "__main__":
    sys.exit(main())
