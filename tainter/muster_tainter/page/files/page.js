// The fleet page: data from the server updates the model, which updates the map, lists and panel.

import { Clearing } from "./clearing.js";
import { STATE, STATES, readColours } from "./glyphs.js";
import { banners, chips, headline, lists, newest, poolHead } from "./lists.js";
import { Live } from "./live.js";
import { FleetMap, spoken } from "./map.js";
import { Filter, Fleet } from "./model.js";
import { Panel } from "./panel.js";
import { count, many, tick } from "./words.js";

const LISTS_MS = 250; // in a storm the words change four times a second, the map at once
const element = (id) => document.getElementById(id);

const fleet = new Fleet();
const filter = new Filter();
let fresh = { word: "loading", since: 0 };

readColours();
const map = new FleetMap(fleet, filter, { head: (pool) => poolHead(fleet, pool), open, say });
const panel = new Panel({ closed: panelClosed, clear: (target) => clearing.ask(target) });
const clearing = new Clearing((name) => panel.name === name && panel.refresh());
const live = new Live({
  fleet(all) {
    fleet.load(all);
    map.arrange();
    words();
    openFromAddress();
  },
  rows(rows, mark) {
    fleet.mark = mark;
    const { news, moved } = fleet.update(rows);
    if (moved) map.arrange();
    else map.redraw();
    const bad = news.filter(({ node, before }) => before && STATE[node.state]?.bad);
    map.pulse(news.filter(({ node, before }) => before && (STATE[node.state]?.bad || STATE[before]?.bad)).map(({ node }) => node.name));
    if (bad.length) say(bad.length === 1 ? spoken(bad[0].node) : `${many(bad.length, "node")} changed, the first: ${spoken(bad[0].node)}`);
    if (rows.some(([name]) => name === panel.name)) panel.refresh();
    soon();
  },
  state(state) {
    fleet.state = state;
    soon();
  },
  fresh(word, since) {
    const other = fresh.word !== word;
    fresh = { word, since };
    if (other) pills();
  },
});

// The last state that was drawn, for measurements and tests
map.drawn = () => {
  if (!fleet.mark || map.canvas.dataset.drawn === fleet.mark) return;
  map.canvas.dataset.drawn = fleet.mark;
  if (!performance.getEntriesByName("muster-first-paint").length) performance.mark("muster-first-paint");
};

let waiting = 0;
let last = -LISTS_MS;
function soon() {
  if (waiting) return;
  waiting = setTimeout(() => {
    waiting = 0;
    words();
  }, Math.max(0, last + LISTS_MS - performance.now()));
}

function words() {
  last = performance.now();
  const head = headline(fleet);
  element("headline").replaceChildren(...[head].flat());
  element("newest").replaceChildren(...newest(fleet, open));
  refill("chips", chips(fleet, filter, toggle), "state");
  if (!element("lists").hidden) refill("lists", lists(fleet, filter, open), "node");
  map.label();
  pills();
  matches();
  const broken = fleet.number("T", "W", "F");
  document.title = broken ? `(${count(broken)}) Muster` : "Muster";
}

// Replaces the content and keeps the focus
function refill(id, content, key) {
  const place = element(id);
  const active = document.activeElement;
  const kept = place.contains(active) ? active.dataset[key] : undefined;
  place.replaceChildren(...content);
  if (kept !== undefined) place.querySelector(`[data-${key}="${CSS.escape(kept)}"]`)?.focus({ preventScroll: true });
}

const FRESH = { live: "live", away: "not live", polling: "every 5 s", asleep: "asleep", loading: "loading" };
function pills() {
  const pill = element("live");
  pill.className = `pill ${fresh.word}`;
  pill.textContent = FRESH[fresh.word];
  const leads = element("leads");
  leads.textContent = fleet.state ? (fleet.state.dryRun ? "dry run" : fleet.state.leading ? "leader" : "standby") : "";
  leads.title = fleet.state?.leading ? "This replica decides and writes." : "Another replica decides; this one shows its own copy.";
  leads.className = `pill${fleet.state?.leading ? " leading" : ""}`;
  element("banners").replaceChildren(...banners(fleet, fresh));
}

function matches() {
  if (!filter.active) {
    element("matches").textContent = "";
    return;
  }
  let number = 0;
  for (const node of fleet.nodes.values()) if (filter.matches(node)) number += 1;
  element("matches").textContent = count(number);
}

function say(text) {
  element("announcement").textContent = text;
}

function toggle(code) {
  if (!filter.states.delete(code)) filter.states.add(code);
  filtered();
}

function filtered() {
  map.redraw();
  words();
  address();
}

// One node

let opener = null;
function open(node) {
  opener = document.activeElement;
  element("lists").hidden = true;
  map.select(node.name);
  map.show(node.name);
  panel.open(node.name);
  address();
}

function panelClosed() {
  element("lists").hidden = false;
  const name = map.selected;
  map.select("");
  words();
  address();
  const item = element("lists").querySelector(`[data-node="${CSS.escape(name)}"]`);
  (opener === map.canvas ? opener : (item ?? element("lists"))).focus({ preventScroll: true });
}

// The URL fragment holds the view, so that it can be shared

function address() {
  const parts = new URLSearchParams();
  if (panel.name) parts.set("node", panel.name);
  if (filter.text) parts.set("q", filter.text);
  if (filter.states.size) parts.set("state", [...filter.states].join(""));
  const text = parts.toString();
  history.replaceState(null, "", text ? `#${text}` : location.pathname + location.search);
}

function readAddress() {
  const parts = new URLSearchParams(location.hash.slice(1));
  filter.setText((parts.get("q") ?? "").slice(0, 200));
  filter.states = new Set([...(parts.get("state") ?? "")].filter((code) => code in STATE));
  element("search").value = filter.text;
  return parts.get("node") ?? "";
}

let wanted = readAddress();
function openFromAddress() {
  const node = fleet.nodes.get(wanted);
  wanted = "";
  if (node) open(node);
}
addEventListener("hashchange", () => {
  wanted = readAddress();
  filtered();
  openFromAddress();
});

// Input

element("search").addEventListener("input", (event) => {
  filter.setText(event.target.value);
  filtered();
});
element("search").form.addEventListener("submit", (event) => {
  event.preventDefault();
  const found = [...fleet.nodes.values()].filter((node) => filter.matches(node));
  const exact = found.find((node) => node.name === filter.text.trim());
  if (exact || found.length === 1) open(exact ?? found[0]);
});
element("smaller").addEventListener("click", () => map.zoom(-1));
element("larger").addEventListener("click", () => map.zoom(1));
element("fit").addEventListener("click", () => map.zoom(0));
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  const typing = event.target === element("search");
  if (event.key === "Escape") {
    if (typing && filter.text) {
      event.target.value = "";
      filter.setText("");
      filtered();
    } else if (panel.name) panel.close();
    else if (filter.active) {
      filter.states.clear();
      filtered();
    }
  } else if (typing) return;
  else if (event.key === "/") {
    event.preventDefault();
    element("search").select();
    element("search").focus();
  } else if (/^[0-9]$/.test(event.key)) toggle(STATES[(Number(event.key) + 9) % 10].code);
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => map.recolour());
setInterval(tick, 1000);
live.start();
