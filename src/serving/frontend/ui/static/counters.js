// The metrics of a run while it runs, with their descriptions.
import { percent } from "./slider.js";

export class Counters {
  constructor(root, metrics) {
    this.figures = new Map();
    for (const { key, label, unit, description } of metrics) {
      const name = document.createElement("dt");
      name.textContent = label;
      const figure = document.createElement("dd");
      const box = document.createElement("div");
      box.title = description;
      box.dataset.key = key;
      box.append(name, figure);
      root.append(box);
      this.figures.set(key, { figure, unit });
    }
    this.show({});
  }

  show(found) {
    for (const [key, { figure, unit }] of this.figures) {
      const [value, small] = formatted(key, unit, found);
      const aside = document.createElement("small");
      aside.textContent = small ? ` ${small}` : "";
      figure.replaceChildren(value, aside);
    }
  }
}

function formatted(key, unit, found) {
  const value = found[key];
  if (value === undefined || value === null) return ["–", ""];
  if (key === "tokens") return [String(value), found.offline_tokens ? `${found.offline_tokens} offline` : ""];
  if (unit === "share") return [percent(value), `${found.cloud_tokens}/${found.tokens}`];
  if (unit === "B") return value < 10000 ? [String(value), "B"] : [(value / 1000).toFixed(1), "kB"];
  if (unit === "s") return [1000 * value < 10 ? (1000 * value).toFixed(2) : (1000 * value).toFixed(0), "ms"];
  return [value < 10 ? value.toFixed(2) : value.toFixed(1), unit];
}
