// The page of /v1/classify: a text or a pair -> labels with their scores, or a number.

import { bars } from "./charts.js";
import { ownOr } from "./examples.js";
import { overflow, text } from "./fields.js";
import { plain, score } from "./numbers.js";

const TEXTS = [
  ["A good film", "A joy from start to end, and the cast is wonderful."],
  ["A bad film", "A film that never finds its feet, and takes two hours for it."],
  ["Neither", "The film lasts two hours and was made in Prague."],
].map(([name, only]) => ({ name, values: { text: only } }));
const PAIRS = [
  ["The same", "The company bought the start-up in May.", "In May the start-up was taken over."],
  ["Another thing", "The company bought the start-up in May.", "The weather in May was mild."],
].map(([name, first, second]) => ({ name, values: { text: first, second } }));

export const classify = {
  title: "Classification",
  about: "Classifies a text or a pair of texts.",
  path: "/v1/classify",
  method: "classify",
  fields: () => [
    text("text", "Text", { places: ["inputs", "inputs.text"] }),
    text("second", "Second text", {
      rows: 3,
      places: ["inputs.text_pair"],
      isFor: (model) => model.reads_pairs,
    }),
    overflow(),
  ],
  examples: (model) => ownOr(model, ["classify"], pairOf, model.reads_pairs ? PAIRS : TEXTS),
  body: (values, model) => ({ inputs: oneOrPair(values, model), overflow: values.overflow }),
  show: ({ results: [found] }) => {
    if (found.value !== undefined) return [];
    const given = found.labels ?? [found.label];
    const rows = found.scores.map((each) => ({
      name: each.label,
      share: each.score,
      value: score(each.score),
      isBest: given.includes(each.label),
    }));
    return bars(rows, { "aria-label": "Labels, likeliest first" });
  },
  summary: ({ results: [found] }) => {
    if (found.value !== undefined) return `Predicted value: ${plain(found.value)}`;
    const given = found.labels ?? [found.label];
    return given.length ? `Predicted: ${given.join(", ")}` : "Predicted: no label";
  },
};

/** The request's `inputs` for the values of the two text fields. */
export function oneOrPair({ text: first, second }, model) {
  const isOne = second === null || (second === "" && model.reads_pairs === "either");
  return isOne ? first : { text: first, text_pair: second };
}

/** The values of the two text fields for `inputs` of a request. */
export function pairOf(inputs) {
  return typeof inputs === "string"
    ? { text: inputs }
    : { text: inputs.text, second: inputs.text_pair };
}
