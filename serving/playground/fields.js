// The fields of a form: each has a label, a value, and a place for its problem.

import { element, freshId, menu, offer } from "./elements.js";
import { problemNode } from "./problems.js";

/**
 * A control with its label. `places` are the request fields whose problems it shows, `isFor(model)`
 * is whether it applies to a model, `usual` its initial value.
 */
class Field {
  constructor(name, label, control, more = {}) {
    const { places = [name], hint = null, below = null, usual = "", isFor = () => true } = more;
    this.name = name;
    this.places = places;
    this.isFor = isFor;
    this.usual = usual;
    this.control = control;
    this.isOption = control.tagName !== "TEXTAREA";
    this.id = freshId(name);
    control.id = this.id;
    control.setAttribute("name", name);
    this.label = element("label", { for: this.id }, label);
    this.hintId = hint && `${this.id}-hint`;
    this.hint = hint && element("p", { class: "hint", id: this.hintId }, hint);
    this.room = element("div", { class: "room" });
    this.node = element(
      "div",
      { class: "field" },
      this.label,
      control,
      this.hint,
      below,
      this.room,
    );
    this.clear();
    this.value = usual;
  }

  /** Its value; null if empty. */
  get value() {
    return this.control.value === "" ? null : this.control.value;
  }

  set value(value) {
    this.control.value = value ?? "";
  }

  /** Whether it does not apply to the chosen model. */
  get isHidden() {
    return this.node.hidden;
  }

  /** Adapts to the chosen model. */
  adapt(model) {
    this.node.hidden = !this.isFor(model);
  }

  /** Shows a problem below it. */
  show(problem) {
    const id = `${this.id}-problem`;
    this.room.replaceChildren(problemNode(problem, { id }));
    this.control.setAttribute("aria-invalid", "true");
    this.control.setAttribute("aria-describedby", [this.hintId, id].filter(Boolean).join(" "));
    this.control.focus();
  }

  /** Removes the problem. */
  clear() {
    this.room.replaceChildren();
    this.control.removeAttribute("aria-invalid");
    if (this.hintId) this.control.setAttribute("aria-describedby", this.hintId);
    else this.control.removeAttribute("aria-describedby");
  }
}

class TextField extends Field {
  get value() {
    return this.control.value;
  }

  set value(value) {
    this.control.value = value ?? "";
  }
}

class LinesField extends Field {
  get value() {
    return this.control.value.split("\n").filter((each) => each.trim());
  }

  set value(value) {
    this.control.value = (value || []).join("\n");
  }
}

class WordsField extends Field {
  get value() {
    const words = this.control.value.split(",").map((each) => each.trim());
    return words.some(Boolean) ? words.filter(Boolean) : null;
  }

  set value(value) {
    this.control.value = (value || []).join(", ");
  }
}

class NumberField extends Field {
  get value() {
    return this.control.value === "" ? null : Number(this.control.value);
  }

  set value(value) {
    this.control.value = value ?? "";
  }
}

class MenuField extends Field {
  adapt(model) {
    super.adapt(model);
    if (this.optionsOf) offer(this.control, this.optionsOf(model));
  }
}

/** A text of several lines. */
export function text(name, label, { rows = 5, ...options } = {}) {
  const control = element("textarea", { rows, dir: "auto", spellcheck: "false" });
  return new TextField(name, label, control, options);
}

/** A text of one line. */
export function line(name, label, options = {}) {
  return new TextField(name, label, element("input", { type: "text", dir: "auto" }), options);
}

/** Several texts, one per line. */
export function lines(name, label, { rows = 6, ...options } = {}) {
  return new LinesField(name, label, element("textarea", { rows, dir: "auto" }), options);
}

/** Comma-separated words; null if empty. */
export function words(name, label, options = {}) {
  return new WordsField(name, label, element("input", { type: "text", dir: "auto" }), options);
}

/** A number; null if empty. */
export function number(name, label, { min = null, step = "1", ...options } = {}) {
  const control = element("input", { type: "number", min, step, inputmode: "decimal" });
  return new NumberField(name, label, control, options);
}

/** One of several `[value, name]`, or a function of the model that returns them. */
export function choice(name, label, options, more = {}) {
  const isFixed = Array.isArray(options);
  const field = new MenuField(name, label, menu(isFixed ? options : []), {
    usual: isFixed ? options[0][0] : "",
    ...more,
  });
  if (!isFixed) field.optionsOf = options;
  return field;
}

/** How to handle texts longer than the model's maximum. */
export function overflow(usual = "error") {
  return choice(
    "overflow",
    "Overflow (long texts)",
    [
      ["error", "refuse"],
      ["right", "truncate on the right"],
      ["left", "truncate on the left"],
      ["window", "read in windows"],
    ],
    { usual },
  );
}
