"""Runs apt with its own state, to download Debian packages without root and without changing the machine's apt."""

import contextlib
import fcntl
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from muster_sandbox.programs.requirements import KEYRING

SUITE = "bookworm"
HEARTBEAT_S = 20


def apt_get(apt: Path, mirror: str) -> list[str]:
    """The start of an apt-get command line. It uses the machine's proxy settings and writes only below ``apt``."""
    remove_tree(apt)
    for directory in ("empty", "lists/partial", "cache/archives/partial"):
        (apt / directory).mkdir(parents=True)
    (apt / "status").touch()
    (apt / "sources.list").write_text(
        "".join(f"{kind} [signed-by={KEYRING}] {mirror} {SUITE} main\n" for kind in ("deb", "deb-src"))
    )
    (apt / "conf").write_text(
        f'Dir::Etc::SourceList "{apt}/sources.list";\n'
        f'Dir::Etc::SourceParts "{apt}/empty";\n'
        f'Dir::Etc::Preferences "{apt}/none";\n'
        f'Dir::Etc::PreferencesParts "{apt}/empty";\n'
        f'Dir::State "{apt}";\n'
        f'Dir::State::Lists "{apt}/lists";\n'
        f'Dir::State::Status "{apt}/status";\n'
        f'Dir::Cache "{apt}/cache";\n'
        'Acquire::Languages "none";\n'
        'Acquire::Retries "3";\n'
        # report lists that cannot be fetched as an error, not as a warning
        'APT::Update::Error-Mode "any";\n'
        # as root apt would switch to a user who cannot read below /root
        'APT::Sandbox::User "root";\n'
        # container images have hooks here that clean apt's cache, which must not delete ours
        "#clear APT::Update::Post-Invoke;\n"
        "#clear APT::Update::Post-Invoke-Success;\n"
        "#clear DPkg::Post-Invoke;\n"
    )
    # -c and not $APT_CONFIG, because the machine's configuration would override the latter
    return ["apt-get", "-qq", "-c", str(apt / "conf")]


def debian_mirrors() -> list[str]:
    """The configured mirrors, most suitable first. Reads apt's configuration without using the network."""
    # apt-get indextargets prints more, but nothing if the lists were never fetched
    listed = subprocess.run(
        ["apt-get", "--print-uris", "update"], capture_output=True, text=True, timeout=60, check=False
    )
    return choose_mirrors(listed.stdout)


def choose_mirrors(uris: str) -> list[str]:
    """From the output of ``apt-get --print-uris update``: lines of ``'URI' FILE SIZE HASH``.

    A mirror of another Debian release has bookworm too, so it is tried last. Mirrors of other distributions fail when
    they are tried, because Debian's keys have not signed their lists.
    """
    ranked: list[tuple[bool, bool, str]] = []
    for match in re.finditer(r"^'(\S+)/dists/([^/']+)/InRelease'", uris, re.MULTILINE):
        uri, release = match.groups()
        # bookworm-security and similar suites are not complete releases
        if "-" not in release:
            ranked.append((release != SUITE, not uri.endswith("/debian"), uri))
    return list(dict.fromkeys(uri for _, _, uri in sorted(ranked)))


@contextlib.contextmanager
def build_lock(path: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Lets one process build at a time. The lock ends with its process."""
    with path.open("w") as held:
        last_message = 0.0
        while True:
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() - last_message > HEARTBEAT_S:
                    say("waiting for another process that is building it")
                    last_message = time.monotonic()
                time.sleep(0.5)
        yield


def remove_tree(directory: Path) -> None:
    """Delete a tree, including read-only directories, if it exists."""
    if not directory.exists():
        return
    for folder, _, _ in os.walk(directory):
        Path(folder).chmod(0o700)
    shutil.rmtree(directory)
