"""Values that are missing: null was given for them, or they are an older chart's (``helm upgrade --reuse-values``)."""

from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from tests.chart.helm_render import CHART, Helm, Refused
from tests.wording.facts import missing_facts

VALUES: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())


def paths(node: dict[str, Any], before: str = "") -> Iterator[tuple[str, object]]:
    """Of all values that are no section; `{}` is a value, not a section."""
    for name, value in node.items():
        if isinstance(value, dict) and value and f"{before}{name}" not in FREE:
            yield from paths(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value


# objects whose content is Kubernetes' own, by default not empty
FREE = {
    "agent.resources",
    "tainter.resources",
    "controller.resources",
    "controller.podSecurityContext",
    "grafana.dashboards.labels",
}
MISSABLE = {path for path, value in paths(VALUES) if isinstance(value, dict | list)}
NEEDED = {path for path, _ in paths(VALUES)} - MISSABLE


def given_null(names: set[str]) -> list[str]:
    return [word for name in sorted(names) for word in ("--set", f"{name}=null")]


def test_every_value_that_is_missing_is_named_with_what_to_type(helm: Helm) -> None:
    with pytest.raises(Refused) as error:
        helm.template(*given_null(NEEDED))

    lines = str(error.value).splitlines()
    for path in NEEDED:
        section, _, name = path.rpartition(".")
        assert f"- {section or '(root)'}: {name} is required" in lines
    assert not missing_facts(str(error.value), "helm upgrade --reset-then-reuse-values", "--reuse-values")


@pytest.mark.parametrize("section", [name for name, value in VALUES.items() if isinstance(value, dict) and value])
def test_a_section_that_is_missing_is_named(helm: Helm, section: str) -> None:
    with pytest.raises(Refused, match=rf"\(root\): {section} is required"):
        helm.template("--set", f"{section}=null")


def test_a_map_or_list_that_is_missing_is_an_empty_one(helm: Helm) -> None:
    empty = MISSABLE - FREE - {"agent.tolerations"}

    assert helm.template(*given_null(empty)) == helm.template()
    assert helm.template(*given_null(FREE | {"agent.tolerations"})).agent["spec"]["template"]["spec"]["containers"]
