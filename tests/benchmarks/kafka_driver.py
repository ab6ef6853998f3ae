"""Runs functions of Kafka's work sheet (kafka_bench.py in the folder that is the first argument) on request.

Each line of stdin is [function, arguments]; the answers are the function's own lines and {"done": what it returned}.
"""

import json
import sys
from pathlib import Path


def clean(bench):
    client = bench.AdminClient(bench.B)
    names = [name for name in client.list_topics(timeout=10).topics if len(name) == 9 and name.startswith("t")]
    for future in client.delete_topics(names).values() if names else ():
        future.result()


def main():
    folder = Path(sys.argv[1]).absolute()
    sys.argv = ["kafka_bench.py", *sys.argv[2:]]
    sys.path.insert(0, str(folder))
    import kafka_bench as bench

    def answer(**what):
        sys.stdout.write(json.dumps(what) + "\n")
        sys.stdout.flush()

    for line in sys.stdin:
        name, arguments = json.loads(line)
        try:
            done = clean(bench) if name == "clean" else getattr(bench, name)(*arguments)
        except Exception as error:  # noqa: BLE001 - reported to the process that asked
            answer(failed=repr(error))
        else:
            answer(done=done)


if __name__ == "__main__":
    main()
