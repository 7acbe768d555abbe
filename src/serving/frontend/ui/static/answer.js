// An answer as its tokens, each with its origin, the router's score and the device's alternatives. Arrow keys move between them.
import { short } from "./slider.js";

const ORIGINS = {
  device: "written by the device",
  offline: "written by the device, the cloud being out of reach",
  accepted: "written by the device, checked by the cloud",
  cloud_accepted: "drafted by the cloud, and checked there",
  corrected: "written by the cloud in place of the device's draft",
  bonus: "written by the cloud behind the device's drafts",
  cloud: "written by the cloud",
};

const tip = document.getElementById("tip");
let hiding = 0;
tip.addEventListener("mouseenter", () => clearTimeout(hiding));
tip.addEventListener("mouseleave", () => hideTip());

export function hideTip() {
  clearTimeout(hiding);
  tip.hidden = true;
  document.querySelector("[aria-describedby='tip']")?.removeAttribute("aria-describedby");
}

export class Answer {
  constructor(root) {
    this.root = root;
    this.router = null;
    root.addEventListener("keydown", (event) => this.#key(event));
    root.addEventListener("focusin", (event) => this.#showTip(event.target));
    root.addEventListener("focusout", () => hideTip());
    root.addEventListener("mouseover", (event) => this.#showTip(event.target));
    root.addEventListener("mouseout", () => { hiding = setTimeout(hideTip, 150); });
    this.clear();
  }

  clear() {
    hideTip();
    this.root.replaceChildren();
    this.pending = [];
    this.tokensOf = new WeakMap();
  }

  // `started.threshold` is what scores are compared with, `router.side` the side that is routed.
  begin(started, router) {
    this.clear();
    this.threshold = started.threshold;
    this.side = router?.side;
    this.root.classList.add("running");
  }

  // A token without text (an incomplete character) is shown with the next token that has text. An end token's text is
  // what was held back before it, and is shown before the end.
  add(token) {
    if (token.end && token.text) this.#flush(token.text);
    this.pending.push(token);
    if (token.text || token.end) this.#show(token.end ? "end" : this.pending.map((each) => each.text).join(""));
  }

  end(tail = "") {
    this.root.classList.remove("running");
    this.#flush(tail);
  }

  get text() {
    return this.root.textContent;
  }

  #flush(text) {
    if (this.pending.length) this.#show(text || "…");
    else if (text && this.root.lastChild) this.root.lastChild.textContent += text;
  }

  #show(text) {
    const tokens = this.pending;
    const span = document.createElement("span");
    const last = tokens[tokens.length - 1];
    const kind = tokens.some((token) => token.by_cloud) ? "cloud" : { accepted: "checked", offline: "offline" }[last.origin];
    span.className = ["token", kind, last.end && "end"].filter(Boolean).join(" ");
    span.textContent = text;
    span.setAttribute("role", "option");
    span.setAttribute("aria-selected", "false");
    span.setAttribute("aria-label", `${last.end ? "end of the answer" : text}, ${tokens.map((token) => this.#describe(token)).join("; ")}`);
    span.tabIndex = this.root.children.length ? -1 : 0;
    this.tokensOf.set(span, tokens);
    this.root.append(span);
    this.pending = [];
    this.root.scrollTop = this.root.scrollHeight;
  }

  #describe(token) {
    return [ORIGINS[token.origin] ?? token.origin, token.score === null ? "" : `score ${short(token.score)}`].filter(Boolean).join(", ");
  }

  #key(event) {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    const all = [...this.root.children];
    const at = all.indexOf(document.activeElement);
    const to = event.key === "Home" ? 0 : event.key === "End" ? all.length - 1 : step ? at + step : -1;
    if (at < 0 || to < 0 || to >= all.length) return;
    event.preventDefault();
    all[at].tabIndex = -1;
    all[to].tabIndex = 0;
    all[to].focus();
  }

  #showTip(span) {
    const tokens = this.tokensOf.get(span);
    if (!tokens) return;
    hideTip();
    tip.replaceChildren(...tokens.flatMap((token) => this.#details(token)));
    tip.hidden = false;
    span.setAttribute("aria-describedby", "tip");
    const box = span.getBoundingClientRect();
    const room = document.documentElement.clientWidth - tip.offsetWidth - 8;
    tip.style.left = `${Math.max(8, Math.min(box.left, room)) + scrollX}px`;
    const below = box.bottom + 4 + tip.offsetHeight < innerHeight;
    tip.style.top = `${(below ? box.bottom + 4 : box.top - tip.offsetHeight - 4) + scrollY}px`;
  }

  #details(token) {
    const lines = [line(code(token.token), " ", ORIGINS[token.origin] ?? token.origin, `, after ${Math.round(token.at_ms)} ms`)];
    if (token.score !== null) lines.push(line("router’s score ", bold(token.score.toFixed(3)), this.#compared(token)));
    if (token.alternatives.length) {
      lines.push(line("likeliest on the device", token.by_cloud ? ", which wrote " : "", token.by_cloud ? code(token.device_token) : "", ":"));
      const list = document.createElement("ol");
      list.append(...token.alternatives.map((text) => item(code(text))));
      lines.push(list);
    } else lines.push(line("the device wrote nothing here, so there are no alternatives"));
    return lines;
  }

  #compared(token) {
    if (this.threshold === null) return "; nothing is routed";
    const routed = this.side === "below" ? token.score < this.threshold : token.score > this.threshold;
    const sign = token.score < this.threshold ? "<" : token.score > this.threshold ? ">" : "=";
    return ` ${sign} ${short(this.threshold)}: ${routed ? "to the cloud" : "stays here"}`;
  }
}

function line(...parts) {
  const p = document.createElement("p");
  p.append(...parts);
  return p;
}

function item(...parts) {
  const li = document.createElement("li");
  li.append(...parts);
  return li;
}

function code(text) {
  const found = document.createElement("code");
  found.textContent = text.replaceAll("\n", "⏎").replace(/^ | $/g, "␣");
  return found;
}

function bold(text) {
  const b = document.createElement("b");
  b.textContent = text;
  return b;
}
