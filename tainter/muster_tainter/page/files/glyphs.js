// Each state has a colour and a shape, so that colour-blind users can tell them apart. Drawn on a grid of 16.

const FULL = "M2.5 0h11a2.5 2.5 0 0 1 2.5 2.5v11a2.5 2.5 0 0 1-2.5 2.5h-11a2.5 2.5 0 0 1-2.5-2.5v-11a2.5 2.5 0 0 1 2.5-2.5z";
const RING = "M3 1.4h10a1.6 1.6 0 0 1 1.6 1.6v10a1.6 1.6 0 0 1-1.6 1.6h-10a1.6 1.6 0 0 1-1.6-1.6v-10a1.6 1.6 0 0 1 1.6-1.6z";

// fill, stroke: a CSS variable's name
const SHAPES = {
  T: [{ d: FULL, fill: "--T" }, { d: "M4.6 4.6L11.4 11.4M11.4 4.6L4.6 11.4", stroke: "--on-T", width: 2.4 }],
  W: [{ d: RING, stroke: "--W", width: 2.8, fill: "--W-soft" }, { d: "M6 5.2v5.6M10 5.2v5.6", stroke: "--W", width: 2.2 }],
  F: [{ d: "M8 0.6L15.8 14.6H0.2z", fill: "--F" }, { d: "M8 5.6v4.2M8 11.7v0.6", stroke: "--on-F", width: 1.9 }],
  P: [{ d: RING, stroke: "--P", width: 2.2 }, { d: "M3.2 8.2h9.6v4.6h-9.6z", fill: "--P" }],
  U: [{ d: "M8 1.4a6.6 6.6 0 1 0 0 13.2a6.6 6.6 0 1 0 0-13.2z", stroke: "--U", width: 2 }, { d: "M6.1 6.3c0-2.6 3.9-2.5 3.9 0c0 1.6-2 1.6-2 3.3M8 11.8v0.3", stroke: "--U", width: 1.7 }],
  N: [{ d: "M8 0.4L15.6 8L8 15.6L0.4 8z", fill: "--N" }],
  S: [{ d: RING, stroke: "--H", width: 1.8, dash: [2.6, 2.2] }, { d: "M8 5v6M5 8h6", stroke: "--H", width: 2 }],
  M: [{ d: "M2.5 8h11", stroke: "--M", width: 3 }],
  H: [{ d: "M8 1.2a6.8 6.8 0 1 0 0 13.6a6.8 6.8 0 1 0 0-13.6z", fill: "--H" }, { d: "M6.3 4.9v6.2l5-3.1z", fill: "--on-H" }],
  R: [{ d: RING, stroke: "--R", width: 2.2 }, { d: "M8 4.4v7.2M4.4 8h7.2", stroke: "--R", width: 2.2 }],
  L: [{ d: FULL, fill: "--R" }, { d: "M4.2 8h7M8.4 4.8L11.6 8L8.4 11.2", stroke: "--on-R", width: 2 }],
  Q: [
    { d: "M1 2h6v5h-6zM9 2h6v5h-6zM1 9h6v5h-6z", fill: "--pass-loud" },
    { d: "M9.9 9.9h4.2v3.2h-4.2z", stroke: "--Q", width: 1.8 },
  ],
  ".": [{ d: "M3.5 2h9a1.5 1.5 0 0 1 1.5 1.5v9a1.5 1.5 0 0 1-1.5 1.5h-9a1.5 1.5 0 0 1-1.5-1.5v-9a1.5 1.5 0 0 1 1.5-1.5z", fill: "--pass" }],
};

// The order of the list: states that need a person first. The first ten have a key
export const STATES = [
  { code: "T", word: "tainted", title: "Tainted", bad: true },
  { code: "W", word: "waiting for a taint", title: "Withheld", bad: true },
  { code: "F", word: "failing", title: "Failing", bad: true },
  { code: "P", word: "verifying", title: "Verifying", bad: true },
  { code: "U", word: "unknown", title: "Unknown" },
  { code: "N", word: "warning", title: "Warning" },
  { code: "H", word: "testing", title: "Testing" },
  { code: "S", word: "new", title: "New" },
  { code: "M", word: "unmanaged", title: "Unmanaged" },
  { code: ".", word: "passing", title: "Pass" },
  { code: "R", word: "spare", title: "Spare" },
  { code: "L", word: "replacement", title: "Replacement" },
  { code: "Q", word: "working without a device", title: "Device out" },
];
export const STATE = Object.fromEntries(STATES.map((state) => [state.code, state]));

let paths = null;
let colours = {};

export function readColours() {
  const style = getComputedStyle(document.documentElement);
  const names = ["--T", "--on-T", "--W", "--W-soft", "--F", "--on-F", "--P", "--U", "--N", "--M", "--H", "--on-H", "--R", "--on-R", "--Q", "--pass", "--pass-loud", "--dark",
    "--block", "--block-bad", "--edge-bad", "--label", "--label-bad", "--focus", "--text", "--ground"];
  colours = Object.fromEntries(names.map((name) => [name, style.getPropertyValue(name).trim()]));
}
export const colour = (name) => colours[name];

// At (x, y) in a square of `size` pixels
export function paint(context, code, x, y, size) {
  paths ??= Object.fromEntries(Object.entries(SHAPES).map(([key, parts]) => [key, parts.map((part) => ({ ...part, path: new Path2D(part.d) }))]));
  context.save();
  context.translate(x, y);
  context.scale(size / 16, size / 16);
  context.lineCap = "round";
  context.lineJoin = "round";
  for (const part of paths[code] ?? paths.U) {
    if (part.fill) {
      context.fillStyle = colours[part.fill];
      context.fill(part.path);
    }
    if (part.stroke) {
      context.strokeStyle = colours[part.stroke];
      // thin lines would vanish in a small cell
      context.lineWidth = Math.max(part.width, 17 / size);
      context.setLineDash(part.dash ?? []);
      context.stroke(part.path);
    }
  }
  context.restore();
}

// Letters of the devices of a node (devices/device_states.py), and what they mean
export const DEVICES = {
  Q: "kept out alone by Muster",
  T: "bad, its node is tainted",
  W: "bad, but not kept out",
  F: "has an open fault",
  D: "kept out by its driver",
  ".": "in use",
};

// The devices of a node in its square: one rectangle each, hollow if the device is out
export function paintDevices(context, letters, x, y, size) {
  const all = [...letters].filter((letter) => letter in DEVICES);
  const columns = all.length > 16 ? Math.ceil(Math.sqrt(all.length)) : all.length > 2 ? Math.ceil(all.length / 2) : 1;
  const rows = Math.ceil(all.length / columns);
  const gap = size >= 18 ? 1.5 : 1;
  const [width, height] = [(size + gap) / columns - gap, (size + gap) / rows - gap];
  all.forEach((letter, index) => {
    const left = x + (index % columns) * (width + gap);
    const top = y + Math.floor(index / columns) * (height + gap);
    context.fillStyle = colours[letter === "." ? "--pass-loud" : "--dark"];
    context.fillRect(left, top, width, height);
    if (letter === ".") return;
    context.strokeStyle = colours[letter === "T" || letter === "W" || letter === "F" ? `--${letter}` : "--Q"];
    context.lineWidth = size >= 18 ? 1.5 : 1;
    context.setLineDash(letter === "D" ? [2, 1.5] : []);
    context.strokeRect(left + context.lineWidth / 2, top + context.lineWidth / 2, width - context.lineWidth, height - context.lineWidth);
    context.setLineDash([]);
  });
}

const SVG = "http://www.w3.org/2000/svg";

export function icon(code, size = 14) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", "-0.5 -0.5 17 17");
  svg.setAttribute("width", size);
  svg.setAttribute("height", size);
  svg.setAttribute("aria-hidden", "true");
  svg.classList.add("glyph");
  for (const part of SHAPES[code] ?? SHAPES.U) {
    const path = document.createElementNS(SVG, "path");
    path.setAttribute("d", part.d);
    // CSS variables, so that a theme change needs no new icons
    path.style.fill = part.fill ? `var(${part.fill})` : "none";
    if (part.stroke) {
      path.style.stroke = `var(${part.stroke})`;
      path.style.strokeWidth = String(part.width);
      path.style.strokeLinecap = "round";
      if (part.dash) path.style.strokeDasharray = part.dash.join(" ");
    }
    svg.append(path);
  }
  return svg;
}
