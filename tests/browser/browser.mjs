// Controls Chromium through its debugging pipe (file descriptors 3 and 4, NUL-terminated JSON), without packages.
//
// Scripts that import this module expect a page and an optional folder for screenshots as arguments. If Chromium is
// missing, they are skipped, or fail if GHOSTLAB_BROWSER=require is set. CHROMIUM sets the path of the browser.

import { spawn } from "node:child_process";
import { accessSync, constants, mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { delimiter, join, resolve } from "node:path";
import { pathToFileURL } from "node:url";

const [file, folder] = process.argv.slice(2);
if (!file) throw new Error("usage: node SCRIPT.mjs PAGE.html [FOLDER FOR SCREENSHOTS]");
/** The address of the page. */
export const address = pathToFileURL(resolve(file)).href;
/** The folder for screenshots, or undefined. */
export const pictures = folder;

function findBrowser() {
  if (process.env.CHROMIUM) return process.env.CHROMIUM;
  for (const folder of (process.env.PATH ?? "").split(delimiter)) {
    for (const name of ["chromium", "chromium-browser", "google-chrome"]) {
      try {
        accessSync(join(folder, name), constants.X_OK);
        return join(folder, name);
      } catch {
        // Try the next candidate.
      }
    }
  }
  return null;
}

const browser = findBrowser();
if (browser === null) {
  console.log("skipped: no chromium on the PATH");
  process.exit(process.env.GHOSTLAB_BROWSER === "require" ? 1 : 0);
}

const profile = mkdtempSync(join(tmpdir(), "ghostlab-page-"));
const child = spawn(
  browser,
  [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", `--user-data-dir=${profile}`, "--remote-debugging-pipe", "about:blank",
  ],
  { stdio: ["ignore", "ignore", "ignore", "pipe", "pipe"] },
);
const ended = new Promise((done) => child.once("exit", done));
const deadline = setTimeout(() => {
  console.error("the browser did not answer in time");
  child.kill("SIGKILL");
  process.exitCode = 1;
}, 600_000);

// Pending requests by id, and listeners for events.
let next = 0;
let session;
const waiting = new Map();
const listeners = new Set();
let rest = "";
child.stdio[4].setEncoding("utf8").on("data", (chunk) => {
  const messages = (rest + chunk).split("\0");
  rest = messages.pop();
  for (const message of messages.map((text) => JSON.parse(text))) {
    if (message.id === undefined) listeners.forEach((listener) => listener(message));
    else {
      const { done, failed } = waiting.get(message.id);
      waiting.delete(message.id);
      if (message.error) failed(new Error(message.error.message));
      else done(message.result);
    }
  }
});
child.once("exit", () => waiting.forEach(({ failed }) => failed(new Error("the browser exited"))));

export function send(method, params = {}) {
  const id = ++next;
  child.stdio[3].write(`${JSON.stringify({ id, method, params, sessionId: session })}\0`);
  return new Promise((done, failed) => waiting.set(id, { done, failed }));
}
export function event(method) {
  return new Promise((done) => {
    const listener = (message) => {
      if (message.method !== method) return;
      listeners.delete(listener);
      done(message.params);
    };
    listeners.add(listener);
  });
}

/** Evaluates an expression in the page. */
export async function value(expression) {
  const { result, exceptionDetails } = await send("Runtime.evaluate", {
    expression, returnByValue: true, awaitPromise: true,
  });
  if (exceptionDetails) throw new Error(exceptionDetails.exception?.description ?? exceptionDetails.text);
  return result.value;
}
/** Waits for two frames, until everything is laid out and painted, and observers have run. */
export const settled = () => value("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done())))");
export async function open(rest = "", page = address) {
  // Load an empty page first, because changing only the hash does not reload the page.
  for (const url of ["about:blank", page + rest]) {
    const loaded = event("Page.loadEventFired");
    await send("Page.navigate", { url });
    await loaded;
  }
}
export async function size(width, height, scheme = "light") {
  await send("Emulation.setDeviceMetricsOverride", { width, height, deviceScaleFactor: 1, mobile: false });
  await send("Emulation.setEmulatedMedia", { features: [{ name: "prefers-color-scheme", value: scheme }] });
}
export async function press(key, code, text) {
  for (const type of ["keyDown", "keyUp"]) {
    await send("Input.dispatchKeyEvent", { type, key, code: key, windowsVirtualKeyCode: code, text: type === "keyDown" ? text : undefined });
  }
}
export async function picture(name) {
  const { data } = await send("Page.captureScreenshot", { format: "png" });
  if (pictures) writeFileSync(join(pictures, `${name}.png`), Buffer.from(data, "base64"));
  return data;
}

/** Errors and warnings that the page reported. */
export const complaints = [];
/** Requested URLs without query and hash. */
export const requests = new Set();
listeners.add(({ method, params }) => {
  if (method === "Runtime.exceptionThrown") complaints.push(params.exceptionDetails.exception?.description ?? params.exceptionDetails.text);
  if (method === "Runtime.consoleAPICalled" && ["error", "warning", "assert"].includes(params.type)) complaints.push(JSON.stringify(params.args));
  if (method === "Log.entryAdded" && ["error", "warning"].includes(params.entry.level)) complaints.push(params.entry.text);
  if (method === "Network.requestWillBeSent") requests.add(params.request.url.split(/[?#]/)[0]);
});

/** Runs checks, which are pairs of a name and a function, and prints the result of each. */
export async function run(checks) {
  let failures = 0;
  try {
    if (pictures) mkdirSync(pictures, { recursive: true });
    const { targetId } = await send("Target.createTarget", { url: "about:blank" });
    session = (await send("Target.attachToTarget", { targetId, flatten: true })).sessionId;
    for (const domain of ["Page", "Runtime", "Log", "Network"]) await send(`${domain}.enable`);
    for (const [name, run] of checks) {
      const start = Date.now();
      try {
        await run();
        console.log(`ok      ${name} (${((Date.now() - start) / 1000).toFixed(1)} s)`);
      } catch (error) {
        failures += 1;
        console.log(`FAILED  ${name}\n        ${error.message.replaceAll("\n", "\n        ")}`);
      }
    }
  } finally {
    clearTimeout(deadline);
    child.kill();
    await ended;
    // The browser may still write to its profile folder. Failing to delete the folder is not a test failure.
    try {
      rmSync(profile, { recursive: true, force: true, maxRetries: 20, retryDelay: 250 });
    } catch (error) {
      console.log(`left behind: ${profile} (${error.code})`);
    }
  }
  if (failures > 0) process.exitCode = 1;
}
