// The page of /v1/zero-shot: a text and labels of one's own -> the labels with their scores.

import { bars } from "./charts.js";
import { choice, line, lines, overflow, text } from "./fields.js";
import { score } from "./numbers.js";

export const zeroShot = {
  title: "Labels of your own",
  about: "Classifies a text by labels that the model has never seen.",
  path: "/v1/zero-shot",
  method: "zero_shot",
  positional: ["inputs", "labels"],
  fields: () => [
    text("inputs", "Text"),
    lines("labels", "Labels, one per line", { rows: 3 }),
    line("template", "What a label says of the text", {
      usual: "This example is {}.",
      hint: "{} is the label.",
    }),
    choice("multi", "Labels that apply", [
      ["one", "one"],
      ["several", "any number"],
    ]),
    overflow(),
  ],
  examples: () =>
    [
      ["Sports", "The striker scored twice in the second half.", ["sports", "politics", "cooking"]],
      ["A request", "Could you send me the invoice again?", ["request", "complaint", "thanks"]],
    ].map(([name, inputs, labels]) => ({ name, values: { inputs, labels } })),
  body: ({ inputs, labels, template, multi, overflow: cut }) => ({
    inputs,
    labels,
    template,
    multi_label: multi === "several",
    overflow: cut,
  }),
  show: ({ results: [found] }) => {
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
    const given = found.labels ?? [found.label];
    return given.length ? `Predicted: ${given.join(", ")}` : "Predicted: no label";
  },
};
