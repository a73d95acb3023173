// The map: every node is a square on one canvas, pools and failure domains are blocks. Only the visible part is drawn.

import { STATE, colour, paint, paintDevices, readColours } from "./glyphs.js";
import { fit, gapOf, nodeAt, places } from "./layout.js";
import { clock, count, h, withTimes } from "./words.js";

const PULSE_MS = 2600;
const DEVICES_FROM = 12; // pixels of a node's square; in a smaller one its devices could not be told apart
const CALM = matchMedia("(prefers-reduced-motion: reduce)");
const STEPS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

export class FleetMap {
  // head: element for a pool's heading. open: called with a node. say: called with text for a screen reader
  constructor(fleet, filter, { head, open, say }) {
    this.fleet = fleet;
    this.filter = filter;
    this.head = head;
    this.open = open;
    this.say = say;
    this.scroller = document.getElementById("scroller");
    this.sheet = document.getElementById("sheet");
    this.canvas = document.getElementById("map");
    this.heads = document.getElementById("heads");
    this.tip = document.getElementById("tip");
    this.further = document.getElementById("further");
    this.front = this.canvas.getContext("2d");
    this.context = document.createElement("canvas").getContext("2d"); // the nodes, without what moves above them
    this.stale = true;
    this.steps = 0;
    this.laid = null;
    this.at = null; // places, made when first asked for
    this.cursor = "";
    this.selected = "";
    this.pulses = new Map();
    this.due = false;
    this.drawn = () => {};
    this.#listen();
  }

  // Called when nodes are added or removed, or the window size changes
  arrange() {
    const width = this.scroller.clientWidth;
    const height = this.scroller.clientHeight;
    if (!width || !this.fleet.groups.length) {
      this.laid = null;
      this.heads.replaceChildren();
      this.sheet.style.height = "0";
      this.redraw();
      return;
    }
    this.laid = fit(this.fleet.groups, width, height, this.steps);
    this.at = null;
    this.sheet.style.height = `${Math.max(this.laid.height, 1)}px`;
    this.canvas.style.width = `${width}px`;
    this.canvas.style.height = `${height}px`;
    this.redraw();
    this.label();
  }

  // The pools' headings
  label() {
    if (!this.laid) return;
    this.heads.replaceChildren(
      ...this.laid.heads.map(({ pool, y }) => {
        const element = this.head(pool);
        element.style.transform = `translateY(${y}px)`;
        return element;
      }),
    );
  }

  pulse(names) {
    const start = performance.now();
    for (const name of names) this.pulses.set(name, start);
    this.redraw();
  }

  select(name) {
    this.selected = name;
    if (name) this.cursor = name;
    this.redraw();
  }

  recolour() {
    readColours();
    this.redraw();
  }

  redraw() {
    this.stale = true;
    this.#frame();
  }

  #frame() {
    if (this.due) return;
    this.due = true;
    requestAnimationFrame(() => {
      this.due = false;
      this.#draw();
    });
  }

  zoom(change) {
    this.steps = change === 0 ? 0 : Math.max(-13, Math.min(13, this.steps + change));
    this.arrange();
  }

  #place(name) {
    if (!this.laid) return null;
    this.at ??= places(this.laid);
    return this.at.get(name) ?? null;
  }

  #draw() {
    const ratio = window.devicePixelRatio || 1;
    const { front, context, scroller } = this;
    const [width, height] = [scroller.clientWidth, scroller.clientHeight].map((side) => Math.round(side * ratio));
    for (const { canvas } of [front, context]) {
      if (canvas.width === width && canvas.height === height) continue;
      canvas.width = width;
      canvas.height = height;
      this.stale = true;
    }
    if (this.stale) {
      context.setTransform(1, 0, 0, 1, 0, 0);
      context.clearRect(0, 0, width, height);
      context.setTransform(ratio, 0, 0, ratio, 0, 0);
      if (this.laid) this.#nodes(scroller.scrollTop, scroller.clientHeight);
      this.stale = false;
    }
    front.setTransform(1, 0, 0, 1, 0, 0);
    front.clearRect(0, 0, width, height);
    if (width && height) front.drawImage(context.canvas, 0, 0);
    if (!this.laid) return;
    front.setTransform(ratio, 0, 0, ratio, 0, 0);
    front.translate(0, -scroller.scrollTop);
    this.#rings(this.laid.pitch - gapOf(this.laid.pitch));
    this.drawn();
  }

  #nodes(top, height) {
    const { context } = this;
    context.translate(0, -top);
    const { pitch } = this.laid;
    const size = pitch - gapOf(pitch);
    const inset = size >= 12 ? size * 0.1 : 0;
    const small = size - 2 * inset;
    const filter = this.filter.active ? this.filter : null;
    const loud = [];
    let below = 0;
    context.font = `600 ${this.laid.font}px Inter, system-ui, sans-serif`;
    context.textBaseline = "alphabetic";
    for (const block of this.laid.blocks) {
      if (block.y > top + height || block.y + block.h < top) {
        if (block.y > top) below += block.nodes.reduce((sum, node) => sum + (STATE[node.state]?.bad ? 1 : 0), 0);
        continue;
      }
      const bad = block.nodes.some((node) => STATE[node.state]?.bad);
      context.fillStyle = colour(bad ? "--block-bad" : "--block");
      context.beginPath();
      context.roundRect(block.x, block.y, block.w, block.h, 5);
      context.fill();
      if (bad) {
        context.strokeStyle = colour("--edge-bad");
        context.lineWidth = 1;
        context.stroke();
      }
      if (block.label) {
        context.fillStyle = colour(bad ? "--label-bad" : "--label");
        this.#text(block.label, block.left, block.base, block.w - 6);
      }
      context.fillStyle = colour("--pass");
      block.nodes.forEach((node, index) => {
        const x = block.left + (index % block.cols) * pitch;
        const y = block.top + Math.floor(index / block.cols) * pitch;
        const dim = filter !== null && !filter.matches(node);
        if (node.state !== ".") {
          loud.push([node, x, y, dim]);
          return;
        }
        if (dim) context.globalAlpha = 0.18;
        if (small >= 9) {
          context.beginPath();
          context.roundRect(x + inset, y + inset, small, small, small / 6);
          context.fill();
        } else {
          context.fillRect(x + inset, y + inset, small, small);
        }
        context.globalAlpha = 1;
      });
    }
    for (const [node, x, y, dim] of loud) {
      context.globalAlpha = dim ? 0.15 : 1;
      // broken nodes are drawn a little larger than their place, so that they stand out
      const more = STATE[node.state]?.bad && size < 14 ? 1 : 0;
      if (node.state === "Q" && node.devices && size >= DEVICES_FROM) paintDevices(context, node.devices, x, y, size);
      else paint(context, node.state, x - more / 2, y - more / 2, size + more);
    }
    context.globalAlpha = 1;
    this.further.hidden = below === 0;
    this.further.textContent = `↓ ${count(below)} broken further down`;
  }

  #text(text, x, y, room) {
    let shown = text;
    while (shown.length > 1 && this.context.measureText(shown).width > room) shown = shown.slice(0, -1);
    this.context.fillText(shown === text || shown.length < 3 ? shown : `${shown.slice(0, -1)}…`, x, y);
  }

  #rings(size) {
    const { front: context } = this;
    const ring = (name, colours, width, room) => {
      const place = this.#place(name);
      if (!place) return;
      context.strokeStyle = colours;
      context.lineWidth = width;
      context.beginPath();
      context.roundRect(place.x - room, place.y - room, size + 2 * room, size + 2 * room, 4 + room / 2);
      context.stroke();
    };
    const time = performance.now();
    for (const [name, start] of this.pulses) {
      const part = (time - start) / PULSE_MS;
      if (part >= 1) {
        this.pulses.delete(name);
        continue;
      }
      const node = this.fleet.nodes.get(name);
      if (!node) continue;
      context.globalAlpha = 1 - part;
      const code = node.state === "." ? "--P" : node.state === "L" ? "--R" : `--${node.state}`;
      ring(name, colour(code) || colour("--focus"), 2, CALM.matches ? 4 : 2 + ((part * 3) % 1) * 12);
      context.globalAlpha = 1;
    }
    if (this.pulses.size) this.#frame();
    if (this.selected) ring(this.selected, colour("--focus"), 2.5, 3);
    if (this.cursor && this.cursor !== this.selected && document.activeElement === this.canvas) ring(this.cursor, colour("--focus"), 1.5, 3);
  }

  #listen() {
    const { canvas, scroller } = this;
    new ResizeObserver(() => this.arrange()).observe(scroller);
    scroller.addEventListener("scroll", () => this.redraw(), { passive: true });
    this.further.addEventListener("click", () => scroller.scrollBy({ top: scroller.clientHeight * 0.8, behavior: CALM.matches ? "auto" : "smooth" }));
    canvas.addEventListener("mousemove", (event) => this.#hover(event));
    canvas.addEventListener("mouseleave", () => (this.tip.hidden = true));
    canvas.addEventListener("click", (event) => {
      const node = this.#under(event);
      if (node) this.open(node);
    });
    canvas.addEventListener("keydown", (event) => this.#key(event));
    canvas.addEventListener("focus", () => this.redraw());
    canvas.addEventListener("blur", () => this.redraw());
  }

  #under(event) {
    if (!this.laid) return null;
    const box = this.canvas.getBoundingClientRect();
    return nodeAt(this.laid, event.clientX - box.left, event.clientY - box.top + this.scroller.scrollTop);
  }

  #hover(event) {
    const node = this.#under(event);
    this.canvas.classList.toggle("over", node !== null);
    this.tip.hidden = node === null;
    if (!node) return;
    if (this.tip.dataset.of !== node.name + node.state + node.done) {
      this.tip.dataset.of = node.name + node.state + node.done;
      this.tip.replaceChildren(...tipOf(node));
    }
    const { innerWidth, innerHeight } = window;
    const box = this.tip.getBoundingClientRect();
    const x = event.clientX + 14 + box.width > innerWidth ? event.clientX - 10 - box.width : event.clientX + 14;
    const y = event.clientY + 16 + box.height > innerHeight ? event.clientY - 10 - box.height : event.clientY + 16;
    this.tip.style.transform = `translate(${Math.max(4, x)}px, ${Math.max(4, y)}px)`;
  }

  #key(event) {
    if (!this.laid || event.ctrlKey || event.metaKey || event.altKey) return;
    const step = STEPS[event.key];
    if (step) this.#go(this.#neighbour(...step));
    else if (event.key === "Enter" || event.key === " ") {
      const node = this.fleet.nodes.get(this.cursor);
      if (node) this.open(node);
    } else if (event.key === "n" || event.key === "N") this.#go(this.#broken(event.key === "n" ? 1 : -1));
    else return;
    event.preventDefault();
  }

  #neighbour(across, down) {
    const place = this.#place(this.cursor);
    const first = this.laid.blocks[0];
    if (!place) return first ? first.nodes[0] : null;
    if (across) {
      const index = place.index + across;
      if (place.block.nodes[index]) return place.block.nodes[index];
      const next = this.laid.blocks[this.laid.blocks.indexOf(place.block) + across];
      return next ? next.nodes[across > 0 ? 0 : next.nodes.length - 1] : null;
    }
    const { pitch, height } = this.laid;
    for (let y = place.y + down * pitch; y > -pitch && y < height + pitch; y += (down * pitch) / 2) {
      const node = nodeAt(this.laid, place.x + 1, y + 1);
      if (node && node.name !== this.cursor) return node;
    }
    return null;
  }

  #broken(step) {
    const all = this.laid.blocks.flatMap((block) => block.nodes);
    const start = all.findIndex((node) => node.name === this.cursor);
    for (let i = 1; i <= all.length; i += 1) {
      const node = all[(start + step * i + all.length * 2) % all.length];
      if (STATE[node.state]?.bad && (!this.filter.active || this.filter.matches(node))) return node;
    }
    return null;
  }

  #go(node) {
    if (!node) return;
    this.cursor = node.name;
    this.show(node.name);
    this.say(spoken(node));
    this.redraw();
  }

  // Scroll until the node is visible
  show(name) {
    const place = this.#place(name);
    if (!place) return;
    const { scrollTop, clientHeight } = this.scroller;
    if (place.y < scrollTop + 50 || place.y > scrollTop + clientHeight - 30) {
      this.scroller.scrollTo({ top: place.y - clientHeight / 2, behavior: CALM.matches ? "auto" : "smooth" });
    }
  }
}

const where = (node) => [node.pool && `pool ${node.pool}`, node.domain].filter(Boolean).join(" · ");

export function spoken(node) {
  const since = node.since ? `, since ${clock(node.since)}` : "";
  const what = node.reason ? `, ${node.reason} ${node.component}${since}` : "";
  return `${node.name}, ${where(node)}, ${STATE[node.state]?.word ?? node.state}${what}`;
}

function tipOf(node) {
  const since = node.since ? ` since ${clock(node.since)}` : "";
  const lines = [h("b", {}, node.name), h("span", { class: `state s-${node.state}` }, ` ${STATE[node.state]?.word ?? node.state}${since}`)];
  if (where(node)) lines.push(h("div", { class: "dim" }, where(node)));
  if (node.reason) lines.push(h("div", {}, [node.check, node.reason, node.component].filter(Boolean).join(" · ")));
  if (node.message) lines.push(h("div", { class: "dim clip" }, node.message));
  if (node.testing) lines.push(h("div", {}, `running ${node.testing}`));
  if (node.done) lines.push(h("div", {}, withTimes(node.done)));
  return lines;
}
