"Links, peers and bandwidths: which node, NIC or peer causes a problem."

from dashboards.colours import FAIL, PASS, SKIP, UNKNOWN, WARN, WITHHELD, from_1, warns_at
from dashboards.model import Column, Object, Query, assemble, graph, stat, table, variable
from dashboards.shared_panels import lowest, worst_first

CHECKS = "nic|ib|nvlink|ping|iperf|nccl"
A = 'namespace=~"$namespace",node=~"$node"'
PEERS = f'{A},health="ping",deviceid!=""'


def dashboard() -> Object:
    rows = [
        [
            stat(
                title,
                Query(f'sum(muster_agent_check_verdict{{{A},check=~"{checks}",verdict="FAIL"}}) or vector(0)'),
                means,
                steps=from_1(FAIL),
                width=4,
            )
            for title, checks, means in (
                (
                    "Links that FAIL",
                    "nic|ib",
                    "Nodes with an Ethernet, RoCE or InfiniBand port that is down, slow, or has errors. Check the "
                    "cable and transceiver first, then the switch port.",
                ),
                (
                    "NVLink FAILs",
                    "nvlink",
                    "Nodes with a link between GPUs that is down or counts errors: reset the GPU, then replace it.",
                ),
                (
                    "Cut off",
                    "ping",
                    "Nodes that get answers from almost no peer: the cause is their own network. A single silent "
                    "peer is only a WARN.",
                ),
                (
                    "Slow nodes",
                    "iperf|nccl",
                    "Nodes that are slow with most peers, while those peers are fast with each other.",
                ),
            )
        ]
        + [
            stat(
                "Peers not answering",
                Query(f"sum(max by (deviceid) (autopilot_health_checks{{{PEERS}}})) or vector(0)"),
                "Nodes that do not answer the pings of at least one other node.",
                steps=warns_at(1),
                width=4,
            ),
            stat(
                "Not measured",
                Query(f'sum(muster_agent_check_verdict{{{A},check=~"{CHECKS}",verdict="UNKNOWN"}}) or vector(0)'),
                "Network checks that are UNKNOWN: a tool is missing, or there is no peer to test.",
                steps=from_1(UNKNOWN),
                width=4,
            ),
        ],
        [
            worst_first(
                "What is wrong now",
                Query(
                    "topk(200, sum by (verdict, node, component, check) (muster_agent_component_verdict"
                    f'{{{A},check=~"{CHECKS}",verdict=~"FAIL|WARN|UNKNOWN"}}))',
                    column="is",
                ),
                "Each link and peer with a problem, FAIL first; at most 200 rows.",
                columns={
                    "node": Column(to_node=True),
                    "component": Column(),
                    "check": Column(width=90),
                },
                height=10,
            ),
            graph(
                "Verdicts of network checks",
                [
                    Query(
                        "sum by (verdict) (muster_agent_check_verdict"
                        f'{{{A},check=~"{CHECKS}",verdict=~"FAIL|WARN|UNKNOWN"}})',
                        "{{verdict}}",
                    )
                ],
                "If many nodes change at once, the cause is a switch, not a node.",
                colours={"FAIL": FAIL, "WARN": WARN, "UNKNOWN": UNKNOWN},
                stacked=True,
                width=12,
                height=10,
                decimals=0,
            ),
        ],
        "Between nodes",
        [
            table(
                "Peers that do not answer",
                [
                    Query(
                        f"topk(30, sum by (deviceid) (autopilot_health_checks{{{PEERS}}}))",
                        column="not answered",
                    ),
                    Query(
                        f"count by (deviceid) (autopilot_health_checks{{{PEERS}}})",
                        column="pinged by",
                    ),
                ],
                "A peer that many nodes cannot reach is down. If only one node cannot reach it, the cause is that "
                "node's path.",
                columns={
                    "deviceid": Column(),
                    "not answered": Column(width=120, steps=((None, SKIP), (1, WARN), (3, FAIL))),
                    "pinged by": Column(width=100),
                },
                sort="not answered",
                width=8,
            ),
            graph(
                "Round trip, the median of a node's peers",
                [
                    Query(
                        f'topk(10, muster_agent_measured_seconds{{{A},check="ping",measurement="rtt_median"}})',
                        "{{node}}",
                    )
                ],
                "The ten slowest nodes.",
                unit="s",
                width=8,
            ),
            lowest(
                "Slowest between nodes",
                "muster_agent_measured_bytes_per_second"
                f'{{{A},check=~"iperf|nccl",measurement=~"bandwidth|bus_bandwidth"}}',
                "The last results of iperf and nccl, slowest first. They run on idle nodes, on request or by the "
                "policy's plan.",
                called="bandwidth",
                value=Column(unit="Bps", width=110),
                between={"check": Column(width=70)},
            ),
        ],
        "Ports",
        [
            lowest(
                "Slowest links",
                f'muster_agent_measured_bytes_per_second{{{A},check=~"nic|ib",measurement=~"speed|rate"}}',
                "Negotiated port speeds, in bytes: 400 Gbit/s is 50 GB/s. A port below its peers: check the cable or "
                "transceiver.",
                called="speed",
                value=Column(unit="Bps", width=100),
            ),
            graph(
                "Ethernet: share of packets with errors",
                [
                    Query(
                        f'topk(10, muster_agent_measured{{{A},check="nic",measurement=~".* share"}})',
                        "{{node}} {{component}} {{measurement}}",
                    )
                ],
                "The ten worst. Above 1 % the check warns.",
                unit="percentunit",
                steps=((None, PASS), (0.01, WARN)),
                width=8,
            ),
            graph(
                "Ethernet: lost links",
                [
                    Query(
                        f'topk(10, muster_agent_measured{{{A},check="nic",measurement="link downs"}})',
                        "{{node}} {{component}}",
                    )
                ],
                "Within the last three hours, for the ten worst ports. More than three: the link is flapping.",
                steps=((None, PASS), (3, WITHHELD)),
                width=8,
                decimals=0,
            ),
        ],
        [
            graph(
                "InfiniBand and RoCE: errors",
                [
                    Query(
                        f'topk(10, muster_agent_measured{{{A},check="ib",component=~"(nic|ib)/.*"}})',
                        "{{node}} {{component}} {{measurement}}",
                    )
                ],
                "Increase of the counters that the check watches, for the ten worst.",
                width=12,
            ),
            lowest(
                "NVLinks that are up",
                f'muster_agent_measured{{{A},check="nvlink",measurement="links_up"}}',
                "GPUs with the fewest links. An H100 has 18. Fewer than the other GPUs of the node: a link is down.",
                called="links up",
                value=Column(width=100),
                width=12,
            ),
        ],
    ]
    return assemble(
        "muster-network",
        "Muster / Network",
        "Links, peers and bandwidths: which node, port or peer causes a problem.",
        rows,
        [
            variable("namespace", "muster_tainter_leader", means="where Muster runs"),
            variable("node", "muster_agent_info"),
        ],
    )
