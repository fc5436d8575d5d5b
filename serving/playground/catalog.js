// The served models, as /info describes them, with what each can be asked.

import { read } from "./server.js";

/** The models of the server: those that a route can be asked of, and what is known of each. */
export class Catalog {
  #models = new Map();
  #limits = {};
  #listeners = [];
  #seen = new Set();

  /** Asks the server; throws `Problem`. */
  async load() {
    const info = await read("info");
    this.#limits = info.limits;
    this.#models = new Map(
      Object.entries(info.models).map(([name, model]) => [name, { name, ...model }]),
    );
    for (const listener of this.#listeners) listener();
  }

  /** Calls a function whenever the models have been asked for anew. */
  onChange(listener) {
    this.#listeners.push(listener);
  }

  /** What the server takes at most. */
  get limits() {
    return this.#limits;
  }

  /** The model of a name; undefined where it is no more. */
  find(name) {
    return this.#models.get(name);
  }

  /**
   * The models that answer at a path such as "/v1/ner". What any encoder can do is offered of those
   * that were not fine-tuned to another task first.
   */
  able(path) {
    const found = [...this.#models.values()].filter((each) => each.routes.includes(path));
    return found.sort((one, other) => (one.task !== null) - (other.task !== null));
  }

  /** Takes note of the version that answered; one that is new here means that a model was moved. */
  async sawVersion(name, version) {
    const known = this.find(name);
    const key = `${name} ${version}`;
    if (!known || version === null || versionOf(known) === version || this.#seen.has(key)) return;
    this.#seen.add(key);
    await this.load().catch(() => {}); // the card stays as it was
  }
}

/** The version of a model as its answers name it; null of a folder that has none. */
export function versionOf(model) {
  if (model.version !== undefined && model.version !== null) return String(model.version);
  if (model.registered) return String(model.registered.version);
  return model.sha256 ? model.sha256.slice(0, 12) : null;
}
