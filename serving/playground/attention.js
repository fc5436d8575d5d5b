// The page of /v1/explain: a text or a pair -> attention weights and attributions.

import { tokenList } from "./charts.js";
import { oneOrPair, pairOf } from "./classify.js";
import { element, freshId, menu } from "./elements.js";
import { ownExample } from "./examples.js";
import { choice, text } from "./fields.js";
import { HeadPicture } from "./head_picture.js";
import { counted, signed } from "./numbers.js";

const MEAN = "mean";
const KINDS = ["classify", "ner", "fill-mask", "features"];

export const attention = {
  title: "Attention",
  about:
    "Shows the attention weights of each layer and head and, for a classifier, " +
    "the attribution of each token.",
  path: "/v1/explain",
  method: "explain",
  isWide: true,
  fields: () => [
    text("text", "Text", { rows: 3, places: ["inputs", "inputs.text"] }),
    text("second", "Second text", {
      rows: 2,
      places: ["inputs.text_pair"],
      isFor: (model) => model.reads_pairs,
    }),
    choice(
      "label",
      "Explain",
      (model) => [["", "the predicted label"], ...model.labels.map((each) => [each, each])],
      {
        isFor: (model) => model.reads_pairs !== null && model.labels.length > 0,
      },
    ),
  ],
  examples: (model) => [
    ...ownExample(model, KINDS, (inputs) => pairOf(inputs)),
    model.reads_pairs
      ? {
          name: "A pair",
          values: {
            text: "The firm was bought in May.",
            second: "In May the firm was taken over.",
          },
        }
      : {
          name: "A pronoun",
          values: { text: "The animal did not cross the street because it was too tired." },
        },
  ],
  body: (values, model, memory) => ({
    inputs: oneOrPair(values, model),
    label: values.label,
    layers: [layerOf(memory, model)],
  }),
  show: (content, context) =>
    [
      content.attributions && attributions(content),
      element("h3", {}, "Attention weights"),
      heads(content, context),
    ].filter(Boolean),
  summary: (content) =>
    `${counted(content.tokens.length, "token")}, layer ${content.layers[0]}` +
    (content.label ? `; explained label: ${content.label}` : ""),
};

/** The layer that was chosen, if the model has it; at first the last. */
function layerOf(memory, model) {
  return Math.min(memory.layer ?? model.num_hidden_layers, model.num_hidden_layers);
}

/** The attribution of each token, with its sign. */
function attributions({ tokens, attributions: shares, label }) {
  const largest = Math.max(...shares.map(Math.abs)) || 1;
  const of = label ? `“${label}”` : "the value";
  return element(
    "section",
    {},
    element("h3", {}, `Attributions for ${of}`),
    tokenList(
      tokens.map((each, place) => ({
        text: each.token,
        value: signed(shares[place]),
        shade: shares[place] / largest,
        isSpecial: each.special,
      })),
      { "aria-label": `Attribution of each token for ${of}` },
    ),
    element(
      "p",
      { class: "hint" },
      "Below each token: gradient times input. " +
        `Positive values support ${of}, negative values oppose it.`,
    ),
  );
}

/** Menus of layers and heads, and the picture of the chosen head's weights. */
function heads(content, { memory, model, again }) {
  const layerId = freshId("layer");
  const headId = freshId("head");
  const layer = menu(numbered(model.num_hidden_layers), { id: layerId });
  layer.value = content.layers[0];
  const count = content.attention[0].length;
  const head = menu([...numbered(count), [MEAN, "mean of all"]], { id: headId });
  head.value = memory.head <= count || memory.head === MEAN ? memory.head : 1;
  const picture = new HeadPicture(content.tokens);
  let shown = content;
  const draw = () => {
    memory.head = head.value;
    picture.draw(weightsOf(shown.attention[0], head.value));
  };
  head.addEventListener("change", draw);
  layer.addEventListener("change", async () => {
    memory.layer = Number(layer.value);
    const other = await again({ layers: [memory.layer] });
    if (!other) return;
    shown = other;
    draw();
  });
  draw();
  return element(
    "div",
    {},
    element(
      "p",
      { class: "choices" },
      element("span", { class: "choice" }, element("label", { for: layerId }, "Layer"), layer),
      element("span", { class: "choice" }, element("label", { for: headId }, "Head"), head),
    ),
    picture.node,
  );
}

/** Layers or heads as a menu has them, from 1 on. */
function numbered(count) {
  return Array.from({ length: count }, (_, at) => [at + 1, at + 1]);
}

/** The attention weights [from][to] of one head, or the mean of all. */
function weightsOf(all, head) {
  if (head !== MEAN) return all[Number(head) - 1];
  return all[0].map((row, from) =>
    row.map((_, to) => all.reduce((sum, each) => sum + each[from][to], 0) / all.length),
  );
}
