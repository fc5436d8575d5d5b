// The page of /v1/explain: a text or a pair -> what heads look at, and what an answer hangs on.

import { tokenList } from "./charts.js";
import { oneOrPair } from "./classify.js";
import { element, freshId, menu } from "./elements.js";
import { choice, text } from "./fields.js";
import { HeadPicture } from "./head_picture.js";
import { counted, signed } from "./numbers.js";

const MEAN = "mean";

export const attention = {
  title: "Attention",
  about:
    "Shows what each head of each layer looks at and, of a classifier, " +
    "which tokens its answer hangs on.",
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
      (model) => [["", "the label that it gives"], ...model.labels.map((each) => [each, each])],
      {
        isFor: (model) => model.reads_pairs !== null && model.labels.length > 0,
      },
    ),
  ],
  examples: (model) =>
    model.reads_pairs
      ? [
          {
            name: "A pair",
            values: {
              text: "The firm was bought in May.",
              second: "In May the firm was taken over.",
            },
          },
        ]
      : [
          {
            name: "A pronoun",
            values: { text: "The animal did not cross the street because it was too tired." },
          },
          { name: "A film", values: { text: "A joy from start to end." } },
        ],
  body: (values, model, memory) => ({
    inputs: oneOrPair(values, model),
    label: values.label,
    layers: [layerOf(memory, model)],
  }),
  show: (content, context) =>
    [
      content.attributions && attributions(content),
      element("h3", {}, "What the heads look at"),
      heads(content, context),
    ].filter(Boolean),
  summary: (content) =>
    `Read ${counted(content.tokens.length, "token")}, layer ${content.layers[0]}` +
    (content.label ? `; explained: ${content.label}` : ""),
};

/** The layer that was chosen, if the model has it; at first the last. */
function layerOf(memory, model) {
  return Math.min(memory.layer ?? model.num_hidden_layers, model.num_hidden_layers);
}

/** Each token's share in the answer, with its sign. */
function attributions({ tokens, attributions: shares, label }) {
  const largest = Math.max(...shares.map(Math.abs)) || 1;
  const of = label ? `“${label}”` : "the number";
  return element(
    "section",
    {},
    element("h3", {}, `What ${of} hangs on`),
    tokenList(
      tokens.map((each, place) => ({
        text: each.token,
        value: signed(shares[place]),
        shade: shares[place] / largest,
        isSpecial: each.special,
      })),
      { "aria-label": `Each token's share in ${of}` },
    ),
    element(
      "p",
      { class: "hint" },
      "Beneath each token the gradient times the input: " +
        `with + it speaks for ${of}, with − against.`,
    ),
  );
}

/** Layer and head to choose, and the picture of what the head looks at. */
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

/** How much each token looks at each [from][to], of one head or the mean of all. */
function weightsOf(all, head) {
  if (head !== MEAN) return all[Number(head) - 1];
  return all[0].map((row, from) =>
    row.map((_, to) => all.reduce((sum, each) => sum + each[from][to], 0) / all.length),
  );
}
