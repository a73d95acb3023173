"""The documents name only existing things: values of the chart, metrics, files, and objects that the chart creates."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from tests.chart.helm_render import Helm, Rendered
from tests.docs.chart_values import SCHEMA, is_value
from tests.docs.document_commands import ROOT, Command, commands, documents

METRICS = (ROOT / "docs/metrics.md").read_text()
OTHERS = {
    "grafana.sidecar.dashboards.searchNamespace",
    "controllers.yaml",
}  # a value of another chart; a key of a ConfigMap
# names that look like metrics: packages, the file of a plug-in, and the fixture of its test
ROOMS = {path.name for path in ROOT.glob("*/muster_*")} | {"muster_loadavg", "muster_node"}
# created by the parts at run time: kind, name, namespace
MADE = {
    ("configmap", "muster-pause", "autopilot"),
    ("configmap", "muster-ipu-quarantine", "autopilot"),
    ("configmap", "ipu-partitions-tracker", "default"),
    ("lease", "muster-tainter", "autopilot"),
    ("lease", "muster-operator", "default"),
    ("secret", "muster-own-node", "autopilot"),
}
SELECTED = {"-l", "--selector"}
GIVEN = {"-n", "--namespace", "-o", "-c", "-f", "-p", "--type", "--field-selector", "-L", "--kubeconfig"}


@pytest.fixture(scope="module")
def rendered(tmp_path_factory: pytest.TempPathFactory) -> Rendered:
    """The chart with the tainter's webhooks, which pages describe."""
    return Helm(tmp_path_factory.mktemp("helm")).template("--set", "ownNode.mode=webhook,nodeKeys.mode=webhook")


def values() -> Iterator[tuple[str, str]]:
    """Yields the place and the path of each value whose first key is one of the chart's."""
    for page in documents():
        for number, line in enumerate(page.read_text().splitlines(), 1):
            for path in re.findall(r"`([A-Za-z]+(?:\.[A-Za-z_]+)+)(?:[=:][^`]*)?`", line):
                if path.partition(".")[0] in SCHEMA["properties"] and path not in OTHERS:
                    yield f"{page.relative_to(ROOT)}:{number}", path.replace(".NAME.", ".ping.")


def test_a_value_in_a_page_is_one_of_the_chart() -> None:
    named = list(values())
    assert len(named) > 100
    assert not [f"{where}: {path}" for where, path in named if not is_value(path)]
    assert not is_value("ipuJobs.scope")


OF_JOBS = {"muster_step_work_total"}  # what only a job's own program serves


def test_a_metric_in_a_page_exists() -> None:
    for page in documents():
        for name in set(re.findall(r"\b(?:muster|autopilot)_[a-z_]*[a-z]\b", page.read_text())) - ROOMS - OF_JOBS:
            known = {name, re.sub(r"_(total|bucket|sum|count)$", "", name)}
            assert any(each in METRICS for each in known), f"{page.relative_to(ROOT)}: {name}"


class KubectlQuery:
    """The objects that a kubectl command selects. namespace: "" if it names none; selector: its labels."""

    def __init__(self, command: Command) -> None:
        self.namespace, self.selector = "", {}
        plain: list[str] = []
        words = list(command.words[1:])
        while words:
            word = words.pop(0)
            flag, equals, text = word.partition("=")
            if word.startswith("-") and (flag in SELECTED | GIVEN):
                text = text if equals else (words.pop(0) if words else "")
                if flag in SELECTED:
                    self.selector = dict(each.partition("=")[::2] for each in text.split(","))
                if flag in ("-n", "--namespace"):
                    self.namespace = text
            elif word == "--":
                break
            elif not word.startswith("-"):
                plain.append(word)
        self.verb = plain[0] if plain else ""
        kind, _, name = (plain[1] if len(plain) > 1 else "").partition("/")
        self.kind = _singular("pod" if self.verb == "logs" and not name else kind)
        self.names = [name] if name else plain[2:3]


def _singular(kind: str) -> str:
    kind = {"deploy": "deployment", "svc": "service", "ds": "daemonset", "po": "pod"}.get(kind, kind)
    return kind.lower().removesuffix("s")


def labels(rendered: Rendered, kind: str) -> list[dict[str, str]]:
    if kind == "pod":
        return [
            each["spec"]["template"]["metadata"]["labels"] for each in rendered.objects if "template" in _spec(each)
        ]
    return [each["metadata"].get("labels", {}) for each in rendered.objects if each["kind"].lower() == kind]


def _spec(body: dict[str, Any]) -> dict[str, Any]:
    return body.get("spec") or {}


def wrong(command: Command, rendered: Rendered) -> str:
    """Why the command finds nothing in release `gc` (or `muster`, for names that contain it); empty if it finds
    something or selects other objects."""
    query = KubectlQuery(command)
    ours = {key: value for key, value in query.selector.items() if key.startswith("app") or key == "component"}
    if ours and not any(ours.items() <= each.items() for each in labels(rendered, query.kind)):
        return f"no {query.kind} has the labels {ours}"
    places = {
        (each["kind"].lower(), each["metadata"]["name"], each["metadata"].get("namespace", ""))
        for each in rendered.objects
    } | MADE
    for name in (re.sub("^muster-ipu-operator-", "gc-ipu-operator-", each) for each in query.names):
        there = [place for kind, named, place in places if (kind, named) == (query.kind, name)]
        if query.verb == "create" or not re.match(r"(muster|gc|autopilot|ipu)-", name):
            continue
        if not there:
            return f"there is no {query.kind} {name}"
        if (
            query.namespace
            and {"NAMESPACE": "default", "RELEASE-NAMESPACE": "default"}.get(query.namespace, query.namespace)
            not in there
        ):
            return f"{query.kind} {name} is in {there[0]}"
    return ""


def test_a_kubectl_command_finds_an_object_of_the_chart(rendered: Rendered) -> None:
    lines = [each for page in documents() for each in commands(page) if each.words[0] == "kubectl"]
    assert not [f"{each.where}: {' '.join(each.words)}: {why}" for each in lines if (why := wrong(each, rendered))]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("kubectl get configmap -A -l app=muster-vipu-proxy", "has the labels"),
        ("kubectl logs -n autopilot -l app=muster-operators", "has the labels"),
        ("kubectl -n muster port-forward deployment/muster-tainter 3334", "is in autopilot"),
        ("kubectl get configmap muster-ipu-quarantine -n RELEASE-NAMESPACE -o yaml", "is in autopilot"),
        ("kubectl logs -n NAMESPACE deploy/gc-controller", "there is no deployment"),
    ],
)
def test_a_kubectl_command_that_finds_nothing_is_reported(rendered: Rendered, line: str, why: str) -> None:
    assert why in wrong(Command(tuple(line.split()), "here"), rendered)


def test_a_file_that_a_page_names_exists() -> None:
    folders = {path.name for path in ROOT.iterdir() if path.is_dir()}
    named = [
        (page.relative_to(ROOT), path)
        for page in documents()
        for path in re.findall(r"`([\w-]+/[\w./-]+\.(?:py|yaml|json|md|csv))`", page.read_text())
        if path.partition("/")[0] in folders
    ]
    assert len(named) > 40
    in_the_guide = {
        "checks/muster_checks/hugepages",
        "tests/checks/hugepages",
    }  # files that readers of CONTRIBUTING.md write
    assert not [
        f"{page}: {path}"
        for page, path in named
        if not (ROOT / path).exists() and path.rpartition("/")[0] not in in_the_guide
    ]
