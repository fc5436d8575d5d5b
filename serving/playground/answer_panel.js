// Shows an answer: a summary, the task's own nodes, and facts about model, tokens and time.

import { element } from "./elements.js";
import { duration } from "./numbers.js";

/** The panel `node`; its first line is a live region for screen readers. */
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
    this.note("Enter an input or choose an example.");
  }

  /** Shows a message and keeps the previous answer. */
  note(words) {
    this.#status.textContent = words;
    this.#status.classList.add("said");
  }

  /** Shows a message and removes the previous answer. */
  clear(words) {
    this.note(words);
    this.#shown.replaceChildren();
    this.#facts.replaceChildren();
  }

  /** Shows the summary of an answer, and its tokens, duration, model and version. */
  tell(words, { content, seconds, model, version }, body) {
    this.#status.textContent = words;
    this.#status.classList.remove("said");
    const { tokens, truncated } = readOf(content);
    const side = body.overflow === "left" ? "left" : "right";
    this.#facts.replaceChildren(
      fact("Tokens", tokens.toLocaleString("en")),
      fact("Read", truncated ? `a part, truncated on the ${side}` : "whole", truncated),
      fact("Time", `${duration(seconds)} round trip`),
      fact("Model", model),
      fact("Version", version ?? "none"),
    );
  }

  /** Shows an answer and scrolls to it: on a phone it is below the form. */
  show(nodes) {
    this.#shown.replaceChildren(...nodes);
    if (this.#status.getBoundingClientRect().bottom > window.innerHeight) {
      this.node.scrollIntoView();
    }
  }
}

/** The number of tokens of an answer, and whether a text was truncated. */
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
