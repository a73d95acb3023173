// The fleet from the server: a snapshot, then changes. Reconnects automatically and reports how fresh the data is.

import { setClock } from "./words.js";

const SILENCE_MS = 25_000; // the server says something every ten seconds
const HIDDEN_MS = 60_000; // a page that nobody looks at lets go of its connection
const AGAIN_MS = 3_000;
const POLL_MS = 5_000; // where no stream is to be had

export class Live {
  // on: {fleet(all), rows(rows, mark), state(state), fresh(word, since)}
  constructor(on) {
    this.on = on;
    this.source = null;
    this.mark = "";
    this.timer = 0;
    this.watch = 0;
    this.heard = 0;
    this.hiding = 0;
    document.addEventListener("visibilitychange", () => this.#visible());
    // a page in the browser's back-forward cache would hold one of its few connections
    addEventListener("pagehide", () => this.#stop());
    addEventListener("pageshow", (event) => event.persisted && this.start());
  }

  start() {
    this.#stop();
    this.#fetch();
  }

  #stop() {
    clearTimeout(this.timer);
    clearTimeout(this.watch);
    this.source?.close();
    this.source = null;
  }

  #later(ms) {
    this.#stop();
    this.timer = setTimeout(() => this.#fetch(), ms);
  }

  async #fetch(polling = false) {
    try {
      const answer = await fetch("api/fleet", { signal: AbortSignal.timeout(SILENCE_MS) });
      if (!answer.ok) throw new Error(`${answer.status}`);
      const fleet = await answer.json();
      setClock(fleet.now);
      this.mark = fleet.mark;
      this.#alive();
      this.on.fleet(fleet);
    } catch {
      this.on.fresh("away", this.heard);
      this.#later(AGAIN_MS);
      return;
    }
    if (polling) this.on.fresh("polling", this.heard);
    this.#listen();
  }

  #listen() {
    if (document.hidden && this.hiding === -1) return;
    this.#stop();
    const source = new EventSource(`api/stream?after=${encodeURIComponent(this.mark)}`);
    this.source = source;
    this.#expect();
    source.onopen = () => this.#alive();
    source.onerror = () => {
      // the browser reconnects a broken stream from its last mark, but not a rejected one
      if (source.readyState === EventSource.CLOSED) {
        this.#stop();
        this.on.fresh("polling", this.heard);
        this.timer = setTimeout(() => this.#fetch(true), POLL_MS);
      } else this.on.fresh("away", this.heard);
    };
    const hear = (name, use) =>
      source.addEventListener(name, (event) => {
        if (this.source !== source) return;
        const data = JSON.parse(event.data);
        if (data.now) setClock(data.now);
        if (event.lastEventId) this.mark = event.lastEventId;
        this.#alive();
        use(data);
      });
    hear("rows", (data) => this.on.rows(data.rows, this.mark));
    hear("state", (data) => this.on.state(data));
    hear("beat", () => {});
    hear("resync", () => this.start());
  }

  #alive() {
    this.heard = Date.now();
    this.#expect();
    this.on.fresh("live", this.heard);
  }

  #expect() {
    clearTimeout(this.watch);
    this.watch = setTimeout(() => {
      this.on.fresh("away", this.heard);
      this.#later(0);
    }, SILENCE_MS);
  }

  #visible() {
    clearTimeout(this.hiding);
    if (document.hidden) {
      this.hiding = setTimeout(() => {
        this.hiding = -1;
        this.#stop();
        this.on.fresh("asleep", this.heard);
      }, HIDDEN_MS);
    } else if (this.hiding === -1) {
      this.hiding = 0;
      this.#fetch();
    }
  }
}
