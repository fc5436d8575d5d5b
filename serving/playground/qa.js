// The page of /v1/qa: a question and a context -> the passages that answer it.

import { pieces } from "./characters.js";
import { element, given } from "./elements.js";
import { ownOr } from "./examples.js";
import { number, overflow, text } from "./fields.js";
import { counted, plain, score } from "./numbers.js";

const RHINE =
  "The Rhine is one of the major rivers of Europe. It rises in the canton of Graubünden in the " +
  "Swiss Alps, passes Basel and Cologne, and ends in the North Sea in the Netherlands after " +
  "about 1,230 kilometres. More than 50 million people live in its basin.";
const EXAMPLES = [
  { name: "Where", values: { question: "Where does the Rhine rise?", context: RHINE } },
  { name: "How long", values: { question: "How long is the Rhine?", context: RHINE } },
  {
    name: "With an emoji",
    values: {
      question: "Who lives in Cologne?",
      context: "🏰 Cologne is old. Anna 👩‍🔬 lives in Cologne, Ben in Basel.",
    },
  },
];

export const qa = {
  title: "Questions",
  about: "Finds the passage of a context that answers a question.",
  path: "/v1/qa",
  method: "qa",
  fields: () => [
    text("question", "Question", { rows: 2, places: ["inputs.question"] }),
    text("context", "Context", { rows: 8, places: ["inputs", "inputs.context"] }),
    number("top_k", "Answers", { min: 1, usual: 3 }),
    number("null_threshold", "Null threshold", {
      step: "any",
      hint: "A null score above it means no answer. Empty: the model's threshold.",
    }),
    overflow("window"),
  ],
  examples: (model) => ownOr(model, ["qa"], (inputs) => inputs, EXAMPLES),
  body: ({ question, context, top_k, null_threshold, overflow: cut }) => ({
    inputs: { question, context },
    top_k,
    null_threshold,
    overflow: cut,
  }),
  show: ({ results: [found] }, { body }) => {
    const { context } = body.inputs;
    const nothing = element(
      "p",
      { class: "hint" },
      `Null score ${plain(found.null_score)}: ` +
        "by how much the score of “no answer” exceeds that of the best answer.",
    );
    if (!found.answers.length) return [given(context, "p", { class: "text" }), nothing];
    const place = element("div", {});
    const buttons = found.answers.map((answer, rank) =>
      element(
        "button",
        { type: "button", class: "pick", onclick: () => pick(rank) },
        given(answer.text, "span", { class: "pick-text" }),
        element("span", { class: "pick-value" }, score(answer.probability)),
      ),
    );
    const pick = (rank) => {
      buttons.forEach((each, other) => each.setAttribute("aria-pressed", String(other === rank)));
      place.replaceChildren(inContext(context, found.answers[rank]));
    };
    pick(0);
    return [
      place,
      element("h3", {}, "Answers, best first"),
      element(
        "ol",
        { class: "picks" },
        buttons.map((each) => element("li", {}, each)),
      ),
      element(
        "p",
        { class: "hint" },
        "Each with its probability among the considered answers. " +
          "Select one to highlight it in the context.",
      ),
      nothing,
    ];
  },
  summary: ({ results: [{ answers }] }) =>
    answers.length
      ? `Found ${counted(answers.length, "answer")}; the best is “${answers[0].text}”`
      : "No answer in the context",
};

function inContext(context, answer) {
  return element(
    "p",
    { class: "text", dir: "auto" },
    pieces(context, [answer]).map(({ text: part, span }) =>
      span ? element("mark", { class: "answer-mark" }, part) : part,
    ),
  );
}
