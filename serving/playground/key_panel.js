// The field for an API key.

import { currentKey, useKey } from "./server.js";

/** Opens by its button and on an error about keys; calls `onUse()` on each change. */
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
      const key = this.#field.value.trim();
      if (!/^[!-~]+$/.test(key)) {
        // A header holds no others: no request with it would be sent.
        this.#reason.textContent = "A key has letters, digits and signs of ASCII only. Copy it anew.";
        this.#reason.hidden = false;
        return;
      }
      useKey(key);
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

  /** Opens and shows the problem. */
  ask(problem) {
    const remedy = problem.status === 403 ? "Use another key." : "Enter a key.";
    this.#reason.textContent = `${problem.title}: ${problem.detail}. ${remedy}`;
    this.#reason.hidden = false;
    this.#open(true);
  }

  /** Closes once the server has answered. */
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
