// Memory and budget over the last minute. Bands are stacked from the bottom, as in the reports: weights by rung,
// scratch, caches, memory in transit, the rest. The area above the budget is shaded.

const WIDTH = 1000;
const HEIGHT = 200;
const WINDOW_MS = 60_000;
const FIRST_MS = 6_000; // the window at the beginning; it grows to the whole
const SAME_MS = 400; // marks of one kind closer than this are one
const COLUMN_MS = 100;
const LABEL_PX = 15;
const KINDS = ["scratch", "kv", "transient"];
export const KIND_NAMES = { scratch: "scratch", kv: "KV cache", transient: "in transit", other: "other" };

/** An element of the drawing. */
function shape(name, style) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  made.setAttribute("class", style);
  return made;
}

/** Bytes of a part, a number or numbers by owner. */
export const total = (part) => (typeof part === "number" ? part : Object.values(part ?? {}).reduce((a, b) => a + b, 0));

/** The bands of a sample, [style, bytes] from the bottom up; `rungs` are names from largest to smallest. */
export function bandsOf(sample, rungs) {
  const { weights = {}, ...others } = sample.parts ?? {};
  const bands = rungs.map((rung, i) => [`r${i % 6}`, weights[rung] ?? 0]).reverse();
  for (const kind of KINDS) bands.push([kind, total(others[kind])]);
  const known = bands.reduce((sum, [, bytes]) => sum + bytes, 0);
  bands.push(["other", Math.max(0, sample.usage_bytes - known)]);
  return bands;
}

export class Chart {
  #columns = []; // {at, steps: [highest, last]}: at most two samples for every COLUMN_MS
  #marks = [];
  #began = null;
  #shownNeeds = "";
  #paths = new Map();
  #top = 1;

  constructor({ svg, axis, marks, needs }, rungs) {
    Object.assign(this, { svg, axis, marks, needs, rungs });
    for (const style of [...rungs.map((_, i) => `r${i % 6}`).reverse(), ...KINDS, "other"]) this.#add(style, "area");
    for (const style of ["forbidden", "over", "line"]) this.#add(style);
  }

  get top() {
    return this.#top;
  }

  /** Make room for this many bytes; the scale only grows. */
  reach(bytes) {
    if (bytes <= this.#top) return;
    this.#top = bytes;
    this.#drawAxis();
  }

  /** Take in a sample {usage_bytes, budget_bytes, parts} of a moment in ms. */
  take(sample, at) {
    this.#began ??= at;
    const column = this.#columns.at(-1);
    if (column && at - column.at < COLUMN_MS) {
      if (sample.usage_bytes >= column.steps[0].usage_bytes) column.steps = [sample, sample];
      else column.steps[1] = sample;
    } else this.#columns.push({ at, steps: [sample, sample] });
    this.reach(1.08 * sample.usage_bytes);
  }

  /** Mark a moment with a glyph. */
  mark(glyph, style, at) {
    const last = this.#marks.findLast(({ sign }) => sign.className === style);
    if (last && at - last.at < SAME_MS) return;
    const sign = document.createElement("span");
    sign.textContent = glyph;
    sign.className = style;
    this.marks.append(sign);
    this.#marks.push({ sign, at });
  }

  /** Show the smallest budget for each rung: [[name, bytes]]. */
  showNeeds(needs) {
    const shown = JSON.stringify([needs, this.#top]);
    if (shown === this.#shownNeeds) return;
    this.#shownNeeds = shown;
    const apart = (LABEL_PX / (this.needs.clientHeight || HEIGHT)) * this.#top;
    this.needs.replaceChildren(
      ...needs.map(([name, bytes], i) => {
        const line = document.createElement("span");
        const crowded = i > 0 && needs[i - 1][1] - bytes < apart;
        if (!crowded) line.appendChild(document.createElement("b")).textContent = `${name} fits`;
        line.className = `need r${i % 6}`;
        line.style.bottom = `${(100 * bytes) / this.#top}%`;
        return line;
      }),
    );
  }

  draw(now) {
    const span = Math.min(WINDOW_MS, Math.max(FIRST_MS, now - this.#began));
    const steps = this.#steps(now, span);
    if (steps.length) {
      const stacks = steps.map(([, sample]) => bandsOf(sample, this.rungs));
      let floor = steps.map(() => 0);
      stacks[0].forEach(([style], layer) => {
        const ceiling = floor.map((low, i) => low + stacks[i][layer][1]);
        this.#paths.get(style).setAttribute("d", this.#band(steps, floor, ceiling));
        floor = ceiling;
      });
      const budget = steps.map(([, sample]) => Math.min(sample.budget_bytes, 2 * this.#top));
      const usage = steps.map(([, sample]) => sample.usage_bytes);
      this.#paths.get("forbidden").setAttribute("d", this.#band(steps, budget, budget.map((b) => Math.max(b, this.#top))));
      this.#paths.get("over").setAttribute("d", this.#band(steps, budget, usage.map((u, i) => Math.max(u, budget[i]))));
      this.#paths.get("line").setAttribute("d", this.#line(steps, budget));
    }
    this.#marks = this.#marks.filter(({ sign, at }) => {
      const old = now - at > span;
      if (old) sign.remove();
      else sign.style.left = `${100 - (100 * (now - at)) / span}%`;
      return !old;
    });
  }

  #add(style, more = "") {
    const path = shape("path", `${style} ${more}`);
    this.#paths.set(style, path);
    this.svg.append(path);
  }

  /** [x, sample] pairs from left to right; the first may lie before the window and is then held at its edge. */
  #steps(now, span) {
    const start = now - span;
    while (this.#columns.length > 1 && this.#columns[1].at <= start) this.#columns.shift();
    const x = (at) => Math.max(0, Math.min(WIDTH, (WIDTH * (at - start)) / span));
    return this.#columns.flatMap(({ at, steps: [highest, last] }) =>
      highest === last ? [[x(at), last]] : [[x(at), highest], [x(at + COLUMN_MS / 2), last]],
    );
  }

  #y(bytes) {
    return (HEIGHT * (1 - Math.min(1, bytes / this.#top))).toFixed(1);
  }

  #line(steps, values) {
    return steps.map(([x], i) => `${i ? "H" : "M"}${x.toFixed(1)}${i ? "V" : " "}${this.#y(values[i])}`).join("") + `H${WIDTH}`;
  }

  #band(steps, floor, ceiling) {
    if (ceiling.every((high, i) => high <= floor[i])) return "";
    const ends = [...steps.slice(1).map(([x]) => x), WIDTH];
    let path = `M${steps[0][0].toFixed(1)} ${this.#y(floor[0])}`;
    for (let i = 0; i < steps.length; i += 1) path += `V${this.#y(ceiling[i])}H${ends[i].toFixed(1)}`;
    for (let i = steps.length - 1; i >= 0; i -= 1) path += `V${this.#y(floor[i])}H${steps[i][0].toFixed(1)}`;
    return `${path}Z`;
  }

  #drawAxis() {
    let unit = 1;
    while (this.#top >= 4096 * unit) unit *= 1024;
    const rough = this.#top / unit / 4;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].find((round) => round * power >= rough) * power * unit;
    const name = { 1: "B", 1024: "KiB", 1048576: "MiB", 1073741824: "GiB" }[unit] ?? "TiB";
    const ticks = [];
    for (let bytes = 0; bytes < this.#top; bytes += step) {
      const tick = document.createElement("span");
      tick.textContent = bytes ? `${bytes / unit} ${name}` : "0";
      tick.style.bottom = `${(100 * bytes) / this.#top}%`;
      ticks.push(tick);
    }
    this.axis.replaceChildren(...ticks);
  }
}
