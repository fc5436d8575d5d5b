// The attention weights of one head as a picture.

import { shadeBy } from "./charts.js";
import { element, freshId, given } from "./elements.js";
import { HeatMap } from "./heat_map.js";
import { score } from "./numbers.js";

const NAMED = 3; // tokens with the largest weights, named in the sentence

/**
 * A row of tokens, coloured by the attention of the selected one, and a heat map of all pairs. Shows
 * the token under the pointer, otherwise the selected one.
 */
export class HeadPicture {
  #tokens;
  #weights = [];
  #chosen;
  #boxes = [];
  #values = [];

  constructor(tokens) {
    this.#tokens = tokens;
    this.#chosen = Math.min(1, tokens.length - 1);
    this.said = element("p", { class: "looks-at" });
    this.map = new HeatMap(
      tokens.map((each) => each.token),
      {
        onPoint: (from, to) => this.#show(from ?? this.#chosen, to),
        onPick: (from) => this.#pick(from),
      },
    );
    const group = freshId("token");
    const items = tokens.map((each, place) => this.#item(each, place, group));
    this.node = element(
      "div",
      { class: "head-picture" },
      element(
        "fieldset",
        { class: "tokens choosable" },
        element("legend", {}, "Select a token to see its attention to each token"),
        ...items,
      ),
      this.said,
      element(
        "p",
        { class: "hint" },
        "All tokens: each row has the weights of its token. Colours grow with the square root of " +
          "the weight, so that small ones are visible.",
      ),
      this.map.node,
    );
  }

  /** Shows the weights [from][to] of a head. */
  draw(weights) {
    this.#weights = weights;
    this.map.draw(weights);
    this.#show(this.#chosen);
  }

  #item(token, place, group) {
    const input = element("input", {
      type: "radio",
      name: group,
      value: place,
      onchange: () => this.#pick(place),
    });
    input.checked = place === this.#chosen;
    const value = element("span", { class: "token-value" });
    const box = element(
      "label",
      {
        class: token.special ? "token special" : "token",
        onpointerenter: () => this.#show(place),
        onpointerleave: () => this.#show(this.#chosen),
      },
      input,
      given(token.token, "span", { class: "token-text" }),
      value,
    );
    this.#boxes.push(box);
    this.#values.push(value);
    return box;
  }

  #pick(place) {
    this.#chosen = place;
    this.#boxes[place].querySelector("input").checked = true;
    this.#show(place);
  }

  #show(from, to) {
    const row = this.#weights[from];
    const largest = Math.max(...row) || 1;
    row.forEach((weight, place) => {
      shadeBy(this.#boxes[place], Math.sqrt(weight / largest));
      this.#boxes[place].classList.toggle("from", place === from);
      this.#values[place].textContent = weight.toFixed(2);
    });
    this.map.mark(from);
    this.said.replaceChildren(...this.#words(from, to));
  }

  #words(from, to) {
    const row = this.#weights[from];
    const name = (place) => given(this.#tokens[place].token, "b");
    if (to !== undefined) return [name(from), " attends to ", name(to), `: ${score(row[to])}.`];
    const best = [...row.keys()].sort((one, other) => row[other] - row[one]).slice(0, NAMED);
    const parts = best.flatMap((place, rank) => [
      rank ? ", " : "",
      name(place),
      ` ${score(row[place])}`,
    ]);
    return [name(from), " attends most to ", ...parts, "."];
  }
}
