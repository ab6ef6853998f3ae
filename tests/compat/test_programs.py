"""`python -m msgtx.compat`: programs that know confluent_kafka only."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

import msgtx
from msgtx.compat import __main__ as command
from msgtx.compat import substitute

SECONDS: Final = 120.0
PROGRAM: Final = """\
import subprocess, sys
from pathlib import Path

import beside  # a module in the program's folder
import confluent_kafka
from confluent_kafka import KafkaException, Producer, SerializingProducer, admin, aio
from confluent_kafka.cimpl import Consumer
from confluent_kafka.serialization import StringSerializer

assert __name__ == "__main__"
topic, child = sys.argv[1:]
assert Path(sys.argv[0]).name == "program.py"
producer = SerializingProducer({"bootstrap.servers": "nowhere:9092", "value.serializer": StringSerializer("latin-1")})
producer.produce(topic, value="ü", on_delivery=lambda error, message: print(error, message.offset()))
assert producer.flush(60) == 0
try:
    Producer({"no.such.setting": 1})
except KafkaException as error:
    print(error.args[0].name())
subprocess.run([sys.executable, "-c", child, topic], check=True)
raise SystemExit(7)
"""
CHILD: Final = """\
import sys
from confluent_kafka import Consumer

consumer = Consumer({"bootstrap.servers": "nowhere:9092", "group.id": "g", "auto.offset.reset": "earliest"})
consumer.subscribe(sys.argv[1:])
print(consumer.poll(60).value(), Consumer.__module__)
consumer.close()
"""


def run(*arguments: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, **variables}
    return subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
    )


@pytest.mark.slow
def test_a_program_and_the_python_it_starts_use_msgtx(topic: str, client: msgtx.Client, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    (tmp_path / "beside.py").touch()
    done = run("-m", "msgtx.compat", str(program), topic, CHILD)
    assert done.returncode == 7, done.stderr
    expected = ["None 0", "_INVALID_ARG", "b'\\xfc' msgtx.compat.confluent_kafka.consumer"]
    assert sorted(done.stdout.splitlines()) == sorted(expected)
    assert [record.value for record in client.consumer(topic, group="r", auto_offset_reset="earliest").poll(SECONDS)] == [
        b"\xfc"
    ]


@pytest.mark.slow
def test_a_module_is_run_as_python_runs_it(topic: str, tmp_path: Path) -> None:
    (tmp_path / "named.py").write_text("import sys, confluent_kafka as k; print(sys.argv[1:], k.Consumer.__module__)")
    done = run("-m", "msgtx.compat", "-m", "named", "--help", "-x", PYTHONPATH=str(tmp_path))
    assert (done.returncode, done.stdout) == (0, "['--help', '-x'] msgtx.compat.confluent_kafka.consumer\n"), done.stderr
    done = run("-m", "msgtx.compat", "-m", "no_such_module")
    assert (done.returncode, done.stderr) == (1, f"{sys.executable}: No module named no_such_module\n")


@pytest.mark.slow
def test_the_folder_on_the_search_path_is_enough(topic: str) -> None:
    done = run("-c", CHILD.replace(".poll(60).value()", ".memberid()"), topic, PYTHONPATH=str(substitute.FOLDER))
    assert (done.returncode, done.stdout) == (0, "None msgtx.compat.confluent_kafka.consumer\n"), done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["-m"], "-m needs the name of a module"),
        (["--nonsense", "x.py"], "unknown option --nonsense: see --help"),
        (["no_such_file.py"], "can't open file 'no_such_file.py': no such file"),
    ],
)
def test_a_wrong_command_is_refused_on_one_line(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        command.main(arguments)
    assert refused.value.code == 2
    assert capsys.readouterr().err == f"msgtx.compat: {said}\n"


@pytest.mark.parametrize("arguments", [[], ["-h"], ["--help"]])
def test_the_command_explains_itself(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    command.main(arguments)
    assert capsys.readouterr().out == command.HELP + "\n"
