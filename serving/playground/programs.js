// Equivalent programs for a request: curl and Python.

import { copyButton, element } from "./elements.js";
import { addressOf, currentKey } from "./server.js";

/** The panel with both, each with a copy button. */
export class ProgramPanel {
  #curl = element("code");
  #python = element("code");

  constructor() {
    this.node = element(
      "section",
      { class: "card", "aria-label": "From a program" },
      element("h2", {}, "From a program"),
      element(
        "div",
        { class: "programs" },
        shown("curl", this.#curl),
        shown("Python", this.#python),
      ),
    );
  }

  /** Shows the programs for a task and a body. */
  show(task, body) {
    this.#curl.textContent = curlOf(task, body);
    this.#python.textContent = pythonOf(task, body);
  }
}

function shown(name, code) {
  return element(
    "div",
    { class: "program" },
    element(
      "div",
      { class: "program-head" },
      element("h3", {}, name),
      copyButton(() => code.textContent, name),
    ),
    element("pre", {}, code),
  );
}

/** The shell command. The key is a variable, so that it is not copied. */
function curlOf(task, body) {
  const key = currentKey() ? ' \\\n  -H "Authorization: Bearer $BERTLINE_KEY"' : "";
  return (
    `curl ${quoted(addressOf(task.path.slice(1)))} \\\n` +
    `  -H 'Content-Type: application/json'${key} \\\n` +
    `  -d ${quoted(JSON.stringify(body))}`
  );
}

/** The same with our client; `task.positional` has the method's positional arguments. */
function pythonOf(task, body) {
  const address = JSON.stringify(addressOf(".").replace(/\/$/, ""));
  const first = task.positional ?? ["inputs"];
  const named = Object.entries(body).filter(([name]) => !first.includes(name));
  const parts = [
    ...first.map((name) => literal(body[name])),
    ...named.map(([name, value]) => `${name}=${literal(value)}`),
  ];
  const key = currentKey() ? ', api_key=os.environ["BERTLINE_KEY"]' : "";
  return (
    `${key ? "import os\n\n" : ""}from serving.client import Client\n\n` +
    `with Client(${address}${key}) as client:\n` +
    `    result = client.${task.method}(\n` +
    parts.map((each) => `        ${each},\n`).join("") +
    "    )\nprint(result)\n"
  );
}

function quoted(text) {
  return `'${text.replaceAll("'", "'\\''")}'`;
}

/** A JSON value as a Python literal; strings are the same in both. */
function literal(value) {
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (Array.isArray(value)) return `[${value.map(literal).join(", ")}]`;
  if (typeof value === "object") {
    const items = Object.entries(value).map(
      ([name, each]) => `${JSON.stringify(name)}: ${literal(each)}`,
    );
    return `{${items.join(", ")}}`;
  }
  return JSON.stringify(value);
}
