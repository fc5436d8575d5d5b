// Starts the page: the tasks that some model supports, the task in the address, the key.

import { attention } from "./attention.js";
import { Catalog } from "./catalog.js";
import { classify } from "./classify.js";
import { element, freshId } from "./elements.js";
import { fillMask } from "./fill_mask.js";
import { KeyPanel } from "./key_panel.js";
import { ner } from "./ner.js";
import { nextSentence } from "./next_sentence.js";
import { TaskPage } from "./page.js";
import { problemNode } from "./problems.js";
import { pseudoPerplexity } from "./pseudo_perplexity.js";
import { qa } from "./qa.js";
import { relevance } from "./relevance.js";
import { Problem } from "./server.js";
import { similarity } from "./similarity.js";
import { tokens } from "./tokens.js";
import { zeroShot } from "./zero_shot.js";

/** The tasks by their part of the address after #/, in groups. */
const GROUPS = [
  ["Fine-tuned models", { classify, "zero-shot": zeroShot, ner, qa, search: relevance }],
  [
    "Pre-trained heads",
    { "fill-mask": fillMask, "next-sentence": nextSentence, "pseudo-perplexity": pseudoPerplexity },
  ],
  ["Any encoder", { similarity, attention, tokens }],
];
const TASKS = Object.assign({}, ...GROUPS.map(([, tasks]) => tasks));

const main = document.getElementById("main");
const menuOfTasks = document.getElementById("tasks");
const catalog = new Catalog();
const pages = new Map();
const key = new KeyPanel(() => start());
let current = null;

/** Loads the models and shows their tasks, or the problem. */
async function start() {
  const place = document.getElementById("start");
  try {
    await catalog.load();
  } catch (error) {
    if (!(error instanceof Problem)) throw error;
    if (error.isAboutKey) {
      key.ask(error);
      if (place) place.textContent = "This server needs a key: enter one above.";
    } else {
      place?.replaceChildren(problemNode(error), retry());
    }
    return;
  }
  key.close();
  place?.remove();
  offerTasks();
  show({ isFirst: current === null });
}

function retry() {
  return element("button", { type: "button", onclick: () => start() }, "Try again");
}

function isOffered(name) {
  return name in TASKS && catalog.able(TASKS[name].path).length > 0;
}

function offerTasks() {
  menuOfTasks.replaceChildren(
    ...GROUPS.map(([title, tasks]) => {
      const names = Object.keys(tasks).filter(isOffered);
      const links = names.map((name) =>
        element(
          "li",
          {},
          element("a", { href: `#/${name}`, "data-task": name }, tasks[name].title),
        ),
      );
      const id = freshId("group");
      return names.length
        ? element(
            "div",
            {},
            element("p", { id }, title),
            element("ul", { "aria-labelledby": id }, links),
          )
        : "";
    }),
  );
}

/** Shows the task in the address, by default the first. */
function show({ isFirst = false } = {}) {
  const asked = location.hash.replace(/^#\//, "");
  const name = isOffered(asked) ? asked : Object.keys(TASKS).find(isOffered);
  if (name === undefined) {
    main.replaceChildren(element("p", {}, "This server has no models."));
    return;
  }
  if (!pages.has(name))
    pages.set(name, new TaskPage(TASKS[name], catalog, (problem) => key.ask(problem)));
  const page = pages.get(name);
  for (const link of menuOfTasks.querySelectorAll("a")) {
    if (link.dataset.task === name) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  if (current === page) return;
  current?.leave();
  current = page;
  main.replaceChildren(page.node);
  document.title = `${TASKS[name].title} – Bertline playground`;
  if (isFirst) return;
  page.title.focus({ preventScroll: true });
  window.scrollTo(0, 0);
}

document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // the address names the task
  main.focus();
});
window.addEventListener("hashchange", () => show());
start();
