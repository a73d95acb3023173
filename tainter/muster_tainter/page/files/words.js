// Text, times and elements. Text from the cluster only ever becomes a text node.

export function h(tag, props = {}, ...children) {
  const element = document.createElement(tag);
  for (const [key, value] of Object.entries(props)) {
    if (value === undefined || value === null || value === false) continue;
    if (key === "class") element.className = value;
    else if (key === "data") Object.assign(element.dataset, value);
    else if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children.flat(3).filter((child) => child !== "" && child !== null && child !== undefined && child !== false));
  return element;
}

const NUMBERS = new Intl.NumberFormat("en");
export const count = (number) => NUMBERS.format(number);
export const many = (number, one, more = `${one}s`) => `${count(number)} ${number === 1 ? one : more}`;

// Ages are computed with the server's clock: a laptop's clock may be wrong.
let ahead = 0;
export function setClock(serverSeconds) {
  ahead = serverSeconds - Date.now() / 1000;
}
export const now = () => Date.now() / 1000 + ahead;

export function seconds(time) {
  if (typeof time === "number") return time;
  const parsed = Date.parse(time);
  return Number.isNaN(parsed) ? 0 : parsed / 1000;
}

// "14 min": a duration in one unit, two from an hour on
export function span(duration) {
  const s = Math.max(0, Math.round(duration));
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  const days = Math.floor(s / 86400);
  return days < 30 ? `${days} d ${Math.floor((s % 86400) / 3600)} h` : `${days} d`;
}

export function clock(time, withSeconds = false) {
  const at = new Date(seconds(time) * 1000);
  const same = at.toDateString() === new Date(now() * 1000).toDateString();
  const hours = at.toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit", second: withSeconds ? "2-digit" : undefined });
  return same ? hours : `${at.toLocaleDateString("en-GB", { day: "numeric", month: "short" })} ${hours}`;
}

// A <time> that shows its age; refreshed by tick()
export function ago(time, prefix = "") {
  const at = seconds(time);
  if (!at) return "";
  const element = h("time", { datetime: new Date(at * 1000).toISOString(), title: new Date(at * 1000).toString() });
  element.dataset.at = String(at);
  element.dataset.prefix = prefix;
  refresh(element);
  return element;
}

function refresh(element) {
  const age = now() - Number(element.dataset.at);
  const text = age < -1 ? `in ${span(-age)}` : `${span(age)} ago`;
  element.textContent = `${element.dataset.prefix}${text}`;
}

export function tick() {
  for (const element of document.querySelectorAll("time[data-at]")) refresh(element);
}

// The server writes times as {1700000000}
export const withTimes = (text) => text.replace(/\{(\d{9,11})\}/g, (_, at) => clock(Number(at)));

export function figure(value) {
  if (!Number.isFinite(value)) return String(value);
  return Math.abs(value) >= 1000 ? NUMBERS.format(value) : String(Number(value.toPrecision(4)));
}
