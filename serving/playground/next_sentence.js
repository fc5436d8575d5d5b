// The page of /v1/next-sentence: two texts -> how likely the second follows the first.

import { bars } from "./charts.js";
import { overflow, text } from "./fields.js";
import { score } from "./numbers.js";

export const nextSentence = {
  title: "Next sentence",
  about: "Predicts whether the second text follows the first.",
  path: "/v1/next-sentence",
  method: "next_sentence",
  fields: () => [
    text("text", "First text", { rows: 3, places: ["inputs", "inputs.text"] }),
    text("second", "Second text", { rows: 3, places: ["inputs.text_pair"] }),
    overflow(),
  ],
  examples: () => [
    {
      name: "It follows",
      values: { text: "It rained all night.", second: "In the morning the river had risen." },
    },
    {
      name: "It does not",
      values: { text: "It rained all night.", second: "Penguins lay one egg or two." },
    },
  ],
  body: (values) => ({
    inputs: { text: values.text, text_pair: values.second },
    overflow: values.overflow,
  }),
  show: ({ results: [{ is_next: isNext }] }) =>
    bars([
      { name: "Follows", share: isNext, value: score(isNext), isBest: isNext >= 0.5 },
      { name: "Does not follow", share: 1 - isNext, value: score(1 - isNext), isBest: isNext < 0.5 },
    ]),
  summary: ({ results: [{ is_next: isNext }] }) => {
    const said = isNext >= 0.5 ? "follows the first" : "does not follow the first";
    return `The second text ${said}, with a probability of ${score(Math.max(isNext, 1 - isNext))}`;
  },
};
