// Checks the behavior and layout of a page in Chromium:
//
//     node tests/browser/page.mjs reports/index.html [FOLDER FOR SCREENSHOTS]

import assert from "node:assert/strict";
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { address, complaints, event, open, picture, pictures, press, requests, run, send, settled, size, value } from "./browser.mjs";

const checks = [];
const check = (name, run) => checks.push([name, run]);

// JavaScript expressions for the first sortable column of measured values, its index and its figure.
const COLUMN = "document.querySelector('figure.table thead .dir').closest('th')";
const COLUMN_INDEX = `Number(${COLUMN}.dataset.column)`;
const FIGURE = `${COLUMN}.closest('figure')`;
const texts = () => value(`[...${FIGURE}.querySelectorAll('tbody tr')].map((row) => row.cells[${COLUMN_INDEX}].firstChild?.textContent ?? '')`);
const shownRows = () => value(`[...${FIGURE}.querySelectorAll('tbody tr:not([hidden])')].map((row) => row.innerText.replaceAll('\\t', ' '))`);

check("the layout does not shift during loading, and all images are drawn", async () => {
  await size(1600, 1000);
  // Throttle the loading, so that the browser paints part of a table before later rows widen its columns.
  await send("Emulation.setCPUThrottlingRate", { rate: 6 });
  await open();
  await settled();
  await send("Emulation.setCPUThrottlingRate", { rate: 1 });
  assert.equal(await value("document.documentElement.className"), "js", "the content policy blocks the script");
  // Record the size and the moved elements of each layout shift.
  const shifts = await value(`new Promise((done) => { const all = []; new PerformanceObserver((list) => list.getEntries().forEach((e) =>
      all.push([e.value, ...e.sources.map((s) => (s.node?.parentElement?.outerHTML ?? '').slice(0, 120))].join(' '))))
    .observe({ type: 'layout-shift', buffered: true }); setTimeout(() => done(all), 200); })`);
  assert.deepEqual(shifts, []);
  assert.equal(await value("getComputedStyle(document.body).marginTop"), "0px", "the content policy blocks the style");
  assert.ok(await value("[...document.images].every((image) => image.complete && image.naturalWidth > 0)"));
});

check("a column header sorts ascending, descending and back; numbers sort numerically, with missing values last", async () => {
  const before = await texts();
  const isNumber = (text) => text !== "" && Number.isFinite(Number(text));
  const numbers = before.filter(isNumber).map(Number);
  assert.ok(numbers.length > 2);
  const expected = [
    ["ascending", [...numbers].sort((a, b) => a - b)],
    ["descending", [...numbers].sort((a, b) => b - a)],
  ];
  await value(`${COLUMN}.querySelector('button').focus()`);
  for (const [direction, sorted] of expected) {
    await press("Enter", 13, "\r");
    assert.equal(await value(`${COLUMN}.ariaSort`), direction);
    const after = await texts();
    assert.deepEqual(after.slice(0, numbers.length).map(Number), sorted);
    assert.ok(after.slice(numbers.length).every((text) => !isNumber(text)));
  }
  await value(`${COLUMN}.querySelector('button').click()`);
  assert.equal(await value(`${COLUMN}.ariaSort`), "none");
  assert.deepEqual(await texts(), before, "the third click restores the original order");
});

check("sorting by a column is stable", async () => {
  // Every row contains its group's name, so rows are understandable in any order.
  const ok = await value(`(() => {
    const figure = ${FIGURE}, head = figure.querySelector('thead th.t'), column = head.dataset.column;
    const rows = [...figure.querySelectorAll('tbody tr')];
    head.querySelector('button').click();
    const sorted = [...figure.querySelectorAll('tbody tr')];
    const stable = sorted.every((row, i) => i === 0 || row.cells[column].textContent !== sorted[i - 1].cells[column].textContent
      || rows.indexOf(sorted[i - 1]) < rows.indexOf(row));
    const named = sorted.every((row) => row.cells[0].textContent !== '');
    head.querySelector('button').click(); head.querySelector('button').click();
    return stable && named; })()`);
  assert.ok(ok);
});

check("the text filter shows rows with all words, and the list filter rows with the selected value", async () => {
  const all = await shownRows();
  const type = (text) => value(`(() => { const box = ${FIGURE}.querySelector('.controls input'); box.value = ${JSON.stringify(text)};
    box.dispatchEvent(new Event('input')); return ${FIGURE}.querySelector('output').textContent; })()`);
  const [first, last] = all[0].trim().split(/\s+/).filter((_, i, list) => i === 0 || i === list.length - 1);
  const counter = await type(`${last.toUpperCase()}  ${first}`);
  const some = await shownRows();
  assert.ok(some.length >= 1 && some.length < all.length);
  assert.ok(some.every((row) => row.includes(first)));
  assert.equal(counter, `${some.length} of ${all.length} rows`);
  assert.equal(await type("no such words at all"), `0 of ${all.length} rows`);
  await type("");
  assert.deepEqual(await shownRows(), all);
  const chosen = await value(`(() => { const list = ${FIGURE}.querySelector('.controls select'); list.selectedIndex = 1;
    list.dispatchEvent(new Event('change'));
    return [...${FIGURE}.querySelectorAll('tbody tr:not([hidden])')].every((row) => row.cells[list.dataset.column].textContent === list.value); })()`);
  assert.ok(chosen);
  const count = (await shownRows()).length;
  assert.ok(count >= 1 && count < all.length);
  await value(`(() => { const list = ${FIGURE}.querySelector('.controls select'); list.selectedIndex = 0; list.dispatchEvent(new Event('change')); })()`);
});

check("a number opens its note; Escape closes the note and restores the focus", async () => {
  await value("document.querySelector('main td a[href^=\"#cell-\"]').focus()");
  await press("Enter", 13, "\r");
  await settled();
  assert.ok(await value("document.getElementById('note').open"));
  assert.ok(await value("location.hash.startsWith('#cell-')"));
  assert.ok((await value("document.querySelector('#note-body').innerText")).length > 40);
  await press("Escape", 27);
  await settled();
  assert.ok(!(await value("document.getElementById('note').open")));
  assert.equal(await value("location.hash"), "");
  assert.ok(await value("document.activeElement === document.querySelector('main td a[href^=\"#cell-\"]')"));
});

check("the note in the URL opens, also after a reload", async () => {
  const hash = await value("document.querySelector('main td a[href^=\"#cell-\"]').hash");
  await open(hash);
  assert.ok(await value("document.getElementById('note').open"));
  const loaded = event("Page.loadEventFired");
  await send("Page.reload");
  await loaded;
  assert.ok(await value("document.getElementById('note').open"));
  assert.ok(await value("document.querySelectorAll('#note-body .numbers tbody tr').length > 0"));
  await settled();
  await picture("note-1600-light");
  await open("#cell-no-such-cell");
  assert.ok(await value("document.getElementById('note').innerText.includes('No such cell')"));
});

check("ids are unique, and every link has a target", async () => {
  await open();
  assert.deepEqual(await value(`(() => { const ids = [...document.querySelectorAll('[id]')].map((e) => e.id);
    const twice = ids.filter((id, i) => ids.indexOf(id) !== i);
    const lost = [...document.querySelectorAll("a[href^='#']")].map((a) => a.hash.slice(1)).filter((id) => !document.getElementById(id));
    return [...twice, ...lost]; })()`), []);
});

check("the URL stores how a table is sorted and filtered, and restores it", async () => {
  await size(1600, 1000);
  await open();
  const rowCount = await value(`(() => { const figure = ${FIGURE};
    figure.querySelector('[data-column="${await value(COLUMN_INDEX)}"] button').click();
    figure.querySelector('[data-column="${await value(COLUMN_INDEX)}"] button').click();
    const box = figure.querySelector('.controls input'); box.value = 'llama'; box.dispatchEvent(new Event('input'));
    const list = figure.querySelector('.controls select'); list.selectedIndex = 1; list.dispatchEvent(new Event('change'));
    return figure.querySelectorAll('tbody tr').length; })()`);
  const [kept, shown, column] = [await value("location.search"), await shownRows(), await texts()];
  assert.ok(shown.length >= 1 && shown.length < rowCount);
  const name = await value(`${FIGURE}.dataset.name`);
  const parameters = new URLSearchParams(kept);
  assert.ok(parameters.get(`${name}.sort`).startsWith("-"), kept);
  assert.equal(parameters.get(`${name}.find`), "llama");
  assert.equal([...parameters].length, 3);
  // The hash of a note and the table state in the query can be combined.
  const hash = await value(`${FIGURE}.querySelector('tbody tr:not([hidden]) td a').hash`);
  await open(kept + hash);
  assert.deepEqual(await shownRows(), shown);
  assert.deepEqual(await texts(), column);
  assert.equal(await value(`${COLUMN}.ariaSort`), "descending");
  assert.ok(await value("document.getElementById('note').open"));
  await value("document.getElementById('note-close').click()");
  await settled();
  assert.equal(await value("location.search"), kept);
  // Unknown tables and values are ignored.
  await open("?nobody.sort=-X&" + name + ".Depth=99999&" + name + ".sort=none");
  assert.equal((await shownRows()).length, rowCount);
  await value(`(() => { const box = ${FIGURE}.querySelector('.controls input'); box.value = 'a'; box.dispatchEvent(new Event('input'));
    box.value = ''; box.dispatchEvent(new Event('input')); })()`);
  assert.equal(new URLSearchParams(await value("location.search")).get(`${name}.find`), null);
});

const WIDTHS = [[360, 740], [768, 1024], [1400, 900], [1920, 1080]];

check("no column is cut off and the page fits at every width, with and without the paper's numbers", async () => {
  for (const [width, height] of WIDTHS) {
    await size(width, height);
    await open();
    await settled();
    for (const papers of [true, false]) {
      await value(`(() => { const box = document.getElementById('papers'); if (box && box.checked !== ${papers}) box.click(); })()`);
      await settled();
      const overflow = await value("document.documentElement.scrollWidth - document.documentElement.clientWidth");
      assert.equal(overflow, 0, `the page scrolls sideways by ${overflow} px at ${width} px`);
      await value("document.querySelectorAll('main details').forEach((details) => { details.open = true; })");
      await settled();
      const cut = await value(`(() => { const width = document.documentElement.clientWidth, cut = [];
        for (const list of document.querySelectorAll('main .parts'))
          if (list.offsetWidth > list.parentElement.clientWidth + 1) cut.push(list.textContent.slice(0, 40));
        for (const figure of document.querySelectorAll('figure.table')) {
          // In this layout, a table may be wider than its frame.
          if (figure.dataset.form === 'scroll') continue;
          const frame = figure.querySelector('.scroll');
          if (frame.scrollWidth > frame.clientWidth + 1) cut.push(figure.dataset.name + ' scrolls');
          for (const cell of figure.querySelectorAll('tbody tr:not([hidden]) > *, thead th[data-column]')) {
            const at = cell.getBoundingClientRect();
            if (at.left < -0.5 || at.right > width + 0.5 || cell.scrollWidth > cell.clientWidth + 1)
              cut.push([figure.dataset.name, figure.dataset.form, cell.textContent.slice(0, 40), at.left, at.right, cell.scrollWidth, cell.clientWidth].join(' '));
          }
        }
        return cut.slice(0, 8); })()`);
      assert.deepEqual(cut, [], `at ${width} px`);
      const unfolded = await value("document.documentElement.scrollWidth - document.documentElement.clientWidth");
      assert.equal(unfolded, 0, `unfolded, the page scrolls sideways by ${unfolded} px at ${width} px`);
    }
    // No table has to scroll sideways on wide pages.
    const forms = await value("[...document.querySelectorAll('figure.table')].map((figure) => figure.dataset.form)");
    if (width >= 1400) assert.ok(!forms.includes("scroll"), `${width} px: ${forms}`);
    if (width === 360) assert.ok(forms.includes("scroll"), `${width} px: ${forms}`);
    console.log(`        ${width} px: ${forms.join(" ")}`);
  }
});

check("a table wider than the page scrolls in its frame, while the column of row names stays", async () => {
  await size(360, 740);
  await open();
  await settled();
  const [form, before, after, wide] = await value(`(() => { const figure = ${FIGURE}, frame = figure.querySelector('.scroll');
    figure.scrollIntoView(); const name = figure.querySelector('tbody .l');
    const at = () => name.getBoundingClientRect().left - frame.getBoundingClientRect().left;
    frame.scrollLeft = 500; const moved = at(); frame.scrollLeft = 700;
    return [figure.dataset.form, moved, at(), frame.scrollWidth > frame.clientWidth]; })()`);
  assert.equal(form, "scroll");
  assert.ok(wide);
  assert.ok(Math.abs(before - after) < 1 && before >= 0, `the name moves: ${before}, ${after}`);
});

check("a table of many rows scrolls in its frame, while its header stays", async () => {
  for (const width of [800, 1400]) {
    await size(width, 900);
    await open();
    await settled();
    const frames = await value(`[...document.querySelectorAll('figure.long')].map((figure) => { const frame = figure.querySelector('.scroll');
      frame.scrollTop = 300; const head = figure.querySelector('thead').getBoundingClientRect().top;
      return [frame.clientHeight, frame.scrollHeight, head - frame.getBoundingClientRect().top]; })`);
    assert.ok(frames.length > 0);
    for (const [shown, whole, head] of frames) {
      assert.ok(shown <= 620 && whole > shown, `at ${width} px: ${shown} of ${whole}`);
      assert.ok(Math.abs(head) < 3, `the head is at ${head}`);
    }
  }
});

check("figures keep their aspect ratio and are not enlarged beyond the page's text size", async () => {
  for (const [width, height] of WIDTHS) {
    await size(width, height);
    await open();
    const wrong = await value(`[...document.images].filter((image) => {
      const shown = image.clientWidth / image.clientHeight, natural = image.naturalWidth / image.naturalHeight;
      // The natural size of an SVG is its printed size at 4/3 pixels per point, whereas the page uses 1.5.
      return Math.abs(shown / natural - 1) > 0.02 || image.clientWidth > image.naturalWidth * 1.125 + 1; }).map((image) =>
        [image.alt, image.clientWidth, image.clientHeight, image.naturalWidth, image.naturalHeight].join(' '))`);
    assert.deepEqual(wrong, [], `at ${width} px`);
  }
});

check("a note opens next to its number, which stays visible", async () => {
  for (const [width, height] of WIDTHS) {
    await size(width, height);
    await open();
    await settled();
    // The first link, the one in the middle, and the last.
    for (const part of [0, 0.5, 1]) {
      const link = `(() => { const all = [...document.querySelectorAll('figure.table td a[href^="#cell-"]')]; return all[Math.round(${part} * (all.length - 1))]; })()`;
      await value(`(() => { const link = ${link}; link.scrollIntoView({ block: 'center' }); link.click(); })()`);
      await settled();
      const [cell, note, head, view] = await value(`(() => { const box = (of) => { const { top, right, bottom, left } = of.getBoundingClientRect(); return { top, right, bottom, left }; };
        return [box(${link}.parentElement), box(document.getElementById('note')),
          box(${link}.closest('figure').querySelector('thead')), { width: innerWidth, height: innerHeight }]; })()`);
      const where = `at ${width} px: ${JSON.stringify({ cell, note, view })}`;
      assert.ok(cell.top >= 0 && cell.bottom <= view.height, `the number is not visible ${where}`);
      assert.ok(cell.top >= head.bottom - 1, `the head covers the number ${where}`);
      assert.ok(cell.bottom <= note.top + 1 || cell.top >= note.bottom - 1, `the note covers the number ${where}`);
      assert.ok(note.top >= 0 && note.bottom <= view.height + 1 && note.left >= 0 && note.right <= view.width + 1, `the note is cut off ${where}`);
      if (width > 900) {
        assert.ok(Math.min(Math.abs(note.top - cell.bottom), Math.abs(cell.top - note.bottom)) <= 16, `the note is not next to the number ${where}`);
        assert.ok(note.left <= cell.right && note.right >= cell.left, `the note is neither above nor below the number ${where}`);
      }
      const wide = await value("[...document.querySelectorAll('#note .numbers, #note .parts, #note pre, #note dl')].filter((e) => e.scrollWidth > e.parentElement.clientWidth + 1).length");
      assert.equal(wide, 0, `content of the note is cut off ${where}`);
      if (part === 0.5) await picture(`note-near-${width}`);
      await value("document.getElementById('note-close').click()");
      await settled();
    }
  }
});

check("verdicts and marks are visible, both as colors and as signs", async () => {
  await size(1400, 900);
  await open();
  const seen = await value(`['.same .sign', '.differs .sign', '.other-protocol .sign', 'sup.up', 'sup.down'].map((what) => {
    const mark = document.querySelector('td ' + what); const box = mark?.getBoundingClientRect();
    return mark && [mark.textContent.trim()[0], getComputedStyle(mark).color, box.width > 2 && box.height > 2]; })`);
  assert.deepEqual(seen.map((mark) => mark && [mark[0], mark[2]]), [["=", true], ["≠", true], ["~", true], ["+", true], ["−", true]]);
  assert.equal(new Set(seen.slice(0, 3).map(([, color]) => color)).size, 3, "the three verdicts must have different colors");
});

check("the dark scheme differs from the light one", async () => {
  const seen = {};
  for (const scheme of ["light", "dark"]) {
    for (const [width, height] of WIDTHS) {
      await size(width, height, scheme);
      await open();
      await settled();
      seen[`${width}-${scheme}`] = await picture(`top-${width}-${scheme}`);
      if (pictures) await walk(`${width}-${scheme}`);
    }
  }
  for (const [width] of WIDTHS) assert.notEqual(seen[`${width}-light`], seen[`${width}-dark`]);
  const back = () => value("getComputedStyle(document.body).backgroundColor");
  await size(360, 740, "light");
  const light = await back();
  await size(360, 740, "dark");
  assert.notEqual(await back(), light);
});

/** Saves screenshots of each section, for visual inspection. */
async function walk(name) {
  const sections = await value("[...document.querySelectorAll('main > section')].map((s) => s.id)");
  for (const [index, id] of sections.entries()) {
    if (!(await value(`(() => { const s = document.getElementById(${JSON.stringify(id)}); s.scrollIntoView(); return s.offsetHeight > 0; })()`))) continue;
    await settled();
    await picture(`part${index}-${name}`);
  }
  await value("location.hash = document.querySelector('main td a[href^=\"#cell-\"]').hash");
  await settled();
  await picture(`note-${name}`);
}

check("the table header stays visible while the page scrolls", async () => {
  for (const width of [768, 1400]) {
    await size(width, 700);
    await open();
    await settled();
    const [head, menu, form] = await value(`(() => { const figure = ${FIGURE};
      const rows = figure.querySelectorAll('tbody tr'); rows[Math.floor(rows.length / 2)].scrollIntoView({ block: 'center' });
      const menu = document.querySelector('.menu').getBoundingClientRect();
      return [figure.querySelector('thead').getBoundingClientRect().top, menu.height ? menu.bottom : 0, figure.dataset.form]; })()`);
    if (form !== "scroll") assert.ok(Math.abs(head - menu) <= 4, `at ${width} px: the head is at ${head}, below ${menu}`);
  }
});

check("without JavaScript, the page has no controls and shows all notes", async () => {
  await size(1600, 1000);
  await send("Emulation.setScriptExecutionDisabled", { value: true });
  await open();
  await picture("scriptless-1600-light");
  // Only scripts of the page are disabled. Expressions sent by this test are still evaluated.
  const [controls, notes, hash] = await value(`[[...document.querySelectorAll('.controls, .switch')].every((e) => e.offsetHeight === 0),
    [...document.querySelectorAll('#notes article')].every((e) => e.offsetHeight > 0), document.querySelector('main td a[href^="#cell-"]').hash]`);
  assert.ok(controls && notes);
  assert.ok(await value(`document.getElementById(${JSON.stringify(hash.slice(1))}) !== null`));
  await send("Emulation.setScriptExecutionDisabled", { value: false });
});

check("in print, controls are hidden and tables are complete", async () => {
  await send("Emulation.setEmulatedMedia", { media: "print", features: [] });
  await open();
  assert.ok(await value("[...document.querySelectorAll('.side, .menu, .controls, dialog')].every((e) => e.offsetHeight === 0)"));
  assert.ok(await value("[...document.querySelectorAll('.scroll')].every((e) => getComputedStyle(e).overflow === 'visible')"));
  // Table headers are repeated on every page, and rows are not split. In repeated headers, Chromium omits buttons, unless they
  // have `display: contents`.
  assert.ok(await value("[...document.querySelectorAll('thead .sort')].every((button) => getComputedStyle(button).display === 'contents')"));
  assert.ok(await value(`[...document.querySelectorAll('figure.table thead')].every((head) => {
    const { display, position } = getComputedStyle(head); return display === 'table-header-group' && position === 'static'; })`));
  assert.ok(await value("[...document.querySelectorAll('figure.table tr')].every((row) => getComputedStyle(row).breakInside === 'avoid')"));
  await send("Emulation.setEmulatedMedia", { media: "", features: [] });
});

check("a printed table has the layout that fits the paper, regardless of the window", async () => {
  const forms = () => value("[...document.querySelectorAll('figure.table')].filter((of) => !of.closest('details:not([open])')).map((of) => [of.dataset.name, of.dataset.form])");
  await size(360, 740);
  await open();
  await settled();
  const before = await forms();
  assert.ok(before.some(([, form]) => form === "scroll"));
  await value("dispatchEvent(new Event('beforeprint'))");
  const paper = new Map(await forms());
  for (const [name] of before) assert.notEqual(paper.get(name), "scroll", `${name} is cut off in print`);
  assert.ok(paper.size > before.length, "printing expands collapsed tables");
  await value("dispatchEvent(new Event('afterprint'))");
  await settled();
  assert.deepEqual(await forms(), before);
});

check("numbers of a column are aligned with and without a mark, and arrows in rotated headers point up and down", async () => {
  for (const width of [800, 1400]) {
    await size(width, 900);
    await open();
    await settled();
    const offsets = await value(`[...document.querySelectorAll('figure.table td > sup')].map((mark) => {
      const cell = mark.parentElement, right = (of) => of.firstChild.getBoundingClientRect?.().right;
      const plain = [...cell.closest('tbody').rows].map((row) => row.cells[cell.cellIndex]).find((of) => !of.querySelector('sup') && of.firstElementChild?.tagName === 'A');
      return plain ? Math.abs(right(cell) - right(plain)) : 0; })`);
    assert.ok(offsets.length > 0 && Math.max(...offsets) < 0.6, `${Math.max(...offsets)} px at ${width}`);
  }
  const transforms = await value(`[...document.querySelectorAll('[data-form="tall"] th[data-column]:not(.t) .dir')].map((of) => getComputedStyle(of).transform)`);
  assert.ok(transforms.every((transform) => transform.startsWith("matrix(0, 1, -1, 0")), String(transforms[0]));
});

check("a square in the summary strip links to the row of its claim", async () => {
  await size(1400, 900);
  await open();
  await settled();
  const [squares, claims] = await value("[document.querySelectorAll('.squares a').length, document.querySelectorAll('[data-name=\"claims\"] tbody tr').length]");
  assert.equal(squares, 2 * claims, "one square for our result and one for the paper's per claim");
  // The table of claims is collapsed, and is below the paper's main table.
  assert.equal(await value("document.querySelector('#claims .folded').open"), false);
  const [main, below] = await value("['main > section:not(#summary, #claims)', '#claims'].map((of) => document.querySelector(of).getBoundingClientRect().top)");
  assert.ok(main < below, `the main table begins at ${main}, the claims at ${below}`);
  await value("document.querySelectorAll('.squares a')[1].click()");
  await settled();
  assert.ok(await value("document.querySelector('#claims .folded').open"));
  assert.ok(await value("document.querySelector('[data-name=\"claims\"]').dataset.form !== undefined"), "the expanded table is not fitted to the page");
  const [id, top, words] = await value(`(() => { const row = document.querySelector(':target'); return [row.id, row.getBoundingClientRect().top, row.innerText]; })()`);
  assert.equal(id, "claim-2");
  assert.ok(top >= 0 && top < 900, `the row is at ${top}`);
  assert.ok(/holds|fails|unknown/.test(words), words);
  // The column of the claim is the widest, and the verdict is bold.
  const widths = await value(`[...document.querySelectorAll('[data-name="claims"] tbody tr:first-child > *')].map((cell) => cell.offsetWidth)`);
  assert.equal(widths.indexOf(Math.max(...widths)), 0, String(widths));
  assert.ok(Number(await value(`getComputedStyle(document.querySelector('[data-name="claims"] td b')).fontWeight`)) >= 600);
});

check("the protocol is one line that expands, and warnings are above their table", async () => {
  for (const width of [768, 1400]) {
    await size(width, 900);
    await open();
    await settled();
    const [folded, whole, line, above] = await value(`(() => { const it = document.querySelector('.protocol'), figure = it.closest('figure');
      const folded = it.offsetHeight, line = parseFloat(getComputedStyle(it).lineHeight);
      it.querySelector('summary').click(); const whole = it.offsetHeight; it.querySelector('summary').click();
      const note = figure.querySelector('.notes').getBoundingClientRect(), table = figure.querySelector('table').getBoundingClientRect();
      return [folded, whole, line, note.bottom <= table.top && note.height > 0]; })()`);
    assert.ok(folded < 1.6 * line && whole > 1.6 * line, `at ${width} px: ${folded}, then ${whole}, lines of ${line}`);
    assert.ok(above);
  }
});

check("linked numbers have the text color and a dotted underline", async () => {
  await size(1400, 900);
  await open();
  const [color, own, line] = await value(`(() => { const link = document.querySelector('main td a[href^="#cell-"]'); const style = getComputedStyle(link);
    return [style.color, getComputedStyle(link.parentElement).color, style.textDecorationStyle]; })()`);
  assert.equal(color, own);
  assert.equal(line, "dotted");
});

check("heading levels are not skipped, and all table cells have headers", async () => {
  const levels = await value("[...document.querySelectorAll('h1, h2, h3, h4')].filter((e) => e.offsetHeight > 0).map((e) => Number(e.tagName[1]))");
  assert.equal(levels.filter((level) => level === 1).length, 1);
  assert.ok(levels.every((level, i) => i === 0 || level <= levels[i - 1] + 1), levels.join(" "));
  assert.equal(await value("[...document.querySelectorAll('main th')].filter((head) => !head.scope).length"), 0);
  assert.equal(await value("[...document.querySelectorAll('figure.table tbody tr')].filter((row) => row.querySelectorAll('th[scope=row]').length !== 1).length"), 0);
});

check("the print background is white, regardless of the color scheme", async () => {
  const back = (media) => send("Emulation.setEmulatedMedia", { media, features: [{ name: "prefers-color-scheme", value: "dark" }] })
    .then(() => value("getComputedStyle(document.body).backgroundColor"));
  assert.equal(await back("print"), "rgb(255, 255, 255)");
  assert.notEqual(await back("screen"), "rgb(255, 255, 255)");
  if (pictures) {
    await send("Emulation.setEmulatedMedia", { media: "print", features: [] });
    const { data } = await send("Page.printToPDF", { preferCSSPageSize: true, printBackground: false });
    writeFileSync(join(pictures, "print.pdf"), Buffer.from(data, "base64"));
  }
  await send("Emulation.setEmulatedMedia", { media: "", features: [] });
});

check("no error was reported, and nothing was loaded from other URLs", async () => {
  assert.deepEqual(complaints, []);
  const foreign = [...requests].filter((url) => url !== address && url !== "about:blank" && !url.startsWith("data:"));
  assert.deepEqual(foreign, []);
});

await run(checks);
