// One node: what is wrong and the evidence, what Muster did, what closes the fault, and its history.

import { deviceParts } from "./devices.js";
import { STATE, icon } from "./glyphs.js";
import { ago, clock, figure, h, many, seconds, withTimes } from "./words.js";

const HOW = {
  boot: "after a reboot", driver: "by the driver", quiet: "after its quiet time", clear: "by a clear request",
  proof: "by verification", source: "by its source", person: "by an operator", passing: "disappeared before it was confirmed",
  disowned: "by the agent, which never reported it",
};
const NEEDS = { reset: "a reset", reboot: "a reboot", replace: "a replacement part", contact: "inspection by a person" };
const VERDICTS = { PASS: ".", SKIP: ".", WARN: "N", FAIL: "F", UNKNOWN: "U" };

export class Panel {
  // clear: called with {node, check?, component?}
  constructor({ closed, clear }) {
    this.element = document.getElementById("panel");
    this.closed = closed;
    this.clear = clear;
    this.name = "";
    this.asked = 0;
  }

  async open(name, focus = true) {
    const fresh = this.name !== name;
    this.name = name;
    if (fresh) {
      this.element.replaceChildren(this.#top(name, null), h("p", { class: "dim" }, "Loading …"));
      this.element.scrollTop = 0;
    }
    this.element.hidden = false;
    if (focus) this.element.focus({ preventScroll: true });
    await this.refresh();
  }

  close() {
    this.name = "";
    this.element.hidden = true;
    this.element.replaceChildren();
    this.closed();
  }

  async refresh() {
    const { name } = this;
    if (!name) return;
    const asked = ++this.asked;
    let content;
    try {
      const answer = await fetch(`api/nodes/${encodeURIComponent(name)}`, { cache: "no-store", signal: AbortSignal.timeout(15_000) });
      const body = await answer.json();
      content = answer.ok ? this.#all(body) : [this.#top(name, null), h("p", { class: "empty" }, body.message)];
    } catch (error) {
      // the answer is not JSON, or there is none
      const why = error instanceof SyntaxError ? "The tainter failed to show this node: see its log." : "The tainter does not respond.";
      content = [this.#top(name, null), h("p", { class: "empty" }, why)];
    }
    if (asked !== this.asked || this.name !== name) return; // another node was opened meanwhile
    const focused = this.element.contains(document.activeElement) && document.activeElement.dataset.key;
    this.element.replaceChildren(...content);
    if (focused) this.element.querySelector(`[data-key="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
  }

  #top(name, node) {
    return h(
      "header",
      { class: "node-top" },
      h("div", {}, h("h2", { id: "panel-title" }, name), node ? h("p", { class: "dim" }, place(node)) : ""),
      h("button", { type: "button", class: "close", "aria-label": "Close", data: { key: "close" }, onclick: () => this.close() }, "×"),
    );
  }

  #all(node) {
    const state = STATE[node.state] ?? STATE.U;
    return [
      this.#top(node.node, node),
      h("div", { class: `verdict s-${node.state === "." ? "pass" : node.state}` }, icon(node.state, 26),
        h("div", {}, h("b", {}, state.title), h("p", {}, verdictLine(node)))),
      node.role ? part("Role", roleLines(node.role)) : "",
      node.errors.map((error) => h("p", { class: "banner bad" }, error)),
      node.faults.length ? part("Open faults", node.faults.map((fault) => this.#fault(node, fault))) : "",
      ...deviceParts(node.devices).map(([title, content]) => part(title, content)),
      node.findings.length ? part("Findings that are not faults", node.findings.map((finding) => findingCard(finding))) : "",
      node.taints.length || node.unschedulable
        ? part("Taints", h("ul", { class: "plain" }, node.taints.map((taint) => h("li", {}, h("code", {}, taint.text), h("span", { class: "dim" }, taint.ours ? " by Muster" : " by others"))),
            node.unschedulable ? h("li", {}, "cordoned ", h("span", { class: "dim" }, "by others")) : ""))
        : "",
      attempts(node),
      node.closed.length ? part("Recently closed", h("ol", { class: "past" }, node.closed.map(closedRow))) : "",
      node.checks.length ? part("Checks", h("ul", { class: "checks" }, node.checks.map(checkChip))) : "",
      part("Agent", agentLines(node)),
      node.faults.length || node.findings.length
        ? h("p", { class: "actions" }, h("button", { type: "button", class: "button", data: { key: "clear-all" }, onclick: () => this.clear({ node: node.node }) }, "Clear all faults of this node …"),
            h("span", { class: "dim" }, "or ", h("code", {}, `muster clear ${node.node}`)))
        : "",
    ].flat(3).filter(Boolean);
  }

  #fault(node, fault) {
    const title = fault.rest ? `${many(fault.rest, "more fault")} of ${fault.check}` : fault.reason;
    const target = { node: node.node, check: fault.check, component: fault.component === "*" ? undefined : fault.component };
    return h(
      "article",
      { class: `card${fault.over ? " over" : ""}` },
      h("h4", {}, title, h("span", { class: "where" }, fault.component === "*" ? "" : fault.component)),
      fault.message ? h("pre", {}, fault.message) : "",
      fault.measurements?.length ? measurements(fault.measurements) : "",
      h("dl", {},
        row("check", fault.check, fault.origin === "user" ? " (written from user space)" : ""),
        row("since", clock(fault.since, true), " · ", ago(fault.since)),
        fault.count > 1 ? row("seen", `${fault.count} times, first ${clock(fault.firstSeen, true)}`, fault.lastSeen ? `, last ${clock(fault.lastSeen, true)}` : "") : "",
        fault.raised ? row("occurred again", clock(fault.raised, true), " · ", ago(fault.raised)) : "",
        fault.class ? row("needs", NEEDS[fault.class] ?? "", fault.class in NEEDS ? ` (class ${fault.class})` : `class ${fault.class}`) : "",
        row("Muster", done(fault)),
        fault.incident ? row("incident", `${fault.incident}, with ${many(fault.others, "other node")}`) : "",
        fault.over ? row("resolved", `${HOW[fault.how] ?? fault.how} ${clock(fault.over, true)}, ${fault.by}`, fault.heldUntil ? `; held until ${clock(fault.heldUntil, true)}` : "") : "",
        !fault.reported && !fault.rest ? row("reported", "no longer; that alone does not close the fault") : "",
        row("closed by", h("ul", {}, fault.ends.map((way) => h("li", {}, way)))),
      ),
      h("button", { type: "button", class: "button small", data: { key: `clear ${fault.check} ${fault.component} ${fault.reason}` }, onclick: () => this.clear(target) }, "Clear …"),
    );
  }
}

const place = (node) => [node.pool ? `pool ${node.pools.join(", ")}` : "in no pool", node.domain].filter(Boolean).join(" · ");
const row = (name, ...content) => [h("dt", {}, name), h("dd", {}, ...content)];
const part = (title, ...content) => h("section", { class: "part" }, h("h3", {}, title), ...content);

function verdictLine(node) {
  const bits = [withTimes(node.done)];
  if (node.tainted) bits.push([node.done ? " · " : "", "since ", clock(node.tainted), " (", ago(node.tainted), ")"]);
  if (!node.done && node.state === ".") bits.push("every check passed");
  if (node.testing) bits.push(`${node.done ? " · " : ""}running ${node.testing}`);
  return bits.flat(2).filter(Boolean);
}

function roleLines(role) {
  const spare = role.role === "spare";
  return h("dl", {},
    row("role", spare ? "spare" : role.replaces ? ["replacement for ", h("b", {}, role.replaces)] : "replacement for a node with a fault"),
    role.since ? row("since", clock(role.since, true), " · ", ago(role.since)) : "",
    spare ? row("ready", role.ready ? "yes" : ["no: ", role.why.join("; ")]) : "",
  );
}

function done(fault) {
  const rule = fault.rule ? `rule ${fault.rule}` : "no rule";
  if (fault.quarantine) return `quarantines ${fault.component}, ${rule}`;
  if (fault.confirmedAt) return `waits until ${clock(fault.confirmedAt, true)}, ${rule}`;
  if (!fault.taint) return `sets no taint, ${rule}`;
  return h("span", {}, fault.isSet ? "set " : "withholds ", h("code", {}, fault.taint), `, ${rule}`);
}

function measurements(all) {
  return h("table", { class: "figures" }, all.map((each) =>
    h("tr", {}, h("th", { scope: "row" }, each.name), h("td", {}, `${figure(each.value)} ${each.unit}`),
      h("td", { class: "dim" }, each.threshold === null ? "" : `limit ${figure(each.threshold)}`))));
}

function findingCard(finding) {
  return h(
    "article",
    { class: "card slim" },
    h("h4", {}, icon(VERDICTS[finding.verdict] ?? "U", 12), ` ${finding.reason}`, h("span", { class: "where" }, finding.component)),
    finding.message ? h("pre", {}, finding.message) : "",
    finding.measurements.length ? measurements(finding.measurements) : "",
    h("p", { class: "dim" }, `${finding.check} · ${finding.verdict}${finding.class ? ` · class ${finding.class}` : ""}${finding.count > 1 ? ` · ${finding.count} times` : ""} · `, ago(finding.lastSeen || finding.firstSeen)),
  );
}

function attempts(node) {
  const all = Object.entries(node.attempts);
  if (!all.length) return "";
  return part("Repairs", h("ul", { class: "plain" }, all.map(([name, each]) =>
    h("li", {}, `${name}: ${many(each.n, "attempt")}`, each.stage ? `, ${each.stage}` : "", each.ref ? h("span", { class: "dim" }, ` ${each.ref}`) : "", each.at ? [" · ", ago(each.at)] : ""))));
}

function closedRow(closed) {
  const lasted = seconds(closed.closedAt) - seconds(closed.since);
  return h(
    "li",
    {},
    h("div", {}, h("b", {}, `${closed.check} ${closed.reason}`), h("span", { class: "where" }, closed.component)),
    h("div", { class: "dim" }, `closed ${clock(closed.closedAt)} (`, ago(closed.closedAt), `) ${HOW[closed.how] ?? closed.how ?? ""}`, closed.by ? `: ${closed.by}` : ""),
    closed.since ? h("div", { class: "dim" }, `was open since ${clock(closed.since)}, for ${lasted > 0 ? duration(lasted) : "a moment"}${closed.rule ? `, rule ${closed.rule}` : ""}`) : "",
    closed.message ? h("div", { class: "evidence" }, closed.message) : "",
  );
}

function duration(lasted) {
  const minutes = Math.round(lasted / 60);
  if (minutes < 1) return `${Math.round(lasted)} s`;
  return minutes < 90 ? `${minutes} min` : `${(minutes / 60).toFixed(1)} h`;
}

const checkChip = (check) => h("li", { class: `check v-${check.verdict}`, title: check.verdict }, icon(VERDICTS[check.verdict] ?? "U", 10), check.name,
  h("span", { class: "unseen" }, ` ${check.verdict}`));

function agentLines(node) {
  return h(
    "dl",
    {},
    row("last change", node.observedAt ? [clock(node.observedAt, true), " · ", ago(node.observedAt)] : "no agent has reported yet"),
    node.boot ? row("boot", h("code", {}, node.boot)) : "",
    row("idle", node.idleSince ? ["since ", clock(node.idleSince), " · ", ago(node.idleSince)] : "no, a job may be running"),
    node.testing ? row("running", node.testing) : "",
  );
}
