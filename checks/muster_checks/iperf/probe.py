"""Measures one pair from this node to a server; judges recorded reports."""

from muster_checks.base.bounded_read import Unreadable
from muster_checks.base.commands import Output
from muster_checks.base.declaration import NodeView
from muster_checks.base.execution import CannotTell, NotHere, ToolMissing
from muster_checks.base.vocabulary import Finding
from muster_checks.iperf import IperfParameters
from muster_checks.iperf.child_lifetime import with_parent_death
from muster_checks.iperf.judge import judge, read_pairs
from muster_checks.iperf.link import find_device_towards, link_gbit_per_s, nic_name
from muster_checks.iperf.pair import NicSide
from muster_checks.iperf.parse import IperfReport, read_report

CONNECT_S = 3
BEYOND_S = 15.0  # added to the transfer time, for the two ends to exchange their results


async def probe(node: NodeView, parameters: IperfParameters) -> list[Finding]:
    if parameters.server is None:
        # without a second node there is nothing to measure. UNKNOWN would mark every idle node each time its heavy
        # checks run
        raise NotHere("no server set: a bandwidth test needs a second node (parameter server)", "NoServer")
    if node.commands.which("iperf3") is None:
        raise ToolMissing("iperf3", "iperf3")
    device = await find_device_towards(node, parameters.server)
    link = parameters.link_gbit_per_s or (link_gbit_per_s(node, device) if device else None)
    report = await run_client(node, parameters.server, parameters)
    here = NicSide(node.name or "this node", nic_name(node, device), link)
    return judge(read_pairs(report, here, NicSide(parameters.server)), parameters).get(here.node, [])


async def run_client(
    node: NodeView, server: str, parameters: IperfParameters, *, bind: str = "", reverse: bool = False
) -> IperfReport:
    """One test from this node to ``server``. bind: local address and device (``10.0.0.1%eth1``) to send from;
    reverse: the server sends. Raises CannotTell."""
    seconds = parameters.seconds + parameters.omit_seconds
    argv = (
        f"iperf3 -J -c {server} -p {parameters.port} -t {parameters.seconds} -O {parameters.omit_seconds} "
        f"-P {parameters.clients} -Z --connect-timeout {1000 * CONNECT_S}"
    ).split()
    argv += [*(["-B", bind] if bind else []), *(["-R"] if reverse else [])]
    output = await node.commands.run(with_parent_death(node, argv), timeout_s=seconds + CONNECT_S + BEYOND_S)
    return _read(output)


def judge_recorded(text: bytes, parameters: IperfParameters) -> list[Finding] | None:
    """Judges one recorded report, from the client's side."""
    try:
        report = read_report(text)
    except Unreadable:
        if b'"intervals"' in text and b'"start"' in text:
            raise
        return None
    here = NicSide("this node", "", parameters.link_gbit_per_s)
    return judge(read_pairs(report, here, NicSide(report.server or "server")), parameters).get(here.node, [])


def _read(output: Output) -> IperfReport:
    # the report is more reliable than the exit code, which is 0 for most errors
    if output.missing or output.timed_out or output.truncated or (output.exit_code or 0) < 0:
        raise CannotTell(output.trouble)
    try:
        return read_report(output.stdout)
    except Unreadable as error:
        raise CannotTell(output.trouble or f"iperf3: {error}") from None
