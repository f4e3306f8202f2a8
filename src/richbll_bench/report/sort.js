"use strict";
// A click on a heading sorts by it: the best first, then the other way round, then as the table was.
for (const table of document.querySelectorAll("table")) {
  const body = table.tBodies[0];
  const original = [...body.rows];
  const headings = [...table.tHead.rows[0].cells];

  // Numbers by their mean, words after them, cells without anything last, whichever way the rest goes.
  const key = (row, column) => {
    const cell = row.cells[column];
    if (cell.dataset.value !== undefined) return [0, Number(cell.dataset.value), ""];
    return [cell.classList.contains("none") ? 2 : 1, 0, cell.textContent];
  };
  const compare = (column, sign) => (a, b) => {
    const [kindA, numberA, textA] = key(a, column);
    const [kindB, numberB, textB] = key(b, column);
    if (kindA !== kindB) return kindA - kindB;
    return sign * (numberA - numberB || textA.localeCompare(textB, "en", { numeric: true }));
  };

  headings.forEach((heading, column) => {
    heading.querySelector("button").addEventListener("click", () => {
      const first = heading.dataset.first ?? "ascending";
      const second = first === "ascending" ? "descending" : "ascending";
      const next = { none: first, [first]: second, [second]: "none" }[heading.getAttribute("aria-sort")];
      for (const other of headings) other.setAttribute("aria-sort", "none");
      heading.setAttribute("aria-sort", next);
      body.classList.toggle("sorted", next !== "none");
      const rows = next === "none" ? original : [...original].sort(compare(column, next === "ascending" ? 1 : -1));
      body.append(...rows);
    });
  });
}
