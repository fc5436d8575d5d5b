// A problem -> what a person reads of it, beside the field that it is about.

import { element } from "./elements.js";

/** Title, detail and remedy; `which` says which of several texts, where it is one of them. */
export function problemNode(problem, attributes = {}) {
  return element(
    "div",
    { class: "problem", role: "alert", ...attributes },
    element(
      "p",
      {},
      element("strong", {}, problem.title),
      `: ${whichOf(problem)}${sentence(problem.detail)}`,
    ),
    problem.remedy && element("p", {}, element("b", {}, "What to do: "), sentence(problem.remedy)),
    problem.seconds && element("p", {}, `Try again in ${problem.seconds} s.`),
  );
}

function sentence(words) {
  return words.endsWith(".") ? words : `${words}.`;
}

/** "text 3: " of `inputs[2]`, as a person counts. */
function whichOf(problem) {
  const found = /^inputs\[(\d+)\]/.exec(problem.field ?? "");
  return found ? `text ${Number(found[1]) + 1}: ` : "";
}

/** The field whose place in the body is nearest around that of a problem; undefined if none is. */
export function fieldOf(problem, fields) {
  const place = problem.field;
  if (!place) return undefined;
  const reach = (field) =>
    Math.max(...field.places.map((each) => (isWithin(place, each) ? each.length : 0)));
  const best = fields.reduce((one, other) => (reach(other) > reach(one) ? other : one));
  return reach(best) > 0 ? best : undefined;
}

function isWithin(place, around) {
  return place === around || place.startsWith(`${around}.`) || place.startsWith(`${around}[`);
}
