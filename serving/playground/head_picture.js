// Tokens and the weights of one head -> a picture that can be asked for each token.

import { shadeBy } from "./charts.js";
import { element, freshId, given } from "./elements.js";
import { HeatMap } from "./heat_map.js";
import { score } from "./numbers.js";

const NAMED = 3; // of the tokens that a token looks at, in words

/**
 * A row of tokens to choose one of, coloured by how much that one looks at each; beneath it, all
 * tokens by all tokens. Whichever the pointer is on is shown, else the one that is chosen.
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
        element("legend", {}, "A token, and beneath each how much it looks at it"),
        ...items,
      ),
      this.said,
      element(
        "p",
        { class: "hint" },
        "All tokens: each row is what its token looks at. The stronger a colour, the more; " +
          "it grows with the root of the weight, so that small ones can be seen.",
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
    if (to !== undefined) return [name(from), " looks at ", name(to), ` with ${score(row[to])}.`];
    const best = [...row.keys()].sort((one, other) => row[other] - row[one]).slice(0, NAMED);
    const parts = best.flatMap((place, rank) => [
      rank ? ", " : "",
      name(place),
      ` ${score(row[place])}`,
    ]);
    return [name(from), " looks most at ", ...parts, "."];
  }
}
