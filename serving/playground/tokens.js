// The page of /v1/tokenize: a text -> its tokens, with their ids and characters.

import { atFirst, table, tokenList } from "./charts.js";
import { charactersOf } from "./characters.js";
import { pairOf } from "./classify.js";
import { element, given } from "./elements.js";
import { ownExample } from "./examples.js";
import { choice, text } from "./fields.js";
import { counted } from "./numbers.js";

const MOST_TOKENS = 200;
const KINDS = ["classify", "ner", "fill-mask", "features"];

export const tokens = {
  title: "Tokens",
  about: "Splits a text into the model's tokens.",
  path: "/v1/tokenize",
  method: "tokenize",
  fields: () => [
    text("inputs", "Text"),
    choice(
      "special",
      "[CLS] and [SEP]",
      [
        ["yes", "added"],
        ["no", "omitted"],
      ],
      { places: ["add_special_tokens"] },
    ),
  ],
  examples: (model) => [
    ...ownExample(model, KINDS, (inputs) => ({ inputs: pairOf(inputs).text })),
    { name: "A long word", values: { inputs: "He was unaffable and hypersensitive." } },
    { name: "Emoji and accents", values: { inputs: "Crème brûlée 🍮 at the café" } },
    { name: "Numbers", values: { inputs: "On 3 May 2024 it cost 1,299.50 €." } },
  ],
  body: ({ inputs, special }) => ({ inputs, add_special_tokens: special === "yes" }),
  show: ({ results: [found] }, { body }) => {
    const characters = charactersOf(body.inputs);
    return [
      atFirst(MOST_TOKENS, found.tokens, (some) =>
        tokenList(
          some.map((each) => ({
            text: each.token,
            value: String(each.id),
            shade: 0,
            isSpecial: each.special,
          })),
          { "aria-label": "Tokens with their ids" },
        ),
      ),
      element(
        "details",
        {},
        element("summary", {}, "Character offsets"),
        atFirst(MOST_TOKENS, found.tokens, (some) =>
          table(
            "Tokens and characters",
            ["Token", "Id", "Characters", "Text"],
            some.map((each) => [
              given(each.token),
              String(each.id),
              each.special ? "none" : `${each.start}–${each.end}`,
              each.special ? "" : given(characters.slice(each.start, each.end).join("")),
            ]),
          ),
        ),
      ),
    ];
  },
  summary: ({ results: [found] }, { inputs }) =>
    `${counted(found.n_tokens, "token")} of ${counted(charactersOf(inputs).length, "character")}`,
};
