// The goodput page: one report of the record, as `muster goodput` shows it.

import { many } from "./words.js";

const CAUSES = ["goodput", "overhead", "fault", "incident", "drain", "test", "hold", "cordon", "preemption", "user", "unknown", "spare", "idle"];
const KEPT = new Set(["goodput", "overhead", "spare", "idle"]);
const WORDS = {
  goodput: "work that was kept", overhead: "starts", fault: "faults", incident: "incidents", drain: "drains",
  test: "tests after a repair", hold: "hold-down", cordon: "cordoned by people", preemption: "preemption",
  user: "users' own", unknown: "unknown", spare: "spares", idle: "idle",
};
const AGAIN_MS = 60000;
const element = (id) => document.getElementById(id);

function make(kind, text = "", className = "") {
  const made = document.createElement(kind);
  made.textContent = text;
  if (className) made.className = className;
  return made;
}

const hours = (value) => value.toLocaleString("en", { maximumFractionDigits: value >= 100 ? 0 : 1 });
const percent = (value) => (value === null ? "" : `${(100 * value).toFixed(1)} %`);
const mean = (value) => (value === null ? "–" : `${hours(value)} h`);

function sums(row) {
  return Object.fromEntries(CAUSES.map((cause) => [cause, (row.work[cause] ?? 0) + (row.nodes[cause] ?? 0)]));
}

function table(head, rows) {
  const made = make("table");
  const top = made.appendChild(make("tr"));
  head.forEach((name) => top.append(make("th", name, name === "lost to" ? "text" : "")));
  for (const row of rows) {
    const line = made.appendChild(make("tr"));
    row.forEach((text, place) => line.append(make("td", text, head[place] === "lost to" ? "text" : "")));
  }
  const around = make("div", "", "wide");
  around.append(made);
  return around;
}

function show(report) {
  const { total } = report;
  const all = sums(total);
  const share = total.goodput === null ? "" : `, ${percent(total.goodput)} of them goodput`;
  element("headline").textContent = `${hours(total.total)} accelerator-hours${share}, ${hours(total.lost)} lost`;
  element("span").textContent = `${report.begin} to ${report.end}. ${many(report.accelerators, "accelerator")}, ${many(report.pods, "pod")}.`;
  const parts = CAUSES.filter((cause) => all[cause] > 0);
  element("bar").setAttribute("aria-label", parts.map((cause) => `${WORDS[cause]}: ${percent(all[cause] / total.total)}`).join(", "));
  element("bar").replaceChildren(
    ...parts.map((cause) => {
      const part = make("span", "", `c-${cause}`);
      part.style.flexGrow = all[cause];
      part.title = `${WORDS[cause]}: ${hours(all[cause])} h`;
      return part;
    }),
  );
  element("key").replaceChildren(
    ...parts.map((cause) => {
      const line = make("li");
      line.append(make("i", "", `c-${cause}`), `${WORDS[cause]} ${percent(all[cause] / total.total)}`);
      return line;
    }),
  );
  element("rows").replaceChildren(...(report.by === "cause" ? causes(total) : groups(report)));
  element("failures").replaceChildren(...failures(report.failures));
  element("lemons").replaceChildren(...lemons(report.lemons));
  element("notes").replaceChildren(...notes(report).map((text) => make("li", text)));
}

function causes(total) {
  const all = sums(total);
  const rows = CAUSES.filter((cause) => all[cause] > 0).map((cause) => [
    WORDS[cause], hours(total.work[cause] ?? 0), hours(total.nodes[cause] ?? 0), percent(all[cause] / total.total),
  ]);
  return [make("h2", "Accelerator-hours by cause"), table(["cause", "pods", "nodes without a pod", "share"], rows)];
}

function groups(report) {
  const rows = report.rows.map((row) => {
    const all = sums(row);
    const lost = CAUSES.filter((cause) => !KEPT.has(cause) && all[cause] > 0).sort((one, other) => all[other] - all[one]);
    const most = lost.slice(0, 4).map((cause) => `${WORDS[cause]} ${hours(all[cause])}`);
    return [row.name, hours(row.total), percent(row.goodput), hours(row.lost), most.join(", ")];
  });
  return [make("h2", `Accelerator-hours by ${report.by}`), table([report.by, "hours", "goodput", "lost", "lost to"], rows)];
}

function failures(found) {
  if (!found.length) return [];
  const rows = found.map((each) => {
    const interruptions = Object.values(each.interruptions).reduce((sum, number) => sum + number, 0);
    return [`${each.pool} / ${each.model}`, `${each.outages}`, mean(each.mtbf), mean(each.mttr), `${interruptions}`, mean(each.mtbi)];
  });
  const head = ["pool / model", "outages of nodes", "between two (MTBF)", "length (MTTR)", "interruptions of jobs", "between two (MTBI)"];
  return [make("h2", "How often nodes and jobs failed"), table(head, rows)];
}

function lemons(found) {
  if (!found.length) return [];
  const opened = new Set([...document.querySelectorAll("#lemons details[open]")].map((details) => details.dataset.node));
  const lines = found.map((each) => {
    const details = make("details");
    details.dataset.node = each.node;
    details.open = opened.has(each.node);
    const often = `${many(each.outages, "outage")}, ${many(each.interruptions, "interruption")}`;
    details.append(make("summary", `${each.node}: ${hours(each.lost)} h lost, ${often}`));
    const list = details.appendChild(make("ol"));
    each.history.forEach((event) => list.append(make("li", `${event.at} ${event.what}, ${hours(event.lost)} h`)));
    return details;
  });
  return [make("h2", "Nodes that cost most"), ...lines];
}

function notes(report) {
  const found = [`${hours(report.atRisk)} accelerator-hours are not recorded yet: work since the last checkpoint, starts, and the last five minutes.`];
  if (report.total.throughPeers) found.push(`${hours(report.total.throughPeers)} hours of pods have the cause of another pod of their owner.`);
  if (report.unobserved.length) {
    const longest = Math.max(...report.unobserved.map((each) => each.seconds));
    found.push(`The tainter started ${many(report.unobserved.length, "time")}; at most ${longest} s of a start were not observed.`);
  }
  if (report.uncountedPods) found.push(`${many(report.uncountedPods, "pod")} beyond the limit are not recorded.`);
  return found;
}

function showNothing(reason) {
  element("headline").textContent = "No goodput record";
  element("span").textContent = reason;
  for (const id of ["bar", "key", "rows", "failures", "lemons", "notes"]) element(id).replaceChildren();
}

let latest = 0;

async function refresh() {
  const number = ++latest;
  const query = new URLSearchParams({ since: element("since").value, by: element("by").value });
  let report;
  try {
    const answer = await fetch(`api/goodput?${query}`);
    report = await answer.json();
    if (!answer.ok) throw new Error(report.message);
  } catch (error) {
    if (number === latest) showNothing(error.message);
    return;
  }
  if (number === latest) show(report);
}

for (const id of ["since", "by"]) element(id).addEventListener("change", refresh);
setInterval(() => document.hidden || refresh(), AGAIN_MS);
refresh();
