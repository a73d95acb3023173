"""``make manifests ARGS="-f values.yaml"``: renders the chart as plain YAML, for clusters without helm.

Without helm, its hooks do not run. The job that removes everything Muster has set on Nodes is therefore a separate
file, to be applied before the rest is deleted.
"""

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import yaml
from tests.chart.helm_render import CHART, Helm, Object, Refused

PLACE = Path("build/manifests")  # as docs/install.md calls it
OUT = Path(__file__).resolve().parents[1] / PLACE
NOTE = "# made by `make manifests`: edits are overwritten\n"
HOOK = "helm.sh/hook"
# dependencies first, because kubectl applies objects in the order of the file
_FIRST = (
    "Namespace",
    "ServiceAccount",
    "Secret",
    "ConfigMap",
    "ClusterRole",
    "ClusterRoleBinding",
    "Role",
    "RoleBinding",
)


def split(objects: Sequence[Object]) -> dict[str, list[Object]]:
    """Objects by file name, in the order in which to apply them."""
    hooks = [each for each in objects if _hook(each)]
    rest = sorted((each for each in objects if not _hook(each)), key=lambda each: _rank(each["kind"]))
    return {
        "muster.yaml": [_plain(each) for each in rest],
        "before-uninstall.yaml": [_plain(each) for each in hooks if "pre-delete" in _hook(each)],
    }


def _hook(body: Object) -> str:
    return str((body["metadata"].get("annotations") or {}).get(HOOK, ""))


def _rank(kind: str) -> int:
    return _FIRST.index(kind) if kind in _FIRST else len(_FIRST)


def _plain(body: Object) -> Object:
    """The object without helm's annotations and labels."""
    metadata = body["metadata"]
    labels = {key: value for key, value in metadata.get("labels", {}).items() if key != "app.kubernetes.io/managed-by"}
    notes = {key: value for key, value in (metadata.get("annotations") or {}).items() if not key.startswith(HOOK)}
    kept = {key: value for key, value in metadata.items() if key not in ("labels", "annotations")}
    return body | {
        "metadata": kept | ({"labels": labels} if labels else {}) | ({"annotations": notes} if notes else {})
    }


def write(arguments: Sequence[str], out: Path, home: Path) -> list[Path]:
    """Write the files, CRDs first. Raises Refused with helm's error message."""
    printed = Helm(home).run("template", "muster", str(CHART), "--namespace", "default", *arguments)
    objects = [each for each in yaml.safe_load_all(printed) if each]
    out.mkdir(parents=True, exist_ok=True)
    for old in out.glob("*.yaml"):
        old.unlink()
    files = []
    for crd in sorted((CHART / "crds").glob("*.yaml")):
        files.append(out / f"crd-{crd.name}")
        files[-1].write_text(crd.read_text())
    for name, bodies in split(objects).items():
        if bodies:
            files.append(out / name)
            files[-1].write_text(NOTE + yaml.safe_dump_all(bodies, sort_keys=False))
    return files


def main(arguments: Sequence[str]) -> int:
    try:
        with tempfile.TemporaryDirectory(prefix="muster-helm-") as home:
            files = write(arguments, OUT, Path(home))
    except Refused as error:
        print(f"muster: {str(error).strip()}", file=sys.stderr)
        return 1
    for file in files:
        print(file.relative_to(OUT.parents[1]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
