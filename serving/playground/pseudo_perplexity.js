// The page of /v1/pseudo-perplexity: a text -> how likely each of its tokens is, given all others.

import { atFirst, tokenList } from "./charts.js";
import { element } from "./elements.js";
import { choice, overflow, text } from "./fields.js";
import { counted, plain, score, signed } from "./numbers.js";

const MOST_TOKENS = 300;
const STRONGEST = 10; // a log probability of -10 has the full colour

export const pseudoPerplexity = {
  title: "Pseudo-perplexity",
  about: "Estimates how likely a text is by masking each token in turn.",
  path: "/v1/pseudo-perplexity",
  method: "pseudo_perplexity",
  fields: () => [
    text("inputs", "Text"),
    choice("masking", "Masking", [
      ["token", "the token"],
      ["rest_of_word", "the token and the rest of its word"],
    ]),
    overflow(),
  ],
  examples: () => [
    { name: "Likely", values: { inputs: "The river rose after the rain." } },
    { name: "Less likely", values: { inputs: "The river rose after the refrigerator." } },
    { name: "Mixed up", values: { inputs: "Rain the after rose river the." } },
  ],
  body: ({ inputs, masking, overflow: cut }) => ({ inputs, masking, overflow: cut }),
  show: ({ results: [found] }) => [
    atFirst(MOST_TOKENS, found.tokens, (tokens) =>
      tokenList(
        tokens.map((each) => ({
          text: each.text,
          value: signed(each.log_probability),
          shade: each.log_probability / STRONGEST,
        })),
        { "aria-label": "Tokens with their log probabilities" },
      ),
    ),
    element(
      "p",
      { class: "hint" },
      "Below each token: its log probability; the sum is " +
        `${plain(found.pseudo_log_likelihood)}. Less expected tokens have stronger colours.`,
    ),
  ],
  summary: ({ results: [found] }) => {
    const [least] = [...found.tokens].sort((a, b) => a.log_probability - b.log_probability);
    const count = counted(found.tokens.length, "token");
    const said = `Pseudo-perplexity ${perplexity(found)} over ${count}`;
    if (!least) return said;
    const probability = score(Math.exp(least.log_probability));
    return `${said}; least expected: “${least.text}”, probability ${probability}`;
  },
};

function perplexity(found) {
  return found.pseudo_perplexity === undefined ? "none" : plain(found.pseudo_perplexity);
}
