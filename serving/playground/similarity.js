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
  about: "Ranks texts by the cosine similarity of their features with those of a first text.",
  path: "/v1/similarity",
  method: "similarity",
  positional: ["source", "inputs"],
  fields: () => [
    text("source", "Text", { rows: 2 }),
    lines("inputs", "Texts to compare, one per line"),
    choice("strategy", "Layers", [
      ["last", "last"],
      ["second_to_last", "second to last"],
      ["sum_last_four", "last four, summed"],
      ["concat_last_four", "last four, concatenated"],
      ["embeddings", "embeddings"],
    ]),
    choice("pooling", "Pooling", [
      ["mean", "mean of the tokens"],
      ["max", "maximum of the tokens"],
      ["cls", "[CLS]"],
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
          note: `${counted(tokens, "token")}${truncated ? ", truncated" : ""}`,
          isBest: rank === 0,
        }),
      ),
      { "aria-label": "Texts, nearest first" },
    ),
  summary: ({ results }, { inputs }) => {
    const [best] = ranked(results, inputs);
    return best
      ? `Compared ${counted(results.length, "text")}; the nearest is “${best.text}”`
      : "No text to compare";
  },
};

function ranked(results, texts) {
  return results
    .map((each, place) => ({ ...each, text: texts[place] }))
    .sort((one, other) => other.score - one.score);
}
