"use strict";
// Before the page is painted, so that nothing moves when the rest runs.
document.documentElement.classList.add("js");

/** The printed text of a cell, without what is said about it: always the cell's first child. */
const printed = (cell) => cell.firstChild?.textContent ?? "";

/** What a column is sorted by: a number, or a text in lower case; null where there is none. */
function sortValue(cell, isText) {
  const text = (cell.dataset.v ?? printed(cell)).trim();
  if (isText) return text === "" || text === "—" ? null : text.toLowerCase();
  const number = text === "" ? NaN : Number(text);
  return Number.isFinite(number) ? number : null;
}

/** Row indices in order; equal ones stay as they were, and those without a value come last both ways. */
function order(values, isDown) {
  const compare = (a, b) =>
    typeof a === "string" ? a.localeCompare(b, "en", { numeric: true }) : a - b;
  return values.map((_, index) => index).sort((i, j) => {
    const [a, b] = [values[i], values[j]];
    if (a === null || b === null) return (a === null) - (b === null) || i - j;
    return (isDown ? compare(b, a) : compare(a, b)) || i - j;
  });
}

/** Sorting and filtering of one table. */
function setUpTable(figure) {
  const body = figure.querySelector("tbody");
  const rows = [...body.rows];
  const heads = [...figure.querySelectorAll("thead th[data-column]")];
  const words = figure.querySelector(".controls input");
  const choices = [...figure.querySelectorAll(".controls select")];
  const output = figure.querySelector(".controls output");
  const hasGroups = figure.querySelector("thead .g") !== null;
  let texts = null;

  // A line above each first row of a group, whatever the order and whichever rows are hidden.
  const markGroups = () => {
    let last = null;
    for (const row of body.rows) {
      if (row.hidden) continue;
      const group = printed(row.cells[0]);
      row.classList.toggle("first", hasGroups && group !== last);
      last = group;
    }
  };
  const filter = () => {
    texts ??= rows.map((row) => [...row.cells].map((cell) => cell.textContent).join("\n").toLowerCase());
    const asked = words.value.toLowerCase().split(/\s+/).filter(Boolean);
    const chosen = choices.filter((choice) => choice.value !== "");
    let shown = 0;
    rows.forEach((row, index) => {
      const fits =
        asked.every((word) => texts[index].includes(word)) &&
        chosen.every((choice) => printed(row.cells[choice.dataset.column]) === choice.value);
      row.hidden = !fits;
      shown += fits;
    });
    output.textContent = shown === rows.length ? `${shown} rows` : `${shown} of ${rows.length} rows`;
    markGroups();
  };
  const sort = (head) => {
    const next = { none: "ascending", ascending: "descending", descending: "none" }[head.ariaSort];
    for (const other of heads) other.ariaSort = other === head ? next : "none";
    const values = rows.map((row) => sortValue(row.cells[head.dataset.column], head.classList.contains("t")));
    const sorted = next === "none" ? rows : order(values, next === "descending").map((index) => rows[index]);
    body.append(...sorted);
    markGroups();
  };

  for (const head of heads) {
    const button = head.querySelector("button");
    head.ariaSort = "none";
    button.disabled = false;
    button.addEventListener("click", () => sort(head));
  }
  if (words) {
    words.addEventListener("input", filter);
    for (const choice of choices) choice.addEventListener("change", filter);
  }
  markGroups();
}

function element(name, text, parent) {
  const made = document.createElement(name);
  made.textContent = text;
  parent?.append(made);
  return made;
}

/** The numbers of the page that lead to a note, by their tables, with what is said of each. */
function numbersOf(links, opener) {
  const numbers = links.map((link) => {
    const cell = link.parentElement;
    const head = cell.closest("figure").querySelector(`thead th[data-column="${cell.cellIndex}"] button`);
    const said = [cell.querySelector(":scope > .vh"), cell.querySelector(".more")];
    return {
      link,
      title: cell.closest("section").querySelector("h2").firstChild.textContent.trim(),
      column: printed(head),
      paper: cell.querySelector(".paper")?.lastChild.textContent ?? "",
      said: said.filter(Boolean).map((part) => part.textContent.trim()).join("; "),
    };
  });
  // A column that would be empty is left out.
  const isThere = { paper: numbers.some(({ paper }) => paper !== ""), said: numbers.some(({ said }) => said !== "") };
  const names = ["Column", "Ours", ...(isThere.paper ? ["Paper"] : []), ...(isThere.said ? ["Remarks"] : [])];
  const table = document.createElement("table");
  table.className = "numbers";
  const top = table.createTHead().insertRow();
  for (const name of names) element("th", name, top).scope = "col";
  const body = table.createTBody();
  let last = null;
  for (const { link, title, column, paper, said } of numbers) {
    if (title !== last) element("th", title, body.insertRow()).colSpan = names.length;
    last = title;
    const row = body.insertRow();
    element("th", column, row).scope = "row";
    element(link === opener ? "b" : "span", link.textContent, row.insertCell());
    if (isThere.paper) element("td", paper, row);
    if (isThere.said) element("td", said, row);
  }
  const wide = document.createElement("div");
  wide.className = "wide";
  wide.append(table);
  return wide;
}

/** A button that copies a command. */
function addCopy(block) {
  const code = block.querySelector("code");
  const button = element("button", "Copy", block);
  button.type = "button";
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(code.textContent);
      button.textContent = "Copied";
    } catch {
      // A browser that keeps its clipboard closed: selected, it is one key away.
      getSelection().selectAllChildren(code);
      button.textContent = "Selected";
    }
  });
}

/** Notes over the page, by the address's `#cell-…`. */
function setUpNotes() {
  const dialog = document.getElementById("note");
  const body = document.getElementById("note-body");
  let opener = null;

  const show = () => {
    const id = location.hash.slice(1);
    if (!id.startsWith("cell-")) {
      if (dialog.open) dialog.close();
      return;
    }
    const note = document.getElementById(id);
    const links = [...document.querySelectorAll("main td > a, main th > a")].filter((link) => link.hash === `#${id}`);
    body.replaceChildren();
    document.getElementById("note-title").textContent = note ? note.querySelector("h3").textContent : "No such cell";
    if (note) {
      const copy = note.cloneNode(true);
      copy.querySelector("h3").remove();
      copy.querySelectorAll("pre").forEach(addCopy);
      const [key, ...rest] = copy.children;
      body.append(key, ...(links.length ? [numbersOf(links, opener)] : []), ...rest);
    } else {
      element("p", `This page has no note of ${id.slice(5)}.`, body);
    }
    if (!dialog.open) dialog.showModal();
    dialog.scrollTop = 0;
  };

  document.addEventListener("click", (event) => {
    const link = event.target.closest?.("a[href^='#cell-']");
    if (link) opener = link;
    // The backdrop counts as the dialog itself.
    if (event.target === dialog) dialog.close();
  });
  document.getElementById("note-close").addEventListener("click", () => dialog.close());
  dialog.addEventListener("close", () => {
    if (location.hash.startsWith("#cell-")) history.replaceState(null, "", location.pathname + location.search);
    opener?.focus();
    opener = null;
  });
  addEventListener("hashchange", show);
  show();
}

/** Marks in the list of contents where the reader is. */
function setUpContents() {
  const links = new Map([...document.querySelectorAll(".side a")].map((link) => [link.hash.slice(1), link]));
  const seen = new Set();
  const observer = new IntersectionObserver(
    (entries) => {
      for (const entry of entries) seen[entry.isIntersecting ? "add" : "delete"](entry.target.id);
      const current = [...links.keys()].find((id) => seen.has(id));
      for (const [id, link] of links) {
        if (id === current) link.setAttribute("aria-current", "true");
        else link.removeAttribute("aria-current");
      }
    },
    { rootMargin: "-10% 0px -60% 0px" },
  );
  for (const id of links.keys()) observer.observe(document.getElementById(id));
  const menu = document.querySelector(".menu");
  menu.addEventListener("click", (event) => {
    if (event.target.closest("a")) menu.open = false;
  });
}

document.addEventListener("DOMContentLoaded", () => {
  document.querySelectorAll("figure.table").forEach(setUpTable);
  setUpNotes();
  setUpContents();
  document.getElementById("papers")?.addEventListener("change", (event) => {
    document.documentElement.classList.toggle("no-papers", !event.target.checked);
  });
});
// On paper nothing is folded away.
let folded = [];
addEventListener("beforeprint", () => {
  folded = [...document.querySelectorAll("main details:not([open])")];
  for (const details of folded) details.open = true;
});
addEventListener("afterprint", () => {
  for (const details of folded) details.open = false;
});
