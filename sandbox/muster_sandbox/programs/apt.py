"""apt with a state of its own: what Debian's mirrors have, without root and without touching the machine's apt."""

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
    """The beginning of an apt-get command line; it reads the machine's proxies, and writes nothing outside ``apt``."""
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
        # lists that could not be fetched are an error, not a warning
        'APT::Update::Error-Mode "any";\n'
        # as root apt would switch to a user who cannot read below /root
        'APT::Sandbox::User "root";\n'
        # container images hook cleaners of the system's cache in here; ours is not theirs to clean
        "#clear APT::Update::Post-Invoke;\n"
        "#clear APT::Update::Post-Invoke-Success;\n"
        "#clear DPkg::Post-Invoke;\n"
    )
    # -c and not $APT_CONFIG: the latter is read before the machine's own configuration, which would win
    return ["apt-get", "-qq", "-c", str(apt / "conf")]


def debian_mirrors() -> list[str]:
    """The mirrors that apt is set up with, most likely ones first; reads its configuration and uses no network."""
    # apt-get indextargets would say more, but nothing at all where the lists were never fetched
    listed = subprocess.run(
        ["apt-get", "--print-uris", "update"], capture_output=True, text=True, timeout=60, check=False
    )
    return choose_mirrors(listed.stdout)


def choose_mirrors(uris: str) -> list[str]:
    """From the output of ``apt-get --print-uris update``: lines of ``'URI' FILE SIZE HASH``.

    A mirror of another Debian release carries bookworm too, so it comes last but comes. What is not Debian's falls out
    when it is tried: its lists are not signed with Debian's keys.
    """
    ranked: list[tuple[bool, bool, str]] = []
    for match in re.finditer(r"^'(\S+)/dists/([^/']+)/InRelease'", uris, re.MULTILINE):
        uri, release = match.groups()
        # bookworm-security and the like hold no whole release
        if "-" not in release:
            ranked.append((release != SUITE, not uri.endswith("/debian"), uri))
    return list(dict.fromkeys(uri for _, _, uri in sorted(ranked)))


@contextlib.contextmanager
def build_lock(path: Path, say: Callable[[str], None]) -> Iterator[None]:
    """One builder at a time; ends with its holder, however that ends."""
    with path.open("w") as held:
        told = 0.0
        while True:
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() - told > HEARTBEAT_S:
                    say("waiting: another process is building it")
                    told = time.monotonic()
                time.sleep(0.5)
        yield


def remove_tree(directory: Path) -> None:
    """Remove a tree with read-only directories in it too; it may be gone already."""
    if not directory.exists():
        return
    for folder, _, _ in os.walk(directory):
        Path(folder).chmod(0o700)
    shutil.rmtree(directory)
