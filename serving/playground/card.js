// A model as /info describes it -> its card.

import { versionOf } from "./catalog.js";
import { element } from "./elements.js";
import { counted, plain } from "./numbers.js";

const MOST_LABELS = 60;

/** What a model is, where it comes from, how good it was, and what it takes. */
export function cardOf(model, limits) {
  const lineage = model.lineage ?? {};
  return element(
    "div",
    { class: "model-card" },
    part("What it is", [
      ["Name", model.name],
      ["Task", model.task ?? "none: an encoder that was not fine-tuned"],
      ["Version", versionOf(model) ?? "none"],
      ["Registered as", model.registered && registeredAs(model.registered)],
      ["Not let in", model.refused && `version ${model.refused.version}: ${model.refused.reason}`],
      ["Registry", model.registry?.fault && `does not answer: ${model.registry.fault}`],
      [
        "Size",
        [
          counted(model.num_hidden_layers, "layer"),
          `states of ${counted(model.hidden_size, "number")}`,
          `${counted(model.vocab_size, "token")} known`,
        ].join(", "),
      ],
      ["Precision", model.precision],
      ["Heads", model.heads.length ? model.heads.join(", ") : "none"],
      ["Folder's hash", model.sha256 && code(model.sha256)],
    ]),
    part("Where it comes from", [
      ["Run", lineage.run],
      ["Run's id", lineage.run_id && code(lineage.run_id)],
      ["Training data", lineage.data_sha256 && code(lineage.data_sha256)],
      ["Code", lineage.git_commit && code(lineage.git_commit)],
      ["Code was changed", lineage.git_dirty === true ? "yes, since that commit" : null],
    ]),
    part(
      "How good it was",
      Object.entries(lineage.metrics ?? {}).map(([name, value]) => [name, plain(value)]),
    ),
    part("What it takes", [
      ["At once", counted(model.max_input_length, "token")],
      [
        "In a request",
        limits.max_request_tokens &&
          `${counted(limits.max_request_tokens, "token")}, ${counted(limits.max_items, "text")}`,
      ],
      [
        "Explained",
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
      : element("p", { class: "hint" }, "The model's folder does not say."),
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
