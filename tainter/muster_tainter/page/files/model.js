// The fleet as it was last told: nodes by name, and by pool and failure domain. Knows nothing of the page.

const FIELDS = ["state", "faults", "since", "check", "component", "reason", "class", "message", "done", "testing"];
const PLAIN = { state: ".", faults: 0, since: 0, check: "", component: "", reason: "", class: "", message: "", done: "", testing: "" };

// gpu-9 before gpu-10, without taking names apart
export const byName = (a, b) => a.length - b.length || (a < b ? -1 : a > b ? 1 : 0);

class Node {
  constructor(name, pool, domain) {
    this.name = name;
    this.pool = pool;
    this.domain = domain;
    this.words = "";
    this.set(["."]);
  }

  set(values) {
    Object.assign(this, PLAIN);
    values.forEach((value, i) => {
      this[FIELDS[i]] = value;
    });
    this.words = "";
  }

  // what a search looks through
  text() {
    this.words ||= [this.name, this.pool, this.domain, this.check, this.component, this.reason, this.class, this.message, this.done, this.testing]
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
  }

  // All of it anew
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

  // Rows [name, pool, domain, state, …] or [name]; returns what became of them
  update(rows) {
    const news = [];
    let moved = false;
    for (const [name, pool, domain, ...values] of rows) {
      const known = this.nodes.get(name);
      if (pool === undefined) {
        if (known) {
          this.nodes.delete(name);
          moved = true;
        }
        continue;
      }
      const before = known ? known.state : "";
      let node = known;
      if (!known || known.pool !== pool || known.domain !== domain) {
        node = new Node(name, pool, domain);
        this.nodes.set(name, node);
        moved = true;
      }
      node.set(values);
      if (node.state !== before) news.push({ node, before });
    }
    if (moved) this.#group();
    this.#count();
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
    const counts = {};
    const byPool = new Map();
    for (const node of this.nodes.values()) {
      counts[node.state] = (counts[node.state] ?? 0) + 1;
      let own = byPool.get(node.pool);
      if (!own) byPool.set(node.pool, (own = { all: 0 }));
      own.all += 1;
      own[node.state] = (own[node.state] ?? 0) + 1;
    }
    this.counts = counts;
    this.byPool = byPool;
  }

  number(...codes) {
    return codes.reduce((sum, code) => sum + (this.counts[code] ?? 0), 0);
  }

  // Those in one of `codes`, the newest first
  in(codes, filter) {
    const found = [];
    for (const node of this.nodes.values()) if (codes.includes(node.state) && (!filter || filter(node))) found.push(node);
    return found.sort((a, b) => b.since - a.since || byName(a.name, b.name));
  }
}

// What is shown: a node in one of the states (none: any) that has every word of the text
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
