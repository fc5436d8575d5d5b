// The page of /v1/fill-mask: a text with [MASK] -> for each the likeliest tokens.

import { bars } from "./charts.js";
import { pieces } from "./characters.js";
import { element } from "./elements.js";
import { ownExample } from "./examples.js";
import { number, overflow, text, words } from "./fields.js";
import { counted, score } from "./numbers.js";

const MASK = "[MASK]";

export const fillMask = {
  title: "Fill the mask",
  about: `Predicts the token at each ${MASK}.`,
  path: "/v1/fill-mask",
  method: "fill_mask",
  fields: () => {
    const insert = element("button", { type: "button", class: "chip" }, `Insert ${MASK}`);
    const field = text("inputs", "Text", { rows: 3, below: insert });
    insert.addEventListener("click", () => {
      const { control } = field;
      control.setRangeText(MASK, control.selectionStart, control.selectionEnd, "end");
      control.dispatchEvent(new Event("input", { bubbles: true }));
      control.focus();
    });
    return [
      field,
      number("top_k", "Tokens per mask", { min: 1, usual: 5 }),
      words("targets", "Targets", { hint: "Comma-separated words. Empty: the whole vocabulary." }),
      overflow(),
    ];
  },
  examples: (model) => [
    ...ownExample(model, ["fill-mask"], (inputs) => ({ inputs })),
    { name: "A capital", values: { inputs: "The capital of France is [MASK]." } },
    { name: "Two masks", values: { inputs: "The [MASK] sat on the [MASK]." } },
    {
      name: "One of two",
      values: { inputs: "She gave [MASK] the book.", targets: ["him", "her"] },
    },
  ],
  body: ({ inputs, top_k, targets, overflow: cut }) => ({ inputs, top_k, targets, overflow: cut }),
  show: ({ results: [{ masks }] }, { body }) => {
    const numbered = masks.map((each, index) => ({ ...each, number: index + 1 }));
    return [
      element(
        "p",
        { class: "text", dir: "auto" },
        pieces(body.inputs, numbered).map(({ text: part, span }) =>
          span
            ? element("mark", { class: "mask" }, part, numbered.length > 1 && ` ${span.number}`)
            : part,
        ),
      ),
      ...numbered.map((mask) => [
        numbered.length > 1 && element("h3", {}, `Mask ${mask.number}`),
        bars(
          mask.candidates.map((each, rank) => ({
            name: each.token,
            share: each.score,
            value: score(each.score),
            isBest: rank === 0,
          })),
          { "aria-label": `Likeliest tokens for mask ${mask.number}` },
        ),
      ]),
    ]
      .flat()
      .filter(Boolean);
  },
  summary: ({ results: [{ masks }] }) => {
    const best = masks.map((each) => each.candidates[0].token).join(", ");
    return masks.length
      ? `Filled ${counted(masks.length, "mask")}; likeliest: ${best}`
      : "No mask in the part that was read";
  },
};
