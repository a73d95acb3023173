// The devices of one node: a square for each, and in words those that are out or that their driver has tainted.

import { DEVICES } from "./glyphs.js";
import { ago, h, many } from "./words.js";

const HOW = { boot: "a reboot", driver: "the driver", quiet: "its quiet time", proof: "Muster's proof", source: "its source", person: "an operator" };

// [title, element] for each driver
export function deviceParts(devices) {
  const drivers = new Map();
  for (const device of devices) drivers.set(device.driver, [...(drivers.get(device.driver) ?? []), device]);
  return [...drivers].map(([driver, own]) => {
    const working = own.filter((device) => device.mark === ".").length;
    const words = own.filter((device) => device.mark !== "." || device.taints.length).map(sentence);
    return [
      `Devices of ${driver}: ${working === own.length ? `all ${many(own.length, "device")} in use` : `${working} of ${own.length} in use`}`,
      h("div", {},
        h("ol", { class: "devices" }, own.map(square)),
        words.length ? h("ul", { class: "plain" }, words) : ""),
    ];
  });
}

const name = (device) => [device.device, ...device.names].join(" ");

function square(device) {
  const text = `${name(device)}: ${DEVICES[device.mark] ?? device.mark}`;
  return h("li", { class: `device d-${device.mark === "." ? "pass" : device.mark}`, title: text }, h("span", { class: "unseen" }, text));
}

function sentence(device) {
  const { fault, closed } = device;
  return h(
    "li",
    {},
    h("b", {}, name(device)),
    ` ${DEVICES[device.mark] ?? device.mark}`,
    device.taints.map((taint) => h("div", {}, h("code", {}, taint.text), h("span", { class: "dim" }, " by the driver", taint.keepsOut ? "" : ", only informs", taint.since ? [" · ", ago(taint.since)] : ""))),
    fault ? h("div", {}, `Muster: fault ${fault.check} ${fault.reason} `, h("span", { class: "dim" }, ago(fault.since, "open since "))) : "",
    !fault && device.taints.length ? h("div", {}, "Muster: no open fault") : "",
    closed ? h("div", { class: "dim" }, `${closed.check} ${closed.reason} closed by ${HOW[closed.how] ?? (closed.how || "an unknown way")} `, ago(closed.closedAt)) : "",
    device.problem ? h("div", { class: "dim" }, `cannot be kept out alone: ${device.problem}`) : "",
  );
}
