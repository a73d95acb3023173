"""Builds Kubernetes 1.20.2 and unpacks etcd 3.4 from packages of Debian bookworm: once, in about five minutes.

Debian 12 has the source of Kubernetes (for its client) and a package of etcd, so the build needs only a Debian mirror
and no root. The binaries are for tests on loopback only: 1.20 gets no security fixes.

The build uses one temporary directory next to the result, and renames the result at the end. It needs about 2.9 GB of
disk and 1.6 GB of memory; the result has 270 MB, the kubelet 90 MB more. Programs that are requested together are
compiled together, which saves half the time of a second build.
"""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from muster_sandbox.processes import ProcessReaper, spawn
from muster_sandbox.programs.apt import apt_get, build_lock, debian_mirrors, remove_tree
from muster_sandbox.programs.binaries import KUBELET, PROGRAMS, NoControlPlane, is_complete
from muster_sandbox.programs.requirements import AGAIN_AFTER_S, install_command, missing_packages

VERSION = "1.20.2"
DISK_BYTES = 3_500_000_000
BINARY_PACKAGES = ("golang-1.19-go", "golang-1.19-src", "golang-github-modern-go-reflect2-dev", "etcd-server")
NEEDS_NO_OPENAPI = set(KUBELET)
STEP_LIMIT_S = 3600
HEARTBEAT_S = 20
ALTERNATIVE = f"set KUBEBUILDER_ASSETS to a folder with {', '.join(PROGRAMS)}"
_OPENAPI_MARK = re.compile(rb"^// *\+k8s:openapi-gen=", re.MULTILINE)


def build(
    cache: Path,
    wanted: Mapping[str, Sequence[str]],
    progress: Callable[[str], None],
    *,
    again_after_s: Sequence[float] = AGAIN_AFTER_S,
) -> None:
    """Build ``wanted``, programs by folder below ``cache``, unless another process has done so meanwhile.

    ``again_after_s``: pauses between attempts to fetch. Raises NoControlPlane, which says what to do. After a failure
    only an empty lock file remains.
    """
    missing = missing_packages()
    if missing:
        raise NoControlPlane(
            f"building the control plane needs Debian's {', '.join(missing)}: {install_command(missing)} "
            f"(or {ALTERNATIVE})"
        )
    cache.mkdir(parents=True, exist_ok=True)
    say = _Clock(progress)
    with build_lock(cache / "lock", say):
        lacking = {name: programs for name, programs in wanted.items() if not is_complete(cache / name, programs)}
        if not lacking:
            return
        for stale in cache.glob("build-*"):  # left by a killed builder: we hold the lock, so it is not in use
            remove_tree(stale)
        _require_space(cache)
        work = Path(tempfile.mkdtemp(prefix="build-", dir=cache))
        reaper = ProcessReaper()
        try:
            reaper.remove_at_end(work)
            _Build(work, reaper, say, again_after_s).run([each for programs in lacking.values() for each in programs])
            for name, programs in lacking.items():
                result = work / name
                result.mkdir()
                for program in programs:
                    (work / "bin" / program).rename(result / program)
                remove_tree(cache / name)
                result.rename(cache / name)
        finally:
            reaper.close()
            remove_tree(work)
        say(f"done: {', '.join(str(cache / name) for name in lacking)}")


class _Clock:
    """Progress lines with the seconds since the start."""

    def __init__(self, progress: Callable[[str], None]) -> None:
        self._progress = progress
        self._start = time.monotonic()

    def __call__(self, line: str) -> None:
        self._progress(f"[control plane {time.monotonic() - self._start:3.0f} s] {line}")


class _Build:
    def __init__(self, work: Path, reaper: ProcessReaper, say: _Clock, again_after_s: Sequence[float]) -> None:
        self._work = work
        self._reaper = reaper
        self._say = say
        self._again_after_s = again_after_s
        self._log = work / "log"
        self._root = work / "root"  # the unpacked Debian packages
        self._gopath = work / "gopath"
        self._source = self._gopath / "src" / "k8s.io" / "kubernetes"

    def run(self, programs: Sequence[str]) -> None:
        """Build ``programs`` into ``bin``."""
        for directory in ("bin", "tmp"):
            (self._work / directory).mkdir()
        self._fetch()
        self._unpack()
        if not NEEDS_NO_OPENAPI.issuperset(programs):
            self._generate_openapi()
        self._compile([program for program in programs if program != "etcd"])
        result = self._work / "bin"
        shutil.copy2(self._root / "usr" / "bin" / "etcd", result / "etcd")
        for program in programs:
            self._step([str(result / program), "--version"], f"trying {program}")

    def _fetch(self) -> None:
        """Fetch from the first mirror that has everything. Tries all mirrors again after each pause."""
        mirrors = debian_mirrors()
        if not mirrors:
            raise NoControlPlane(f"apt has no Debian source (see sources.list(5)); {ALTERNATIVE}")
        problems: list[str] = []
        for pause_s in (0.0, *self._again_after_s):
            if problems:
                self._say(f"will retry in {pause_s:.0f} s: {problems[0].splitlines()[0]}")
                time.sleep(pause_s)
                problems = []
            for mirror in mirrors:
                try:
                    self._fetch_from(mirror)
                except NoControlPlane as error:
                    problems.append(str(error))
                else:
                    return
        raise NoControlPlane(problems[0])

    def _fetch_from(self, mirror: str) -> None:
        debs = self._work / "debs"
        remove_tree(debs)  # from an earlier attempt
        debs.mkdir()
        apt = apt_get(self._work / "apt", mirror)
        self._step([*apt, "update"], f"fetching the package lists of {mirror}")
        self._step([*apt, "download", *BINARY_PACKAGES], "fetching a Go compiler and etcd", cwd=debs)
        self._step([*apt, "source", "--download-only", "kubernetes"], "fetching the source of Kubernetes", cwd=debs)

    def _unpack(self) -> None:
        debs = self._work / "debs"
        for package in sorted(debs.glob("*.deb")):
            self._step(["dpkg-deb", "-x", str(package), str(self._root)], f"unpacking {package.name.split('_')[0]}")
        archives = list(debs.glob("kubernetes_*.orig.tar.gz"))
        if len(archives) != 1 or VERSION not in archives[0].name:
            raise NoControlPlane(f"Debian's source of Kubernetes is {archives}, expected {VERSION}; {ALTERNATIVE}")
        self._step(["tar", "-xzf", str(archives[0]), "-C", str(self._work)], "unpacking Kubernetes")
        self._source.parent.mkdir(parents=True)
        next(self._work.glob("kubernetes-*")).rename(self._source)
        # The vendored reflect2 1.0.1 depends on Go internals and panics with Go 1.18 and later at the first merge
        # patch. Debian's version 1.0.2 fixes that.
        vendored = self._source / "vendor" / "github.com" / "modern-go" / "reflect2"
        remove_tree(vendored)
        shutil.copytree(self._root / "usr/share/gocode/src/github.com/modern-go/reflect2", vendored)

    def _generate_openapi(self) -> None:
        """Generate the one file that Debian's source package omits."""
        generator = self._work / "openapi-gen"
        self._go(
            ["build", "-o", str(generator), "./vendor/k8s.io/kube-openapi/cmd/openapi-gen"], "compiling openapi-gen"
        )
        command = [
            str(generator),
            "--logtostderr",
            *("-h", "hack/boilerplate/boilerplate.generatego.txt"),
            *("-i", ",".join(f"k8s.io/kubernetes/{package}" for package in openapi_packages(self._source))),
            *("-p", "k8s.io/kubernetes/pkg/generated/openapi"),
            *("-O", "zz_generated.openapi"),
            *("-r", "/dev/null"),
        ]
        self._step(command, "generating the OpenAPI definitions", cwd=self._source, environ=self._go_environ())

    def _compile(self, programs: Sequence[str]) -> None:
        # the output of `kube-apiserver --version` and /version, which the release script takes from git
        flags = ["-s", "-w"]
        for package in ("component-base/version", "client-go/pkg/version"):
            place = f"k8s.io/kubernetes/vendor/k8s.io/{package}"
            for key, value in (
                ("gitVersion", f"v{VERSION}"),
                ("gitMajor", "1"),
                ("gitMinor", "20"),
                ("gitTreeState", "clean"),
                ("buildDate", "2021-01-13T00:00:00Z"),
            ):
                flags += ["-X", f"{place}.{key}={value}"]
        commands = [f"./cmd/{program}" for program in programs]
        output = f"{self._work / 'bin'}/"  # the slash marks a folder
        self._go(
            ["build", "-trimpath", "-ldflags", " ".join(flags), "-o", output, *commands],
            f"compiling {', '.join(programs)} (the long one: three to five minutes on two cores)",
        )

    def _go(self, arguments: Sequence[str], what: str) -> None:
        go = self._root / "usr/lib/go-1.19/bin/go"
        self._step([str(go), *arguments], what, cwd=self._source, environ=self._go_environ())

    def _go_environ(self) -> dict[str, str]:
        goroot = self._root / "usr/lib/go-1.19"
        return {
            **os.environ,
            "PATH": f"{goroot / 'bin'}:{os.environ.get('PATH', os.defpath)}",
            "GOROOT": str(goroot),
            "GOPATH": str(self._gopath),
            # GOPATH mode: this version of Go does not accept its old go.mod in module mode
            "GO111MODULE": "off",
            "GOENV": "off",
            "GOFLAGS": "",
            "CGO_ENABLED": "0",
            "GOCACHE": str(self._work / "gocache"),
            "GOTMPDIR": str(self._work / "tmp"),
            "TMPDIR": str(self._work / "tmp"),
        }

    def _step(
        self,
        command: Sequence[str],
        what: str,
        *,
        cwd: Path | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        """Run one command. Raises NoControlPlane with the end of its output."""
        self._say(what)
        with self._log.open("wb") as log:
            process = spawn(command, self._reaper, output=log, cwd=cwd or self._work, environ=environ)
        deadline = time.monotonic() + STEP_LIMIT_S
        try:
            while True:
                try:
                    code = process.wait(timeout=HEARTBEAT_S)
                    break
                except subprocess.TimeoutExpired:
                    if time.monotonic() > deadline:
                        raise NoControlPlane(f"{what}: not finished within {STEP_LIMIT_S} s") from None
                    self._say(f"still {what.partition(' (')[0]}")
        finally:
            # after Ctrl-C the compiler is still running here
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            self._reaper.forget(process.pid)
        if code:
            tail = "\n".join(self._log.read_text(errors="replace").splitlines()[-15:])
            raise NoControlPlane(f"{what}: {Path(command[0]).name} ended with {code}; {ALTERNATIVE}\n{tail}")


def openapi_packages(source: Path) -> list[str]:
    """Packages below ``source`` that ask for OpenAPI definitions, as its own generator script finds them."""
    places = [source / name for name in ("cmd", "pkg", "plugin")]
    skipped = {"code-generator", "sample-apiserver"}
    # follow symbolic links into staging/, but use the names of the links
    places += [place for place in sorted((source / "vendor/k8s.io").iterdir()) if place.name not in skipped]
    found = []
    for place in places:
        for directory, subdirectories, files in os.walk(f"{place}/"):
            subdirectories[:] = [name for name in subdirectories if name not in ("_examples", "testdata")]
            paths = [Path(directory, name) for name in files if name.endswith(".go")]
            if any(path.is_file() and _OPENAPI_MARK.search(path.read_bytes()) for path in paths):
                found.append(str(Path(directory).relative_to(source)))
    return sorted(found)


def _require_space(directory: Path) -> None:
    free = shutil.disk_usage(directory).free
    if free < DISK_BYTES:
        raise NoControlPlane(
            f"{directory} has {free / 1e9:.1f} GB free; building the control plane needs {DISK_BYTES / 1e9:.1f} GB: "
            f"free some space, set XDG_CACHE_HOME to another disk, or {ALTERNATIVE}"
        )
