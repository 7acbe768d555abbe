// The threshold slider. Its value is exactly the number that the server compares scores with.
const BARS = 50;
const SVG = "http://www.w3.org/2000/svg";

export class Slider {
  constructor(root, id) {
    this.root = root;
    this.input = root.querySelector("input");
    this.output = root.querySelector("output");
    this.means = root.querySelector(".means");
    this.mark = root.querySelector(".mark");
    this.own = root.querySelector(".own");
    this.bars = root.querySelector(".scores");
    this.input.id = `threshold-${id}`;
    this.means.id = `means-${id}`;
    root.querySelector(".name").htmlFor = this.output.htmlFor = this.input.id;
    this.input.setAttribute("aria-describedby", this.means.id);
    this.input.addEventListener("input", () => this.set(Math.round(this.input.valueAsNumber * 1000) / 1000));
    this.input.addEventListener("keydown", (event) => this.#key(event));
    this.own.addEventListener("click", () => this.set(this.router.artifact_threshold));
    this.router = null;
  }

  // `router` as in /api/about; `why` is the reason if there is none.
  show(router, why, on) {
    this.router = router;
    this.input.disabled = !router || !on;
    this.root.classList.toggle("off", this.input.disabled);
    this.mark.hidden = !router;
    this.bars.replaceChildren();
    if (!router) {
      this.output.textContent = "–";
      this.own.hidden = true;
      this.means.textContent = why;
      return;
    }
    this.why = on ? "" : why;
    place(this.mark, router.artifact_threshold);
    this.mark.title = `the artifact's own: ${router.artifact_threshold}`;
    this.own.textContent = `back to the artifact’s ${short(router.artifact_threshold)}`;
    this.#draw();
    this.set(router.threshold);
  }

  set(value) {
    this.value = Math.min(1, Math.max(0, value));
    this.input.value = String(this.value);
    this.output.textContent = short(this.value);
    this.output.title = String(this.value);
    this.own.hidden = this.value === this.router.artifact_threshold || this.input.disabled;
    const words = this.#words();
    this.means.textContent = this.why || words;
    this.input.setAttribute("aria-valuetext", `${short(this.value)}: ${words}`);
    for (const bar of this.bars.children) bar.classList.toggle("routed", this.#routes(Number(bar.dataset.score)));
  }

  #routes(score) {
    return this.router.side === "below" ? score < this.value : score > this.value;
  }

  #words() {
    const { scores, side, family } = this.router;
    const rule = `${family}: scores ${side} ${short(this.value)} go to the cloud`;
    if (!scores.length) return `${rule}.`;
    const share = scores.filter((score) => this.#routes(score)).length / scores.length;
    return `${rule}, ${percent(share)} of the held-out tokens that the router was tried on.`;
  }

  // A histogram of the held-out scores; bars that would be routed have the cloud's colour.
  #draw() {
    const counts = new Array(BARS).fill(0);
    for (const score of this.router.scores) counts[Math.min(BARS - 1, Math.floor(score * BARS))] += 1;
    const most = Math.sqrt(Math.max(1, ...counts));
    counts.forEach((count, i) => {
      if (!count) return;
      const bar = document.createElementNS(SVG, "rect");
      const height = 1.5 + (18.5 * Math.sqrt(count)) / most;
      const place = { x: (100 * i) / BARS, y: 20 - height, width: 80 / BARS, height };
      for (const [name, value] of Object.entries(place)) bar.setAttribute(name, value);
      bar.dataset.score = (i + 0.5) / BARS;
      this.bars.append(bar);
    });
  }

  #key(event) {
    const step = { ArrowRight: 0.01, ArrowUp: 0.01, ArrowLeft: -0.01, ArrowDown: -0.01, PageUp: 0.1, PageDown: -0.1 }[event.key];
    if (!step) return;
    event.preventDefault();
    this.set(Math.round((this.value + step) * 1000) / 1000);
  }
}

function place(mark, value) {
  mark.style.left = `calc(8px + ${value} * (100% - 16px))`;
}

export function short(value) {
  return String(Math.round(value * 1000) / 1000);
}

export function percent(share) {
  return `${(100 * share).toFixed(share && share < 0.1 ? 1 : 0)} %`;
}
