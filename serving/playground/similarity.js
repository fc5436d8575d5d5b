// The page of /v1/similarity: a text and others -> the others by how near they are to it.

import { bars } from "./charts.js";
import { choice, lines, overflow, text } from "./fields.js";
import { counted, score } from "./numbers.js";

const ANIMALS = [
  "A kitten naps on the couch.",
  "The dog chased a ball.",
  "The bank raised its rates.",
  "Inflation has slowed since spring.",
];

export const similarity = {
  title: "Nearest texts",
  about: "Ranks texts by how near the features of each are to those of a first one.",
  path: "/v1/similarity",
  method: "similarity",
  positional: ["source", "inputs"],
  fields: () => [
    text("source", "Text", { rows: 2 }),
    lines("inputs", "Texts that are compared with it, one a line"),
    choice("strategy", "Features", [
      ["last", "of the last layer"],
      ["second_to_last", "of the last layer but one"],
      ["sum_last_four", "of the last four layers, added"],
      ["concat_last_four", "of the last four layers, side by side"],
      ["embeddings", "of the embeddings"],
    ]),
    choice("pooling", "Of the tokens", [
      ["mean", "the mean"],
      ["max", "the largest"],
      ["cls", "[CLS] alone"],
    ]),
    overflow(),
  ],
  examples: () => [
    { name: "Animals", values: { source: "A cat sleeps on the sofa.", inputs: ANIMALS } },
    { name: "Money", values: { source: "Prices are rising more slowly.", inputs: ANIMALS } },
  ],
  body: ({ source, inputs, strategy, pooling, overflow: cut }) => ({
    inputs,
    source,
    strategy,
    pooling,
    overflow: cut,
  }),
  show: ({ results }, { body }) =>
    bars(
      ranked(results, body.inputs).map(
        ({ text: name, score: cosine, n_tokens: tokens, truncated }, rank) => ({
          name,
          share: cosine,
          value: score(cosine),
          note: `${counted(tokens, "token")}${truncated ? ", cut" : ""}`,
          isBest: rank === 0,
        }),
      ),
      { "aria-label": "Texts, nearest first" },
    ),
  summary: ({ results }, { inputs }) => {
    const [best] = ranked(results, inputs);
    return best
      ? `Compared ${counted(results.length, "text")}; the nearest is “${best.text}”`
      : "There is no text to compare";
  },
};

function ranked(results, texts) {
  return results
    .map((each, place) => ({ ...each, text: texts[place] }))
    .sort((one, other) => other.score - one.score);
}
