"use strict";
// Small tools for the rest of the page, and how it speaks with the server.
// The scripts of this page share one scope; index.html loads them in the order in which they build on each other.

const $ = (id) => document.getElementById(id);
const number = (value, digits = 0) => value.toLocaleString("en", { maximumFractionDigits: digits });
const round = (value) => number(value, value < 10 ? 2 : value < 100 ? 1 : 0);
const duration = (seconds) => (seconds < 1 ? `${round(seconds * 1000)} ms` : `${round(seconds)} s`);

// el("p.note", {title: "x", onclick: f, "aria-label": "y"}, "text", node, [more, of, them])
// Long lists come as arrays: as arguments they would overflow the stack.
function el(kind, properties = {}, ...children) {
  const [tag, ...classes] = kind.split(".");
  const node = document.createElement(tag);
  if (classes.length) node.className = classes.join(" ");
  for (const [name, value] of Object.entries(properties)) {
    if (name.includes("-")) node.setAttribute(name, value);
    else node[name] = value;
  }
  for (const child of children.flat()) node.append(child);
  return node;
}

function svg(tag, attributes = {}, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

const icon = (name) => svg("svg", { class: "icon", "aria-hidden": "true" }, svg("use", { href: `#i-${name}` }));
const setIcon = (button, name) => button.querySelector("use").setAttribute("href", `#i-${name}`);
const iconButton = (name, label, onclick) =>
  el("button.quiet", { type: "button", title: label, "aria-label": label, onclick }, icon(name));

// The clipboard's own interface is there only over https and on localhost.
async function copyText(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const carrier = el("textarea.unseen", { value: text });
  const focused = document.activeElement;
  document.body.append(carrier);
  carrier.select();
  const copied = document.execCommand("copy");
  carrier.remove();
  focused?.focus();
  if (!copied) throw new Error("the browser refused to copy");
}

// A button that copies what text() returns, and shows for a moment that it did.
function copyButton(label, text, caption) {
  const button = iconButton("copy", label, async () => {
    try {
      await copyText(text());
      setIcon(button, "check");
      say("Copied.");
    } catch {
      say("The browser refused to copy.");
    }
    setTimeout(() => setIcon(button, "copy"), 1500);
  });
  if (caption) button.append(caption);
  return button;
}

// Read aloud by a screen reader.
function say(sentence) {
  $("say").textContent = sentence;
}

// A field as high as its text, where CSS cannot do it.
function fit(field) {
  if (CSS.supports("field-sizing", "content")) return;
  field.style.height = "auto";
  field.style.height = `${field.scrollHeight + 2}px`;
}

class Failure extends Error {
  constructor(sentence, status) {
    super(sentence);
    this.status = status;
  }
}

const ended = (sentence) => (/[.!?]$/.test(sentence) ? sentence : `${sentence}.`);

// One sentence for a status that is not 200.
async function failureOf(response) {
  let message = "";
  try {
    const { error } = await response.json();
    message = typeof error === "string" ? error : error?.message ?? "";
  } catch {
    // An answer from a proxy need not be JSON; the status says enough.
  }
  const wait = parseInt(response.headers.get("Retry-After"), 10);
  const when = wait > 0 ? `try again in ${wait} s` : "try again in a moment";
  const sentences = {
    401: apiKey() ? "The server does not accept this API key." : "The server wants an API key.",
    429: `The server is full; ${when}.`,
    503: `The server is not ready or is shutting down; ${when}.`,
  };
  const other = message ? ended(`The server refused: ${message}`) : `The server answered with status ${response.status}.`;
  return new Failure(sentences[response.status] ?? other, response.status);
}

async function call(path, options = {}) {
  const headers = { ...options.headers };
  if (apiKey()) headers.Authorization = `Bearer ${apiKey()}`;
  let response;
  try {
    // Relative, so that the page also works under a path of a proxy.
    response = await fetch(new URL(path, document.baseURI), { ...options, headers, cache: "no-store" });
  } catch (error) {
    if (options.signal?.aborted) throw error;
    throw new Failure("The server cannot be reached; is it running?", 0);
  }
  if (!response.ok) throw await failureOf(response);
  return response;
}

// The data of server-sent events, as strings. Bytes are decoded here: a stream piped through a decoder loses what it holds
// when the connection breaks.
async function* eventsOf(body) {
  const reader = body.getReader(), decoder = new TextDecoder();
  let rest = "", data = [];
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const lines = (rest + decoder.decode(value, { stream: true })).split("\n");
      rest = lines.pop();
      for (const line of lines.map((text) => text.replace(/\r$/, ""))) {
        if (line.startsWith("data:")) data.push(line.slice(line[5] === " " ? 6 : 5));
        if (line === "" && data.length) {
          yield data.join("\n");
          data = [];
        }
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

// The key lives as long as the tab.
function apiKey() {
  try {
    return sessionStorage.getItem("celer.key") ?? "";
  } catch {
    return "";
  }
}

// Asks for the key; true once one is given.
function askKey(problem) {
  const dialog = $("key");
  $("key-problem").textContent = apiKey() ? problem : "";
  if (!dialog.open) {
    dialog.returnValue = "";
    $("key-value").value = "";
    dialog.showModal();
  }
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "given"), { once: true });
  });
}
