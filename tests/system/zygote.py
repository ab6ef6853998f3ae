"""Lives of the crash sweep as processes: a small server that has everything imported and forks a child for each life.

It reads a request per line (JSON) and answers with the child's end: 0, or minus the signal. Run as `python -m
tests.system.zygote`; `Zygote` is the other end of its pipes.
"""

import json
import os
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from msgtx import Client
from msgtx.database.pool import Engine
from tests.faults import READS, Faults, die
from tests.system.scenarios import SCENARIOS, World
from tests.system.sessions import SESSIONS

PROGRAMS: Final = {**SCENARIOS, **SESSIONS}


class Zygote:
    """Starts lives, one after the other. Close it at the end."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.system.zygote"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def live(self, **request: Any) -> int:
        """Run a program in a process of its own; returns 0, or minus the signal that ended it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def close(self) -> None:
        self._process.communicate()


def _life(
    *, url: str, elsewhere: str | None, name: str, run: str, life: int, folder: str, die_at: int, before: bool
) -> None:
    with Client(Engine(url)) as observer:
        world = World(observer, run, Path(folder), Faults({die_at: die}, uncounted=READS, before=before), life, elsewhere)
        PROGRAMS[name].program(world)
        world.close()


def main() -> None:
    pa.array([b"", None]).to_pylist()  # this looks for pandas once, which takes longer than a life
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                _life(**json.loads(line))
                status = 0
            except BaseException:  # noqa: BLE001 - the child ends here, whatever it is
                traceback.print_exc()
            finally:
                os._exit(status)
        _, status = os.waitpid(pid, 0)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
