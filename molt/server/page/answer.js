// One answer while it is produced: its words by rung, its levers, its state. Text of models only becomes textContent.

import { answer, duration, percent } from "./wire.js";

/** The look of the levers: a glyph, the state of the answer after it, and a description. */
export const LEVERS = {
  switch: ["⇆", "writing", (m) => `${m.from} → ${m.to}`],
  park: ["‖", "parked", () => "parked: KV cache kept, weights released"],
  resume: ["▸", "writing", (m) => `resumed${m.rung ?? m.to ? ` on ${m.rung ?? m.to}` : ""}`],
  defer: ["…", "deferred", () => "deferred: waits for memory"],
  admit: ["→", "reading", (m) => `admitted${m.rung ? ` on ${m.rung}` : ""}`],
  spill: ["↧", "spilled", () => "spilled: KV cache on disk"],
  restore: ["↥", "parked", () => "restored from disk"],
  shed: ["−", "shed", () => "shed: oldest context dropped"],
  restarted: ["↻", "reading", () => "restarted from the beginning"],
  healed: ["✓", null, () => "healed"],
};

const NEAR_PX = 24;
const SAMPLING = { temperature: 0.8, top_p: 0.95 };

const known = (value) => value !== undefined && value !== null;

/** The cost of a switch, in words. */
export function costOf(molt) {
  const facts = [molt.kind, known(molt.ms) && duration(molt.ms)];
  if (known(molt.flops_saved)) facts.push(`${percent(molt.flops_saved)} FLOPs saved`);
  return facts.filter(Boolean).join(" · ");
}

function pressureOf({ pressure }) {
  return pressure?.budget_bytes ? (pressure.usage_bytes / pressure.budget_bytes).toFixed(2) : "–";
}

function element(name, style, text) {
  const made = document.createElement(name);
  if (style) made.className = style;
  if (text !== undefined) made.textContent = text;
  return made;
}

export class Answer {
  #abort = new AbortController();
  #run = null; // the span for words of the present rung
  #rung = null;
  #counts = new Map();
  #bars = new Map();
  #atEnd = true;
  #following = false;
  #switches = [];
  #summary = null;
  #began = performance.now();
  #firstAfter = null;

  /** `styleOf` gives the class of a rung; `report` takes (event, answer), for the chart and the live region. */
  constructor({ number, prompt, kind, tokens, model, chats, token, styleOf, report }) {
    Object.assign(this, { number, prompt, kind, tokens, model, chats, token, styleOf, report });
    this.#build();
  }

  get running() {
    return this.card.getAttribute("aria-busy") === "true";
  }

  stop() {
    this.#abort.abort();
  }

  async run() {
    const path = this.chats ? "/v1/chat/completions" : "/v1/completions";
    const prompt = this.chats ? { messages: [{ role: "user", content: this.prompt }] } : { prompt: this.prompt };
    const body = {
      model: this.model,
      ...prompt,
      ...SAMPLING,
      max_tokens: this.tokens,
      molt: { kind: this.kind },
    };
    try {
      for await (const chunk of answer(path, body, { token: this.token, signal: this.#abort.signal })) this.#take(chunk);
      this.#finish("done", this.#closing());
    } catch (error) {
      if (error.name === "AbortError") this.#finish("stopped", this.#closing());
      else {
        const retry = error.retryAfter ? `; try again in ${error.retryAfter} s` : "";
        this.#finish("failed", `${error.message}${retry}`);
      }
    }
  }

  #take({ text, molt }) {
    if (molt.event === "summary") this.#summary = molt;
    else if (molt.event in LEVERS) this.#lever(molt);
    else if (molt.event === "token") this.#token(text, molt.rung);
    else if (text) this.#write(text, molt.rung ?? this.#rung); // was withheld: its tokens have been counted
  }

  #token(text, rung) {
    this.#firstAfter ??= performance.now() - this.#began;
    this.#counts.set(rung, (this.#counts.get(rung) ?? 0) + 1);
    this.#write(text, rung);
    this.#state("writing", `writing on ${rung}`);
    this.#drawShares();
  }

  #write(text, rung) {
    if (rung !== this.#rung || !this.#run) {
      this.#rung = rung;
      this.#run = element("span", `words ${this.styleOf(rung)}`);
      this.#run.title = rung;
      this.#run.append("");
      this.caret.before(this.#run);
    }
    this.#run.firstChild.appendData(text);
    this.#follow();
  }

  #lever(molt) {
    const [glyph, state, words] = LEVERS[molt.event];
    if (state) this.#state(state, molt.event === "switch" ? `writing on ${molt.to}` : state);
    if (molt.event === "admit") return; // the first word shows the rung
    const mark = element("span", `lever ${molt.event}`);
    mark.append(element("b", "", `${glyph} ${words(molt)}`));
    if (molt.event === "switch") {
      this.#switches.push(molt);
      mark.append(element("span", "cost", ` ${costOf(molt)}`));
      mark.style.setProperty("--from", `var(--${this.styleOf(molt.from)})`);
      mark.style.setProperty("--to", `var(--${this.styleOf(molt.to)})`);
      this.#addSwitchRow(molt);
    }
    this.caret.before(mark);
    this.#follow();
    this.#run = null;
    const shown = molt.event === "healed" ? null : glyph; // too soon after its switch for a mark of its own
    this.report({ glyph: shown, event: molt.event, words: `${words(molt)} ${molt.event === "switch" ? costOf(molt) : ""}`.trim() }, this);
  }

  /** Keep the end in sight if it was; at most once a frame, as it costs a layout. */
  #follow() {
    if (this.#following || !this.#atEnd) return;
    this.#following = true;
    requestAnimationFrame(() => {
      this.#following = false;
      this.text.scrollTop = this.text.scrollHeight;
    });
  }

  #state(state, words = state) {
    this.card.dataset.state = state;
    if (this.badge.textContent !== words) this.badge.textContent = words;
  }

  #closing() {
    const summary = this.#summary ?? {};
    const rungs = summary.rungs ?? Object.fromEntries(this.#counts);
    const count = summary.tokens ?? [...this.#counts.values()].reduce((a, b) => a + b, 0);
    const switches = summary.switches?.length ?? this.#switches.length;
    const cost = summary.switch_ms ?? this.#switches.reduce((sum, { ms }) => sum + (ms ?? 0), 0);
    const parts = [`${count} ${count === 1 ? "token" : "tokens"}`];
    if (count) parts.push(Object.entries(rungs).map(([rung, n]) => `${rung} ${n}`).join(", "));
    parts.push(switches ? `${switches} ${switches === 1 ? "switch" : "switches"}, ${duration(cost)}` : "no switch");
    if (this.#firstAfter !== null) parts.push(`first word after ${duration(this.#firstAfter)}`);
    if (this.#summary) parts.push(this.#summary.killed ? "killed" : "not killed");
    return parts.join(" · ");
  }

  #finish(state, words) {
    this.#state(state);
    this.card.setAttribute("aria-busy", "false");
    this.closing.textContent = words;
    this.caret.remove();
    if (document.activeElement === this.button) this.card.focus();
    this.button.remove();
    this.report({ event: state, words: `${state}. ${words}` }, this);
  }

  #build() {
    this.card = element("article", "card tenant");
    this.card.tabIndex = -1;
    this.card.setAttribute("aria-busy", "true");
    this.card.dataset.state = "waiting";
    const head = element("div", "tenant-head");
    const title = element("h3", "", `${this.number} · ${this.kind}`);
    title.id = `tenant-${this.number}`;
    this.card.setAttribute("aria-labelledby", title.id);
    this.badge = element("span", "badge", "waiting");
    this.button = element("button", "stop", "Stop");
    this.button.type = "button";
    this.button.setAttribute("aria-label", `Stop answer ${this.number}`);
    this.button.addEventListener("click", () => this.stop());
    head.append(title, this.badge, this.button);
    this.text = element("div", "text");
    this.text.tabIndex = 0;
    this.text.setAttribute("role", "group");
    this.text.setAttribute("aria-label", `Answer ${this.number}`);
    this.text.addEventListener("scroll", () => {
      this.#atEnd = this.text.scrollHeight - this.text.scrollTop - this.text.clientHeight < NEAR_PX;
    });
    this.caret = element("span", "caret");
    this.caret.setAttribute("aria-hidden", "true");
    this.text.append(this.caret);
    this.shares = element("div", "shares");
    this.shares.setAttribute("aria-hidden", "true");
    this.closing = element("p", "closing");
    this.card.append(head, element("p", "prompt", this.prompt), this.text, this.shares, this.closing);
  }

  /** A bar of the tokens so far, by rung. */
  #drawShares() {
    for (const [rung, count] of this.#counts) {
      if (!this.#bars.has(rung)) this.#bars.set(rung, this.shares.appendChild(element("i", this.styleOf(rung))));
      this.#bars.get(rung).style.flexGrow = count;
    }
  }

  #addSwitchRow(molt) {
    if (!this.rows) {
      const details = element("details", "switches");
      details.append(element("summary", "", "Cost of the switches"));
      const scroll = details.appendChild(element("div", "scroll"));
      const table = scroll.appendChild(element("table"));
      const names = table.appendChild(element("thead")).appendChild(element("tr"));
      for (const name of ["switch", "kind", "ms", "predicted", "KL, nats", "predicted", "FLOPs saved", "pressure"]) {
        names.append(element("th", "", name));
      }
      this.rows = table.appendChild(element("tbody"));
      this.card.append(details);
    }
    const number = (value, digits) => (known(value) ? value.toFixed(digits) : "–");
    const row = element("tr");
    const cells = [
      `${molt.from} → ${molt.to}`,
      molt.kind ?? "–",
      number(molt.measured?.ms ?? molt.ms, 1),
      number(molt.predicted?.ms, 1),
      number(molt.measured?.kl, 3),
      number(molt.predicted?.kl, 3),
      known(molt.flops_saved) ? percent(molt.flops_saved) : "–",
      pressureOf(molt),
    ];
    for (const cell of cells) row.append(element("td", "", cell));
    this.rows.append(row);
  }
}
