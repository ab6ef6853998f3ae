"""Public packages that use confluent-kafka: their own tests, unchanged, on msgtx."""

import os
import subprocess
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

import pytest

from msgtx.database.opening import VARIABLE
from tests.packages import sources

HERE: Final = Path(__file__).parent
SECONDS: Final = 900.0
# The tests of each package that need a broker, and the least number of those that pass.
TESTS: Final = {
    "adc-streaming": (("tests",), 27),
    "kombu": (("t/integration/test_kafka.py", "t/unit/transport/test_confluentkafka.py"), 29),
    "opentelemetry-instrumentation-confluent-kafka": (("tests",), 16),
    # Kafka's two protocols of groups are one here.
    "sentry-arroyo": (("tests/backends/test_kafka.py", "-k", "not Kip848"), 22),
}
ENDS: Final = ("-ofaulthandler_timeout=120", "-ofaulthandler_exit_on_timeout=true")


@pytest.mark.parametrize("package", sorted(TESTS))
def test_a_package_passes_its_own_tests(package: str, make_database: Callable[..., str], tmp_path: Path) -> None:
    """A second run, on another database, is for tests that wait for a second only."""
    assert set(TESTS) == set(sources.PACKAGES)
    if not sources.PYTHON.exists():
        pytest.fail(sources.MISSING)
    paths, least = TESTS[package]
    found = outcomes(sources.unpack(package, tmp_path / "first"), paths, make_database())
    expected = left_out(package)
    if {name for name, passed in found.items() if not passed} - expected:
        again = outcomes(sources.unpack(package, tmp_path / "second"), paths, make_database())
        found = {name: passed or again.get(name, False) for name, passed in found.items()}
    assert {name for name, passed in found.items() if not passed} == expected
    assert sum(found.values()) >= least


def outcomes(folder: Path, paths: tuple[str, ...], url: str, report: Path | None = None) -> dict[str, bool]:
    """Run tests in a folder of others on a database. Return which passed; those that were skipped are left out."""
    report = report or folder / "report.xml"
    command = [sources.PYTHON, "-W", "ignore", "-m", "msgtx.compat", "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    command += [*ENDS, "-olog_cli=false", f"--junitxml={report}", *paths]
    path = os.pathsep.join([str(sources.LINKS), str(HERE / "beside")])
    done = subprocess.run(
        [str(each) for each in command],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path, VARIABLE: url},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert report.exists(), done.stdout[-5_000:] + done.stderr[-5_000:]
    print(done.stdout[-5_000:])  # noqa: T201 - pytest shows it with a failure
    found = {}
    for case in ElementTree.parse(report).iter("testcase"):  # noqa: S314 - as above
        if case.find("skipped") is None:
            name = f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}"
            found[name] = case.find("failure") is None and case.find("error") is None
    return found


def left_out(package: str) -> set[str]:
    table = tomllib.loads((HERE / "left_out.toml").read_text(encoding="utf-8"))
    return {name for group in table.get(package, []) for name in group["tests"]}
