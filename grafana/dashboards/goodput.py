"Goodput: where the accelerator-hours went, by cause, team, pool and model, and how often nodes and jobs fail."

from dashboards.colours import FAIL, HELD, PASS, SKIP, UNKNOWN, WARN, WITHHELD, warns_at
from dashboards.model import Column, Object, Query, assemble, graph, rises, stat, table, variable

T = 'namespace=~"$namespace",pool=~"$pool"'
ANY_POOL = 'namespace=~"$namespace"'
LOST, KEPT = 'cause!~"goodput|overhead|idle|spare"', 'cause="goodput"'
T_LOST, T_KEPT, T_UNKNOWN = f"{T},{LOST}", f"{T},{KEPT}", f'{T},cause="unknown"'
TEAMS_LOST, TEAMS_KEPT = f"{ANY_POOL},{LOST}", f"{ANY_POOL},{KEPT}"
CAUSES = {
    "goodput": PASS, "overhead": SKIP, "idle": "#39444d", "spare": "#8a97a6", "fault": FAIL, "incident": "#c9302c",
    "drain": WITHHELD, "test": HELD, "hold": "#3b6fb0", "cordon": WARN, "preemption": "#b58ad6", "user": "#d6a3c4",
    "unknown": UNKNOWN,
}  # fmt: skip
SECONDS = "muster_goodput_accelerator_seconds_total"
TEAM_SECONDS = "muster_goodput_team_accelerator_seconds_total"
PLACE = "pool, model"
HOURS = Column(decimals=0, width=100)
SHARE = Column(unit="percentunit", decimals=1, width=90)
MEAN = Column(decimals=1, width=90)


def _hours(metric: str, scope: str, by: str = "") -> str:
    """Over the time shown."""
    return f"{rises(metric, scope, by, '$__range')} / 3600"


def _share(part: str, whole: str, by: str = "", metric: str = SECONDS) -> str:
    """Of the hours with the labels ``whole``, over the time shown."""
    return f"{rises(metric, part, by, '$__range')} / {rises(metric, whole, by, '$__range')}"


def _per_event(seconds: str, events: str) -> str:
    """Mean hours between two events, by pool and model; nothing where there was no event."""
    return f"{_hours(seconds, T, PLACE)} / ({rises(events, T, PLACE, '$__range')} > 0)"


def dashboard() -> Object:
    rows = [
        [
            stat(
                "Goodput",
                Query(_share(T_KEPT, T)),
                "Kept work as a share of all accelerator-hours of the time shown. Idle accelerators count, too.",
                unit="percentunit",
                decimals=1,
                width=4,
            ),
            stat(
                "Accelerator-hours lost",
                Query(_hours(SECONDS, T_LOST)),
                "Over the time shown: to faults, incidents, drains, tests, holds, cordons, preemption, users and "
                "unknown causes.",
                decimals=0,
                width=4,
            ),
            stat(
                "Unknown cause",
                Query(f"{_share(T_UNKNOWN, T_LOST)} or vector(0)"),
                "Share of the lost hours whose cause nothing shows: pods that were evicted from healthy nodes, long "
                "starts, and times without a tainter.",
                unit="percentunit",
                steps=warns_at(0.05, 0.2),
                decimals=1,
                width=4,
            ),
            stat(
                "At risk",
                Query(f"sum(muster_goodput_at_risk_accelerator_seconds{{{ANY_POOL}}}) / 3600"),
                "Accelerator-hours that pods hold and that are not recorded yet: work since the last checkpoint, "
                "starts, and the last minutes.",
                decimals=0,
                width=4,
            ),
            stat(
                "Accelerators",
                Query(f"sum(muster_goodput_accelerators{{{ANY_POOL}}})"),
                "Of all nodes, whether or not they can be used now.",
                width=4,
            ),
            stat(
                "Record saved",
                Query(f"time() - max(muster_goodput_saved_timestamp_seconds{{{ANY_POOL}}} > 0)"),
                "Time since the last write of ConfigMap muster-goodput, once a minute. What a new leader cannot know "
                "is at most this long.",
                unit="s",
                steps=warns_at(180, 600),
                width=4,
            ),
        ],
        "Where the accelerators went",
        [
            graph(
                "Accelerators, by cause",
                [Query(f"{rises(SECONDS, T, 'cause', '1h')} / 3600", "{{cause}}")],
                "Accelerators in the previous hour. Work is recorded from checkpoint to checkpoint, so a job with rare "
                "checkpoints appears in steps.",
                colours=CAUSES,
                stacked=True,
                width=16,
                height=10,
            ),
            table(
                "Hours by cause, over the time shown",
                [
                    Query(_hours(SECONDS, T, "cause"), column="hours"),
                    Query(f"{_hours(SECONDS, T, 'cause')} / scalar({_hours(SECONDS, T)})", column="share"),
                ],
                "docs/goodput.md explains each cause.",
                columns={"cause": Column(), "hours": HOURS, "share": SHARE},
                sort="hours",
                width=8,
                height=10,
            ),
        ],
        "Who lost them",
        [
            graph(
                "Lost accelerators, by cause",
                [Query(f"{rises(SECONDS, T_LOST, 'cause', '1h')} / 3600", "{{cause}}")],
                "The same without goodput, starts, spares and idle accelerators.",
                colours=CAUSES,
                stacked=True,
                width=8,
                height=9,
            ),
            table(
                "Pools and models",
                [
                    Query(_hours(SECONDS, T_LOST, PLACE), column="lost hours"),
                    Query(_share(T_KEPT, T, PLACE), column="goodput"),
                ],
                "Over the time shown, of pods and of nodes without pods.",
                columns={"pool": Column(), "model": Column(), "lost hours": HOURS, "goodput": SHARE},
                sort="lost hours",
                width=8,
                height=9,
            ),
            table(
                "Teams",
                [
                    Query(_hours(TEAM_SECONDS, TEAMS_LOST, "team"), column="lost hours"),
                    Query(_share(TEAMS_KEPT, ANY_POOL, "team", TEAM_SECONDS), column="goodput"),
                ],
                "Over the time shown, of pods only. A team is a namespace, or what its label `teamLabel` says.",
                columns={"team": Column(), "lost hours": HOURS, "goodput": SHARE},
                sort="lost hours",
                width=8,
                height=9,
            ),
        ],
        "How often it fails",
        [
            table(
                "Outages and interruptions, by pool and model",
                [
                    Query(rises("muster_goodput_outages_total", T, PLACE, "$__range"), column="outages"),
                    Query(
                        _per_event("muster_goodput_node_seconds_total", "muster_goodput_outages_total"), column="MTBF h"
                    ),
                    Query(
                        _per_event("muster_goodput_outage_seconds_total", "muster_goodput_outages_ended_total"),
                        column="MTTR h",
                    ),
                    Query(rises("muster_goodput_interruptions_total", T, PLACE, "$__range"), column="interruptions"),
                    Query(
                        _per_event("muster_goodput_job_seconds_total", "muster_goodput_interruptions_total"),
                        column="MTBI h",
                    ),
                ],
                "Over the time shown. MTBF: node-hours between two outages. MTTR: how long outages lasted that ended. "
                "MTBI: hours that jobs ran between two interruptions.",
                columns={
                    "pool": Column(),
                    "model": Column(),
                    "outages": Column(decimals=0, width=80),
                    "MTBF h": MEAN,
                    "MTTR h": MEAN,
                    "interruptions": Column(decimals=0, width=110),
                    "MTBI h": MEAN,
                },
                sort="outages",
                width=16,
                height=9,
            ),
            graph(
                "Interruptions of jobs",
                [Query(rises("muster_goodput_interruptions_total", T, "cause", "1h"), "{{cause}}")],
                "In the previous hour, by cause. `muster goodput` names the nodes that interrupted most.",
                colours=CAUSES,
                bars=True,
                width=8,
                height=9,
                decimals=0,
            ),
        ],
    ]
    return assemble(
        "muster-goodput",
        "Muster / Goodput",
        "Where the accelerator-hours went: by cause, team, pool and model, with mean times between failures. Needs the "
        "section goodput in the policy.",
        rows,
        [
            variable("namespace", "muster_tainter_leader", means="where the tainter runs"),
            variable("pool", "muster_goodput_node_seconds_total", means="of the policy"),
        ],
        since="now-7d",
    )
