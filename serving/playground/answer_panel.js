// An answer -> the part of a page that shows it: in words, as the task has it, and from where.

import { element } from "./elements.js";
import { duration } from "./numbers.js";

/** What was answered; `node` is the panel, whose first line is read out as it changes. */
export class AnswerPanel {
  #status = element("p", { class: "status", role: "status" });
  #shown = element("div", { class: "shown" });
  #facts = element("dl", { class: "facts" });

  constructor() {
    this.node = element(
      "section",
      { class: "card answer", "aria-label": "Answer" },
      element("h2", {}, "Answer"),
      this.#status,
      this.#shown,
      this.#facts,
    );
    this.note("Ask, or take an example.");
  }

  /** Says something that is no answer; what was shown stays. */
  note(words) {
    this.#status.textContent = words;
    this.#status.classList.add("said");
  }

  /** Shows nothing but that. */
  clear(words) {
    this.note(words);
    this.#shown.replaceChildren();
    this.#facts.replaceChildren();
  }

  /** Says an answer in words, and how much was read, how long it took, which model gave it. */
  tell(words, { content, seconds, model, version }, body) {
    this.#status.textContent = words;
    this.#status.classList.remove("said");
    const { tokens, truncated } = readOf(content);
    const side = body.overflow === "left" ? "left" : "right";
    this.#facts.replaceChildren(
      fact("Tokens", tokens.toLocaleString("en")),
      fact("Read", truncated ? `a part alone, cut on the ${side}` : "whole", truncated),
      fact("Time", `${duration(seconds)}, there and back`),
      fact("Model", model),
      fact("Version", version ?? "none"),
    );
  }

  /** Shows an answer, and brings it into view: on a phone it stands below the form. */
  show(nodes) {
    this.#shown.replaceChildren(...nodes);
    if (this.#status.getBoundingClientRect().bottom > window.innerHeight) {
      this.node.scrollIntoView();
    }
  }
}

/** How many tokens an answer is about, and whether it lost some. */
function readOf(content) {
  const parts = content.results ?? [content];
  const all = content.source ? [content.source, ...parts] : parts;
  return {
    tokens: all.reduce((sum, each) => sum + each.n_tokens, 0),
    truncated: all.some((each) => each.truncated),
  };
}

function fact(name, value, isWarning = false) {
  return element(
    "div",
    { class: isWarning && "warned" },
    element("dt", {}, name),
    element("dd", {}, value),
  );
}
