"""`make manifests`: the chart as plain YAML that kubectl can apply in the order it stands."""

from pathlib import Path

import pytest
import yaml
from release.manifests import PLACE, write
from tests.chart.helm_render import Refused
from tests.docs.checkout import checkout
from tests.docs.command_list import commands_of_test
from tests.docs.command_runner import CommandRunner


def test_plain_yaml_holds_the_installation_and_apart_what_goes_before_its_end(tmp_path: Path) -> None:
    folder = checkout(tmp_path / "muster")
    (folder / "values.yaml").write_text(
        "namespace: {name: fleet}\ncontroller: {enabled: false}\nvipuProxy: {enabled: false}\n"
    )
    out = folder / PLACE
    out.mkdir(parents=True)
    (out / "of-yesterday.yaml").touch()

    (line,) = lines = commands_of_test(__file__)
    files = [folder / name for name in CommandRunner(lines, {}, {}, folder).type(line).splitlines()]

    assert [file.name for file in files] == [
        "crd-graphcore.ai_ipujobs.yaml",
        "crd-muster.dev_nodehealths.yaml",
        "muster.yaml",
        "before-uninstall.yaml",
    ]
    assert sorted(out.iterdir()) == sorted(files)
    objects = list(yaml.safe_load_all((out / "muster.yaml").read_text()))
    kinds = [each["kind"] for each in objects]
    assert kinds[0] == "Namespace"
    assert kinds.index("ServiceAccount") < kinds.index("Deployment")
    assert {"DaemonSet", "ValidatingAdmissionPolicy"} <= set(kinds)
    assert "Job" not in kinds, "it would take every taint off at once"
    (agent,) = [each for each in objects if each["kind"] == "DaemonSet"]
    assert agent["metadata"]["namespace"] == "fleet"
    text = "".join(file.read_text() for file in files)
    assert "helm.sh/hook" not in text
    assert "managed-by: Helm" not in text
    last = list(yaml.safe_load_all((out / "before-uninstall.yaml").read_text()))
    assert [each["metadata"]["name"] for each in last if each["kind"] == "Job"] == ["muster-release"]


def test_a_value_that_is_refused_leaves_the_files_of_before(tmp_path: Path) -> None:
    (tmp_path / "muster.yaml").touch()
    with pytest.raises(Refused, match="tainter"):
        write(["--set", "tainter.replicas=none"], tmp_path, tmp_path / "helm")
    assert (tmp_path / "muster.yaml").exists()
