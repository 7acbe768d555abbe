// Builds the page from /api/about, and starts and stops runs.
import { about, ApiError, useKey } from "./api.js";
import { hideTip } from "./answer.js";
import { Pane } from "./pane.js";

const id = (name) => document.getElementById(name);
const [ask, prompt, status, panes] = ["ask", "prompt", "status", "panes"].map(id);
let all = [];

// The status line shows the last sentence of each speaker: the page, or a run.
const statusTexts = new Map();
function setStatus(text, speaker = "") {
  if (!speaker) statusTexts.clear();
  statusTexts.set(speaker, text);
  status.textContent = [...statusTexts.values()].join(" ");
}

async function begin() {
  try {
    build(await about());
  } catch (problem) {
    if (!(problem instanceof ApiError) || problem.status !== 401) return setStatus(`The page’s server cannot be reached: ${problem.message}`);
    id("entry").hidden = false;
    id("key").focus();
  }
}

function build(found) {
  id("entry").hidden = true;
  facts(found);
  meanings(found.metrics);
  examples(found.examples);
  id("tokens").max = found.limits.max_tokens;
  id("tokens").value = found.limits.default_max_tokens;
  const second = found.policies[0].router ? found.policies[0].name : (found.policies[1] ?? found.policies[0]).name;
  all = [new Pane("A", found, found.policies[0].name, setStatus), new Pane("B", found, second, setStatus)];
  panes.append(...all.map(({ root }) => root));
  id("pair").addEventListener("change", arrange);
  panes.addEventListener("again", start);
  arrange();
  buttons();
  setStatus([found.cloud_text, deviceNote(found), excludedNote(found)].join(" "));
  prompt.focus();
}

function deviceNote({ devices }) {
  return devices > 1 ? "" : "There is one device: runs take turns.";
}

function excludedNote({ excluded_policies: names }) {
  return names.length ? `Left out, since each would need a cloud of its own: ${names.join(", ")}.` : "";
}

function arrange() {
  const two = id("pair").checked;
  panes.classList.toggle("two", two);
  all[1].root.hidden = !two;
}

function facts({ models, hardware, link, time_text: time }) {
  const sides = ["device", "cloud"].map((side) => [side, `${models[side].stands_for} on ${hardware[side]}`, models[side].name]);
  for (const [name, text, more] of [...sides, ["link", link, time]]) {
    const box = document.createElement("div");
    box.title = more;
    box.append(Object.assign(document.createElement("dt"), { textContent: name }));
    box.append(Object.assign(document.createElement("dd"), { textContent: text }));
    id("facts").append(box);
  }
}

function meanings(metrics) {
  for (const { label, description } of metrics) {
    id("meanings").lastElementChild.append(
      Object.assign(document.createElement("dt"), { textContent: label }),
      Object.assign(document.createElement("dd"), { textContent: description }),
    );
  }
}

function examples(texts) {
  const list = id("examples");
  list.append(...texts.map((text) => new Option(text.length > 80 ? `${text.slice(0, 77)} …` : text, text)));
  list.parentElement.hidden = !texts.length;
  list.addEventListener("change", () => {
    if (list.value) prompt.value = list.value;
  });
  prompt.value = texts[0] ?? "";
}

function buttons() {
  const running = all.some((pane) => pane.running);
  id("run").disabled = !all.length || running;
  id("stop").disabled = !running;
}

async function start() {
  if (!all.length || all.some((pane) => pane.running) || !ask.reportValidity()) return;
  const asked = {
    prompt: prompt.value,
    max_tokens: id("tokens").valueAsNumber,
    temperature: id("temperature").valueAsNumber,
    seed: id("seed").valueAsNumber,
  };
  setStatus("");
  const runs = all.filter(({ root }) => !root.hidden).map((pane) => pane.ask(asked).finally(buttons));
  buttons();
  await Promise.all(runs);
}

function stop() {
  for (const pane of all) pane.stop();
}

ask.addEventListener("submit", (event) => {
  event.preventDefault();
  start();
});
id("stop").addEventListener("click", stop);
id("entry").addEventListener("submit", (event) => {
  event.preventDefault();
  useKey(id("key").value);
  begin();
});
prompt.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  start();
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && event.target !== prompt) start();
  if (event.key !== "Escape") return;
  hideTip();
  stop();
});
begin();
