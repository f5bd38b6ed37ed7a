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

/** What the address says after its `?`: it is the place where tables keep how they are sorted and filtered. */
const address = new URLSearchParams(location.search);
function keep(name, value) {
  if (value) address.set(name, value);
  else address.delete(name);
  const said = address.toString();
  history.replaceState(null, "", location.pathname + (said && `?${said}`) + location.hash);
}

/** The columns' names as the address has them: those that come again are counted. */
function columnNames(heads) {
  const seen = new Map();
  return heads.map((head) => {
    const name = head.querySelector("button > span").textContent;
    seen.set(name, (seen.get(name) ?? 0) + 1);
    return seen.get(name) === 1 ? name : `${name}~${seen.get(name)}`;
  });
}

/** Sorting and filtering of one table. */
function setUpTable(figure) {
  const own = (what) => `${figure.dataset.name}.${what}`;
  const body = figure.querySelector("tbody");
  const rows = [...body.rows];
  const heads = [...figure.querySelectorAll("thead th[data-column]")].sort((a, b) => a.dataset.column - b.dataset.column);
  const names = columnNames(heads);
  const words = figure.querySelector(".controls input");
  const choices = [...figure.querySelectorAll(".controls select")];
  const output = figure.querySelector(".controls output");
  const hasGroups = figure.querySelector("thead .g") !== null;
  let texts = null;

  // A line above each first row of a group, and a finer one where the columns between the group and the row's name change
  // (depth, criterion), whatever the order and whichever rows are hidden.
  const name = heads.findIndex((head) => head.classList.contains("l"));
  const markGroups = () => {
    let last = null;
    for (const row of body.rows) {
      if (row.hidden) continue;
      const parts = [...row.cells].slice(0, Math.max(name, 1)).map(printed);
      row.classList.toggle("first", hasGroups && parts[0] !== last?.[0]);
      row.classList.toggle("part", hasGroups && parts.some((part, at) => at > 0 && part !== last?.[at]));
      last = parts;
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
  const sort = (head, direction) => {
    for (const other of heads) other.ariaSort = other === head ? direction : "none";
    const values = rows.map((row) => sortValue(row.cells[head.dataset.column], head.classList.contains("t")));
    const sorted = direction === "none" ? rows : order(values, direction === "descending").map((index) => rows[index]);
    body.append(...sorted);
    markGroups();
  };

  heads.forEach((head, index) => {
    const button = head.querySelector("button");
    head.ariaSort = "none";
    button.disabled = false;
    button.addEventListener("click", () => {
      const next = { none: "ascending", ascending: "descending", descending: "none" }[head.ariaSort];
      sort(head, next);
      keep(own("sort"), { ascending: names[index], descending: `-${names[index]}`, none: "" }[next]);
    });
  });
  if (words) {
    words.addEventListener("input", () => {
      filter();
      keep(own("find"), words.value);
    });
    words.value = address.get(own("find")) ?? "";
    for (const choice of choices) {
      const name = own(names[choice.dataset.column]);
      choice.addEventListener("change", () => {
        filter();
        keep(name, choice.value);
      });
      // A text that the list does not have chooses nothing.
      choice.value = address.get(name) ?? "";
      if (choice.selectedIndex < 0) choice.selectedIndex = 0;
    }
    if (words.value !== "" || choices.some((choice) => choice.value !== "")) filter();
  }
  const asked = address.get(own("sort")) ?? "";
  const down = asked.startsWith("-") && !names.includes(asked);
  const head = heads[names.indexOf(down ? asked.slice(1) : asked)];
  if (head) sort(head, down ? "descending" : "ascending");
  markGroups();
}

/** From the widest to the narrowest form of a table; the last one scrolls in its frame. */
const FORMS = ["wide", "snug", "tall", "broken", "scroll"];
/** Room for the bar of a frame that scrolls, in pixels. */
const BAR = 16;

/** A4 across, less its margins, and the letters of a table there, in pixels: as the style says of print. */
const PAPER = { width: 1030, letters: 10 };

/** Gives a table the first form in which no column is cut; one that is closed gets it when it is opened. */
function fit(figure, onPaper = false) {
  if (figure.closest("details:not([open])")) return;
  const table = figure.querySelector("table");
  for (const form of FORMS) {
    figure.dataset.form = form;
    const letters = onPaper ? PAPER.letters / parseFloat(getComputedStyle(table).fontSize) : 1;
    const room = onPaper ? PAPER.width : figure.clientWidth - (figure.classList.contains("long") ? BAR : 0);
    // Two pixels are the frame's border.
    if (table.offsetWidth * letters <= room - 2) return;
  }
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
    const beside = cell.querySelector(".paper");
    const word = beside?.querySelector(".word").textContent.trim() ?? "";
    const said = [
      cell.querySelector(":scope > .vh")?.textContent.trim(),
      cell.querySelector("sup")?.title,
      [word, beside?.title].filter(Boolean).join(": "),
    ];
    return {
      link,
      title: cell.closest("section").querySelector("h2").firstChild.textContent.trim(),
      column: head.querySelector("span").textContent,
      paper: beside?.childNodes[1].textContent ?? "",
      error: "",
      std_seeds: "",
      std_rounds: "",
      ci95: "",
      [link.dataset.k ?? "error"]: link.dataset.e ?? "",
      items: link.dataset.n ?? "",
      difference: beside ? [".diff", ".sign"].map((part) => beside.querySelector(part)?.textContent ?? "").join(" ").trim() : "",
      remarks: said.filter(Boolean).join("; "),
    };
  });
  // A column that would be empty is left out.
  const known = { error: "Std. error", std_seeds: "Std. over seeds", std_rounds: "Std. over rounds", ci95: "95 % interval", items: "n", paper: "Paper", difference: "Difference" };
  const columns = Object.keys(known).filter((name) => numbers.some((of) => of[name] !== ""));
  const names = ["Column", "Ours", ...columns.map((name) => known[name])];
  const table = document.createElement("table");
  table.className = "numbers";
  const top = table.createTHead().insertRow();
  for (const name of names) element("th", name, top).scope = "col";
  const body = table.createTBody();
  let last = null;
  for (const { link, title, column, remarks, ...said } of numbers) {
    if (title !== last) element("th", title, body.insertRow()).colSpan = names.length;
    last = title;
    const row = body.insertRow();
    const name = element("th", column, row);
    name.scope = "row";
    if (remarks) element("small", remarks, name);
    element(link === opener ? "b" : "span", link.textContent, row.insertCell());
    for (const name of columns) element("td", said[name], row);
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

/** Scrolls the frame of a table so that a cell is seen: below its head, and beside the columns that stay. */
function revealInFrame(cell, head) {
  const frame = cell.closest(".scroll");
  if (getComputedStyle(frame).overflowY === "visible") return;
  const [at, box] = [cell.getBoundingClientRect(), frame.getBoundingClientRect()];
  const stays = [...cell.parentElement.cells].filter((of) => of !== cell && getComputedStyle(of).position === "sticky");
  const left = box.left + stays.reduce((sum, of) => sum + of.offsetWidth, 0);
  const right = box.left + frame.clientWidth;
  const bottom = box.top + frame.clientHeight;
  if (at.top < box.top + head) frame.scrollTop -= box.top + head - at.top;
  else if (at.bottom > bottom) frame.scrollTop += at.bottom - bottom;
  if (at.left < left) frame.scrollLeft -= left - at.left;
  else if (at.right > right) frame.scrollLeft += at.right - right;
}

/** Notes beside their numbers, by the address's `#cell-…`. */
function setUpNotes() {
  const dialog = document.getElementById("note");
  const body = document.getElementById("note-body");
  const isNarrow = matchMedia("(max-width: 56rem)");
  let opener = null;

  // Below the number, or above it where there is more room: the values that the note is about stay in sight.
  const place = () => {
    const cell = opener?.parentElement;
    dialog.style.cssText = "";
    if (!dialog.open || !cell || isNarrow.matches) return;
    const [gap, at, root] = [8, cell.getBoundingClientRect(), document.documentElement];
    const [above, below] = [at.top - 2 * gap, root.clientHeight - at.bottom - 2 * gap];
    const isBelow = below >= Math.min(above, 360);
    dialog.style.maxHeight = `${Math.max(isBelow ? below : above, 160)}px`;
    dialog.style.left = `${Math.max(gap, Math.min(at.left, root.clientWidth - dialog.offsetWidth - gap))}px`;
    dialog.style.top = `${Math.max(gap, isBelow ? at.bottom + gap : at.top - gap - dialog.offsetHeight)}px`;
  };
  const mark = () => {
    document.querySelector(".opened")?.classList.remove("opened");
    if (dialog.open) opener?.parentElement.classList.add("opened");
  };
  // Where the head of its table does not cover the number. On a narrow screen the note has the lower part.
  const reveal = () => {
    if (!opener) return;
    const figure = opener.closest("figure");
    const head = figure.querySelector("thead").offsetHeight;
    revealInFrame(opener.parentElement, head);
    const cell = opener.parentElement.getBoundingClientRect();
    const top = document.querySelector(".menu").offsetHeight + head + 8;
    const isIn = cell.top >= top && cell.bottom <= innerHeight * (isNarrow.matches ? 0.4 : 1);
    if (!isIn) scrollBy({ top: cell.top - (isNarrow.matches ? top : Math.max(top, innerHeight * 0.4)) });
  };
  const show = () => {
    const id = location.hash.slice(1);
    if (!id.startsWith("cell-")) {
      if (dialog.open) dialog.close();
      return;
    }
    const note = document.getElementById(id);
    const links = [...document.querySelectorAll("main td > a, main th > a")].filter((link) => link.hash === `#${id}`);
    if (opener?.hash !== `#${id}`) opener = links[0] ?? null;
    const closed = opener?.closest("details:not([open])");
    if (closed) {
      closed.open = true;
      closed.querySelectorAll("figure.table").forEach((figure) => fit(figure));
    }
    body.replaceChildren();
    document.getElementById("note-title").textContent = note ? note.querySelector("h3").textContent : "No such cell";
    if (note) {
      const copy = note.cloneNode(true);
      copy.querySelector("h3").remove();
      copy.querySelectorAll("pre").forEach(addCopy);
      // What many notes have in common stands once in the page.
      for (const use of copy.querySelectorAll(".use")) {
        const shared = document.getElementById(use.firstElementChild.hash.slice(1)).cloneNode(true);
        shared.removeAttribute("id");
        use.replaceWith(shared);
      }
      const key = copy.querySelector(".key");
      key?.remove();
      body.append(...[key, links.length ? numbersOf(links, opener) : null].filter(Boolean), ...copy.children);
    } else {
      element("p", `This page has no note of ${id.slice(5)}.`, body);
    }
    if (!dialog.open) dialog.showModal();
    mark();
    reveal();
    place();
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
    mark();
    opener?.focus({ preventScroll: true });
    opener = null;
  });
  addEventListener("hashchange", show);
  addEventListener("resize", place);
  addEventListener("scroll", place, { passive: true });
  show();
}

/** What is closed: fitted when it is opened, and opened by a link into it, or to its section. */
function setUpFolded() {
  const unfold = () => {
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    const closed = target?.closest("details:not([open])") ?? target?.querySelector(":scope > details.folded:not([open])");
    if (closed) closed.open = true;
  };
  document.addEventListener("toggle", ({ target }) => {
    if (!target.open) return;
    target.querySelectorAll("figure.table").forEach((figure) => fit(figure));
    target.querySelector(":target")?.scrollIntoView();
  }, true);
  addEventListener("hashchange", unfold);
  unfold();
}

/** Marks in the list of contents where the reader is. */
function setUpContents() {
  const links = new Map([...document.querySelectorAll(".side a[href^='#']")].map((link) => [link.hash.slice(1), link]));
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
  const figures = [...document.querySelectorAll("figure.table")];
  const fitAll = () => figures.forEach((figure) => fit(figure));
  figures.forEach(setUpTable);
  fitAll();
  setUpNotes();
  setUpFolded();
  setUpContents();
  let width = 0;
  new ResizeObserver(([{ contentRect }]) => {
    if (contentRect.width !== width) fitAll();
    width = contentRect.width;
  }).observe(document.getElementById("main"));
  document.getElementById("papers")?.addEventListener("change", (event) => {
    document.documentElement.classList.toggle("no-papers", !event.target.checked);
    fitAll();
  });
});
// On paper nothing is folded away, and tables have the form that fits there, whatever the window shows.
let folded = [];
const fitEach = (onPaper) => document.querySelectorAll("figure.table").forEach((figure) => fit(figure, onPaper));
addEventListener("beforeprint", () => {
  folded = [...document.querySelectorAll("main details:not([open])")];
  for (const details of folded) details.open = true;
  fitEach(true);
});
addEventListener("afterprint", () => {
  for (const details of folded) details.open = false;
  fitEach(false);
});
