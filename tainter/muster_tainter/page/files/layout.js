// Computes the place of each node on the map. Pure: from pools, domains and a width to rectangles.

export const PITCHES = [7, 8, 9, 10, 11, 12, 13, 15, 17, 19, 22, 26, 30, 34];
const HEAD = 42; // of a pool
const BELOW = 12; // a pool
const LABEL_WIDTH = 44;

// label: height of a domain's name; pad: of a block; gutter: between blocks. Small nodes use smaller values.
const WIDE = { label: 15, pad: 5, gutter: 8, font: 10 };
const DENSE = { label: 11, pad: 3, gutter: 5, font: 9 };
const spaceOf = (pitch) => (pitch > 8 ? WIDE : DENSE);

export const gapOf = (pitch) => (pitch >= 22 ? 4 : pitch >= 15 ? 3 : pitch >= 10 ? 2 : 1);

// The varying part of a domain's name: "017" of "rack-017" among others
export function commonStart(names) {
  if (names.length < 2) return 0;
  let end = 0;
  const [first] = names;
  while (end < first.length && names.every((name) => name[end] === first[end])) end += 1;
  while (end > 0 && /[\p{L}\p{N}]/u.test(first[end - 1])) end -= 1; // whole words only
  return end;
}

function columns(domains, pitch, width, pad) {
  const most = Math.max(...domains.map((domain) => domain.nodes.length));
  const room = Math.max(1, Math.floor((width - 2 * pad) / pitch));
  if (domains.length === 1) return Math.min(most, room);
  const wanted = Math.max(Math.ceil(Math.sqrt(most * 1.6)), Math.ceil(LABEL_WIDTH / pitch));
  return Math.min(wanted, room);
}

export function arrange(groups, width, pitch) {
  const { label: LABEL, pad: PAD, gutter: GUTTER, font } = spaceOf(pitch);
  const blocks = [];
  const heads = [];
  let y = 0;
  for (const group of groups) {
    heads.push({ pool: group.name, y, height: HEAD });
    y += HEAD;
    const named = group.domains.length > 1 || group.domains[0].name !== "";
    const label = named ? LABEL : 0;
    const start = commonStart(group.domains.map((domain) => domain.name).filter(Boolean));
    const cols = columns(group.domains, pitch, width, PAD);
    const w = cols * pitch + 2 * PAD - gapOf(pitch);
    const across = Math.max(1, Math.floor((width + GUTTER) / (w + GUTTER)));
    for (let i = 0; i < group.domains.length; i += across) {
      const line = group.domains.slice(i, i + across);
      const rows = Math.max(...line.map((domain) => Math.ceil(domain.nodes.length / cols)));
      const height = label + rows * pitch + 2 * PAD - gapOf(pitch);
      line.forEach((domain, j) => {
        blocks.push({
          pool: group.name,
          domain: domain.name,
          label: named ? domain.name.slice(start) || (domain.name ? domain.name : "none") : "",
          nodes: domain.nodes,
          cols,
          x: j * (w + GUTTER),
          y,
          w,
          h: height,
          top: y + label + PAD,
          left: j * (w + GUTTER) + PAD,
          base: y + LABEL + (LABEL > 12 ? -3 : 0), // of its name
        });
      });
      y += height + GUTTER;
    }
    y += BELOW - GUTTER;
  }
  return { blocks, heads, height: y, pitch, width, font };
}

// The largest node size at which the whole fleet is visible; `steps` larger or smaller than that
export function fit(groups, width, height, steps = 0) {
  let [fits, larger] = [0, PITCHES.length];
  while (larger - fits > 1) {
    const middle = (fits + larger) >> 1;
    if (arrange(groups, width, PITCHES[middle]).height <= height) fits = middle;
    else larger = middle;
  }
  return arrange(groups, width, PITCHES[Math.min(PITCHES.length - 1, Math.max(0, fits + steps))]);
}

// The node at a point, or null
export function nodeAt({ blocks, pitch }, x, y) {
  for (const block of blocks) {
    if (y < block.y || y >= block.y + block.h || x < block.x || x >= block.x + block.w) continue;
    const col = Math.floor((x - block.left) / pitch);
    const row = Math.floor((y - block.top) / pitch);
    if (col < 0 || row < 0 || col >= block.cols) return null;
    return block.nodes[row * block.cols + col] ?? null;
  }
  return null;
}

// The square of each node by name: {x, y, block, index}
export function places({ blocks, pitch }) {
  const found = new Map();
  for (const block of blocks) {
    block.nodes.forEach((node, index) => {
      found.set(node.name, {
        x: block.left + (index % block.cols) * pitch,
        y: block.top + Math.floor(index / block.cols) * pitch,
        block,
        index,
      });
    });
  }
  return found;
}
