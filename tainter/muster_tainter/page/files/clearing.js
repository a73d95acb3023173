// Clearing faults, the only change the page can make. Asks for a token and a confirmation.

import { h } from "./words.js";

let token = ""; // kept only while this page is open

export class Clearing {
  // cleared: called after something was cleared
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
    const status = h("p", { class: "status", role: "alert" });
    const go = h("button", { type: "submit", class: "button danger" }, "Clear");
    const form = h(
      "form",
      {
        method: "dialog",
        onsubmit: async (event) => {
          event.preventDefault();
          token = input.value.trim();
          go.disabled = true;
          status.textContent = "";
          status.textContent = await this.#send(target, status, go);
          go.disabled = false;
        },
      },
      h("h2", { id: "clearing-title" }, "Clear ", h("code", {}, target.node)),
      h("p", {}, "This declares ", h("b", {}, what), " of this node resolved. Muster closes the fault and removes its taint; the fault opens again only if it occurs again."),
      h("label", { for: "token" }, "Kubernetes token of a user with permission to patch nodehealths"),
      input,
      h("p", { class: "dim" }, "The token is kept only while this page is open. The user's name is recorded with the cleared fault."),
      status,
      h("p", { class: "actions" }, go, h("button", { type: "button", class: "button", onclick: () => this.dialog.close() }, "Cancel")),
    );
    this.dialog.replaceChildren(form);
    this.dialog.showModal();
    (token ? go : input).focus();
  }

  async #send(target, status, go) {
    status.className = "status";
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
      return "The tainter does not respond, so the faults may not have been cleared. Try again.";
    }
    if (!answer.ok) {
      status.classList.add("bad");
      if (answer.status === 401) token = "";
      return body.message;
    }
    go.hidden = true;
    this.cleared(target.node);
    if (!body.cleared.length) return "There was nothing to clear.";
    const late = body.late ? ` ${body.late} more checks have something to clear: clear again.` : "";
    status.classList.add("good");
    return `Cleared by ${body.by}: ${body.cleared.map((each) => `${each.check} ${each.component}`).join(", ")}.${late}`;
  }
}
