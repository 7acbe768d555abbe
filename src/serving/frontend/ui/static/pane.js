// One run: its policy, mode, threshold and answer.
import { ApiError, run } from "./api.js";
import { Answer } from "./answer.js";
import { Counters } from "./counters.js";
import { percent, short, Slider } from "./slider.js";

const MODES = ["joint", "small_only"];
const LOST = "The page’s server cannot be reached any more. What was written is kept; start the server again, then try again.";

export class Pane {
  // `setStatus(text, speaker)` writes the status line.
  constructor(name, about, policy, setStatus) {
    this.name = name;
    this.about = about;
    this.say = (text) => setStatus(`Run ${name}: ${text}`, name);
    this.root = document.getElementById("pane").content.firstElementChild.cloneNode(true);
    const find = (what) => this.root.querySelector(what);
    this.root.setAttribute("aria-label", `Run ${name}`);
    find("h2").textContent = `Run ${name}`;
    this.policy = find(".policy");
    this.modes = find(".modes");
    this.headline = find(".headline");
    this.hint = find(".hint");
    this.notice = find(".notice");
    this.again = find(".again");
    this.slider = new Slider(find(".slider"), name);
    this.answer = new Answer(find(".answer"));
    find(".answer").setAttribute("aria-label", `Answer of run ${name}, token by token`);
    this.counters = new Counters(find(".counters"), about.metrics);
    this.policy.append(...about.policies.map(({ name, description }) => new Option(`${name}: ${description}`, name)));
    this.policy.value = policy;
    this.policy.addEventListener("change", () => this.#policy());
    this.modes.addEventListener("change", () => this.#slider());
    this.again.addEventListener("click", () => this.root.dispatchEvent(new CustomEvent("again", { bubbles: true })));
    this.abort = null;
    this.#policy();
  }

  get running() {
    return this.abort !== null;
  }

  get mode() {
    return this.modes.querySelector("input:checked").value;
  }

  get card() {
    return this.about.policies.find(({ name }) => name === this.policy.value);
  }

  stop() {
    this.abort?.abort();
  }

  // Resolves when the run has ended, with or without an error.
  async ask(prompt) {
    const { router } = this.card;
    const question = { ...prompt, policy: this.policy.value, mode: this.mode };
    if (router) question.threshold = this.slider.value;
    this.abort = new AbortController();
    this.#reset();
    let over = false;
    try {
      for await (const { name, data } of run(question, this.abort.signal)) over = this.#onEvent(name, data, router) || over;
      if (!over) this.#showError(LOST, true);
    } catch (problem) {
      this.#failed(problem);
    } finally {
      this.abort = null;
      this.answer.end();
      this.hint.hidden = this.answer.root.children.length > 0;
    }
  }

  #reset() {
    this.counts = null;
    this.answer.clear();
    this.counters.show({});
    this.notice.hidden = true;
    this.hint.hidden = false;
    this.hint.textContent = "Waiting for a device …";
    this.headline.textContent = "";
    this.say("running …");
  }

  // True for the last event.
  #onEvent(name, data, router) {
    if (name === "started") this.#begin(data, router);
    else if (name === "token") this.#token(data);
    else if (name === "counters") this.counters.show((this.counts = data));
    else if (name === "cloud") this.#showNotice(data.message);
    else if (name === "done") this.#done(data);
    else if (name === "error") this.#showError(plain(data.message), true);
    return name === "done" || name === "error";
  }

  #begin(started, router) {
    const routed = started.threshold === null ? "nothing is routed by score" : `scores ${router.side} ${short(started.threshold)} go to the cloud`;
    this.headline.textContent = `${started.policy}, ${started.mode}: ${routed}; ${started.prompt_tokens} tokens of prompt on ${started.device}`;
    this.answer.begin(started, router);
    this.hint.textContent = "The device reads the prompt …";
  }

  #token(token) {
    this.hint.hidden = true;
    this.answer.add(token);
  }

  #done({ finish_reason, remaining_text }) {
    this.answer.end(remaining_text);
    const { tokens, cloud_tokens } = this.counts;
    const why = finish_reason === "length" ? " It stopped at the limit." : "";
    this.say(`${tokens} tokens, ${cloud_tokens} of them (${percent(cloud_tokens / tokens)}) by the cloud.${why}`);
  }

  #failed(problem) {
    if (problem.name === "AbortError") this.say("stopped; what was written is kept.");
    else if (problem instanceof ApiError) this.#showError(plain(problem.message), problem.status >= 429);
    else if (problem instanceof TypeError) this.#showError(LOST, true);
    else throw problem;
  }

  #showNotice(message) {
    this.notice.hidden = false;
    this.notice.firstElementChild.textContent = message;
    this.again.hidden = true;
    this.say(message);
  }

  #showError(message, again) {
    this.#showNotice(message);
    this.again.hidden = !again;
    this.hint.textContent = "";
  }

  #policy() {
    const known = this.card.modes;
    const kept = this.modes.querySelector("input:checked")?.value;
    for (const old of this.modes.querySelectorAll("label")) old.remove();
    for (const mode of MODES) {
      const label = document.createElement("label");
      const input = document.createElement("input");
      Object.assign(input, { type: "radio", name: `mode-${this.name}`, value: mode, disabled: !known.includes(mode) });
      input.checked = mode === (known.includes(kept) ? kept : known[0]);
      label.append(input, mode);
      this.modes.append(label);
    }
    this.#slider();
  }

  #slider() {
    const { router, no_slider_reason: why } = this.card;
    const value = this.slider.router === router ? this.slider.value : null;
    const on = this.mode === "joint";
    this.slider.show(router, router && !on ? "In small_only the device writes everything, at any threshold." : why, on);
    if (router && value !== null) this.slider.set(value);
  }
}

// Makes a sentence of a server message, which begins with a small letter.
function plain(message) {
  const text = message.charAt(0).toUpperCase() + message.slice(1);
  return /[.!?…]$/.test(text) ? text : `${text}.`;
}
