"use strict";
const root = document.documentElement;
const themes = ["auto", "light", "dark"];
const toggle = document.querySelector("button.theme");

function show(theme) {
  root.dataset.theme = theme;
  toggle.textContent = "theme: " + theme;
}

// A page that was opened from a file may have no storage; the choice then holds until it is closed.
let storage = {};
try {
  storage = localStorage;
} catch (error) {
  console.info(error);
}
show(themes.includes(storage.forgeTheme) ? storage.forgeTheme : "auto");
toggle.addEventListener("click", () => {
  show(themes[(themes.indexOf(root.dataset.theme) + 1) % themes.length]);
  storage.forgeTheme = root.dataset.theme;
});

// "4,096" and "97.1%" are numbers; a shape is as large as its number of elements.
function key(cell) {
  const text = cell.textContent.trim();
  const shape = text.match(/^\d+(x\d+)+/);
  return shape ? shape[0].split("x").reduce((a, b) => a * b, 1) : Number(text.replace(/[,%]/g, "") || NaN);
}

function compare(a, b) {
  const [x, y] = [key(a), key(b)];
  if (Number.isNaN(x) || Number.isNaN(y)) {
    return Number.isNaN(x) - Number.isNaN(y) || a.textContent.localeCompare(b.textContent);
  }
  return x - y;
}

for (const table of document.querySelectorAll("table")) {
  const body = table.tBodies[0];
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    head.querySelector("button").addEventListener("click", () => {
      const direction = head.getAttribute("aria-sort") === "ascending" ? "descending" : "ascending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", direction);
      const rows = [...body.rows].sort((a, b) => compare(a.cells[column], b.cells[column]));
      body.append(...(direction === "ascending" ? rows : rows.reverse()));
    });
  });
  const search = table.closest("details")?.querySelector("input");
  search?.addEventListener("input", () => {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const rows = [...body.rows];
    rows.forEach((row) => { row.hidden = !words.every((word) => row.textContent.toLowerCase().includes(word)); });
    search.nextElementSibling.textContent = rows.filter((row) => !row.hidden).length + " of " + rows.length + " rows";
  });
}
