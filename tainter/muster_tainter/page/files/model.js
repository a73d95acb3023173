// The last known state of the fleet: nodes by name, and by pool and failure domain. Independent of the page.

// gpu-9 before gpu-10, without taking names apart
export const byName = (a, b) => a.length - b.length || (a < b ? -1 : a > b ? 1 : 0);

class Node {
  constructor(name, pool, domain) {
    this.name = name;
    this.pool = pool;
    this.domain = domain;
    this.set(["."]);
  }

  // The row from the server; only the state for a passing node
  set([state, faults = 0, since = 0, check = "", component = "", reason = "", asks = "", message = "", done = "", testing = "", devices = ""]) {
    this.state = state;
    this.faults = faults;
    this.since = since;
    this.check = check;
    this.component = component;
    this.reason = reason;
    this.asks = asks;
    this.message = message;
    this.done = done;
    this.testing = testing;
    this.devices = devices; // a letter for each (glyphs.js)
    this.words = "";
  }

  // the text that a search matches
  text() {
    this.words ||= [this.name, this.pool, this.domain, this.check, this.component, this.reason, this.asks, this.message, this.done, this.testing]
      .join(" ").toLowerCase();
    return this.words;
  }
}

export class Fleet {
  constructor() {
    this.nodes = new Map();
    this.state = null;
    this.mark = "";
    this.order = [];
    this.groups = []; // [{name, domains: [{name, nodes}]}], as the map shows them
    this.counts = {};
    this.byPool = new Map();
  }

  // Replace everything
  load(fleet) {
    this.nodes.clear();
    this.mark = fleet.mark;
    this.order = fleet.order;
    this.state = fleet.state;
    for (const [pool, domains] of Object.entries(fleet.pools)) {
      for (const [domain, listed] of Object.entries(domains)) {
        for (const entry of listed) {
          const name = typeof entry === "string" ? entry : entry[0];
          const node = new Node(name, pool, domain);
          if (typeof entry !== "string") node.set(entry.slice(1));
          this.nodes.set(name, node);
        }
      }
    }
    this.#group();
    this.#count();
  }

  // Rows [name, pool, domain, state, …] or [name]; returns what changed
  update(rows) {
    const news = [];
    let moved = false;
    for (const [name, pool, domain, ...values] of rows) {
      const known = this.nodes.get(name);
      if (pool === undefined) {
        if (known) {
          this.nodes.delete(name);
          this.#tally(known, -1);
          moved = true;
        }
        continue;
      }
      const before = known ? known.state : "";
      if (known) this.#tally(known, -1);
      let node = known;
      if (!known || known.pool !== pool || known.domain !== domain) {
        node = new Node(name, pool, domain);
        this.nodes.set(name, node);
        moved = true;
      }
      node.set(values);
      this.#tally(node, 1);
      if (node.state !== before) news.push({ node, before });
    }
    if (moved) this.#group();
    return { news, moved };
  }

  #group() {
    const pools = new Map();
    for (const node of this.nodes.values()) {
      let domains = pools.get(node.pool);
      if (!domains) pools.set(node.pool, (domains = new Map()));
      const nodes = domains.get(node.domain);
      if (nodes) nodes.push(node);
      else domains.set(node.domain, [node]);
    }
    const rank = (name) => (name === "" ? Infinity : this.order.indexOf(name));
    this.groups = [...pools]
      .sort(([a], [b]) => rank(a) - rank(b) || byName(a, b))
      .map(([name, domains]) => ({
        name,
        domains: [...domains]
          .sort(([a], [b]) => (a === "") - (b === "") || byName(a, b))
          .map(([domain, nodes]) => ({ name: domain, nodes: nodes.sort((a, b) => byName(a.name, b.name)) })),
      }));
  }

  #count() {
    this.counts = {};
    this.byPool = new Map();
    for (const node of this.nodes.values()) this.#tally(node, 1);
  }

  #tally({ state, pool }, change) {
    this.counts[state] = (this.counts[state] ?? 0) + change;
    let own = this.byPool.get(pool);
    if (!own) this.byPool.set(pool, (own = { all: 0 }));
    own.all += change;
    own[state] = (own[state] ?? 0) + change;
  }

  number(...codes) {
    return codes.reduce((sum, code) => sum + (this.counts[code] ?? 0), 0);
  }

  // Nodes in one of `codes`, newest first
  in(codes, filter) {
    const found = [];
    for (const node of this.nodes.values()) if (codes.includes(node.state) && (!filter || filter(node))) found.push(node);
    return found.sort((a, b) => b.since - a.since || byName(a.name, b.name));
  }
}

// The filter: nodes in one of the states (none: any) that contain every word of the text
export class Filter {
  constructor() {
    this.states = new Set();
    this.text = "";
    this.words = [];
  }

  setText(text) {
    this.text = text;
    this.words = text.toLowerCase().split(/\s+/).filter(Boolean);
  }

  get active() {
    return this.states.size > 0 || this.words.length > 0;
  }

  matches(node) {
    if (this.states.size && !this.states.has(node.state)) return false;
    if (!this.words.length) return true;
    const text = node.text();
    return this.words.every((word) => text.includes(word));
  }
}
