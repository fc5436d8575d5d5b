// Everything with the same key is highlighted together; column headers sort their table.
const highlight = (event, on) => {
  const key = event.target.closest("[data-key]")?.dataset.key;
  for (const each of key ? document.querySelectorAll("[data-key]") : []) {
    if (each.dataset.key === key) each.classList.toggle("on", on);
  }
};
document.addEventListener("mouseover", event => highlight(event, true));
document.addEventListener("mouseout", event => highlight(event, false));

const compare = (a, b, isNumber) => {
  if (!isNumber) return a.textContent.localeCompare(b.textContent);
  const number = cell => (cell.dataset.order === "" ? -Infinity : Number(cell.dataset.order));
  const [x, y] = [number(a), number(b)];
  return x === y ? 0 : x - y;
};
for (const head of document.querySelectorAll("thead th")) {
  if (!head.textContent) continue;
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = head.textContent;
  head.replaceChildren(button);
  button.addEventListener("click", () => {
    const order = head.ariaSort === "ascending" ? "descending" : "ascending";
    for (const each of head.parentNode.children) each.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", order);
    const body = head.closest("table").tBodies[0], column = head.cellIndex;
    const isNumber = head.classList.contains("number"), sign = order === "ascending" ? 1 : -1;
    body.append(...[...body.rows].sort(
      (a, b) => sign * compare(a.cells[column], b.cells[column], isNumber)));
  });
}
