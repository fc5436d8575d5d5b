// Tag, attributes and children -> a DOM node. Whatever is given as text stays text: nothing here
// reads HTML.

let count = 0;

/** A node; an attribute `onclick` is a listener, one that is null or false is left out. */
export function element(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat(2).filter((each) => each || each === 0));
  return node;
}

/** An id that no other node has. */
export function freshId(word) {
  count += 1;
  return `${word}-${count}`;
}

/** A text that a person has given: its own direction, its own line breaks. */
export function given(text, tag = "span", attributes = {}) {
  return element(tag, { dir: "auto", ...attributes }, text);
}

/** A menu of options `[value, name]`. */
export function menu(options, attributes = {}) {
  return element("select", attributes, optionsOf(options));
}

/** Gives a menu other options; what was chosen stays so where it is still there. */
export function offer(select, options) {
  const before = select.value;
  select.replaceChildren(...optionsOf(options));
  if (options.some(([value]) => String(value) === before)) select.value = before;
}

function optionsOf(options) {
  return options.map(([value, name]) => element("option", { value }, name));
}

/** A copy button for whatever `text()` is when it is pressed; it says what came of it. */
export function copyButton(text, what) {
  const button = element("button", { type: "button", class: "quiet", onclick: copy }, "Copy");
  button.setAttribute("aria-label", `Copy ${what}`);
  const said = element("span", { class: "said", role: "status" });
  async function copy() {
    try {
      await navigator.clipboard.writeText(text());
      said.textContent = "copied";
    } catch {
      said.textContent = "the browser does not allow it; select the text";
    }
    setTimeout(() => said.replaceChildren(), 4000);
  }
  return element("span", { class: "copy" }, said, button);
}
