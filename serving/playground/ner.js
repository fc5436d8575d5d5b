// The page of /v1/ner: a text -> its entities, each marked where it stands.

import { pieces } from "./characters.js";
import { table } from "./charts.js";
import { element, given } from "./elements.js";
import { ownOr } from "./examples.js";
import { choice, overflow, text } from "./fields.js";
import { counted, score } from "./numbers.js";

const HUES = 6;
const EXAMPLES = [
  {
    name: "A journey",
    values: { inputs: "Angela Merkel took the train from Berlin to Wolfsburg." },
  },
  {
    name: "With an emoji",
    values: { inputs: "🎉 The United Nations met in Geneva, where Kofi Annan spoke." },
  },
  {
    name: "Each sub-word",
    values: { inputs: "Volkswagen opened a works in Chattanooga.", aggregation: "none" },
  },
];

export const ner = {
  title: "Named entities",
  about: "Finds entities in a text, such as names of people and places.",
  path: "/v1/ner",
  method: "ner",
  fields: () => [
    text("inputs", "Text"),
    choice("aggregation", "Aggregation", [
      ["first", "first sub-word"],
      ["average", "mean of sub-words"],
      ["max", "surest sub-word"],
      ["simple", "adjacent sub-words"],
      ["none", "none"],
    ]),
    overflow(),
  ],
  examples: (model) => ownOr(model, ["ner"], (inputs) => ({ inputs }), EXAMPLES),
  body: ({ inputs, aggregation, overflow: cut }) => ({ inputs, aggregation, overflow: cut }),
  show: ({ results: [{ entities }] }, { body, model }) => {
    if (!entities.length) return given(body.inputs, "p", { class: "text" });
    const hues = huesOf(model.labels);
    return [
      element(
        "p",
        { class: "text", dir: "auto" },
        pieces(body.inputs, entities).map(({ text: part, span }) =>
          span ? marked(part, span, hues) : part,
        ),
      ),
      table(
        "Entities from left to right",
        ["Entity", "Type", "Characters", "Score"],
        entities.map((each) => [
          given(each.text),
          each.type,
          `${each.start}–${each.end}`,
          score(each.score),
        ]),
      ),
    ];
  },
  summary: ({ results: [{ entities }] }) =>
    entities.length
      ? `Found ${counted(entities.length, "entity", "entities")}`
      : "Found no entities",
};

function marked(part, entity, hues) {
  return element(
    "mark",
    { class: `entity hue-${hues.get(entity.type) ?? 0}` },
    element("span", { class: "entity-text" }, part),
    element("span", { class: "entity-kind" }, ` ${entity.type} ${score(entity.score)}`),
  );
}

/** A colour for each kind, the same for every text: `B-PER` and `I-PER` are of the kind PER. */
function huesOf(labels) {
  const kinds = [
    ...new Set(labels.filter((each) => each !== "O").map((each) => each.replace(/^[A-Z]-/, ""))),
  ];
  return new Map(kinds.map((kind, number) => [kind, number % HUES]));
}
