"Everything that one node's agent reports."

from dashboards.colours import FAIL, HELD, PASS, SKIP, UNKNOWN, VERDICTS, WARN, WITHHELD, from_1, warns_at
from dashboards.model import Column, Object, Panel, Query, assemble, graph, rises, stat, table, timeline, variable
from dashboards.shared_panels import worst_first

N = 'node="$node"'
C = 'node="$node",check=~"$check"'
# a check's verdict, as a number of VERDICTS
BY_NUMBER = " or ".join(
    f'{number} * max by (check) (muster_agent_check_verdict{{{C},verdict="{word}"}} == 1)'
    for number, (word, _) in VERDICTS.items()
)
WORST = " or ".join(
    f'{number} * max(muster_agent_check_verdict{{{N},verdict="{word}"}} == 1)' for number, (word, _) in VERDICTS.items()
)


def _measured(
    title: str, suffix: str, means: str, *, unit: str = "short", least: float | None = 0, most: int | None = None
) -> Panel:
    "Measurements of one unit, over time. suffix: of the metric's name. most: show only the largest."
    expr = f"muster_agent_measured{suffix}{{{C}}}"
    query = Query(f"topk({most}, {expr})" if most else expr, "{{check}} {{component}} {{measurement}}")
    return graph(title, [query], means, unit=unit, least=least, width=8)


def dashboard() -> Object:
    rows = [
        [
            stat(
                "Worst verdict",
                Query(WORST),
                "The worst current verdict of a check. FAIL taints the node unless the policy only creates an Event; "
                "UNKNOWN: the check could not run; SKIP: there is nothing to check.",
                values=VERDICTS,
                width=4,
            ),
            stat(
                "Findings that FAIL",
                Query(f'sum(muster_agent_findings{{{N},verdict="FAIL"}}) or vector(0)'),
                "Number of components that FAIL. See the list below; for full texts: `muster explain NODE`.",
                steps=from_1(FAIL),
                width=4,
            ),
            stat(
                "At work",
                Query(f"max(muster_agent_idle{{{N}}})"),
                "Whether jobs use the accelerators (or this is unknown). Heavy checks wait until the node is idle.",
                values={0: ("busy", HELD), 1: ("idle", PASS)},
                width=4,
            ),
            stat(
                "Unpublished",
                Query(f"max(muster_agent_unpublished_seconds{{{N}}})"),
                "Age of the oldest change that the API server does not have yet. Above a minute the agent is not "
                "ready: the API server is unreachable from the node, or rejects the write. See the agent's log.",
                unit="s",
                steps=warns_at(5, 60),
                width=4,
                decimals=0,
            ),
            stat(
                "Two agents",
                Query(f"max(muster_agent_claim_refused{{{N}}})"),
                "Whether another agent holds this node, so that this one cannot write. Either two nodes have the "
                "same name, or an agent runs outside its DaemonSet.",
                values={0: ("no", PASS), 1: ("YES", FAIL)},
                width=4,
            ),
            stat(
                "Agent",
                Query(f"max by (version) (muster_agent_info{{{N}}})", "{{version}}"),
                "The version of the node's agent.",
                name=True,
                width=4,
            ),
        ],
        [
            timeline(
                "Verdicts",
                Query(BY_NUMBER, "{{check}}"),
                "Each check's verdict over time. A check that changes every few minutes is flapping: its taint is "
                "held longer each time. A gap: no agent was running.",
            )
        ],
        [
            worst_first(
                "Components with problems",
                Query(
                    "max by (verdict, component, check) "
                    f'(muster_agent_component_verdict{{{C},verdict=~"FAIL|WARN|UNKNOWN"}})',
                    column="is",
                ),
                "The affected part: a GPU by its PCI address, a NIC, a disk, a peer, or the host as a whole.",
                columns={"component": Column(), "check": Column(width=110)},
                height=9,
            ),
            worst_first(
                "Findings",
                Query(
                    f'sum by (verdict, check, reason) (muster_agent_findings{{{C},verdict=~"FAIL|WARN|UNKNOWN"}})',
                    column="findings",
                ),
                "The reasons. For those of kernel lines see docs/kernel-log.md; for those of checks docs/checks.md.",
                columns={
                    "check": Column(width=110),
                    "reason": Column(),
                    "findings": Column(width=90),
                },
                height=9,
            ),
        ],
        "Measurements",
        [
            _measured(
                "Bandwidths",
                "_bytes_per_second",
                "PCIe, memory and network bandwidths, in bytes: 100 Gbit/s is 12.5 GB/s. If a value drops and stays "
                "low, the link trained down.",
                unit="Bps",
            ),
            _measured(
                "Temperatures",
                "_celsius",
                "GPU temperatures, and the margin to the throttling temperature. A margin that shrinks over days "
                "indicates dust or a failing fan.",
                unit="celsius",
                least=None,
            ),
            _measured(
                "Power",
                "_watts",
                "Power draw and limit of each GPU. If one limit is lower than the others, somebody has set it.",
                unit="watt",
            ),
        ],
        [
            _measured("Shares", "_ratio", "Free space and inodes, throttled time, lost packets.", unit="percentunit"),
            _measured(
                "Times",
                "_seconds",
                "Round trips to other nodes, the clock's offset, waiting times.",
                unit="s",
                least=None,
            ),
            _measured("Counts", "", "Errors, links, retired pages and other counts; the 30 largest.", most=30),
        ],
        [
            graph(
                "Autopilot's gauge",
                [Query(f'autopilot_health_checks{{{N},health!="pciebw"}}', "{{health}} {{deviceid}}")],
                "As in Autopilot's dashboards: 1 is bad, 0 is good. No line: unknown.",
                width=8,
                decimals=0,
            ),
            graph(
                "Autopilot's pciebw, GB/s",
                [Query(f'autopilot_health_checks{{{N},health="pciebw"}}', "GPU {{deviceid}}")],
                "Bandwidth from the host to each GPU, in GB/s as in Autopilot. GPUs are numbered by PCI address.",
                steps=((None, PASS), (4, FAIL)),
                width=8,
            ),
            graph(
                "From the sign to the API server",
                [
                    Query(
                        f"histogram_quantile(0.99, {rises('muster_agent_detect_seconds_bucket', N, 'le', '$__range')})",
                        "sign to finding, 99 %",
                    ),
                    Query(
                        "histogram_quantile(0.99, "
                        f"{rises('muster_agent_publish_seconds_bucket', N, 'le', '$__range')})",
                        "finding to API server, 99 %",
                    ),
                ],
                "The agent's part of a fault's path, over the time shown. Seconds in the first: the node lacks CPU "
                "time; in the second: the API server or the network is slow.",
                unit="s",
                width=8,
            ),
        ],
        "Runs",
        [
            table(
                "Checks",
                [
                    Query(f"max by (check) (muster_agent_check_age_seconds{{{C}}})", column="age"),
                    Query(f"max by (check) (muster_agent_check_period_seconds{{{C}}})", column="period"),
                    Query(f"max by (check) (muster_agent_check_duration_seconds{{{C}}})", column="took"),
                    Query(f"max by (check) (muster_agent_check_due_seconds{{{C}}})", column="waits"),
                    Query(f"max by (check) (muster_agent_check_runs_total{{{C}}})", column="runs"),
                    Query(f"max by (check) (muster_agent_check_timeouts_total{{{C}}})", column="time-outs"),
                    Query(f"max by (check) (muster_agent_check_overruns_total{{{C}}})", column="overruns"),
                    Query(f"max by (check) (muster_agent_check_refused_total{{{C}}})", column="refused"),
                    Query(f"max by (check) (muster_agent_check_gave_way_total{{{C}}})", column="gave way"),
                ],
                "When each check last ran, and the results of its scheduled runs since the agent started. Time-outs: "
                "a tool or the driver hangs. Refused and gave way: a job was running, which is normal.",
                columns={
                    "check": Column(),
                    "age": Column(unit="s", decimals=0),
                    "period": Column(unit="s", decimals=0),
                    "took": Column(unit="s"),
                    "waits": Column(unit="s", decimals=0, steps=((None, SKIP), (7 * 86400, WARN))),
                    "runs": Column(),
                    "time-outs": Column(steps=from_1(WITHHELD, SKIP)),
                    "overruns": Column(steps=from_1(WITHHELD, SKIP)),
                    "refused": Column(),
                    "gave way": Column(),
                },
                sort="age",
                width=16,
                height=10,
            ),
            graph(
                "Kernel lines read",
                [
                    Query(
                        f"sum by (kind) (rate(muster_agent_stream_records_total{{{C}}}[$__rate_interval]))", "{{kind}}"
                    )
                ],
                "Lines per second, by result. `lost`: the kernel overwrote them before they were read.",
                unit="short",
                colours={"lost": FAIL, "malformed": UNKNOWN},
                width=8,
                height=10,
            ),
        ],
    ]
    return assemble(
        "muster-node",
        "Muster / Node",
        "Everything that one node's agent reports: verdicts, findings, measurements, runs.",
        rows,
        [
            variable("node", "muster_agent_info", several=False),
            variable("check", 'muster_agent_check_runs_total{node="$node"}', label="check"),
        ],
    )
