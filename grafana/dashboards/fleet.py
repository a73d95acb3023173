"""What is wrong in the fleet, at a glance."""

from dashboards.colours import FAIL, HELD, PASS, SKIP, UNKNOWN, WARN, WITHHELD, from_1, warns_at
from dashboards.model import Column, Object, Query, assemble, graph, rises, stat, table, variable
from dashboards.shared_panels import budgets, lowest, new_taints, withheld, worst_first

T = 'namespace=~"$namespace"'
A = 'namespace=~"$namespace",node=~"$node",check=~"$check"'
VERDICT = 'sum by (check) (muster_agent_check_verdict{%s,verdict="%s"})'


def dashboard() -> Object:
    rows = [
        [
            stat(
                "Failing nodes",
                Query(f'max(muster_tainter_nodes{{{T},health="fail"}}) or vector(0)'),
                "Nodes with a check that FAILs. They are tainted unless a rule only tells, a budget withholds, or "
                "somebody has paused. What is wrong with each: the list below, or `muster status`.",
                steps=from_1(FAIL),
            ),
            stat(
                "Tainted",
                Query(f"sum(max by (taint) (muster_tainter_taints{{{T}}})) or vector(0)"),
                "Taints of Muster's on nodes: nothing new is scheduled there. Why: `muster explain NODE`.",
                steps=from_1(HELD),
            ),
            withheld(
                T,
                "Nodes with a fault that wants a taint and has none: a budget is full, or Muster is paused. They still "
                "get work. Raise the budget if the faults are real; look for a common cause if they are many.",
            ),
            stat(
                "Warned",
                Query(f'max(muster_tainter_nodes{{{T},health="warn"}}) or vector(0)'),
                "Nodes where a check WARNs. Nothing is tainted for that; look at them by day.",
                steps=warns_at(1),
            ),
            stat(
                "Not known",
                Query(f'max(muster_tainter_nodes{{{T},health="unknown"}}) or vector(0)'),
                "Nodes whose agent is silent, or where something could not be measured. Nothing is tainted for that by "
                "default.",
                steps=from_1(UNKNOWN),
            ),
            stat(
                "Silent agents",
                Query(f"max(muster_tainter_agents_silent{{{T}}})"),
                "Nodes without a ready agent beyond the grace. `kubectl get pods -n autopilot -o wide` shows what "
                "ails it.",
                steps=from_1(UNKNOWN),
            ),
            stat(
                "Incidents",
                Query(f"sum(max by (check) (muster_tainter_incidents{{{T}}})) or vector(0)"),
                "The same fault on many nodes at once: a switch, a power feed, a driver rolled out. Look for what "
                "those nodes share before any of them.",
                steps=from_1(FAIL),
            ),
            new_taints(
                T,
                "Whether somebody has paused Muster: then nothing new is tainted, drained or repaired, recovery goes "
                "on. `muster resume` ends it.",
            ),
        ],
        [
            worst_first(
                "What is wrong now",
                Query(
                    "topk(200, sum by (verdict, node, check, reason) "
                    f'(muster_agent_findings{{{A},verdict=~"FAIL|WARN|UNKNOWN"}}))',
                    column="findings",
                ),
                "Open findings by node, what FAILs first; at most 200 rows. A node leads to all that its agent says.",
                columns={
                    "node": Column(to_node=True),
                    "check": Column(width=110),
                    "reason": Column(),
                    "findings": Column(width=90),
                },
                width=14,
                height=12,
            ),
            graph(
                "Nodes that are not PASS",
                [
                    Query(
                        f'max by (health) (muster_tainter_nodes{{{T},health!="pass"}})',
                        "{{health}}",
                    )
                ],
                "Nodes by what their agents say; `none`: no agent has said anything yet. A step that many nodes make "
                "together has one cause.",
                colours={"fail": FAIL, "warn": WARN, "unknown": UNKNOWN, "none": SKIP},
                stacked=True,
                width=10,
                height=12,
                decimals=0,
            ),
        ],
        "Taints and budgets",
        [
            table(
                "Open faults",
                [Query(f"max by (rule, class) (muster_tainter_faults_open{{{T}}})", column="faults")],
                "What the tainter believes, by the policy's rule and by what the fault asks for: a restart of the "
                "application, a reset, a reboot, another part, a person.",
                columns={"rule": Column(), "class": Column(), "faults": Column(width=80)},
                sort="faults",
                width=7,
            ),
            budgets(
                T,
                "How many nodes each budget has taken and may still take. A failure domain is listed while it is full "
                "or somebody waits. At left 0 further faults are withheld.",
            ),
            graph(
                "Faults and taints",
                [
                    Query(
                        rises("muster_tainter_fault_transitions_total", f'{T},check=~"$check"', "step"),
                        "fault {{step}}",
                    ),
                    Query(
                        rises("muster_tainter_taint_changes_total", T, "what"),
                        "taint {{what}}",
                    ),
                ],
                "What came and went. Many opened at once: an incident. The same node again and again: it flaps, and is "
                "held longer each time.",
                colours={"fault opened": FAIL, "fault closed": PASS, "taint set": HELD, "taint removed": SKIP},
                bars=True,
                width=9,
            ),
        ],
        "Checks",
        [
            table(
                "Nodes by check",
                [
                    Query(VERDICT % (A, "FAIL"), column="FAIL"),
                    Query(VERDICT % (A, "WARN"), column="WARN"),
                    Query(VERDICT % (A, "UNKNOWN"), column="UNKNOWN"),
                    Query(VERDICT % (A, "PASS"), column="PASS"),
                    Query(
                        f"sum by (check) (muster_agent_check_age_seconds{{{A}}} > bool 3 * "
                        f"muster_agent_check_period_seconds{{{A}}})",
                        column="stale",
                    ),
                ],
                "How many nodes have each verdict. UNKNOWN on all nodes: a tool is missing or a setting wrong. Stale: "
                "the result is older than three of its periods.",
                columns={
                    "check": Column(),
                    "FAIL": Column(width=80, steps=from_1(FAIL, SKIP)),
                    "WARN": Column(width=80, steps=from_1(WARN, SKIP)),
                    "UNKNOWN": Column(width=100, steps=from_1(UNKNOWN, SKIP)),
                    "PASS": Column(width=80, steps=from_1(PASS, SKIP)),
                    "stale": Column(width=80, steps=from_1(WITHHELD, SKIP)),
                },
                sort="FAIL",
                width=10,
                height=10,
            ),
            table(
                "Heavy checks",
                [
                    Query(f"max by (check) (muster_tainter_tests_running{{{T}}})", column="running"),
                    Query(f"max by (check) (muster_tainter_tests_waiting{{{T}}})", column="waiting"),
                    Query(f"max by (check) (muster_tainter_tests_oldest_wait_seconds{{{T}}})", column="longest wait"),
                ],
                "Tests that need an idle node: how many nodes run one, how many are due, and how long the first of "
                "them has waited. A wait of a week says that its node is never idle, or that the cap is too low.",
                columns={
                    "check": Column(),
                    "running": Column(width=80),
                    "waiting": Column(width=80),
                    "longest wait": Column(unit="s", width=110, steps=((None, PASS), (7 * 86400, WARN)), decimals=0),
                },
                sort="longest wait",
                width=7,
                height=10,
            ),
            lowest(
                "Slowest PCIe, host to device",
                f'muster_agent_measured_bytes_per_second{{check="pciebw",measurement="to_device",{T},node=~"$node"}}',
                "The 20 slowest GPUs of the last runs. Below 4 GB/s the check fails. A GPU far below its siblings has "
                "a link that trained down: reseat it, or look at `pcielink`.",
                called="bandwidth",
                value=Column(unit="Bps", width=110, steps=((None, FAIL), (4e9, PASS))),
                width=7,
                height=10,
            ),
        ],
    ]
    return assemble(
        "muster-fleet",
        "Muster / Fleet",
        "What is wrong in the fleet now, what is done about it, and what is held back.",
        rows,
        [
            variable("namespace", "muster_tainter_leader", means="where Muster runs"),
            variable("node", "muster_agent_info"),
            variable("check", "muster_agent_check_verdict"),
        ],
    )
