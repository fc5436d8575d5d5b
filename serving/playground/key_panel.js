// The field for a key, of servers that ask for one.

import { currentKey, useKey } from "./server.js";

/** Opens by its button, and where the server refuses; `onUse()` is called with each change. */
export class KeyPanel {
  #button = document.getElementById("key-button");
  #panel = document.getElementById("key");
  #field = document.getElementById("key-field");
  #reason = document.getElementById("key-reason");
  #forget = document.getElementById("key-forget");

  constructor(onUse) {
    this.#button.addEventListener("click", () => this.#open(this.#panel.hidden));
    document.getElementById("key-form").addEventListener("submit", (event) => {
      event.preventDefault();
      useKey(this.#field.value.trim());
      this.#field.value = "";
      this.#showState();
      onUse();
    });
    this.#forget.addEventListener("click", () => {
      useKey(null);
      this.#showState();
      onUse();
    });
    this.#showState();
  }

  /** Opens, and says why. */
  ask(problem) {
    const remedy = problem.status === 403 ? "Take another key." : "Give a key.";
    this.#reason.textContent = `${problem.title}: ${problem.detail}. ${remedy}`;
    this.#reason.hidden = false;
    this.#open(true);
  }

  /** Closes, as the server has answered. */
  close() {
    this.#reason.hidden = true;
    this.#open(false);
  }

  #open(isOpen) {
    const hadFocus = this.#panel.contains(document.activeElement);
    this.#panel.hidden = !isOpen;
    this.#button.setAttribute("aria-expanded", String(isOpen));
    if (isOpen) this.#field.focus();
    else if (hadFocus) this.#button.focus();
  }

  #showState() {
    const has = currentKey() !== null;
    this.#button.textContent = has ? "Key: in use" : "Key";
    this.#forget.hidden = !has;
  }
}
