// Headline, counts, incidents, and the list of broken nodes with since when and what Muster did.

import { STATES, STATE, icon } from "./glyphs.js";
import { ago, clock, count, h, many, now, seconds, span, withTimes } from "./words.js";

const SHOWN = 60; // per state; search shows the rest
const LISTED = ["W", "T", "F", "P", "Q", "U", "N", "S", "M", "R", "L", "H"];
const QUIET = new Set(["H", "S", "M", "N", "R", "L"]); // listed only if selected

export function headline(fleet) {
  const all = fleet.nodes.size;
  if (!fleet.state?.synced && !all) return "Loading the nodes from the API server …";
  const parts = [
    [fleet.number("T"), "tainted"],
    [fleet.number("W"), "waiting for a taint"],
    [fleet.number("F"), "failing without a taint"],
  ].filter(([number]) => number);
  const broken = parts.reduce((sum, [number]) => sum + number, 0);
  const partly = fleet.number("Q");
  const without = partly ? `${count(partly)} ${partly === 1 ? "works" : "work"} without a device` : "";
  if (!broken) {
    const unknown = fleet.number("U");
    if (!unknown && !without) return `Nothing is broken on ${many(all, "node")}`;
    const others = [without, unknown ? `${count(unknown)} unknown` : ""].filter(Boolean).join(", ");
    return `No node is broken; ${others} of ${many(all, "node")}`;
  }
  const what = [...parts.map(([number, word]) => `${count(number)} ${word}`), without].filter(Boolean);
  const last = without ? `; ${what.pop()}` : "";
  return [h("strong", {}, `${count(broken)} of ${many(all, "node")} ${broken === 1 ? "is" : "are"} broken`), `: ${what.join(", ")}${last}`];
}

export function newest(fleet, open) {
  const [node] = fleet.in(["T", "W", "F"]).filter((each) => each.since);
  if (!node) return [];
  return ["Newest: ", nodeLink(node, open), ` ${node.reason} `, ago(node.since), node.done ? `, ${withTimes(node.done)}` : ""];
}

const nodeLink = (node, open) => h("button", { type: "button", class: "link", onclick: () => open(node) }, node.name);

export function chips(fleet, filter, toggle) {
  return STATES.map((state, i) => {
    const number = fleet.number(state.code);
    return h(
      "button",
      {
        type: "button",
        class: `chip s-${state.code === "." ? "pass" : state.code}${number ? "" : " none"}${state.bad ? " bad" : ""}`,
        "aria-pressed": String(filter.states.has(state.code)),
        "aria-keyshortcuts": i < 10 ? String((i + 1) % 10) : null,
        data: { state: state.code },
        onclick: () => toggle(state.code),
      },
      icon(state.code, 15),
      h("b", {}, count(number)),
      h("span", {}, state.title),
    );
  });
}

export function banners(fleet, freshness) {
  const state = fleet.state;
  const shown = [];
  if (freshness.word === "away" && freshness.since) {
    shown.push(banner("bad", `Not live: showing the state of ${clock(freshness.since / 1000, true)}. Reconnecting …`));
  } else if (freshness.word === "away") shown.push(banner("bad", "The tainter does not respond. Retrying …"));
  if (!state) return shown;
  if (state.paused) {
    const words = state.paused.replace(/\d{4}-\d\d-\d\dT[\d:.]+Z/, (time) => `${clock(time)} (${span(now() - seconds(time))} ago)`);
    shown.push(banner("warn", h("b", {}, words[0].toUpperCase() + words.slice(1)), ". No new taints, drains or repairs; recovery continues. To resume: ", h("code", {}, "muster resume")));
  }
  if (state.dryRun) shown.push(banner("warn", h("b", {}, "Dry run"), ": this replica does not write."));
  if (!state.synced) shown.push(banner("warn", "The nodes are still being listed: numbers are incomplete."));
  else if (state.behind.length) {
    shown.push(banner("warn", `The connection to the API server is down, so this may be outdated: ${state.behind.join("; ")}`));
  }
  return shown;
}

const banner = (kind, ...content) => h("p", { class: `banner ${kind}` }, ...content);

export function lists(fleet, filter, open) {
  const shown = [...incidents(fleet, filter, open)];
  const matches = filter.active ? (node) => filter.matches(node) : null;
  for (const code of LISTED) {
    if (QUIET.has(code) && !filter.active) continue;
    if (filter.states.size && !filter.states.has(code)) continue;
    const nodes = fleet.in([code], matches);
    if (nodes.length) shown.push(group(code, nodes, open));
  }
  if (filter.active && (filter.states.has(".") || filter.words.length)) {
    const passing = !filter.states.size || filter.states.has(".") ? fleet.in(["."], matches) : [];
    if (passing.length) shown.push(group(".", passing, open));
  }
  if (!shown.length) {
    shown.push(filter.active
      ? h("p", { class: "empty" }, "No node matches.")
      : h("p", { class: "empty" }, icon(".", 22), h("b", {}, "Nothing is broken."), h("span", {}, "For warnings and tests, use the buttons above.")));
  }
  if (!filter.active) shown.push(...room(fleet));
  return shown;
}

// Nodes with the same text about what Muster did share one line of it
function group(code, nodes, open) {
  const shown = new Map();
  for (const node of nodes.slice(0, SHOWN)) {
    const done = withTimes(node.done);
    if (!shown.has(done)) shown.set(done, []);
    shown.get(done).push(node);
  }
  const more = nodes.length - SHOWN;
  return h(
    "section",
    { class: "group", "aria-label": STATE[code].title },
    h("h2", {}, icon(code, 13), STATE[code].title, h("span", { class: "dim" }, ` ${count(nodes.length)}`)),
    [...shown].map(([done, same]) => [done ? h("p", { class: "done" }, done) : "", h("ul", {}, same.map((node) => h("li", {}, item(node, open))))]),
    more > 0 ? h("p", { class: "dim more" }, `and ${count(more)} more: use the search to narrow the list`) : "",
  );
}

function item(node, open) {
  const what = node.state === "." ? "" : [node.reason, node.component].filter(Boolean).join(" · ") || node.testing;
  const more = node.faults > 1 ? ` +${count(node.faults - 1)}` : "";
  return h(
    "button",
    { type: "button", class: "item", data: { node: node.name }, onclick: () => open(node) },
    h("span", { class: "first" }, h("b", {}, node.name), h("span", { class: "place" }, node.domain || node.pool), node.since ? ago(node.since) : ""),
    what ? h("span", { class: "what" }, h("b", { class: `s-${node.state}` }, what, more), node.message ? h("span", { class: "dim" }, ` ${node.message}`) : "") : "",
  );
}

function incidents(fleet, filter, open) {
  const all = filter.states.size ? [] : [...(fleet.state?.incidents ?? [])].sort((a, b) => b.since - a.since);
  const cards = all
    .map((incident) => [incident, fleet.in(["T", "W", "F", "P"], (node) => belongs(node, incident) && (!filter.words.length || filter.matches(node)))])
    .filter(([, nodes]) => nodes.length || !filter.words.length);
  if (!cards.length) return [];
  return [
    h(
      "section",
      { class: "group incidents", "aria-label": "Incidents" },
      h("h2", {}, "Incidents", h("span", { class: "dim" }, ` ${count(cards.length)}`)),
      cards.slice(0, SHOWN).map(([incident, nodes]) => incidentCard(incident, nodes, open)),
    ),
  ];
}

// {id, check, reason, where, since, nodes (a number)}: one check's reason that opened on many nodes at once
const belongs = (node, incident) => node.reason === incident.reason && node.check === incident.check && node.since >= incident.since - 1;

function incidentCard(incident, nodes, open) {
  const of = (code) => nodes.filter((node) => node.state === code).length;
  const done = ["T", "W", "F", "P"].map((code) => [of(code), STATE[code].word]).filter(([number]) => number);
  return h(
    "article",
    { class: "incident" },
    h("h3", {}, `${incident.reason} on ${many(incident.nodes, "node")}`, h("span", {}, incident.where ? ` · ${incident.where}` : " · across the fleet")),
    h("p", {}, `${incident.check}, since ${clock(incident.since)} (`, ago(incident.since), ")"),
    done.length ? h("p", { class: "done" }, done.map(([number, word]) => `${count(number)} ${word}`).join(", ")) : "",
    h("p", { class: "names" },
      nodes.slice(0, 12).map((node) => h("button", { type: "button", class: `tag s-${node.state}`, data: { node: node.name }, onclick: () => open(node) }, node.name)),
      nodes.length > 12 ? h("span", { class: "dim" }, `and ${count(nodes.length - 12)} more`) : ""),
  );
}

// Budgets: {pool, domain, what, used, limit, left, waiting}; limit null: no limit

const LIMITS = {
  tainted: (row) => ["tainted", `${count(row.used)} of ${count(row.limit)}`],
  rate: (row) => ["newly tainted", `${count(row.used)} of ${count(row.limit)}`],
  perDomain: (row) => [`tainted in ${row.domain || "no domain"}`, `${count(row.used)} of ${count(row.limit)}`],
  healthyPerDomain: (row) => [`healthy in ${row.domain || "no domain"}`, `${count(row.used)}, at least ${count(row.limit)} must stay healthy`],
};

export function meter(row) {
  if (row.limit === null) return h("span", { class: "meter" }, h("span", { class: "dim" }, `${count(row.used)} tainted, no limit`));
  const [what, figures] = (LIMITS[row.what] ?? LIMITS.tainted)(row);
  const none = row.left === 0;
  const part = none ? 1 : row.what === "healthyPerDomain" ? row.limit / Math.max(row.used, 1) : row.used / Math.max(row.limit, 1);
  const bar = h("span", { class: `bar${none ? " full" : part > 0.7 ? " near" : ""}` }, h("i"));
  bar.firstChild.style.width = `${Math.round(Math.min(1, part) * 100)}%`;
  return h(
    "span",
    { class: "meter" },
    h("span", { class: "dim" }, what),
    bar,
    h("span", {}, figures, h("span", { class: none ? "none-left" : "dim" }, none ? ", no room" : `, room for ${count(row.left)}`)),
    row.waiting ? h("span", { class: "s-W" }, `${count(row.waiting)} waiting`) : "",
  );
}

const limited = (row) => row.limit !== null || row.used > 0;

function room(fleet) {
  const rows = (fleet.state?.budgets ?? []).filter(limited);
  if (!rows.length) return [];
  const pools = new Map();
  for (const row of rows) pools.set(row.pool, [...(pools.get(row.pool) ?? []), row]);
  return [
    h(
      "section",
      { class: "group", "aria-label": "Budgets" },
      h("h2", {}, "Budgets"),
      [...pools].map(([pool, own]) => h("div", { class: "budget" }, h("b", {}, pool), own.slice(0, SHOWN).map(meter))),
    ),
  ];
}

// The heading of a pool on the map
export function poolHead(fleet, pool) {
  const numbers = fleet.byPool.get(pool) ?? { all: 0 };
  const bad = STATES.filter((state) => state.code !== "." && numbers[state.code]);
  return h(
    "div",
    { class: "pool" },
    h("h2", {}, pool || (fleet.groups.length > 1 ? "in no pool" : "All nodes")),
    h("span", { class: "dim" }, many(numbers.all, "node")),
    bad.map((state) => h("span", { class: `tally s-${state.code}`, title: state.title }, icon(state.code, 11), count(numbers[state.code]))),
    (fleet.state?.budgets ?? []).filter((row) => row.pool === pool && !row.domain && row.what === "tainted" && row.limit !== null).map(meter),
  );
}
