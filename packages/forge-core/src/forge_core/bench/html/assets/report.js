"use strict";
(function () {
  const root = document.documentElement;
  const names = ["auto", "light", "dark"];
  const button = document.querySelector("button.theme");

  // A page that was opened from a file may have no storage; the choice then holds until it is closed.
  function stored(value) {
    try {
      if (value === undefined) return localStorage.getItem("forge-theme");
      localStorage.setItem("forge-theme", value);
    } catch (error) {
      return null;
    }
    return value;
  }

  function show(name) {
    if (name === "auto") delete root.dataset.theme;
    else root.dataset.theme = name;
    button.textContent = "theme: " + name;
    button.dataset.now = name;
  }

  button.addEventListener("click", function () {
    const next = names[(names.indexOf(button.dataset.now) + 1) % names.length];
    stored(next);
    show(next);
  });
  show(names.includes(stored()) ? stored() : "auto");

  // "4,096" and "97.1%" are numbers; a shape sorts by how many elements it has.
  function key(cell) {
    const text = cell.dataset.sort || cell.textContent.trim();
    const number = Number(text.replace(/[,%]/g, ""));
    return text !== "" && !Number.isNaN(number) ? number : text;
  }

  function compare(a, b) {
    const numbers = (typeof a === "number") - (typeof b === "number");
    if (numbers !== 0) return -numbers;
    return typeof a === "number" ? a - b : a.localeCompare(b);
  }

  for (const table of document.querySelectorAll("table")) {
    const body = table.tBodies[0];
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach(function (head, column) {
      head.querySelector("button").addEventListener("click", function () {
        const up = head.getAttribute("aria-sort") !== "ascending";
        heads.forEach(function (other) { other.removeAttribute("aria-sort"); });
        head.setAttribute("aria-sort", up ? "ascending" : "descending");
        const rows = [...body.rows].map(function (row) { return [key(row.cells[column]), row]; });
        rows.sort(function (a, b) { return up ? compare(a[0], b[0]) : compare(b[0], a[0]); });
        rows.forEach(function (pair) { body.append(pair[1]); });
      });
    });
    const search = table.closest("details").querySelector("input");
    search.addEventListener("input", function () {
      const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
      let shown = 0;
      for (const row of body.rows) {
        const text = row.textContent.toLowerCase();
        row.hidden = !words.every(function (word) { return text.includes(word); });
        shown += row.hidden ? 0 : 1;
      }
      search.nextElementSibling.textContent = shown + " of " + body.rows.length + " rows";
    });
  }
})();
