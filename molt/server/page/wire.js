// Requests to the server and its answers. Nothing here touches the document.

/** Text of every event of a server-sent stream; the last one of a completion is "[DONE]". */
export async function* dataOf(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let data = [];
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (rest + value).split(/\r?\n/);
    rest = lines.pop();
    for (const line of lines) {
      if (line.startsWith("data:")) data.push(line.slice(line[5] === " " ? 6 : 5));
      else if (line === "" && data.length) {
        yield data.join("\n");
        data = [];
      }
    }
  }
}

/** An error answer of the server, with its message. `retryAfter` is in seconds, if the server sent a time. */
export class Refusal extends Error {
  constructor(message, status, retryAfter) {
    super(message);
    this.status = status;
    this.retryAfter = retryAfter;
  }
}

async function request(path, token, options = {}) {
  const headers = { ...options.headers, ...(token && { authorization: `Bearer ${token}` }) };
  const response = await fetch(path, { ...options, headers });
  if (!response.ok) throw await refusalOf(response);
  return response;
}

/** GET a path; throws a Refusal for any status but 2xx. `token` is the one required from clients, if any. */
export const get = (path, token) => request(path, token);

/** POST a JSON body; throws a Refusal for any status but 2xx. */
export function post(path, body, { token, signal } = {}) {
  const headers = { "content-type": "application/json" };
  return request(path, token, { method: "POST", headers, signal, body: JSON.stringify(body) });
}

async function refusalOf(response) {
  const body = await response.json().catch(() => null);
  const message = body?.error?.message ?? `the server answered with status ${response.status}`;
  return new Refusal(message, response.status, Number(response.headers.get("retry-after")) || null);
}

/**
 * The chunks of one answer, each as {text, molt, finish}; throws a Refusal where the server ends it with an error,
 * and where the stream breaks off without its end.
 */
export async function* answer(path, body, { token, signal }) {
  const response = await post(path, { ...body, stream: true }, { token, signal });
  for await (const data of dataOf(response)) {
    if (data === "[DONE]") return;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new Refusal(chunk.error.message, response.status, null);
    const choice = chunk.choices?.[0];
    yield { text: choice?.delta?.content ?? choice?.text ?? "", molt: chunk.molt ?? {}, finish: choice?.finish_reason ?? null };
  }
  throw new Refusal("the connection broke off before the answer was complete", 0, null);
}

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];

/** A size for people: three digits or so and a binary unit. */
export function size(bytes) {
  let unit = 0;
  let number = Math.abs(bytes);
  while (number >= 1024 && unit < UNITS.length - 1) {
    number /= 1024;
    unit += 1;
  }
  const decimals = unit === 0 || number >= 100 ? 0 : 1;
  return `${bytes < 0 ? "−" : ""}${number.toFixed(decimals)} ${UNITS[unit]}`;
}

/** A duration for people. */
export function duration(ms) {
  if (ms >= 10_000) return `${(ms / 1000).toFixed(0)} s`;
  if (ms >= 1_000) return `${(ms / 1000).toFixed(1)} s`;
  return `${ms >= 10 ? ms.toFixed(0) : ms.toFixed(1)} ms`;
}

/** A share between 0 and 1 for people. */
export const percent = (share) => `${Math.round(100 * share)} %`;
