"""``make lock``: writes requirements/: all packages that Muster installs, with versions and the hashes of their files.
pip then installs nothing else (``--require-hashes``).

uv resolves them, for every platform and from Python 3.11.2 (Debian 12) on. It keeps the versions of the present files;
``ARGS=--upgrade`` takes the newest, ``ARGS="--upgrade-package NAME"`` that of one package. pip-tools was considered: it
resolves only for the machine that it runs on.
"""

import os
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

from muster_sandbox.image.requirements import image_requirements

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "requirements"
UV = ROOT / ".venv/lock/bin/uv"
PYTHON = "3.11.2"  # of Debian 12: packages.debian.org/bookworm/python3
WHOLE = "environment"  # the others take their versions from it
ALONE = "older-schemas"  # another version of a package in the environment, without what it needs
# what a package asks for and Muster never uses: selenium's second protocol. httpcore2 would load trio into each process
# that finds it, for 0.15 s and 4 MB, and the image has none
LEFT_OUT = ("trio", "trio-websocket")


def inputs(pyproject: str) -> Mapping[str, Sequence[str]]:
    """The requirements of each file, by its name."""
    given = tomllib.loads(pyproject)
    project, groups = given["project"], given["dependency-groups"]
    extras = project["optional-dependencies"]
    build = given["build-system"]["requires"]
    return {
        WHOLE: [*project["dependencies"], *extras["traces"], *extras["dev"], *build],
        "command-line": [*project["dependencies"], *build],
        "image": image_requirements(pyproject),
        "build": build,
        "lock": groups["lock"],
        "mutation": groups["mutation"],
        ALONE: groups[ALONE],
    }


def lock(name: str, wanted: Sequence[str], arguments: Sequence[str]) -> int:
    """uv's exit status."""
    options = ["--universal", "--python-version", PYTHON, "--generate-hashes", "--no-annotate", "--quiet"]
    options.append("--system-certs")  # as pip: a company's proxy has a certificate of its own
    if name == ALONE:
        options.append("--no-deps")
    elif name not in (WHOLE, "lock"):
        options += ["--constraint", str(FOLDER / f"{WHOLE}.txt")]
    environ = {**os.environ, "UV_CUSTOM_COMPILE_COMMAND": "make lock"}
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as overrides:
        overrides.writelines(f"{each}; python_version < '3'\n" for each in LEFT_OUT)
        overrides.flush()
        options += ["--override", overrides.name]
        command = [str(UV), "pip", "compile", *options, *arguments, "--output-file", str(FOLDER / f"{name}.txt"), "-"]
        ended = subprocess.run(command, input="\n".join(wanted), text=True, cwd=ROOT, env=environ, check=False)
    return ended.returncode


def main(arguments: Sequence[str]) -> int:
    for name, wanted in inputs((ROOT / "pyproject.toml").read_text()).items():
        if code := lock(name, wanted, arguments):
            print(f"muster: requirements/{name}.txt was not written", file=sys.stderr)
            return code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
