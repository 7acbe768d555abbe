// Figures of a run while it runs, with what each means.
import { percent } from "./slider.js";

export class Counters {
  constructor(root, measures) {
    this.places = new Map();
    for (const { key, label, unit, means } of measures) {
      const name = document.createElement("dt");
      name.textContent = label;
      const figure = document.createElement("dd");
      const box = document.createElement("div");
      box.title = means;
      box.dataset.key = key;
      box.append(name, figure);
      root.append(box);
      this.places.set(key, { figure, unit });
    }
    this.show({});
  }

  show(found) {
    for (const [key, { figure, unit }] of this.places) {
      const [value, small] = worded(key, unit, found);
      const aside = document.createElement("small");
      aside.textContent = small ? ` ${small}` : "";
      figure.replaceChildren(value, aside);
    }
  }
}

function worded(key, unit, found) {
  const value = found[key];
  if (value === undefined || value === null) return ["–", ""];
  if (key === "tokens") return [String(value), found.offline ? `${found.offline} offline` : ""];
  if (key === "routed_share") return [percent(value), `${found.routed}/${found.tokens}`];
  if (unit === "B") return value < 10000 ? [String(value), "B"] : [(value / 1000).toFixed(1), "kB"];
  if (unit === "ms") return [value < 10 ? value.toFixed(2) : value.toFixed(0), unit];
  return [value < 10 ? value.toFixed(2) : value.toFixed(1), unit];
}
