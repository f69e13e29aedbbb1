"use strict";
// The page itself: the conversation on screen, sending, start.

// ------------------------------------------------------------------------------------------ the conversation on screen

const views = new Map();  // turn → its view
let pinned = true;        // follow the answer; off as soon as the reader scrolls up
let lastTop = 0;

// Not on a phone, where it would bring up the keyboard.
function focusPrompt() {
  if (matchMedia("(hover: hover)").matches) $("prompt").focus();
}

function follow() {
  const box = $("scroll");
  if (pinned) box.scrollTop = box.scrollHeight;
  lastTop = box.scrollTop;
  $("latest").hidden = pinned || box.scrollHeight - box.scrollTop - box.clientHeight < 40;
}

function onScroll() {
  const box = $("scroll");
  const below = box.scrollHeight - box.scrollTop - box.clientHeight;
  if (below <= 2) pinned = true;
  else if (box.scrollTop < lastTop) pinned = false;
  else if (below < 24) pinned = true;
  lastTop = box.scrollTop;
  $("latest").hidden = pinned || below < 40;
}

function versionSwitch(chat, turn) {
  const { tails, at } = turn.versions;
  const go = (step) => {
    const i = chat.turns.indexOf(turn);
    useVersion(chat, i, at + step);
    save(chat);
    showChat();
    // The buttons are new nodes; the keyboard focus is restored.
    const [earlier, later] = views.get(chat.turns[i]).root.querySelectorAll(".versions button");
    if (later.disabled || (step < 0 && !earlier.disabled)) earlier.focus();
    else later.focus();
  };
  const before = iconButton("left", "Earlier version", () => go(-1)), after = iconButton("right", "Later version", () => go(1));
  before.disabled = at === 0 || Boolean(chat.stream);
  after.disabled = at === tails.length - 1 || Boolean(chat.stream);
  const place = el("span", { "aria-label": `version ${at + 1} of ${tails.length}` }, `${at + 1}/${tails.length}`);
  return el("span.versions", {}, before, place, after);
}

class UserView {
  constructor(chat, turn) {
    this.chat = chat;
    this.turn = turn;
    this.root = el("article.turn.user", { "aria-label": "You" });
    this.update();
  }
  update() {
    if (this.root.querySelector(".editor")) return;
    const edit = iconButton("edit", "Edit this message", () => this.edit());
    edit.disabled = Boolean(this.chat.stream);
    const act = el("span.act", {}, copyButton("Copy this message", () => this.turn.content), edit);
    const tools = el("div.tools", {}, ...(this.turn.versions ? [versionSwitch(this.chat, this.turn)] : []), act);
    this.root.replaceChildren(el("div.said", {}, this.turn.content), tools);
  }
  edit() {
    const field = el("textarea", { value: this.turn.content, rows: 2, "aria-label": "Edit your message" });
    field.oninput = () => fit(field);
    const done = () => {
      this.root.querySelector(".editor").remove();
      this.update();
      focusPrompt();
    };
    const send = () => {
      if (!field.value.trim() || this.chat.stream || !settingsAreValid()) return;
      branch(this.chat, this.chat.turns.indexOf(this.turn), { role: "user", content: field.value.trim() });
      focusPrompt();
      answer(this.chat);
    };
    field.onkeydown = (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        send();
      } else if (event.key === "Escape") {
        event.stopPropagation();
        done();
      }
    };
    const buttons = el("div.row", {},
      el("button.quiet", { type: "button", onclick: done }, "Cancel"),
      el("button.accent", { type: "button", onclick: send }, "Send again"));
    this.root.replaceChildren(el("div.editor", {}, field, buttons));
    fit(field);
    field.focus();
    field.setSelectionRange(field.value.length, field.value.length);
  }
}

// "212 tokens · 51.3 tok/s · first after 84 ms · prompt 120, 96 cached"
function figuresOf({ figures = {}, end }) {
  const { output, rate, first, prompt, cached } = figures;
  const parts = [];
  if (output) parts.push(`${number(output)} tokens`);
  if (rate) parts.push(`${round(rate)} tok/s`);
  if (first) parts.push(`first after ${duration(first)}`);
  if (prompt) parts.push(`prompt ${number(prompt)}${cached ? `, ${number(cached)} cached` : ""}`);
  if (end === "length") parts.push("cut at the token limit");
  if (end === "stopped") parts.push("stopped");
  if (end === "broken") parts.push("broken off");
  return parts.join(" · ");
}

class AssistantView {
  constructor(chat, turn) {
    this.chat = chat;
    this.turn = turn;
    this.thought = el("div.text");
    this.summary = el("summary", { onclick: () => (this.touched = true) });
    this.thinking = el("details.thinking", { hidden: true }, this.summary, this.thought);
    this.text = el("div.text");
    this.waiting = el("div.waiting", { "aria-label": "waiting for the first token" }, el("i"), el("i"), el("i"));
    this.tools = el("div.tools");
    this.root = el("article.turn.assistant", { "aria-label": "Answer" }, this.thinking, this.text, this.waiting, this.tools);
    this.thoughtText = new Markdown(this.thought);
    this.answerText = new Markdown(this.text);
    this.update();
  }
  update() {
    const { turn, chat } = this;
    const live = chat.stream?.turn === turn;
    this.root.classList.toggle("streaming", live);
    this.waiting.hidden = !live || !isEmpty(turn);
    this.thinking.hidden = !turn.reasoning;
    if (turn.reasoning) {
      const underWay = live && !turn.content;
      this.summary.textContent = underWay ? "Thinking …" : turn.thought ? `Thought for ${duration(turn.thought)}` : "Thoughts";
      if (!this.touched) this.thinking.open = underWay;
      this.thoughtText.show(turn.reasoning);
    }
    this.answerText.show(turn.content);
    const figures = el("span.figures", {}, figuresOf(turn));
    if (live) {
      this.tools.replaceChildren(figures);
      return;
    }
    const again = iconButton("again", "Answer again", () => regenerate(chat, turn));
    again.disabled = Boolean(chat.stream);
    this.tools.replaceChildren(figures, ...(turn.versions ? [versionSwitch(chat, turn)] : []),
      el("span.act", {}, copyButton("Copy this answer", () => turn.content), again));
  }
}

// Everything about the current chat but the words of a running answer.
function showState() {
  const turns = turnsOf(current), busy = Boolean(current.stream), last = turns.at(-1);
  for (const view of views.values()) view.update();
  setIcon($("send"), busy ? "stop" : "send");
  $("send").setAttribute("aria-label", busy ? "Stop" : "Send");
  $("send").title = busy ? "Stop (Esc)" : "Send (Enter)";
  $("send").disabled = !busy && !$("prompt").value.trim();
  $("empty").hidden = turns.length > 0;
  if (busy || !last) tell("");
  else if (current.problem) tell(current.problem, "Retry", () => retry(current), true);
  else if (last.role === "user") tell("This message has no answer yet.", "Answer it", () => retry(current));
  else tell(keepsNothing ? "This browser has no room for the chat: it is lost when the page closes." : "");
  showContext();
}

function showChat() {
  const kept = new Map(views);
  views.clear();
  for (const turn of turnsOf(current)) {
    views.set(turn, kept.get(turn) ?? new (turn.role === "user" ? UserView : AssistantView)(current, turn));
  }
  $("turns").replaceChildren(...[...views.values()].map((view) => view.root));
  pinned = true;
  showState();
  follow();
}

function showList() {
  $("list").replaceChildren(...chats.map((chat) => {
    const open = el("button.open", { type: "button", title: chat.title }, el("span", {}, chat.title));
    open.onclick = () => {
      closeDrawers();
      openChat(chat);
    };
    if (chat === current) open.setAttribute("aria-current", "true");
    const remove = iconButton("close", `Delete “${chat.title}”`, () => removeChat(chat));
    remove.classList.add("remove");
    const item = el("li", {}, open, remove);
    item.classList.toggle("current", chat === current);
    item.classList.toggle("busy", Boolean(chat.stream));
    return item;
  }));
  $("clear").hidden = chats.length === 0;
  $("kept").textContent = chats.length ? `${chats.length} of ${kMaxChats} kept` : "Chats stay in this browser";
}

function openChat(chat) {
  current = chat;
  store("celer.current", chat.id);
  $("prompt").value = stored(draftKey(chat), "");
  fit($("prompt"));
  showList();
  showChat();
  focusPrompt();
}

function removeChat(chat) {
  const at = chats.indexOf(chat), turns = turnsOf(chat);
  forget(chat);
  storeList();
  if (chat === current) openChat(chats[at] ?? chats[at - 1] ?? newChat());
  showList();
  tell(`“${chat.title}” is deleted.`, "Undo", () => {
    chat.turns = turns;
    save(chat);
    openChat(chat);
  });
}

// One sentence above the message field, with what can be done about it. An empty sentence takes it away.
function tell(sentence, action, onclick, bad = false) {
  const [text, button] = $("notice").children;
  $("notice").hidden = !sentence;
  $("notice").classList.toggle("bad", bad);
  text.textContent = sentence;
  button.hidden = !action;
  button.textContent = action ?? "";
  button.onclick = onclick ?? null;
  follow();
}

// ------------------------------------------------------------------------------------------------------------- sending

function send() {
  const text = $("prompt").value.trim();
  if (!text || current.stream || !settingsAreValid()) return;
  const chat = current;
  turnsOf(chat).push({ role: "user", content: text });
  chat.title ||= text.replace(/\s+/g, " ").slice(0, 80);
  unstore(draftKey(chat));
  $("prompt").value = "";
  fit($("prompt"));
  answer(chat);
}

function regenerate(chat, turn) {
  if (chat.stream || !settingsAreValid()) return;
  const i = chat.turns.indexOf(turn);
  branch(chat, i, { role: "assistant", content: "" });
  focusPrompt();
  answer(chat, chat.turns[i]);
}

function retry(chat) {
  const last = chat.turns.at(-1);
  if (last?.role === "assistant") regenerate(chat, last);
  else if (!chat.stream && settingsAreValid()) answer(chat);
}

function requestOf(chat, turn) {
  const { system, ...sampling } = settings();
  const messages = chat.turns.slice(0, chat.turns.indexOf(turn)).map(({ role, content }) => ({ role, content }));
  if (system) messages.unshift({ role: "system", content: system });
  return { model: model?.id, messages, stream: true, stream_options: { include_usage: true }, ...sampling };
}

// Applies one frame of the stream; true when it was the last.
function applyFrame(data, stream) {
  if (data === "[DONE]") return true;
  const frame = JSON.parse(data), { turn } = stream, now = performance.now();
  if (frame.error) throw new Failure(ended(`The server broke off: ${frame.error.message ?? frame.error}`), 0);
  const choice = frame.choices?.[0], delta = choice?.delta ?? {};
  const thought = delta.reasoning_content ?? delta.reasoning ?? "", text = delta.content ?? "";
  if (thought || text) {
    stream.first ??= now;
    stream.last = now;
    ++stream.chunks;
  }
  if (thought) turn.reasoning = (turn.reasoning ?? "") + thought;
  if (text && turn.reasoning && !turn.content) turn.thought = (now - stream.first) / 1000;
  turn.content += text;
  if (choice?.finish_reason) turn.end = choice.finish_reason;
  // Until the usage comes at the end, a chunk counts as a token.
  const usage = frame.usage, seconds = (stream.last - stream.first) / 1000;
  const output = usage?.completion_tokens ?? stream.chunks;
  turn.figures = {
    output,
    rate: output > 1 && seconds > 0.05 ? (output - 1) / seconds : 0,
    first: stream.first ? (stream.first - stream.began) / 1000 : 0,
    prompt: usage?.prompt_tokens,
    cached: usage?.prompt_tokens_details?.cached_tokens,
  };
  return false;
}

// Asks for the answer to the last turn of the chat and shows it as it comes.
async function answer(chat, turn) {
  if (!turn) {
    turn = { role: "assistant", content: "" };
    chat.turns.push(turn);
  }
  const stream = { turn, abort: new AbortController(), began: performance.now(), first: null, last: 0, chunks: 0 };
  chat.stream = stream;
  chat.problem = "";
  save(chat);
  showList();
  if (chat === current) showChat();
  say("Answering.");

  // At most once per frame, and seldom if the text has grown so long that showing it takes a while.
  let due = 0, saved = performance.now();
  const show = () => {
    const start = performance.now();
    views.get(turn)?.update();
    follow();
    const took = performance.now() - start;
    if (start - saved > 1000) {
      store(`celer.chat.${chat.id}`, chat.turns);
      saved = start;
    }
    due = took > 8 ? setTimeout(() => (due = 0, stream.stale && later()), took * 4) : 0;
  };
  const later = () => {
    stream.stale = true;
    if (due) return;
    due = requestAnimationFrame(() => {
      stream.stale = false;
      show();
    });
  };

  let wantsKey = false;
  try {
    if (!model) await loadModel();
    const response = await call("v1/chat/completions", {
      method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(requestOf(chat, turn)),
      signal: stream.abort.signal,
    });
    let done = false;
    for await (const data of eventsOf(response.body)) {
      if ((done = applyFrame(data, stream))) break;
      later();
    }
    if (!done) throw new TypeError("ended without [DONE]");
  } catch (error) {
    const some = !isEmpty(turn);
    if (stream.abort.signal.aborted) {
      turn.end = "stopped";
    } else {
      if (some) turn.end = "broken";
      chat.problem = error instanceof Failure ? error.message
        : `The connection to the server broke off${some ? "; what had come is kept" : " before an answer came"}.`;
      wantsKey = error.status === 401;
    }
  }
  chat.stream = null;
  if (isEmpty(turn) && (chat.problem || turn.end === "stopped")) dropLast(chat);
  if (chats.includes(chat)) save(chat);
  showList();
  if (chat === current) {
    if (chat.turns.includes(turn)) showState();
    else showChat();
    follow();
  }
  say(chat.problem || (turn.end === "stopped" ? "Stopped." : turn.content.slice(0, 2000)));
  if (wantsKey && (await askKey(chat.problem))) retry(chat);
}

// --------------------------------------------------------------------------------------------------------------- start

const kThemes = { auto: "light", light: "dark", dark: "auto" };
let theme = stored("celer.theme", "auto");
if (!kThemes[theme]) theme = "auto";

// Runs in the head, so that the page is not first painted in the wrong colours.
function showTheme() {
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
}
showTheme();

function showThemeButton() {
  const label = `Colours: ${theme === "auto" ? "as the system has them" : theme}`;
  setIcon($("theme"), theme);
  $("theme").title = label;
  $("theme").setAttribute("aria-label", label);
}

function openDrawer(id) {
  closeDrawers();
  $(id).classList.add("shown");
  $(`open-${id}`).setAttribute("aria-expanded", "true");
  document.querySelector("main").inert = true;
  $("shade").hidden = false;
  $(id).querySelector(".close").focus();
}

// True if one was open.
function closeDrawers() {
  const open = document.querySelector(".drawer.shown");
  if (!open) return false;
  open.classList.remove("shown");
  document.querySelector("main").inert = false;
  $("shade").hidden = true;
  $(`open-${open.id}`).setAttribute("aria-expanded", "false");
  $(`open-${open.id}`).focus();
  return true;
}

const kIdeas = [
  "Explain in three sentences why decoding is bound by memory bandwidth.",
  "Write a C++20 function that splits a string_view at a separator.",
  "A table of float formats: name, bits, exponent, mantissa, largest value.",
  "Draft a polite reply that moves a meeting to next Tuesday.",
];

function listen() {
  const prompt = $("prompt");
  $("composer").onsubmit = (event) => {
    event.preventDefault();
    if (current.stream) current.stream.abort.abort();
    else send();
  };
  prompt.oninput = () => {
    fit(prompt);
    store(draftKey(current), prompt.value);
    $("send").disabled = !current.stream && !prompt.value.trim();
  };
  prompt.onkeydown = (event) => {
    if (event.isComposing) return;
    if (event.key === "Enter" && !event.shiftKey) {
      event.preventDefault();
      send();
    } else if (event.key === "ArrowUp" && !prompt.value && !current.stream) {
      const turn = current.turns.findLast(({ role }) => role === "user");
      if (!turn) return;
      event.preventDefault();
      views.get(turn).edit();
    }
  };
  document.addEventListener("keydown", (event) => {
    if (event.isComposing) return;
    if (event.key === "Escape" && !$("key").open && !closeDrawers()) current.stream?.abort.abort();
    const typing = /^(?:INPUT|TEXTAREA|SELECT)$/.test(document.activeElement.tagName);
    if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey) {
      event.preventDefault();
      prompt.focus();
    }
  });

  $("scroll").addEventListener("scroll", onScroll, { passive: true });
  $("latest").onclick = () => {
    pinned = true;
    follow();
    focusPrompt();
  };
  new ResizeObserver(() => {
    const gutter = ($("scroll").offsetWidth - $("scroll").clientWidth) / 2;
    document.documentElement.style.setProperty("--gutter", `${gutter}px`);
    follow();
  }).observe($("scroll"));

  $("new").onclick = () => {
    closeDrawers();
    if (current.turns.length) openChat(newChat());
    focusPrompt();
  };
  $("clear").onclick = () => {
    if (!$("clear").classList.contains("sure")) {
      $("clear").classList.add("sure");
      $("clear").textContent = `Delete all ${chats.length}?`;
      return;
    }
    for (const chat of [...chats]) forget(chat);
    storeList();
    openChat(newChat());
    $("clear").blur();
  };
  $("clear").onblur = () => {
    $("clear").classList.remove("sure");
    $("clear").textContent = "Clear all";
  };
  $("notice").children[2].onclick = () => {
    tell("");
    focusPrompt();
  };

  for (const id of ["chats", "panel"]) $(`open-${id}`).onclick = () => openDrawer(id);
  for (const button of document.querySelectorAll("[data-close]")) button.onclick = closeDrawers;
  $("shade").onclick = closeDrawers;
  $("theme").onclick = () => {
    theme = kThemes[theme];
    store("celer.theme", theme);
    showTheme();
    showThemeButton();
  };

  $("settings").oninput = () => {
    showSettings();
    if (!$("settings").querySelector(":invalid")) store("celer.settings", settings());
  };
  $("settings").onsubmit = (event) => event.preventDefault();
  $("reset").onclick = () => {
    unstore("celer.settings");
    loadSettings();
  };
  $("model").onchange = () => {
    store("celer.model", $("model").value);
    loadModel().catch((error) => showLink("down", error.message));
  };
  $("key").querySelector("form").onsubmit = (event) => {
    event.preventDefault();
    sessionStorage.setItem("celer.key", $("key-value").value.trim());
    window.dispatchEvent(new Event("celer-key"));
    $("key").close("given");
  };
  $("key-cancel").onclick = () => $("key").close("");
  $("forget").onclick = () => {
    sessionStorage.removeItem("celer.key");
    $("forget").hidden = true;
  };

  // Another tab changed something.
  window.addEventListener("storage", ({ key }) => {
    if (key === "celer.settings") loadSettings();
    if (key === "celer.chats") {
      readList();
      showList();
    }
    const changed = chats.find((chat) => key === `celer.chat.${chat.id}`);
    if (changed && !changed.stream) {
      changed.turns = null;
      if (changed === current) showChat();
    }
  });
  window.addEventListener("pagehide", () => {
    for (const chat of chats) if (chat.stream) store(`celer.chat.${chat.id}`, chat.turns);
  });
}

document.addEventListener("DOMContentLoaded", () => {
  showThemeButton();
  $("tiles").append(...tiles.map((tile) => tile.root));
  $("ideas").append(...kIdeas.map((idea) => el("li", {}, el("button.outline", { type: "button", onclick: () => {
    $("prompt").value = idea;
    $("prompt").oninput();
    $("prompt").focus();
  } }, idea))));
  listen();
  loadSettings();
  readList();
  openChat(chats.find(({ id }) => id === stored("celer.current", "")) ?? newChat());
  watch();
});
