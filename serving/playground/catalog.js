// The served models, as /info describes them.

import { read } from "./server.js";

/** The models of the server and their routes. */
export class Catalog {
  #models = new Map();
  #limits = {};
  #listeners = [];
  #seen = new Set();

  /** Loads /info; throws `Problem`. */
  async load() {
    const info = await read("info");
    this.#limits = info.limits;
    this.#models = new Map(
      Object.entries(info.models).map(([name, model]) => [name, { name, ...model }]),
    );
    for (const listener of this.#listeners) listener();
  }

  /** Calls a function after each load. */
  onChange(listener) {
    this.#listeners.push(listener);
  }

  /** The server's limits. */
  get limits() {
    return this.#limits;
  }

  /** The model of a name; undefined if it is not served any more. */
  find(name) {
    return this.#models.get(name);
  }

  /** The models that answer at a path such as "/v1/ner", those that were not fine-tuned first. */
  able(path) {
    const found = [...this.#models.values()].filter((each) => each.routes.includes(path));
    return found.sort((one, other) => (one.task !== null) - (other.task !== null));
  }

  /** Loads /info again when an unknown version answers: an alias has moved. */
  async sawVersion(name, version) {
    const known = this.find(name);
    const key = `${name} ${version}`;
    if (!known || version === null || versionOf(known) === version || this.#seen.has(key)) return;
    this.#seen.add(key);
    await this.load().catch(() => {}); // the card stays as it was
  }
}

/** The version of a model as its answers name it; null for a folder without one. */
export function versionOf(model) {
  if (model.version !== undefined && model.version !== null) return String(model.version);
  if (model.registered) return String(model.registered.version);
  return model.sha256 ? model.sha256.slice(0, 12) : null;
}
