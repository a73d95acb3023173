"""How this machine's apt and pip reach their mirrors, for a root file system that is made by a test."""

import ast
import re
import subprocess
import sys
from pathlib import Path


def apt_settings() -> str:
    """For apt.conf: proxies and the like."""
    dump = subprocess.run(["apt-config", "dump"], capture_output=True, text=True, timeout=60, check=True).stdout
    return "".join(re.findall(r"^Acquire::(?:http|https|Check-\w+)\b.*\n", dump, re.MULTILINE))


def certificates() -> Path | None:
    """What pip is told to check servers by, if it is."""
    named = _pip().get("cert")
    return Path(named) if named else None


def pip_settings(certificates_there: str) -> str:
    """For pip.conf. ``certificates_there``: where a copy of :func:`certificates` lies."""
    found = _pip()
    if "cert" in found:
        found["cert"] = certificates_there
    return "[global]\n" + "".join(f"{key} = {value}\n" for key, value in found.items())


def _pip() -> dict[str, str]:
    """Of two values, that of the environment."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "config", "list"]
    listed = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    found = re.findall(r"^(?:global|install|:env:)\.(cert|index-url|proxy|trusted-host)=(.*)$", listed, re.MULTILINE)
    environment_last = sorted(found, key=lambda each: f":env:.{each[0]}={each[1]}" in listed)
    return {key: str(ast.literal_eval(value)) for key, value in environment_last}
