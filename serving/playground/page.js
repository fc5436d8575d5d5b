// The page of a task: the form, the answer, equivalent programs, the model's card.
//
// A task has `title`, `about`, `path` and `method` (of the client); `fields()` of the form;
// `examples(model)`, a list of `{name, values}`; `body(values, model)` without the model's name;
// `show(content, context)`, which returns nodes, and `summary(content)`, which returns a sentence.

import { AnswerPanel } from "./answer_panel.js";
import { cardOf } from "./card.js";
import { versionOf } from "./catalog.js";
import { element, freshId, menu, offer } from "./elements.js";
import { fieldOf, problemNode } from "./problems.js";
import { ProgramPanel } from "./programs.js";
import { ask, Problem } from "./server.js";

/** A page over the models of a catalog; calls `onKey(problem)` if a key is needed. */
export class TaskPage {
  #task;
  #catalog;
  #onKey;
  #fields;
  #memory = {};
  #asking = null;
  #model;
  #modelRoom = element("div", { class: "room" });
  #room = element("div", { class: "room" });
  #examples = element("div", { class: "examples" });
  #answer = new AnswerPanel();
  #programs = new ProgramPanel();
  #card = element("div");

  constructor(task, catalog, onKey) {
    this.#task = task;
    this.#catalog = catalog;
    this.#onKey = onKey;
    this.#fields = task.fields();
    this.#build();
    this.#offerModels();
    catalog.onChange(() => this.#offerModels());
  }

  /** Aborts the request in progress. */
  leave() {
    this.#asking?.abort();
  }

  #build() {
    const task = this.#task;
    const id = freshId("model");
    this.#model = menu([], { id, name: "model", onchange: () => this.#changeModel() });
    this.title = element("h1", { tabindex: "-1" }, task.title);
    this.node = element(
      "article",
      { class: "page" },
      this.title,
      element("p", { class: "about" }, task.about, " ", element("code", {}, `POST ${task.path}`)),
      element(
        "div",
        { class: task.isWide ? "wide" : "side-by-side" },
        this.#form(element("label", { for: id }, "Model")),
        this.#answer.node,
      ),
      this.#programs.node,
      element(
        "section",
        { class: "card", "aria-label": "Model card" },
        element("h2", {}, "Model card"),
        this.#card,
      ),
    );
  }

  #form(modelLabel) {
    const nodesOf = (isOption) =>
      this.#fields.filter((each) => each.isOption === isOption).map((each) => each.node);
    const form = element(
      "form",
      { class: "card form", novalidate: true, "aria-label": this.#task.title },
      element("div", { class: "field" }, modelLabel, this.#model, this.#modelRoom),
      nodesOf(false),
      element("div", { class: "options" }, nodesOf(true)),
      element(
        "p",
        { class: "actions" },
        element("button", { type: "submit", class: "main-button" }, "Ask"),
        element(
          "span",
          { class: "hint" },
          element("kbd", {}, "Ctrl"),
          " + ",
          element("kbd", {}, "Enter"),
        ),
      ),
      this.#room,
      this.#examples,
    );
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#ask();
    });
    form.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
      event.preventDefault();
      this.#ask();
    });
    form.addEventListener("input", () => this.#programs.show(this.#task, this.#body()));
    return form;
  }

  #offerModels() {
    const able = this.#catalog.able(this.#task.path);
    offer(
      this.#model,
      able.map((each) => [each.name, each.name]),
    );
    this.#changeModel();
  }

  #changeModel() {
    const model = this.#catalog.find(this.#model.value);
    if (!model) return;
    for (const field of this.#fields) field.adapt(model);
    const examples = this.#task.examples(model);
    this.#examples.replaceChildren(
      element("span", { class: "hint" }, "Examples:"),
      ...examples.map(({ name, values }) =>
        element(
          "button",
          { type: "button", class: "chip", onclick: () => this.#try(values) },
          name,
        ),
      ),
    );
    this.#card.replaceChildren(cardOf(model, this.#catalog.limits));
    this.#programs.show(this.#task, this.#body());
  }

  #try(values) {
    for (const field of this.#fields) {
      field.value = values[field.name] ?? field.usual;
    }
    this.#ask();
  }

  #body() {
    const values = Object.fromEntries(
      this.#fields.map((each) => [each.name, each.isHidden ? null : each.value]),
    );
    const model = this.#catalog.find(this.#model.value);
    const body = { ...this.#task.body(values, model, this.#memory), model: model.name };
    return Object.fromEntries(Object.entries(body).filter(([, value]) => value !== null));
  }

  async #ask() {
    const body = this.#body();
    const answer = await this.#request(body);
    if (!answer) return;
    const context = {
      body,
      model: this.#catalog.find(body.model),
      memory: this.#memory,
      again: (changes) => this.#again({ ...body, ...changes }),
    };
    this.#answer.show([this.#task.show(answer.content, context)].flat());
  }

  /** Repeats a request with other options; null if it was refused. */
  async #again(body) {
    const answer = await this.#request(body);
    return answer && answer.content;
  }

  async #request(body) {
    this.leave();
    const asking = new AbortController();
    this.#asking = asking;
    for (const field of this.#fields) field.clear();
    this.#room.replaceChildren();
    this.#modelRoom.replaceChildren();
    this.#programs.show(this.#task, body);
    this.#answer.note("Waiting for the server …");
    this.node.setAttribute("aria-busy", "true");
    try {
      const answer = await ask(this.#task.path.slice(1), body, asking.signal);
      this.#tell(answer, body);
      return answer;
    } catch (error) {
      if (error.name === "AbortError") return null;
      if (!(error instanceof Problem)) throw error;
      this.#refuse(error);
      return null;
    } finally {
      if (this.#asking === asking) {
        this.#asking = null;
        this.node.removeAttribute("aria-busy");
      }
    }
  }

  #tell(answer, body) {
    const model = answer.model ?? body.model;
    const version = answer.version ?? versionOf(this.#catalog.find(model) ?? {});
    const words = this.#task.summary(answer.content, body);
    this.#answer.tell(words, { ...answer, model, version }, body);
    this.#catalog.sawVersion(model, answer.version);
  }

  #refuse(problem) {
    this.#answer.clear("Request failed.");
    const field = fieldOf(problem, this.#fields);
    if (problem.isAboutKey) this.#onKey(problem);
    else if (problem.field === "model") {
      this.#modelRoom.replaceChildren(problemNode(problem));
      this.#catalog.load().catch(() => {}); // the models may be others by now
    } else if (field && !field.isHidden) field.show(problem);
    else this.#room.replaceChildren(problemNode(problem));
  }
}
