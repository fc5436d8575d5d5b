// Requests to this server; failures are thrown as the API's problems.

const KEY = "bertline-key";

/** An error: `title`, `detail`, and perhaps `field`, `remedy`, `status`, `seconds` to wait. */
export class Problem extends Error {
  constructor(problem) {
    super(problem.title);
    Object.assign(this, { status: null, detail: "", field: null, remedy: null, ...problem });
  }

  /** Whether a key is missing or lacks permission. */
  get isAboutKey() {
    return this.status === 401 || this.status === 403;
  }
}

/** The address of a path such as "v1/ner", wherever the server is mounted. */
export function addressOf(path) {
  return new URL(path, document.baseURI.replace(/#.*/, "")).href;
}

/** The key of this tab; null if there is none. */
export function currentKey() {
  return sessionStorage.getItem(KEY);
}

/** Keeps a key until the tab is closed; null forgets it. */
export function useKey(key) {
  if (key) sessionStorage.setItem(KEY, key);
  else sessionStorage.removeItem(KEY);
}

/** The content at a path. Throws `Problem`. */
export async function read(path) {
  return (await request(path, { method: "GET" })).content;
}

/**
 * Posts a body to a route; returns `content`, `seconds` of the round trip, and the `model` and its
 * `version` if the server names them. Throws `Problem`, or `AbortError` after the signal.
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
      detail: "the server cannot be reached or closed the connection",
      remedy: "check that it is running, then try again",
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

/** The problem of an error response; a proxy may respond in another format. */
function problemOf(response, content) {
  const wait = Number(response.headers.get("Retry-After")) || null;
  const said = content?.title
    ? content
    : {
        title: `Status ${response.status}`,
        detail: "a proxy between this page and the server refused the request",
        remedy: "try again",
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
