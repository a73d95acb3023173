// The one thing the page can change: a person says that faults are over. Asks for a token, and once more before it is done.

import { h } from "./words.js";

let token = ""; // for as long as this page is open, and nowhere else

export class Clearing {
  // cleared: called when something was
  constructor(cleared) {
    this.dialog = document.getElementById("clearing");
    this.cleared = cleared;
  }

  ask(target) {
    const what = [target.check ?? "all faults and findings", target.component].filter(Boolean).join(" ");
    const input = h("input", {
      id: "token", type: "password", autocomplete: "off", spellcheck: "false", maxlength: 16384, required: true, value: token,
      placeholder: "kubectl create token …",
    });
    input.value = token;
    const said = h("p", { class: "said", role: "alert" });
    const go = h("button", { type: "submit", class: "button danger" }, "Clear");
    const form = h(
      "form",
      {
        method: "dialog",
        onsubmit: async (event) => {
          event.preventDefault();
          token = input.value.trim();
          go.disabled = true;
          said.textContent = "";
          said.textContent = await this.#send(target, said, go);
          go.disabled = false;
        },
      },
      h("h2", { id: "clearing-title" }, "Clear ", h("code", {}, target.node)),
      h("p", {}, "You say that ", h("b", {}, what), " of this node is over. The fault is closed and its taint comes off; it opens again only when it occurs anew."),
      h("label", { for: "token" }, "Token for the API server, of somebody who may patch nodehealths"),
      input,
      h("p", { class: "dim" }, "It is kept only until this page is closed. Your name is written beside what you clear."),
      said,
      h("p", { class: "actions" }, go, h("button", { type: "button", class: "button", onclick: () => this.dialog.close() }, "Cancel")),
    );
    this.dialog.replaceChildren(form);
    this.dialog.showModal();
    (token ? go : input).focus();
  }

  async #send(target, said, go) {
    said.className = "said";
    let answer;
    let body;
    try {
      answer = await fetch("api/clear", {
        method: "POST",
        headers: { "Content-Type": "application/json", Authorization: `Bearer ${token}` },
        body: JSON.stringify(target),
        cache: "no-store",
        signal: AbortSignal.timeout(30_000),
      });
      body = await answer.json();
    } catch {
      return "The tainter does not answer: nothing may have been cleared. Try again.";
    }
    if (!answer.ok) {
      said.classList.add("bad");
      if (answer.status === 401) token = "";
      return body.message;
    }
    go.hidden = true;
    this.cleared(target.node);
    if (!body.cleared.length) return "There was nothing to clear.";
    const late = body.late ? ` ${body.late} more checks have something to clear: do it again.` : "";
    said.classList.add("good");
    return `Cleared by ${body.by}: ${body.cleared.map((each) => `${each.check} ${each.component}`).join(", ")}.${late}`;
  }
}
