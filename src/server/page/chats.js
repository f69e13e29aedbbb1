"use strict";
// The conversations that this browser keeps.
// localStorage holds celer.chats (the list, newest first), celer.chat.ID (the turns of one) and celer.draft.ID (what is
// typed and not sent). A chat in memory also has: stream (the answer under way), problem (what the last one failed of).

const kMaxChats = 60;
const chats = [];
let current;
let keepsNothing = false;  // this browser has no room for us

function stored(key, otherwise) {
  try {
    return JSON.parse(localStorage.getItem(key)) ?? otherwise;
  } catch {
    return otherwise;
  }
}

// False if there is no room, or the browser keeps nothing for this page.
function store(key, value) {
  try {
    localStorage.setItem(key, JSON.stringify(value));
    return true;
  } catch {
    return false;
  }
}

function unstore(key) {
  try {
    localStorage.removeItem(key);
  } catch {
    // A browser that keeps nothing has nothing to remove.
  }
}

const newChat = () => ({ id: crypto.getRandomValues(new Uint32Array(2)).join("-"), title: "", turns: [] });
// What is kept may have been written by another version of this page, or by hand.
const isTurn = (turn) =>
  (turn?.role === "user" || turn?.role === "assistant") && typeof turn.content === "string" &&
  ["string", "undefined"].includes(typeof turn.reasoning) && (turn.versions === undefined || areVersions(turn.versions));
const areVersions = ({ tails, at }) =>
  Array.isArray(tails) && tails[at] === null &&
  tails.every((tail, i) => i === at || (Array.isArray(tail) && tail.length > 0 && tail.every(isTurn)));
const isEmpty = (turn) => !turn.content && !turn.reasoning;
const draftKey = (chat) => `celer.draft.${chats.includes(chat) ? chat.id : "new"}`;

// An answer without an end was under way when the page closed.
function turnsOf(chat) {
  if (chat.turns) return chat.turns;
  chat.turns = [stored(`celer.chat.${chat.id}`, [])].flat().filter(isTurn);
  const last = chat.turns.at(-1);
  if (last?.role === "assistant" && !last.end) {
    last.end = "broken";
    if (isEmpty(last)) dropLast(chat);
  }
  return chat.turns;
}

function readList() {
  const known = new Map(chats.map((chat) => [chat.id, chat]));
  const list = [stored("celer.chats", [])].flat().filter((chat) => typeof chat?.id === "string");
  const chatOf = ({ id, title }) => Object.assign(known.get(id) ?? { id, turns: null }, { title: String(title) });
  chats.splice(0, chats.length, ...list.map(chatOf));
}

const storeList = () => store("celer.chats", chats.map(({ id, title }) => ({ id, title })));

function forget(chat) {
  chat.stream?.abort.abort();
  const at = chats.indexOf(chat);
  if (at >= 0) chats.splice(at, 1);
  unstore(`celer.chat.${chat.id}`);
  unstore(`celer.draft.${chat.id}`);
}

// Saves a chat and moves it to the top. The oldest others give way when there are too many or no room.
function save(chat) {
  const at = chats.indexOf(chat);
  if (at >= 0) chats.splice(at, 1);
  else unstore("celer.draft.new");
  chats.unshift(chat);
  while (chats.length > kMaxChats) forget(chats.at(-1));
  keepsNothing = false;
  while (!store(`celer.chat.${chat.id}`, chat.turns) || !storeList()) {
    keepsNothing = chats.length === 1;
    if (keepsNothing) break;
    forget(chats.at(-1));
    storeList();
  }
  store("celer.current", chat.id);
  if (at !== 0) showList();
}

// A new version of everything from turn i on. The old one is kept beside it: `versions` stands on the first turn of the
// version in use, whose own place in `tails` is empty.
function branch(chat, i, turn) {
  const old = chat.turns.splice(i);
  const versions = old[0]?.versions ?? { tails: [null], at: 0 };
  if (old.length) {
    delete old[0].versions;
    versions.tails[versions.at] = old;
    versions.at = versions.tails.push(null) - 1;
    turn.versions = versions;
  }
  chat.turns.push(turn);
}

function useVersion(chat, i, at) {
  const old = chat.turns.splice(i);
  const { versions } = old[0];
  delete old[0].versions;
  versions.tails[versions.at] = old;
  const tail = versions.tails[at];
  versions.tails[at] = null;
  versions.at = at;
  tail[0].versions = versions;
  chat.turns.push(...tail);
}

// Takes back an answer of which nothing came; the version before it is in use again.
function dropLast(chat) {
  const { versions } = chat.turns.pop();
  if (!versions) return;
  versions.tails.splice(versions.at, 1);
  const at = Math.max(0, versions.at - 1);
  const tail = versions.tails[at];
  versions.tails[at] = null;
  versions.at = at;
  if (versions.tails.length > 1) tail[0].versions = versions;
  chat.turns.push(...tail);
}
