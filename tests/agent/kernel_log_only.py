"""Settings of an agent whose one check is the kernel log's: what ails the machine the tests run on decides nothing."""

from pathlib import Path

import yaml

from muster_checks.registry import load_registry


def kernel_log_only(folder: Path, parameters: dict[str, object] | None = None, **settings: object) -> Path:
    """A file for ``--config``. parameters: dmesg's own; settings: any others of the agent."""
    checks: dict[str, object] = {name: {"enabled": False} for name in load_registry()}
    checks["dmesg"] = {"parameters": parameters or {}}
    file = folder / "agent.yaml"
    file.write_text(yaml.safe_dump({**settings, "checks": checks}))
    return file
