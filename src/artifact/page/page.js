"use strict";
// Set the class before the first paint, so that the layout does not shift later.
document.documentElement.classList.add("js");

/** Returns the value of a cell, without marks and notes. It is always the first child. */
const printed = (cell) => cell.firstChild?.textContent ?? "";

/** Returns the sort key of a cell: a number, a lower-case text, or null if the cell is empty. */
function sortValue(cell, isText) {
  const text = (cell.dataset.v ?? printed(cell)).trim();
  if (isText) return text === "" || text === "—" ? null : text.toLowerCase();
  const number = text === "" ? NaN : Number(text);
  return Number.isFinite(number) ? number : null;
}

/** Returns the sorted row indices. The sort is stable, and rows without a value are last in both directions. */
function order(values, isDown) {
  const compare = (a, b) =>
    typeof a === "string" ? a.localeCompare(b, "en", { numeric: true }) : a - b;
  return values.map((_, index) => index).sort((i, j) => {
    const [a, b] = [values[i], values[j]];
    if (a === null || b === null) return (a === null) - (b === null) || i - j;
    return (isDown ? compare(b, a) : compare(a, b)) || i - j;
  });
}

/** Query of the address, which stores the sort order and the filters of all tables. */
const address = new URLSearchParams(location.search);
function keep(name, value) {
  if (value) address.set(name, value);
  else address.delete(name);
  const said = address.toString();
  history.replaceState(null, "", location.pathname + (said && `?${said}`) + location.hash);
}

/** Returns the names of columns in the address. Repeated names are numbered. */
function columnNames(heads) {
  const seen = new Map();
  return heads.map((head) => {
    const name = head.querySelector("button > span").textContent;
    seen.set(name, (seen.get(name) ?? 0) + 1);
    return seen.get(name) === 1 ? name : `${name}~${seen.get(name)}`;
  });
}

/** Sets up sorting and filtering of a table. */
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

  // Mark the first visible row of each group, and the rows at which a column between the group and the row's name changes (depth,
  // criterion). The style draws lines above them.
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
      // Ignore a text that is not in the list.
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

/** Layouts of a table, from the widest to the narrowest. The last one scrolls in its frame. */
const FORMS = ["wide", "snug", "tall", "broken", "scroll"];
/** Width reserved for a scroll bar, in pixels. */
const BAR = 16;

/** Width of A4 landscape without margins, and font size of tables, in pixels. The print style has the same values. */
const PAPER = { width: 1030, letters: 10 };

/** Selects the widest layout in which no column is cut off. Tables in closed sections are skipped until they are opened. */
function fit(figure, onPaper = false) {
  if (figure.closest("details:not([open])")) return;
  const table = figure.querySelector("table");
  for (const form of FORMS) {
    figure.dataset.form = form;
    const letters = onPaper ? PAPER.letters / parseFloat(getComputedStyle(table).fontSize) : 1;
    const room = onPaper ? PAPER.width : figure.clientWidth - (figure.classList.contains("long") ? BAR : 0);
    // The frame's border takes two pixels.
    if (table.offsetWidth * letters <= room - 2) return;
  }
}

function element(name, text, parent) {
  const made = document.createElement(name);
  made.textContent = text;
  parent?.append(made);
  return made;
}

/** Builds a table of the numbers that link to a note, with their columns, errors and remarks. */
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
  // Omit empty columns.
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

/** Adds a button that copies a command. */
function addCopy(block) {
  const code = block.querySelector("code");
  const button = element("button", "Copy", block);
  button.type = "button";
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(code.textContent);
      button.textContent = "Copied";
    } catch {
      // The browser denies access to the clipboard, so select the text for copying by keyboard.
      getSelection().selectAllChildren(code);
      button.textContent = "Selected";
    }
  });
}

/** Scrolls the frame of a table so that neither its head nor its sticky columns cover a cell. */
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

/** Sets up the dialog that shows the note of the address's `#cell-…` next to its number. */
function setUpNotes() {
  const dialog = document.getElementById("note");
  const body = document.getElementById("note-body");
  const isNarrow = matchMedia("(max-width: 56rem)");
  let opener = null;

  // Place the note below its number, or above if there is more room, so that the number stays visible.
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
  // Scroll until the table's head does not cover the number. On a narrow screen the note covers the lower part.
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
      // The page has one copy of each part that several notes share.
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
    // Clicks on the backdrop have the dialog as their target.
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

/** Fits tables when their closed section is opened, and opens a section when a link targets it or its content. */
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

/** Marks the current section in the table of contents. */
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
// Before printing, open all closed sections and fit the tables to the paper.
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
