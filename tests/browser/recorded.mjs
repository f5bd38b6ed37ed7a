// Checks the page of the recorded run in Chromium: its height, the order of its sections, and that tables fit or scroll.
//
//     node tests/browser/recorded.mjs reports/index.html [FOLDER FOR SCREENSHOTS]

import assert from "node:assert/strict";
import { address, complaints, open, picture, run, settled, size, value } from "./browser.mjs";

/** The maximum height of the page in pixels, at a width of 1400 pixels. */
const MAX_HEIGHT = 15000;
const SECTIONS = "[...document.querySelectorAll('main > section')].map((section) => section.id)";

const checks = [
  ["the page is short, and has the answer, figure 1, table 2 and the claims before the other artifacts in the paper's order", async () => {
    for (const scheme of ["light", "dark"]) {
      await size(1400, 900, scheme);
      await open();
      await settled();
      const height = await value("document.documentElement.scrollHeight");
      assert.ok(height <= MAX_HEIGHT, `${height} px`);
      console.log(`        ${height} px`);
      await size(1400, height, scheme);
      await settled();
      await picture(`recorded-1400-${scheme}`);
    }
    const sections = await value(SECTIONS);
    assert.deepEqual(sections.slice(0, 4), ["summary", "artifact-smollm2/figure1", "artifact-smollm2/table2", "claims"]);
    const names = sections.filter((id) => id.startsWith("artifact-tiny/")).map((id) => id.replace(/^artifact-tiny\//, ""));
    const position = (name) => names.indexOf(name);
    for (const [one, other] of [["figure2", "figure4"], ["figure4", "table2"], ["table3", "figure5"], ["figure5", "tableA4"], ["tableA7", "tableA10"], ["tableA10", "seeds"]])
      assert.ok(position(one) >= 0 && position(one) < position(other), `${one} must come before ${other}: ${names}`);
  }],
  ["at 800 px every table fits or scrolls in its frame", async () => {
    for (const scheme of ["light", "dark"]) {
      await size(800, 900, scheme);
      await open();
      await settled();
      await value("document.querySelectorAll('main details.folded').forEach((details) => { details.open = true; })");
      await settled();
      const [wide, frames] = await value(`[document.documentElement.scrollWidth - document.documentElement.clientWidth,
        [...document.querySelectorAll('figure.table')].map((figure) => { const frame = figure.querySelector('.scroll');
          return { name: figure.dataset.name, form: figure.dataset.form, over: frame.scrollWidth - frame.clientWidth,
            scrolls: getComputedStyle(frame).overflowX === 'auto', height: frame.offsetHeight }; })]`);
      assert.equal(wide, 0, `the page scrolls sideways by ${wide} px`);
      for (const { name, form, over, scrolls, height } of frames) {
        assert.ok(over <= 1 || scrolls, `${name} is cut off`);
        assert.ok(form !== "scroll" || over > 1, `${name} scrolls although it fits`);
        assert.ok(!scrolls || height <= 900, `${name} is ${height} px high`);
      }
      assert.ok(frames.some(({ name }) => name === "tiny/table3"));
      await open();
      await settled();
      await picture(`recorded-800-${scheme}`);
    }
  }],
  ["the audit is on a separate page", async () => {
    await size(1400, 900);
    await open();
    const link = await value("document.querySelector('#audit a').href");
    assert.notEqual(link, address);
    await open("", link);
    await settled();
    assert.ok(await value("document.querySelectorAll('#findings tbody tr').length > 20"));
    assert.equal(await value("document.querySelector('.side a').href"), address);
    await picture("recorded-audit");
  }],
  ["no error was reported", async () => assert.deepEqual(complaints, [])],
];

await run(checks);
