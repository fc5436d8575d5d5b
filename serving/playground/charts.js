// Numbers of an answer -> what a person sees: bars, and tokens with their numbers.

import { element, given } from "./elements.js";

/**
 * A list of bars, each `{name, share, value}`: a name, how full the bar is (0 to 1), and the number
 * in words. `note` is small text beneath, `isBest` marks one.
 */
export function bars(rows, attributes = {}) {
  return element(
    "ol",
    { class: "bars", ...attributes },
    rows.map(({ name, share, value, note, isBest }) => {
      const fill = element("span", { class: "bar-fill" });
      fill.style.width = `${Math.max(0, Math.min(1, share)) * 100}%`;
      return element(
        "li",
        { class: isBest ? "best" : null },
        given(name, "span", { class: "bar-name" }),
        element("span", { class: "bar-value" }, value),
        element("span", { class: "bar-track", "aria-hidden": "true" }, fill),
        note && element("span", { class: "bar-note" }, note),
      );
    }),
  );
}

/**
 * Tokens in their order, each `{text, value, shade}`: what stands in it, the number beneath it in
 * words, and how strong its colour is (-1 to 1; below 0 it is the other colour).
 */
export function tokenList(tokens, attributes = {}) {
  return element("ol", { class: "tokens", ...attributes }, tokens.map(tokenItem));
}

function tokenItem({ text, value, shade, isSpecial }) {
  const box = element(
    "span",
    { class: isSpecial ? "token special" : "token" },
    given(text, "span", { class: "token-text" }),
    element("span", { class: "token-value" }, value),
  );
  shadeBy(box, shade);
  return element("li", {}, box);
}

/** Colours a node by a number from -1 to 1. */
export function shadeBy(node, shade) {
  node.classList.toggle("against", shade < 0);
  node.style.setProperty("--shade", `${Math.round(Math.min(1, Math.abs(shade)) * 42)}%`);
}

/** A table with a caption; each row is a list of nodes or texts. */
export function table(caption, heads, rows) {
  return element(
    "table",
    {},
    element("caption", {}, caption),
    element(
      "thead",
      {},
      element(
        "tr",
        {},
        heads.map((each) => element("th", { scope: "col" }, each)),
      ),
    ),
    element(
      "tbody",
      {},
      rows.map((row) =>
        element(
          "tr",
          {},
          row.map((each) => element("td", {}, each)),
        ),
      ),
    ),
  );
}

/** The first rows of a long table or list, and a button that brings the others. */
export function atFirst(most, all, make) {
  if (all.length <= most) return make(all);
  const place = element("div", {}, make(all.slice(0, most)));
  const button = element(
    "button",
    { type: "button", onclick: () => place.replaceChildren(make(all)) },
    `Show all ${all.length.toLocaleString("en")}`,
  );
  place.append(button);
  return place;
}
