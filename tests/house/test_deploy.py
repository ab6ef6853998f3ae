"""What stands in deploy/ fits: metrics, commands, settings, probes and packages are those of this version."""

import dataclasses
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import click
import pytest
import yaml
from prometheus_client import CollectorRegistry

import msgtx
from msgtx import errors
from msgtx.cli.commands import command as program
from msgtx.cli.commands.console import STREAMS_SECONDS
from msgtx.cli.commands.process import DRAIN_S
from msgtx.config import ConsumerConfig, ProducerConfig
from msgtx.coordinator.daemon import HANDOVER_SECONDS
from msgtx.coordinator.gauges import Gauges
from msgtx.coordinator.metrics import DaemonMetrics
from msgtx.ending import DRAIN_SECONDS
from msgtx.metrics import Metrics as OfProcess

ROOT: Final = Path(msgtx.__file__).parents[1]
DEPLOY: Final = ROOT / "deploy"
PAGE: Final = ROOT / "docs" / "operations" / "monitoring.md"
KEYWORDS: Final = {"and", "or", "unless", "offset", "bool", "inf", "nan", "by", "without", "on", "ignoring"}
GROUPING: Final = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)")
NOT_OURS: Final = {"le", "instance", "job"}


# ── PromQL ──


def bare(expression: str) -> str:
    """Return PromQL without strings, ranges and variables of Grafana."""
    expression = re.sub(r'"(?:[^"\\]|\\.)*"', '""', expression)
    return re.sub(r"\[[^\]]*\]", "", expression)


def metrics_in(expression: str) -> set[str]:
    """Return the metrics that PromQL names: what is neither a function, nor a label, nor a keyword."""
    text = re.sub(r"\{[^}]*\}", "", GROUPING.sub(" ", bare(expression)))
    words = re.findall(r"(?<![\w.$])([a-zA-Z_:][\w:]*)(\s*\()?", text)
    return {word for word, call in words if not call and word not in KEYWORDS}


def labels_in(expression: str) -> set[str]:
    """Return the labels that PromQL groups by or selects."""
    text = bare(expression)
    grouped = {label.strip() for found in GROUPING.findall(text) for label in found.split(",")}
    selected = {label for inside in re.findall(r"\{([^}]*)\}", text) for label in re.findall(r"(\w+)\s*[=!]", inside)}
    return (grouped | selected) - {""}


@pytest.mark.parametrize(
    ("expression", "metrics", "labels"),
    [
        ("max(a_total) > 0 or absent(b)", {"a_total", "b"}, set()),
        ('sum by (x, y) (rate(a{z=~"b(c)", w!="d"}[5m])) and on (x) b == 0', {"a", "b"}, {"x", "y", "z", "w"}),
        ("histogram_quantile(0.95, sum by (le) (rate(a_bucket[$__rate_interval])))", {"a_bucket"}, {"le"}),
        ("sum(increase(a[1h])) or vector(0)", {"a"}, set()),
        ('a offset 5m > 1e3 unless ignoring(q) b{c="$d"}', {"a", "b"}, {"q", "c"}),
    ],
)
def test_names_are_found_in_promql(expression: str, metrics: set[str], labels: set[str]) -> None:
    assert (metrics_in(expression.replace("5m", "")), labels_in(expression)) == (metrics, labels)


@pytest.fixture
def exported(client: msgtx.Client) -> dict[str, set[str]]:
    """Every sample that a daemon and a process show, and its labels."""
    daemon, process = DaemonMetrics(), CollectorRegistry()
    daemon.failed(errors.DatabaseUnavailable("planted"))
    made = OfProcess(process)
    made.watch(client)
    found: dict[str, set[str]] = {}
    for registry in (daemon.registry, process):
        for collector, names in registry._collector_to_names.items():
            labels = set(getattr(collector, "_labelnames", ()))
            found |= {name: labels for name in names if not name.endswith("_created")}
    for family in [*Gauges(client.runtime.engine).collect(), *(each for each in process.collect() if each.type == "gauge")]:
        name = f"{family.name}_total" if family.type == "counter" else family.name
        found[name] = found.get(name) or set(getattr(family, "_labelnames", ()))  # a Gauge's family does not name them
    bases = {re.sub(r"_(bucket|count|sum|total)$", "", name) for name in found if re.search(r"_(bucket|total)$", name)}
    return {name: labels for name, labels in found.items() if name not in bases}


def rules() -> list[dict[str, Any]]:
    document = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text(encoding="utf-8"))
    return [rule for group in document["groups"] for rule in group["rules"]]


def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((DEPLOY / "grafana" / "msgtx.json").read_text(encoding="utf-8"))
    return found


def expressions() -> Iterator[tuple[str, str]]:
    for rule in rules():
        yield rule["alert"], rule["expr"]
    for panel in dashboard()["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]
    for variable in dashboard()["templating"]["list"]:
        if variable["type"] == "query":
            found = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["definition"])
            assert found is not None
            yield variable["name"], f"sum by ({found[2]}) ({found[1]})"


def test_every_metric_and_label_of_alerts_and_dashboard_is_exported(exported: dict[str, set[str]]) -> None:
    for place, expression in expressions():
        named = metrics_in(expression)
        assert named, place
        assert named <= exported.keys(), place
        known = set[str]().union(*(exported[name] for name in named)) | NOT_OURS
        assert labels_in(expression) <= known, place


def test_the_dashboard_shows_every_metric_of_an_alert() -> None:
    names = {rule["alert"] for rule in rules()}
    asked, shown = set[str](), set[str]()
    for place, expression in expressions():
        found = {re.sub(r"_(bucket|count|sum)$", "", name) for name in metrics_in(expression)}
        (asked if place in names else shown).update(found)
    assert asked <= shown


def test_a_name_tells_its_kind_and_its_unit(exported: dict[str, set[str]], client: msgtx.Client) -> None:
    """Prometheus's conventions: base units, `_total` for counters and for nothing else."""
    process = CollectorRegistry()
    OfProcess(process).watch(client)
    families = [*DaemonMetrics().registry.collect(), *process.collect(), *Gauges(client.runtime.engine).collect()]
    for family in families:
        assert family.name.startswith("msgtx_")
        assert family.documentation.endswith(".")
        assert (f"{family.name}_total" in exported) == (family.type == "counter"), family.name
        assert not re.search(r"_(ms|milliseconds|minutes|kb|kib|mb|percent)(_|$)", family.name), family.name
        if family.type == "histogram":
            assert re.search(r"_(seconds|records|bytes)$", family.name), family.name


def test_an_alert_says_what_is_wrong(tmp_path: Path) -> None:
    names = [rule["alert"] for rule in rules()]
    assert len(names) == len(set(names)) > 10
    for rule in rules():
        assert rule.keys() <= {"alert", "expr", "for", "labels", "annotations"}, rule["alert"]
        assert rule["labels"]["severity"] in {"critical", "warning", "info"}
        assert rule["annotations"]["summary"]
        assert {name.strip() for name in re.findall(r"\$labels\.(\w+)", str(rule["annotations"]))} <= labels_in(rule["expr"])
    promtool = shutil.which("promtool")
    if promtool is not None:
        command = [promtool, "check", "rules", str(DEPLOY / "prometheus" / "alerts.yml")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        lines = [{"record": f"panel:{at}", "expr": re.sub(r"\$__rate_interval", "5m", text).replace("$group", ".*")}
                 for at, (_, text) in enumerate(expressions())]  # fmt: skip
        file = tmp_path / "panels.yml"
        file.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": lines}]}))
        done = subprocess.run([promtool, "check", "rules", str(file)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_dashboards_panels_have_their_own_places() -> None:
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells
    assert {panel["datasource"]["uid"] for panel in panels if panel["type"] != "row"} == {"${datasource}"}


# ── the page ──


def told() -> dict[str, str]:
    """The rows of the tables of metrics: name and what follows."""
    text = PAGE.read_text(encoding="utf-8")
    return dict(re.findall(r"(?m)^\| `(msgtx_\w+)[`{][^|]*\| (.+) \|$", text))


def test_the_page_has_a_row_for_every_metric_with_its_labels(exported: dict[str, set[str]]) -> None:
    shown = {re.sub(r"_(bucket|count|sum)$", "", name) for name in exported}
    assert told().keys() == shown
    text = PAGE.read_text(encoding="utf-8")
    for name, labels in re.findall(r"(?m)^\| `(msgtx_\w+)(?:\{([\w, ]*)\})?`", text):
        known = exported.get(name) or exported.get(f"{name}_count") or set()
        assert {label.strip() for label in labels.split(",")} - {""} == known - {"le"}, name
    for name, row in told().items():
        assert row.count(" | ") == 1, f"{name}: meaning, and what to do"


def test_the_page_names_every_alert() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert set(re.findall(r"`(Msgtx\w+)`", text)) == {rule["alert"] for rule in rules()}


# ── commands and settings ──


def parse(arguments: Iterable[str]) -> list[str]:
    """Parse a command line as msgtx would. Returns the commands that it names. Raise `click.UsageError`."""
    command: click.Command = program
    context: click.Context | None = None
    rest, names = list(arguments), []
    while isinstance(command, click.Group):
        context = command.make_context(command.name, rest, parent=context)
        rest = [*context._protected_args, *context.args]
        name, found, rest = command.resolve_command(context, rest)
        assert found is not None
        assert name is not None
        command = found
        names.append(name)
    command.make_context(command.name, rest, parent=context)
    return names


def test_a_wrong_command_line_is_noticed() -> None:
    assert parse(["coordinator", "run", "--metrics-port", "1"]) == ["coordinator", "run"]
    for wrong in (["coordinator", "go"], ["coordinator", "run", "--port", "1"], ["process", "a", "b:c"], ["sweep", "now"]):
        with pytest.raises(click.UsageError):
            parse(wrong)


def known_settings() -> set[str]:
    fields = {field.name for kind in (ProducerConfig, ConsumerConfig) for field in dataclasses.fields(kind)}
    code = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "msgtx" / "database").rglob("*.py"))
    return {f"MSGTX_{name.upper()}" for name in fields} | set(re.findall(r'"(MSGTX_[A-Z_]+)"', code))


def manifests() -> list[tuple[str, dict[str, Any]]]:
    found = []
    for path in sorted((DEPLOY / "kubernetes").glob("*.yaml")):
        found += [(path.name, each) for each in yaml.safe_load_all(path.read_text(encoding="utf-8"))]
    return found


def pods() -> list[tuple[str, dict[str, Any]]]:
    """The template of every pod: its metadata and spec."""
    found = []
    for name, each in manifests():
        spec = each["spec"].get("jobTemplate", each)["spec"]
        if "template" in spec:
            found.append((name, spec["template"]))
    return found


def test_the_manifests_are_those_that_are_needed() -> None:
    kinds = sorted((name, each["kind"]) for name, each in manifests())
    assert kinds == [
        ("console.yaml", "Deployment"),
        ("console.yaml", "Ingress"),
        ("console.yaml", "Service"),
        ("coordinator.yaml", "Deployment"),
        ("coordinator.yaml", "Service"),
        ("schema.yaml", "Job"),
        ("sweep.yaml", "CronJob"),
        ("worker.yaml", "Deployment"),
    ]
    for name, each in manifests():
        assert each["metadata"]["name"], name
        if each["kind"] == "Deployment":
            assert each["spec"]["selector"]["matchLabels"].items() <= each["spec"]["template"]["metadata"]["labels"].items()


@pytest.mark.parametrize(("name", "template"), pods(), ids=[name for name, _ in pods()])
def test_a_pod_runs_what_there_is(name: str, template: dict[str, Any]) -> None:
    spec = template["spec"]
    (container,) = spec["containers"]
    assert "command" not in container, "the image's own entry point is msgtx"
    commands = parse(container["args"])
    assert commands[0] in {"console", "coordinator", "process", "sweep", "db"}
    settings = {each["name"] for each in container["env"]}
    assert {"MSGTX_EMBEDDED", "MSGTX_DATABASE_URL"} <= settings <= known_settings()
    (uid,) = set(re.findall(r"(?m)^USER (\d+)$", (ROOT / "Dockerfile").read_text(encoding="utf-8")))
    assert spec["securityContext"] | {"runAsNonRoot": True, "runAsUser": int(uid)} == spec["securityContext"]
    assert container["securityContext"]["readOnlyRootFilesystem"]
    ports = {each["name"]: each["containerPort"] for each in container.get("ports", ())}
    pages = {
        "console": {"/static/logo.svg"},
        "coordinator": {"/healthz", "/readyz"},
        "process": {"/healthz"},
    }.get(commands[0], set())
    probes = {container[key]["httpGet"]["path"] for key in ("livenessProbe", "readinessProbe") if key in container}
    assert probes == pages, name
    if "http" in ports:
        assert ports == {"http": int(container["args"][container["args"].index("--port") + 1])}
        assert container["args"][container["args"].index("--host") + 1] == "0.0.0.0"  # noqa: S104
        assert spec["terminationGracePeriodSeconds"] > STREAMS_SECONDS
    elif ports:
        port = container["args"][container["args"].index("--metrics-port") + 1]
        assert ports == {"metrics": int(port)}
        assert template["metadata"]["annotations"]["prometheus.io/port"] == port
        assert container["args"][container["args"].index("--metrics-host") + 1] == "0.0.0.0"  # noqa: S104
        grace = {"process": max(DRAIN_S, DRAIN_SECONDS), "coordinator": HANDOVER_SECONDS}[commands[0]]
        assert spec["terminationGracePeriodSeconds"] > grace


UNITS: Final = sorted((DEPLOY / "systemd").iterdir())


def unit(path: Path) -> dict[str, dict[str, list[str]]]:
    found: dict[str, dict[str, list[str]]] = {}
    section = ""
    for line in path.read_text(encoding="utf-8").splitlines():
        if re.fullmatch(r"\[\w+\]", line):
            section = line[1:-1]
        elif line and not line.startswith("#"):
            key, _, value = line.partition("=")
            found.setdefault(section, {}).setdefault(key, []).append(value)
    return found


# What systemd knows and the units use, so that a wrong name is noticed without systemd, too.
KNOWN: Final = {
    "Unit": {"Description", "After", "Wants", "StartLimitIntervalSec"},
    "Service": {
        "Type", "User", "WorkingDirectory", "Environment", "EnvironmentFile", "ExecStart", "Restart", "RestartSec",
        "RestartPreventExitStatus", "KillSignal", "TimeoutStartSec", "TimeoutStopSec", "MemoryMax", "CapabilityBoundingSet",
        "NoNewPrivileges", "PrivateDevices", "PrivateTmp", "ProtectControlGroups", "ProtectHome", "ProtectKernelTunables",
        "ProtectSystem",
    },
    "Timer": {"OnBootSec", "OnUnitInactiveSec"},
    "Install": {"WantedBy"},
}  # fmt: skip


@pytest.mark.parametrize("path", [path for path in UNITS if path.suffix == ".service"], ids=lambda path: path.name)
def test_a_service_runs_what_there_is(path: Path) -> None:
    service = unit(path)["Service"]
    program, *arguments = shlex.split(service["ExecStart"][0])
    assert program == "/opt/msgtx/bin/msgtx"
    example = re.search(r"(?m)^#   WORKER=(.+)$", path.read_text(encoding="utf-8"))
    assert (example is not None) == ("$WORKER" in arguments)
    if example is not None:
        at = arguments.index("$WORKER")
        arguments[at : at + 1] = shlex.split(example[1])
    commands = parse(arguments)
    settings = {line.partition("=")[0] for line in service["Environment"]}
    assert {"MSGTX_EMBEDDED"} <= settings <= known_settings()
    # The address of a role with other rights than a worker's, and the addresses of a mirror's two ends.
    own = {"console": "/etc/msgtx/console", "mirror": "/etc/msgtx/mirror-%i"}
    assert own.get(commands[0], "/etc/msgtx/environment") in service["EnvironmentFile"]
    if service["Type"] != ["oneshot"]:
        grace = {
            "console": STREAMS_SECONDS,
            "process": max(DRAIN_S, DRAIN_SECONDS),
            "coordinator": HANDOVER_SECONDS,
            "mirror": DRAIN_S,
        }[commands[0]]
        assert float(service["TimeoutStopSec"][0]) > grace


def test_a_timer_has_its_service() -> None:
    names = {path.name for path in UNITS}
    assert names == {
        "msgtx-console.service", "msgtx-coordinator.service", "msgtx-sweep.service", "msgtx-sweep.timer",
        "msgtx-worker@.service", "msgtx-mirror@.service",
    }  # fmt: skip


def test_systemd_reads_the_units(tmp_path: Path) -> None:
    for path in UNITS:
        for section, lines in unit(path).items():
            assert lines.keys() <= KNOWN[section], path.name
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        return  # what it would say beyond that is about this machine
    program = Path(sys.executable).with_name("msgtx")
    for path in UNITS:
        (tmp_path / path.name).write_text(path.read_text(encoding="utf-8").replace("/opt/msgtx/bin/msgtx", str(program)))
    command = [analyze, "verify", "--man=no", *(str(tmp_path / path.name) for path in UNITS)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=os.environ | {"SYSTEMD_LOG_LEVEL": "warning"}
    )
    assert (done.returncode, [line for line in done.stderr.splitlines() if "msgtx" in line]) == (0, []), done.stderr


# ── proxies ──


TEMPORARY: Final = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")  # folders that only root may make
Block = dict[str, list[tuple[list[str], "Block | None"]]]


def nginx(text: str) -> Block:
    """Parse a file of nginx: by the name of a directive its arguments and, of a block, what is in it."""
    words = re.findall(r'"(?:[^"\\]|\\.)*"|[{};]|[^\s{};"]+', re.sub(r"(?m)^\s*#.*$", "", text))
    stack: list[Block] = [{}]
    line: list[str] = []
    for word in words:
        if word == "}":
            assert not line, f"no semicolon behind {line}"
            stack.pop()
        elif word in "{;":
            name, *arguments = line
            block: Block | None = {} if word == "{" else None
            stack[-1].setdefault(name, []).append((arguments, block))
            if block is not None:
                stack.append(block)
            line = []
        else:
            line.append(word.strip('"'))
    assert not line
    assert len(stack) == 1, "a block does not end"
    return stack[0]


def test_a_wrong_file_of_nginx_is_noticed() -> None:
    assert nginx("# x\na b 'c';\nd e { f; }") == {"a": [(["b", "'c'"], None)], "d": [(["e"], {"f": [([], None)]})]}
    for wrong in ("a b", "a { b; ", "a { b }"):
        with pytest.raises((AssertionError, ValueError)):
            nginx(wrong)


def test_nginx_passes_on_what_the_console_needs(tmp_path: Path) -> None:
    file = DEPLOY / "nginx" / "msgtx-console.conf"
    text = file.read_text(encoding="utf-8")
    plain, secure = (block or {} for _, block in nginx(text)["server"])
    assert plain["return"][0][0][0] == "301"
    assert plain["server_name"] == secure["server_name"]
    assert ["443", "ssl"] in [arguments for arguments, _ in secure["listen"]]
    ((_, location),) = secure["location"]
    assert location is not None
    asked = {arguments[0]: arguments[1] for arguments, _ in location["proxy_set_header"]}
    assert asked == {
        "Connection": "",
        "Host": "$http_host",
        "X-Forwarded-Proto": "$scheme",
        "X-Forwarded-For": "$proxy_add_x_forwarded_for",
        "X-Forwarded-User": "",
    }
    assert location["proxy_buffering"][0][0] == ["off"]
    program = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
    if program is not None:
        open_ = (
            re.sub(r"(?m)^ *ssl_certificate.*$", "", text).replace("443 ssl", "18443").replace("listen 80;", "listen 18080;")
        )
        (tmp_path / "msgtx.conf").write_text(open_)  # without a certificate, at ports that anybody may take
        (tmp_path / "nginx.conf").write_text(
            f"pid {tmp_path}/pid; events {{}} http {{ access_log off; include {tmp_path}/msgtx.conf;"
            + "".join(f" {each}_temp_path {tmp_path}/{each};" for each in TEMPORARY)
            + " }"
        )
        command = [program, "-t", "-p", str(tmp_path), "-e", "stderr", "-c", str(tmp_path / "nginx.conf")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


def test_caddy_passes_on_what_the_console_needs() -> None:
    text = (DEPLOY / "caddy" / "Caddyfile").read_text(encoding="utf-8")
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.strip().startswith("#")]
    assert [line for line in lines if line.endswith("{")] == ["console.example.com {", "reverse_proxy 127.0.0.1:8123 {"]
    assert {"header_up -X-Forwarded-User", "flush_interval -1"} <= set(lines)
    assert lines.count("}") == 2
    program = shutil.which("caddy")
    if program is not None:
        command = [program, "validate", "--adapter", "caddyfile", "--config", str(DEPLOY / "caddy" / "Caddyfile")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


def test_the_proxies_and_the_console_name_one_host_and_port() -> None:
    files = ("systemd/msgtx-console.service", "kubernetes/console.yaml", "nginx/msgtx-console.conf", "caddy/Caddyfile")
    for text in ((DEPLOY / name).read_text(encoding="utf-8") for name in files):
        assert set(re.findall(r"[\w.-]+\.example\.com", text)) <= {"console.example.com", "db.example.com"}
        assert "8123" in text


def test_the_services_of_compose_run_what_there_is() -> None:
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))["services"]
    assert parse(services["migrate"]["command"]) == ["db", "upgrade"]
    assert parse(services["console"]["command"]) == ["console"]
    coordinator = services["coordinator"]
    assert parse(coordinator["command"]) == ["coordinator", "run"]
    assert f":{coordinator['command'][coordinator['command'].index('--metrics-port') + 1]}/readyz" in str(
        coordinator["healthcheck"]
    )


# ── the image ──


def test_the_image_has_every_package_of_the_wheel() -> None:
    """A wheel without one of them builds without a word."""
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    copied = {source for line in re.findall(r"(?m)^COPY (?!--)(.+)$", text) for source in line.split()[:-1]}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    packages = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    linked = [path.resolve().name for path in (ROOT / "msgtx").iterdir() if path.is_symlink()]
    assert {
        *packages,
        *linked,
        "pyproject.toml",
        "README.md",
        project["tool"]["hatch"]["metadata"]["hooks"]["custom"]["path"],
        *(name for name in project["project"]["license-files"] if not name.startswith(tuple(packages))),
    } <= copied
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    assert not copied & set(ignored)
