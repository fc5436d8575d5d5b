// What the page asks this server, and what comes back: answers, or problems as the API words them.

const KEY = "bertline-key";

/** A refusal: `title`, `detail`, and perhaps `field`, `remedy`, `status` and `seconds` to wait. */
export class Problem extends Error {
  constructor(problem) {
    super(problem.title);
    Object.assign(this, { status: null, detail: "", field: null, remedy: null, ...problem });
  }

  /** Whether it is for want of a key, or of a better one. */
  get isAboutKey() {
    return this.status === 401 || this.status === 403;
  }
}

/** The address of a path such as "v1/ner", wherever the server is mounted. */
export function addressOf(path) {
  return new URL(path, document.baseURI.replace(/#.*/, "")).href;
}

/** The key of this tab; null where there is none. */
export function currentKey() {
  return sessionStorage.getItem(KEY);
}

/** Keeps a key until the tab is closed; null forgets it. */
export function useKey(key) {
  if (key) sessionStorage.setItem(KEY, key);
  else sessionStorage.removeItem(KEY);
}

/** What stands at a path: content alone. Throws `Problem`. */
export async function read(path) {
  return (await request(path, { method: "GET" })).content;
}

/**
 * What a route says of a body: `content`, `seconds` there and back, the `model` and its `version`
 * where the server names them. Throws `Problem`, or `AbortError` once the signal has come.
 */
export async function ask(path, body, signal) {
  return request(path, { method: "POST", body: JSON.stringify(body), signal });
}

async function request(path, options) {
  const headers = { Accept: "application/json" };
  if (options.body) headers["Content-Type"] = "application/json";
  const key = currentKey();
  if (key) headers.Authorization = `Bearer ${key}`;
  const begin = performance.now();
  let response;
  let text;
  try {
    response = await fetch(addressOf(path), { ...options, headers, cache: "no-store" });
    text = await response.text();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem({
      title: "No answer",
      detail: "the server cannot be reached, or broke off",
      remedy: "look whether it is running, then ask again",
    });
  }
  const seconds = (performance.now() - begin) / 1000;
  const content = parsed(text);
  if (!response.ok) throw problemOf(response, content);
  return { content, seconds, ...origin(response.headers, content) };
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

/** The problem of a refusal; a proxy in between may refuse in another shape. */
function problemOf(response, content) {
  const wait = Number(response.headers.get("Retry-After")) || null;
  const said = content?.title
    ? content
    : {
        title: `Status ${response.status}`,
        detail: "something between this page and the server refused",
        remedy: "ask again",
      };
  return new Problem({ ...said, status: response.status, seconds: wait });
}

function origin(headers, content) {
  const model = headers.get("X-Model");
  return {
    model: content?.model ?? (model === null ? null : decodeURIComponent(model)),
    version: content?.version || headers.get("X-Model-Version") || null,
  };
}
