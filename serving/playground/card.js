// A model as /info describes it -> its card.

import { versionOf } from "./catalog.js";
import { element } from "./elements.js";
import { counted, plain } from "./numbers.js";

const MOST_LABELS = 60;

/** A model's overview, lineage, metrics, limits and labels. */
export function cardOf(model, limits) {
  const lineage = model.lineage ?? {};
  return element(
    "div",
    { class: "model-card" },
    part("Overview", [
      ["Name", model.name],
      ["Task", model.task ?? "none (pre-trained encoder)"],
      ["Version", versionOf(model) ?? "none"],
      ["Registered as", model.registered && registeredAs(model.registered)],
      ["Refused", model.refused && `version ${model.refused.version}: ${model.refused.reason}`],
      ["Registry", model.registry?.fault && `does not answer: ${model.registry.fault}`],
      [
        "Size",
        [
          counted(model.num_hidden_layers, "layer"),
          `hidden size ${model.hidden_size}`,
          `vocabulary of ${counted(model.vocab_size, "token")}`,
        ].join(", "),
      ],
      ["Precision", model.precision],
      ["Heads", model.heads.length ? model.heads.join(", ") : "none"],
      ["SHA-256", model.sha256 && code(model.sha256)],
    ]),
    part("Lineage", [
      ["Run", lineage.run],
      ["Run id", lineage.run_id && code(lineage.run_id)],
      ["Training data", lineage.data_sha256 && code(lineage.data_sha256)],
      ["Code", lineage.git_commit && code(lineage.git_commit)],
      ["Uncommitted changes", lineage.git_dirty === true ? "yes" : null],
    ]),
    part(
      "Metrics",
      Object.entries(lineage.metrics ?? {}).map(([name, value]) => [name, plain(value)]),
    ),
    part("Limits", [
      ["Input", counted(model.max_input_length, "token")],
      [
        "Request",
        limits.max_request_tokens &&
          `${counted(limits.max_request_tokens, "token")}, ${counted(limits.max_items, "text")}`,
      ],
      [
        "Explanation",
        limits.max_explained_tokens && `texts of ${counted(limits.max_explained_tokens, "token")}`,
      ],
    ]),
    model.labels.length > 0 && labels(model.labels),
  );
}

function registeredAs({ name, version, alias }) {
  return `${name}, version ${version}${alias ? `, as @${alias}` : ""}`;
}

function code(text) {
  return element("code", {}, text);
}

function part(title, facts) {
  const known = facts.filter(([, value]) => value !== null && value !== undefined && value !== "");
  return element(
    "section",
    {},
    element("h3", {}, title),
    known.length
      ? element(
          "dl",
          {},
          known.map(([name, value]) => [element("dt", {}, name), element("dd", {}, value)]),
        )
      : element("p", { class: "hint" }, "Not recorded in the model folder."),
  );
}

function labels(names) {
  const shown = names.slice(0, MOST_LABELS);
  const more = names.length - shown.length;
  return element(
    "section",
    { class: "labels" },
    element("h3", {}, "Labels"),
    element(
      "ul",
      {},
      shown.map((each) => element("li", {}, each)),
    ),
    more > 0 && element("p", { class: "hint" }, `and ${more} more, see /info`),
  );
}
