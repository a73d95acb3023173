"""Reads kernel limits and states from /proc and /sys.

psutil is not used: it does not obey ``--root``, and of these values it knows only the number of processes.
"""

from muster_checks.base.bounded_read import names_in, read_integer, read_text
from muster_checks.base.declaration import NodeView
from muster_checks.base.vocabulary import Finding
from muster_checks.os import OsParameters
from muster_checks.os.judge import KernelLimit, KernelState, judge
from muster_checks.os.parse import parse_buddyinfo, parse_mountstats, parse_threads


async def probe(node: NodeView, parameters: OsParameters) -> list[Finding]:
    state = read_state(node)
    node.history.note("os", {mount: float(timeouts) for mount, timeouts in state.nfs.items()})
    rises = {mount: series.rise(parameters.window_s) for mount, series in node.history.of("os").items()}
    return judge(state, rises, parameters)


def read_state(node: NodeView) -> KernelState:
    sys = "/proc/sys"
    limits = []
    files = (read_text(node.path(f"{sys}/fs/file-nr")) or "").split()
    if len(files) == 3 and all(word.isdecimal() for word in files):
        limits.append(KernelLimit("files", int(files[0]), int(files[2])))
    tracked = read_integer(node.path(f"{sys}/net/netfilter/nf_conntrack_count"))
    most = read_integer(node.path(f"{sys}/net/netfilter/nf_conntrack_max"))
    if tracked is not None and most:
        limits.append(KernelLimit("conntrack", tracked, most))
    threads = parse_threads(read_text(node.path("/proc/loadavg")) or "")
    ceilings = [read_integer(node.path(f"{sys}/kernel/{name}")) for name in ("pid_max", "threads-max")]
    known = [ceiling for ceiling in ceilings if ceiling]
    if threads is not None and known:
        limits.append(KernelLimit("threads", threads, min(known)))
    modules = read_text(node.path("/proc/modules"))
    return KernelState(
        limits=limits,
        tainted=read_integer(node.path(f"{sys}/kernel/tainted")),
        modules=None
        if modules is None
        else frozenset(line.split()[0] for line in modules.splitlines() if line.strip()),
        free_blocks=parse_buddyinfo(read_text(node.path("/proc/buddyinfo")) or ""),
        fuse=_fuse(node),
        # the node's own mounts: /proc/self would show those of this process's container
        nfs=parse_mountstats(read_text(node.path("/proc/1/mountstats")) or ""),
    )


def _fuse(node: NodeView) -> dict[str, tuple[int, int]]:
    folder = node.path("/sys/fs/fuse/connections")
    found = {}
    for name in names_in(folder):
        waiting = read_integer(folder / name / "waiting")
        threshold = read_integer(folder / name / "congestion_threshold")
        if waiting is not None and threshold:
            found[name] = (waiting, threshold)
    return found
