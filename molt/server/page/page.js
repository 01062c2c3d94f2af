// The page: the state of the server, its events, and the requests of its users.

import { Answer } from "./answer.js";
import { Chart, KIND_NAMES, bandsOf, total } from "./chart.js";
import { Refusal, dataOf, get, percent, post, size } from "./wire.js";

const AT_ONCE = 4; // a browser opens six connections to a server: one has the events, one is kept for the budget
const DRAW_MS = 100;
const RETRY_MS = 1_000;
const SEND_MS = 120;
const HELD_MS = 800;
const ANNOUNCE_MS = 3_000;
const DECISIONS_KEPT = 60;
const SPIKE = [["0s", 0], ["2s", 1], ["6s", 2], ["10s", 0]]; // opening an app: the time, and the rung that there is room for then
const SOURCES = {
  manual: "this page",
  cgroup: "the control group",
  psi: "pressure stalls (PSI)",
  memavailable: "free memory of the machine",
};
const QUESTIONS = [
  "Explain in a few sentences why an operating system reclaims memory from background processes.",
  "Describe how a version control system keeps the history of a file.",
  "Write about what a program should do when the disk is full.",
];
const BEGINNINGS = [ // for a model that does not chat: it continues a text
  "Memory\n\nAn operating system gives memory to the programs that ask for it. When there is not enough of it, the " +
    "system takes memory back from programs that run in the background. When memory is short, the kernel",
  "Working with branches\n\nA branch is a movable name for a commit. Because a branch is only a name, creating one is " +
    "cheap: nothing is copied. If you want to keep the changes of a branch, you can",
  "Writing files\n\nA program that writes a file should expect that the disk is full. The data may be in the memory of " +
    "the system and not on the disk when the program ends. If an error is reported, the program should",
];

const $ = (id) => document.getElementById(id);
const calm = matchMedia("(prefers-reduced-motion: reduce)");

let ladder = []; // [{name, resident_bytes}] from largest to smallest
let model = null;
let chats = true;
let sample = null; // the newest {usage_bytes, budget_bytes, parts}
let chart = null;
let defaultBudget = null; // the budget at the start of the server
let token = null; // the admin token
let key = null; // required from clients, if any is; the admin token is accepted too
let answers = [];

const rungNames = () => ladder.map(({ name }) => name);

/** The CSS class of a rung. */
function styleOf(rung) {
  const index = rungNames().indexOf(rung);
  return index < 0 ? "unknown" : `r${index % 6}`;
}

// --- memory ---

/** The smallest budget at which each rung fits beside the present caches, [[name, bytes]]. */
function needs() {
  const caches = total(sample.parts.kv);
  return ladder.map(({ name, resident_bytes: bytes }) => [name, bytes + caches]);
}

/** A budget with room for rung `index` and not for the one above it; for the largest, the budget at the start. */
function budgetFor(index) {
  if (index === 0) return defaultBudget;
  const here = needs()[index][1];
  const above = needs()[index - 1][1];
  return Math.round(here + (above - here) / 2);
}

function largestThatFits(budget) {
  return needs().find(([, bytes]) => bytes <= budget)?.[0] ?? null;
}

function take({ usage_bytes, budget_bytes, parts }) {
  sample = { usage_bytes, budget_bytes, parts };
  chart.take(sample, performance.now());
}

function showSample() {
  const { usage_bytes: usage, budget_bytes: budget } = sample;
  $("usage").textContent = size(usage);
  $("allowed").textContent = size(budget);
  $("room").textContent = usage > budget ? `${size(usage - budget)} over budget` : percent(usage / budget);
  $("room").classList.toggle("over", usage > budget);
  if (!dragging && performance.now() > heldUntil) showBudget(budget);
  showParts();
  const text = `Memory over the last minute: ${size(usage)} used of ${size(budget)}`;
  if ($("chart").getAttribute("aria-label") !== text) $("chart").setAttribute("aria-label", text);
}

function showBudget(budget) {
  const slider = $("budget");
  slider.max = chart.top;
  slider.value = Math.min(budget, chart.top);
  describeBudget(budget);
}

function describeBudget(budget) {
  const fits = largestThatFits(budget);
  $("budget").setAttribute("aria-valuetext", `${size(budget)}, ${fits ? `room for ${fits}` : "no rung fits"}`);
}

function showParts() {
  const names = rungNames();
  const bands = bandsOf(sample, names);
  const list = $("parts");
  if (!list.children.length) {
    const order = [...names.map((name, i) => [`r${i % 6}`, name]), ...Object.entries(KIND_NAMES)];
    for (const [style, name] of order) list.append(legendItem(style, name));
  }
  for (const [style, bytes] of bands) {
    const item = list.querySelector(`li.${style}`);
    item.querySelector("b").textContent = size(bytes);
    item.classList.toggle("none", bytes === 0);
  }
}

function legendItem(style, name) {
  const item = document.createElement("li");
  item.className = style;
  const key = document.createElement("i");
  key.className = "key";
  item.append(key, `${name} `, document.createElement("b"));
  return item;
}

let drawn = 0;

function draw(now) {
  if (now - drawn >= (calm.matches ? 1_000 : DRAW_MS)) {
    drawn = now;
    chart.showNeeds(needs());
    chart.draw(now);
    showSample();
  }
  requestAnimationFrame(draw);
}

// --- the budget ---

let dragging = false;
let heldUntil = 0; // until then the slider shows the requested budget, not the present one
let wanted = null;
let sending = false;

/** Send the newest budget wanted, one request at a time. */
async function sendBudget(bytes) {
  wanted = Math.max(1, Math.round(bytes));
  if (sending) return;
  sending = true;
  while (wanted !== null) {
    const budget = wanted;
    wanted = null;
    await admin("/admin/budget", { budget });
    await new Promise((resolve) => setTimeout(resolve, SEND_MS));
  }
  sending = false;
}

/** Send a request that needs the admin token; a refusal is shown. */
async function admin(path, body) {
  try {
    const { source } = await (await post(path, body, { token })).json();
    $("follow").value = source === "trace" ? "manual" : source;
    explain("");
  } catch (error) {
    if (error instanceof Refusal && (error.status === 401 || error.status === 403)) forgetToken();
    explain(error.message);
  }
}

function explain(reason) {
  $("reason").textContent = reason;
  $("reason").hidden = !reason;
}

function unlock(given) {
  token = given;
  key ??= given;
  sessionStorage.setItem("molt-admin", given);
  showLock();
}

function forgetToken() {
  token = null;
  sessionStorage.removeItem("molt-admin");
  showLock();
}

function showLock() {
  const locked = token === null;
  for (const control of [$("budget"), $("follow"), ...$("fits").children]) control.disabled = locked;
  $("unlock").hidden = !locked;
  explain(locked ? "Admin token required to change the budget: `molt serve` prints a link that contains it." : "");
}

function buildFits() {
  const buttons = ladder.map(({ name }, i) => fitButton(`Room for ${name}`, () => sendBudget(budgetFor(i)), `r${i % 6}`));
  const spike = fitButton("Play a spike", () => {
    const steps = SPIKE.map(([at, index]) => ({ at, budget: `${budgetFor(Math.min(index, ladder.length - 1))}B` }));
    admin("/admin/trace", { steps });
  });
  $("fits").replaceChildren(...buttons, spike);
}

function buildFollow(sources, source) {
  const choices = sources.filter((name) => name !== "trace");
  $("follow").replaceChildren(...choices.map((name) => new Option(SOURCES[name] ?? name, name, false, name === source)));
}

function fitButton(words, act, style = "") {
  const button = document.createElement("button");
  button.type = "button";
  button.className = style;
  button.textContent = words;
  button.setAttribute("aria-describedby", "reason");
  button.addEventListener("click", act);
  return button;
}

/** Tokens stand behind the #, which is never sent; they leave the address bar and stay as long as the tab is open. */
function readTokens() {
  const fragment = new URLSearchParams(location.hash.slice(1));
  if (location.hash) history.replaceState(null, "", location.pathname + location.search);
  for (const name of ["admin", "token"]) {
    if (fragment.has(name)) sessionStorage.setItem(`molt-${name}`, fragment.get(name));
  }
  token = sessionStorage.getItem("molt-admin");
  key = sessionStorage.getItem("molt-token") ?? token;
}

// --- asking ---

function ask(prompt, kind) {
  const made = new Answer({
    number: answers.length + 1,
    prompt,
    kind,
    tokens: $("length").valueAsNumber,
    model,
    chats,
    token: key,
    styleOf,
    report,
  });
  answers.push(made);
  $("empty").hidden = true;
  $("tenants").prepend(made.card);
  showBusy();
  made.run().finally(showBusy);
  return made;
}

function showBusy() {
  const busy = answers.filter((answer) => answer.running).length;
  $("ask-one").disabled = busy >= AT_ONCE;
  $("ask-three").disabled = busy + 3 > AT_ONCE;
}

const examples = () => (chats ? QUESTIONS : BEGINNINGS);

function showExample() {
  [$("prompt").value] = examples();
  if (chats) return;
  $("asking").textContent = "Beginning of a text, which the model continues (it is not trained to chat)";
  $("ask-one").textContent = "Continue";
  $("ask-three").textContent = "Continue as three tenants";
}

function onAsk(event) {
  event.preventDefault();
  const made = ask($("prompt").value.trim(), new FormData($("ask")).get("kind"));
  made.card.scrollIntoView({ block: "nearest", behavior: calm.matches ? "auto" : "smooth" });
}

function askThree() {
  if (!$("ask").reportValidity()) return;
  const own = $("prompt").value.trim();
  const others = examples().filter((example) => example !== own);
  ask(others[1], "batch");
  ask(others[0], "batch");
  ask(own, "foreground");
}

// --- announcing ---

const unannounced = [];

function report({ glyph, event, words }, answer) {
  if (glyph) chart.mark(glyph, event, performance.now());
  unannounced.push(`Answer ${answer.number}: ${words}`);
}

setInterval(() => {
  if (unannounced.length) $("live").textContent = unannounced.splice(0).join(". ");
}, ANNOUNCE_MS);

/** The fields of a decision, in words. */
function wordsOf(decision) {
  const { type, at_ms: at, lever, kind, ...rest } = decision;
  const shown = Object.entries(rest)
    .filter(([, value]) => value !== null && typeof value !== "object")
    .map(([name, value]) => (name.endsWith("_bytes") ? `${name.slice(0, -6)} ${size(value)}` : `${name} ${value}`));
  return [`${(at / 1000).toFixed(1)} s`, lever ?? kind ?? type, ...shown].join(" · ");
}

function note(decision) {
  const item = document.createElement("li");
  item.textContent = wordsOf(decision);
  $("decisions").prepend(item);
  while ($("decisions").children.length > DECISIONS_KEPT) $("decisions").lastChild.remove();
}

/** Follow the events; connect again when they break off. */
async function watch() {
  for (;;) {
    try {
      const response = await get("/molt/events", key);
      showConnection("live");
      for await (const data of dataOf(response)) onEvent(JSON.parse(data));
    } catch (error) {
      if (!(error instanceof TypeError || error instanceof Refusal)) throw error; // thrown by fetch, and for an answer of the server
    }
    showConnection("reconnecting");
    await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
  }
}

function onEvent(event) {
  if (event.type === "memory" || event.type === "state") take(event);
  else if (event.type === "decision") note(event);
}

function showConnection(words) {
  $("connection").textContent = words;
  $("connection").dataset.state = words;
}

// --- beginning ---

async function begin() {
  const [state, props] = await Promise.all(
    ["/molt/state", "/props"].map(async (path) => (await get(path, key)).json()),
  );
  ladder = state.rungs;
  model = state.ladder;
  chats = props.chat_format !== "plain";
  showExample();
  defaultBudget = state.default_budget_bytes;
  $("model").textContent = model;
  document.title = `Molt · ${model}`;
  chart = new Chart({ svg: $("chart"), axis: $("axis"), marks: $("marks"), needs: $("needs") }, rungNames());
  const whole = ladder[0].resident_bytes;
  chart.reach(1.1 * Math.min(Math.max(state.budget_bytes, 1.5 * whole), 2 * whole)); // a larger budget is off the chart
  take(state);
  buildFollow(props.budget_sources, state.source);
  $("rungs").replaceChildren(...ladder.map(({ name }, i) => rungSample(name, `r${i % 6}`)));
  buildFits();
  showLock();
  listen();
  requestAnimationFrame(draw);
  await watch();
}

function rungSample(name, style) {
  const item = document.createElement("li");
  const words = document.createElement("span");
  words.className = `words ${style}`;
  words.textContent = name;
  item.append(words);
  return item;
}

function listen() {
  const slider = $("budget");
  const move = (still) => {
    dragging = still;
    heldUntil = performance.now() + HELD_MS;
    describeBudget(slider.valueAsNumber);
    sendBudget(slider.valueAsNumber);
  };
  slider.addEventListener("input", () => move(true));
  slider.addEventListener("change", () => move(false));
  $("follow").addEventListener("change", ({ target }) => admin("/admin/follow", { source: target.value }));
  $("ask").addEventListener("submit", onAsk);
  $("ask-three").addEventListener("click", askThree);
  $("prompt").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      $("ask").requestSubmit($("ask-one").disabled ? undefined : $("ask-one"));
    }
  });
}

async function start() {
  try {
    await begin();
  } catch (error) {
    showConnection("not connected");
    explain(error.message);
    $("unlock").hidden = error.status !== 401;
    if (error.status === 401) key = null;
  }
}

$("unlock").addEventListener("submit", (event) => {
  event.preventDefault();
  unlock($("token").value.trim());
  $("token").value = "";
  if (chart === null) start();
});
readTokens();
start();
