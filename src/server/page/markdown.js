"use strict";
// Markdown and code as DOM nodes. What a model writes becomes text nodes, never markup: nothing here sets innerHTML, and the
// page's Content-Security-Policy would refuse it.
// The part of CommonMark and GitHub's tables that models write. Every scan is linear and every depth bounded, so that no
// answer can hang the page.

const kMaxNesting = 12;  // quotes and lists inside each other
const kMaxOpen = 24;     // emphasis and brackets open at once
const kEntities = { amp: "&", lt: "<", gt: ">", quot: '"', nbsp: "\u00a0", "#39": "'" };
const kTarget = /\((?:<([^<>\n]{0,2000})>|((?:[^\s()]|\([^\s()]{0,2000}\)){1,2000}))(?:\s{1,9}"[^"\n]{0,300}")?\)/y;
const kAddress = /https?:\/\/[^\s<>"'`*)\]]{0,1999}[^\s<>"'`*)\].,;:!?]/y;  // not the full stop behind it
const kMath = /\$\$([^$]{1,2000})\$\$|\$([^\s$](?:[^$\n]{0,200}[^\s$])?)\$(?!\w)|\\\(([^\n]{1,500}?)\\\)|\\\[([^]{1,2000}?)\\\]/y;

function matchAt(pattern, text, at) {
  pattern.lastIndex = at;
  return pattern.exec(text);
}

// A link if the address is http or https, else nothing.
function link(address, ...children) {
  let url;
  try {
    url = new URL(address);
  } catch {
    return null;
  }
  if (url.protocol !== "http:" && url.protocol !== "https:") return null;
  return el("a", { href: url.href, title: url.href, target: "_blank", rel: "noopener noreferrer" }, ...children);
}

// Text with emphasis, code, links: an array of nodes and strings.
function inline(text) {
  const open = [{ mark: "", kids: [] }];  // innermost last; the first is the result
  const withoutEnd = new Set();           // lengths of backtick runs that do not occur any more
  const put = (kid) => {
    const { kids } = open.at(-1);
    if (typeof kid === "string" && typeof kids.at(-1) === "string") kids.push(kids.pop() + kid);
    else kids.push(kid);
  };
  const opens = (mark) => open.length < kMaxOpen && open.push({ mark, kids: [] });
  // What stays open was no mark after all.
  const flattenTo = (depth) => {
    while (open.length > depth) {
      const frame = open.pop();
      put(frame.mark);
      for (const kid of frame.kids) put(kid);
    }
  };
  const find = (fits) => {
    for (let depth = open.length - 1; depth > 0; --depth) if (fits(open[depth])) return depth;
    return 0;
  };

  const codeSpan = (at) => {
    const run = matchAt(/`+/y, text, at)[0];
    if (!withoutEnd.has(run.length)) {
      const ends = /`+/g;
      ends.lastIndex = at + run.length;
      for (let end; (end = ends.exec(text)); ) {
        if (end[0].length !== run.length) continue;
        const body = text.slice(at + run.length, end.index).replaceAll("\n", " ");
        put(el("code", {}, /^ .*[^ ].* $/.test(body) ? body.slice(1, -1) : body));
        return ends.lastIndex;
      }
      withoutEnd.add(run.length);
    }
    put(run);
    return at + run.length;
  };

  const emphasis = (at) => {
    const sign = text[at];
    const run = matchAt(sign === "*" ? /\*+/y : sign === "_" ? /_+/y : /~+/y, text, at)[0];
    const end = at + run.length;
    const before = text[at - 1] ?? " ", after = text[end] ?? " ";
    const inWord = sign === "_" && /[\p{L}\p{N}]/u.test(before) && /[\p{L}\p{N}]/u.test(after);
    let left = run.length;
    if (left > 3 || inWord || (sign === "~" && left !== 2)) {
      put(run);
      return end;
    }
    while (left > 0 && !/\s/.test(before)) {
      const depth = find((frame) => frame.mark[0] === sign && frame.mark.length <= left);
      if (!depth) break;
      flattenTo(depth + 1);
      const frame = open.pop();
      put(el(sign === "~" ? "del" : frame.mark.length === 2 ? "strong" : "em", {}, frame.kids));
      left -= frame.mark.length;
    }
    if (left > 0 && !/\s/.test(after)) {
      for (const mark of left === 3 ? [sign + sign, sign] : [sign.repeat(left)]) opens(mark) || put(mark);
    } else {
      put(sign.repeat(left));
    }
    return end;
  };

  const closeBracket = (at) => {
    const depth = find((frame) => frame.mark.endsWith("["));
    const target = depth && !open[depth].dead && matchAt(kTarget, text, at + 1);
    const made = target && link(target[1] ?? target[2]);
    if (made) {
      flattenTo(depth + 1);
      const frame = open.pop();
      for (const kid of frame.kids.length ? frame.kids : [made.href]) made.append(kid);
      if (frame.mark === "[") for (const outer of open) outer.dead = true;  // no link inside a link
      put(made);
      return at + 1 + target[0].length;
    }
    if (depth) flattenTo(depth);
    put("]");
    return at + 1;
  };

  const special = /[\\`*_~[\]!<&$\n]|https?:\/\//g;
  let at = 0;
  for (let hit; (hit = matchAt(special, text, at)); ) {
    if (hit.index > at) put(text.slice(at, hit.index));
    at = hit.index;
    const sign = hit[0];
    let found;
    if (sign === "`") {
      at = codeSpan(at);
    } else if ((sign === "$" || sign === "\\") && (found = matchAt(kMath, text, at))) {
      put(el("span.math", {}, found[1] ?? found[2] ?? found[3] ?? found[4]));
      at += found[0].length;
    } else if (sign === "\\" && (found = matchAt(/\\([!-/:-@[-`{-~])/y, text, at))) {
      put(found[1]);
      at += 2;
    } else if (sign === "*" || sign === "_" || sign === "~") {
      at = emphasis(at);
    } else if (sign === "[" || (sign === "!" && text[at + 1] === "[")) {
      const mark = sign === "[" ? "[" : "![";
      opens(mark) || put(mark);
      at += mark.length;
    } else if (sign === "]") {
      at = closeBracket(at);
    } else if (sign === "<" && (found = matchAt(/<(https?:\/\/[^\s<>]{1,2000})>/y, text, at)) && link(found[1])) {
      put(link(found[1], found[1]));
      at += found[0].length;
    } else if (sign === "\n" || (sign === "<" && (found = matchAt(/<br ?\/?>/iy, text, at)))) {
      put(el("br"));
      at += found ? found[0].length : 1;
    } else if (sign === "&" && (found = matchAt(/&(amp|lt|gt|quot|nbsp|#39);/y, text, at))) {
      put(kEntities[found[1]]);
      at += found[0].length;
    } else if (sign.startsWith("http") && (found = matchAt(kAddress, text, at)) && link(found[0])) {
      put(link(found[0], found[0]));
      at += found[0].length;
    } else {
      put(sign);
      at += sign.length;
    }
  }
  put(text.slice(at));
  flattenTo(1);
  return open[0].kids;
}

const kFence = /^ {0,3}(`{3,}|~{3,}) *([^`\s]*)[^`]*$/;
const kHeading = /^ {0,3}(#{1,6})(?:[ \t]|$)/;
const kRule = /^ {0,3}([-*_])(?: *\1){2,} *$/;
const kQuote = /^ {0,3}> ?/;
const kItem = /^( {0,3})([-*+]|\d{1,9}[.)])( {1,4}|\t|$)/;
const kTableRule = /^ {0,3}\|?(?: *:?-+:? *\|)* *(?::?-+:? *)?$/;

const isBlank = (line) => line === undefined || line.trim() === "";
// A delimiter row that is too long does not make a table.
const isTable = (lines, i) =>
  lines[i].includes("|") && /-/.test(lines[i + 1]) && lines[i + 1].includes("|") && lines[i + 1].length < 1000 &&
  kTableRule.test(lines[i + 1]);
const startsBlock = (lines, i) =>
  kFence.test(lines[i]) || kHeading.test(lines[i]) || kRule.test(lines[i]) || kQuote.test(lines[i]) || isTable(lines, i) ||
  /^ {0,3}(?:[-*+]|1[.)]) +\S/.test(lines[i]);

// Cells of a row; a bar inside a code span or after a backslash is text.
function cellsOf(row) {
  const cells = [""];
  let inCode = false;
  const line = row.trim().replace(/^\|/, "");
  for (let i = 0; i < line.length; ++i) {
    if (line[i] === "`") inCode = !inCode;
    if (line[i] === "\\" && line[i + 1] === "|") cells[cells.length - 1] += line[++i];
    else if (line[i] === "|" && !inCode) cells.push("");
    else cells[cells.length - 1] += line[i];
  }
  if (cells.length > 1 && cells.at(-1).trim() === "") cells.pop();
  return cells.map((cell) => cell.trim());
}

// One list: its items as lists of lines without their indent, and the line after it.
function listAt(lines, i) {
  const [, { length: base }, bullet] = kItem.exec(lines[i]);
  const kind = bullet.at(-1);
  const list = { kind: "list", ordered: /\d/.test(bullet), start: parseInt(bullet, 10), items: [] };
  let indent = 0;
  for (; i < lines.length; ++i) {
    const item = kItem.exec(lines[i]);
    if (item && item[1].length < base + 2 && !kRule.test(lines[i]) && item[2].at(-1) === kind) {
      indent = item[0].length;
      list.items.push([lines[i].slice(indent)]);
      continue;
    }
    const space = lines[i].length - lines[i].trimStart().length;
    const inside = isBlank(lines[i])
      ? !isBlank(lines[i + 1]) && (/^ {2,}/.test(lines[i + 1]) || kItem.exec(lines[i + 1])?.[2].endsWith(kind))
      : space >= base + 2 || (!isBlank(lines[i - 1]) && !startsBlock(lines, i) && !item);
    if (!inside) break;
    list.items.at(-1).push(lines[i].slice(Math.min(space, indent)));
  }
  return [list, i];
}

// Blocks in order. `source` is the text of a block: as long as it is the same, so is what it looks like.
function blocksOf(lines, nesting = 0) {
  const blocks = [];
  for (let i = 0; i < lines.length; ) {
    const from = i;
    let block, found;
    if (isBlank(lines[i])) {
      ++i;
      continue;
    }
    if ((found = kFence.exec(lines[i]))) {
      const [, fence, language] = found;
      const indent = lines[i].indexOf(fence[0]);
      const end = new RegExp(`^ {0,3}${fence[0]}{${fence.length},} *$`);
      const body = [];
      for (++i; i < lines.length && !end.test(lines[i]); ++i) body.push(lines[i].replace(new RegExp(`^ {0,${indent}}`), ""));
      ++i;
      block = { kind: "code", language: language.toLowerCase(), body: body.join("\n") };
    } else if ((found = kHeading.exec(lines[i]))) {
      const body = lines[i++].trim().slice(found[1].length).replace(/ #{1,6}$/, "").trim();
      block = { kind: "heading", level: found[1].length, body };
    } else if (kRule.test(lines[i])) {
      ++i;
      block = { kind: "rule" };
    } else if (kQuote.test(lines[i]) && nesting < kMaxNesting) {
      const body = [];
      while (i < lines.length && kQuote.test(lines[i])) body.push(lines[i++].replace(kQuote, ""));
      block = { kind: "quote", blocks: blocksOf(body, nesting + 1) };
    } else if (kItem.test(lines[i]) && nesting < kMaxNesting) {
      [block, i] = listAt(lines, i);
      block.items = block.items.map((item) => blocksOf(item, nesting + 1));
    } else if (isTable(lines, i)) {
      const rows = [cellsOf(lines[i])];
      const align = cellsOf(lines[i + 1]).map((cell) => (/^:-+:$/.test(cell) ? "center" : /-:$/.test(cell) ? "right" : ""));
      for (i += 2; i < lines.length && !isBlank(lines[i]) && lines[i].includes("|"); ++i) rows.push(cellsOf(lines[i]));
      block = { kind: "table", align, rows };
    } else {
      const body = [lines[i++].trim()];
      while (i < lines.length && !isBlank(lines[i]) && !startsBlock(lines, i)) body.push(lines[i++].trim());
      block = { kind: "paragraph", body: body.join("\n") };
    }
    block.source = lines.slice(from, i).join("\n");
    blocks.push(block);
  }
  return blocks;
}

function codeBlock(block) {
  const code = el("code");
  const node = el("div.code", {},
    el("header", {}, el("span", {}, block.language || "text"), copyButton("Copy this code", () => code.textContent, "Copy")),
    el("pre", { tabIndex: 0 }, code));
  fillCode(node, block);
  return node;
}

function fillCode(node, block) {
  node.querySelector("code").replaceChildren(colour(block.body, block.language));
}

function listItem(blocks) {
  const item = el("li");
  const [first, ...rest] = blocks;
  const task = first?.kind === "paragraph" && /^\[([ xX])\] /.exec(first.body);
  if (task) {
    item.className = "task";
    item.append(el("input", { type: "checkbox", checked: task[1] !== " ", disabled: true }));
  }
  const lead = first?.kind === "paragraph" ? inline(task ? first.body.slice(4) : first.body) : [];
  for (const child of lead) item.append(child);
  for (const block of lead.length ? rest : blocks) item.append(blockNode(block));
  return item;
}

function tableNode({ align, rows }) {
  const row = (cells, tag) => el("tr", {}, align.map((side, i) => el(tag, { className: side }, inline(cells[i] ?? ""))));
  return el("div.table", { tabIndex: 0 },
    el("table", {}, el("thead", {}, row(rows[0], "th")), el("tbody", {}, rows.slice(1).map((cells) => row(cells, "td")))));
}

function blockNode(block) {
  switch (block.kind) {
    case "code": return codeBlock(block);
    case "heading": return el(`h${Math.min(block.level + 2, 6)}`, {}, inline(block.body));  // h1 and h2 are the page's own
    case "rule": return el("hr");
    case "quote": return el("blockquote", {}, block.blocks.map(blockNode));
    case "table": return tableNode(block);
    case "list": return el(block.ordered ? "ol" : "ul", block.ordered ? { start: block.start } : {}, block.items.map(listItem));
    default: return el("p", {}, inline(block.body));
  }
}

// Shows a text that grows. Blocks that did not change keep their nodes; code that grows keeps its block, and with it
// its scroll position.
class Markdown {
  constructor(root) {
    this.root = root;
    this.blocks = [];
  }
  show(text) {
    const blocks = blocksOf(text.split(/\r?\n/));
    let same = 0;
    while (same < blocks.length && blocks[same].source === this.blocks[same]?.source) ++same;
    const [was, is] = [this.blocks[same], blocks[same]];
    if (was?.kind === "code" && is?.kind === "code" && was.language === is.language) fillCode(this.root.children[same++], is);
    while (this.root.children.length > same) this.root.lastChild.remove();
    for (const block of blocks.slice(same)) this.root.append(blockNode(block));
    this.blocks = blocks;
  }
}

// Code: comments, strings, numbers, keywords and names of functions; enough to read by, and quick.

const kMaxColoured = 60000;
const kEnd = "(?![^])";
const kString = String.raw`"(?:[^"\\\n]|\\[^])*"?`;
const kApostrophes = String.raw`'(?:[^'\\\n]|\\[^])*'`;
const kBackticks = "`(?:[^`\\\\]|\\\\[^])*`?";
const kTripled = String.raw`"""[^]*?(?:"""|${kEnd})|'''[^]*?(?:'''|${kEnd})`;
const words = (list) => new Set(list.trim().split(/\s+/));
const kFamilies = {
  c: { comment: String.raw`//[^\n]*|/\*[^]*?(?:\*/|${kEnd})`, string: `${kString}|${kApostrophes}(?!\\w)|${kBackticks}`,
    keyword: String.raw`^[ \t]*#\w+`,
    words: words(`
      alignas any as asm async atomic auto await bool boolean break byte case catch chan char class concept const constexpr
      constinit consteval continue co_await co_return co_yield decltype default defer delete do double dyn else enum
      explicit export extends extern extension false final finally float fn for foreach friend func fun function go goto
      guard half if impl implements import in inline instanceof int int8_t int16_t int32_t int64_t interface internal is let
      long loop match mod move mut namespace never new nil noexcept null nullptr number object of operator out override
      package private protected protocol pub public range readonly ref register requires return select self short signed
      size_t sizeof static static_assert static_cast reinterpret_cast dynamic_cast const_cast string struct super switch
      template this throw throws trait true try type typedef typename typeof uint8_t uint16_t uint32_t uint64_t undefined
      union unsafe unsigned use using val var virtual void volatile when where while yield __global__ __device__ __host__
      __shared__ __restrict__ i8 i16 i32 i64 u8 u16 u32 u64 usize isize f32 f64 str String Vec Option Result`) },
  python: { comment: String.raw`#[^\n]*`, string: `[rbfuRBFU]{0,2}(?:${kTripled}|${kString}|${kApostrophes})`,
    words: words(`
      and as assert async await break case class continue def del elif else end except False finally for from global if
      import in is lambda match module nil None nonlocal not or pass raise require return self super then True try unless
      until when while with yield begin do ensure rescue`) },
  shell: { comment: String.raw`(?:^|(?<=\s))#[^\n]*`, string: `${kString}|'[^']*'?`,
    words: words(`
      if then else elif fi for in do done while until case esac function return local export set unset source exit trap
      shift read echo printf cd test sudo FROM RUN COPY ADD CMD ENTRYPOINT ENV ARG WORKDIR EXPOSE USER add_library
      add_executable target_link_libraries include project endif endfunction`) },
  sql: { comment: String.raw`--[^\n]*|/\*[^]*?(?:\*/|${kEnd})`, string: `${kString}|${kApostrophes}`, anyCase: true,
    words: words(`
      select from where and or not null is in like between insert into values update set delete create table index view drop
      alter add column primary key foreign references unique default check join left right inner outer full cross on using
      group by order having limit offset union all distinct as case when then else end with recursive exists returning true
      false asc desc int integer bigint text varchar timestamp boolean begin commit rollback local function return do repeat
      until for while nil`) },
  data: { comment: String.raw`(?:^|(?<=\s))#[^\n]*`, string: `${kString}|${kApostrophes}`,
    keyword: String.raw`^[ \t]*(?:- )?[\w.-]+(?= ?[:=])`,
    words: words("true false null yes no on off none") },
  markup: { comment: String.raw`<!--[^]*?(?:-->|${kEnd})`, string: `${kString}|${kApostrophes}`,
    keyword: String.raw`</?[\w:-]+|/?>`, words: new Set() },
  css: { comment: String.raw`/\*[^]*?(?:\*/|${kEnd})`, string: `${kString}|${kApostrophes}`,
    keyword: String.raw`@[\w-]+|[\w-]+(?=\s?:)`, words: new Set() },
};
const kLanguages = {
  c: `c cc cpp c++ cxx h hpp cu cuda java js jsx javascript ts tsx typescript rust rs go golang cs csharp kotlin swift scala
    php zig glsl hlsl metal proto`,
  python: "python py python3 pycon ruby rb julia elixir",
  shell: "sh bash shell zsh console fish make makefile dockerfile docker cmake powershell",
  sql: "sql sqlite postgresql mysql lua haskell",
  data: "json jsonl json5 yaml yml toml ini conf env",
  markup: "html xml svg vue xhtml",
  css: "css scss less",
};
const kFamilyOf = new Map();
for (const [family, names] of Object.entries(kLanguages)) for (const name of words(names)) kFamilyOf.set(name, kFamilies[family]);
for (const family of Object.values(kFamilies)) {
  family.pattern = new RegExp(
    `(${family.comment})|(${family.string})|(\\b(?:0[xXbB][\\w']+|\\d[\\d_']*(?:\\.\\d+)?(?:[eE][+-]?\\d+)?\\w{0,3}))|` +
    `(${family.keyword ?? "(?!)"})|([\\p{L}_$][\\p{L}\\p{N}_$]*)( ?\\()?`, "gmu");
}

function colour(code, language) {
  const out = document.createDocumentFragment();
  const family = kFamilyOf.get(language);
  if (code.length > kMaxColoured || (!family && language !== "diff" && language !== "patch")) {
    out.append(code);
    return out;
  }
  const put = (text, kind) => text && out.append(kind ? el(`span.hl-${kind}`, {}, text) : text);
  if (!family) {
    const kinds = { "+": "plus", "-": "minus", "@": "f" };
    for (const line of code.split(/(?<=\n)/)) put(line, kinds[line[0]]);
    return out;
  }
  let at = 0;
  for (const { 0: all, 1: comment, 2: string, 3: digits, 4: keyword, 5: word, 6: call, index } of code.matchAll(family.pattern)) {
    const kind = comment ? "c" : string ? "s" : digits ? "n" : keyword ? "k"
      : family.words.has(family.anyCase ? word.toLowerCase() : word) ? "k" : call ? "f" : "";
    if (!kind) continue;
    put(code.slice(at, index));
    const length = all.length - (call?.length ?? 0);
    put(code.slice(index, index + length), kind);
    at = index + length;
  }
  put(code.slice(at));
  return out;
}
