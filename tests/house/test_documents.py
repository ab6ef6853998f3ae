"""What the documents name is there."""

import dataclasses
import re
from pathlib import Path

import pytest

import msgtx
from msgtx import errors
from msgtx.config import ConsumerConfig, ProducerConfig
from msgtx.coordinator.gauges import Gauges
from msgtx.coordinator.metrics import Metrics
from msgtx.database.pool import Engine

ROOT = Path(msgtx.__file__).parent.parent


def test_the_settings_in_the_readme_are_the_ones_that_are_known() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    start = text.index("| of a producer |")
    named = set(re.findall(r"`(\w+)`", text[start : text.index("\n\n", start)]))
    known = {field.name for kind in (ProducerConfig, ConsumerConfig) for field in dataclasses.fields(kind)}
    assert named == known


@pytest.mark.parametrize("name", ["README.md", "ARCHITECTURE.md", "STYLE.md"])
def test_the_paths_in_a_document_exist(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    paths = set(re.findall(r"`((?:msgtx|cli|migrations|tests|spark_jobs)/[\w./-]+)`", text))
    later = {path for path in paths if path.startswith("spark_jobs")}
    assert {path for path in paths - later if not (ROOT / path).exists()} == set()


def test_a_release_has_its_lines_in_the_changelog() -> None:
    version = re.search(r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)
    assert version is not None
    assert version[1] in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_the_metrics_of_the_architecture_are_those_of_a_daemon(client: msgtx.Client) -> None:
    metrics = Metrics()
    metrics.watch(client.engine)
    metrics.failed(errors.DatabaseUnavailable("planted"))
    samples = {sample.name for family in metrics.registry.collect() for sample in family.samples}
    shown = {re.sub(r"_(bucket|count|sum)$", "", name) for name in samples if not name.endswith("_created")}
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    start = text.index("**Metrics**")
    named = set(re.findall(r"`(msgtx_\w+)", text[start : text.index("\n\n", start)]))
    assert named == shown


def test_metrics_of_a_database_that_is_away_say_only_that() -> None:
    engine = Engine("postgresql://nobody@127.0.0.1:1/nowhere")
    families = {family.name: family.samples[0].value for family in Gauges(engine).collect()}
    assert families == {"msgtx_database_up": 0}
