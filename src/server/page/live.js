"use strict";
// Live figures: /metrics once a second, as small plots.

const kSpan = 120;         // seconds that a plot shows
const kWindow = 60;        // seconds over which rare events are averaged
const samples = [];        // newest last
let pointed;               // seconds ago, where the pointer is on a plot: every tile shows what was then
const percent = { unit: "%", format: (share) => round(share * 100), top: 1 };
const kTiles = [
  { key: "rate", name: "Generated", unit: "tok/s", format: round, hint: "tokens generated per second, for all clients together" },
  { key: "first", name: "First token", unit: "", format: duration,
    hint: "mean time to the first token over the last minute with requests" },
  { key: "kv", name: "KV cache", ...percent, hint: "share of the KV cache in use" },
  { key: "hits", name: "Prefix hits", ...percent,
    hint: "share of prompt tokens that were in the prefix cache, over the last minute with requests" },
  { key: "limit", name: "Of the limit", ...percent, hint: "speed as a share of what this machine could do at best" },
];

// Prometheus text: name without its prefix → sum over the label sets; of a share, the mean of all engines.
const kShares = new Set(["kv_cache_usage_perc", "limit_ratio"]);
function parseMetrics(text) {
  const values = new Map(), engines = new Map();
  for (const line of text.split("\n")) {
    const found = /^(?:\w+:)?(\w+)(?:\{.*\})? ([^ ]+)/.exec(line);
    if (!found) continue;
    const value = Number(found[2].replace("Inf", "Infinity"));
    values.set(found[1], (values.get(found[1]) ?? 0) + value);
    engines.set(found[1], (engines.get(found[1]) ?? 0) + 1);
  }
  for (const name of kShares) if (values.has(name)) values.set(name, values.get(name) / engines.get(name));
  return values;
}

// How much one counter grew for each step of another over the last minute; if that one did not grow, what was known before
// it; at first, what holds since the server started.
function ratioOf(now, above, below, key) {
  const from = samples.find((sample) => sample.at >= now.at - kWindow * 1000);
  const growth = (name) => now.values.get(name) - (from?.values.get(name) ?? 0);
  if (growth(below) > 0) return growth(above) / growth(below);
  return samples.at(-1)?.[key] ?? NaN;
}

function takeSample(text) {
  const now = { at: performance.now(), values: parseMetrics(text) };
  const last = samples.at(-1), before = samples.at(-2) ?? last;
  // A counter that fell belongs to a server that was started again.
  if (last && now.values.get("generation_tokens_total") < last.values.get("generation_tokens_total")) samples.length = 0;
  const perSecond = (name) => {
    if (!before) return NaN;
    return Math.max(0, now.values.get(name) - before.values.get(name)) / ((now.at - before.at) / 1000);
  };
  now.rate = perSecond("generation_tokens_total");
  now.prompt = perSecond("prompt_tokens_total");
  now.first = ratioOf(now, "time_to_first_token_seconds_sum", "time_to_first_token_seconds_count", "first");
  now.hits = ratioOf(now, "prefix_cache_hits_total", "prefix_cache_queries_total", "hits");
  now.kv = now.values.get("kv_cache_usage_perc") ?? NaN;
  now.limit = now.values.get("limit_ratio") ?? NaN;
  samples.push(now);
  while (samples[0].at < now.at - kSpan * 1000) samples.shift();
}

class Tile {
  constructor(tile) {
    this.tile = tile;
    this.when = el("span");
    this.value = el("div.value", {}, "–");
    this.area = svg("path", { class: "plot-area" });
    this.line = svg("path", { class: "plot-line" });
    this.cursor = svg("path", { class: "plot-cursor" });
    this.plot = svg("svg", { viewBox: `0 0 ${kSpan} 40`, preserveAspectRatio: "none", role: "img" },
      this.area, this.line, this.cursor);
    if (tile.key === "limit") this.plot.prepend(svg("path", { class: "plot-limit", d: `M0 2H${kSpan}` }));
    const name = el("div.name", {}, el("span", {}, tile.name), this.when);
    this.root = el("div.tile", { title: tile.hint }, name, this.value, this.plot);
    this.root.onpointermove = (event) => {
      const box = this.root.getBoundingClientRect();
      pointed = kSpan * (1 - (event.clientX - box.left) / box.width);
      showLive();
    };
    this.root.onpointerleave = () => {
      pointed = undefined;
      showLive();
    };
  }
  show() {
    const { key, format, unit, name, top } = this.tile;
    const newest = samples.at(-1);
    if (!newest) return;
    const ago = (sample) => (newest.at - sample.at) / 1000;
    const seen = samples.filter((sample) => Number.isFinite(sample[key]));
    const most = top ?? Math.max(1e-9, ...seen.map((sample) => sample[key])) * 1.08;
    const x = (sample) => (kSpan - ago(sample)).toFixed(1);
    const y = (sample) => (39 - 37 * Math.min(1, sample[key] / most)).toFixed(1);
    const points = seen.map((sample) => `${x(sample)} ${y(sample)}`);
    this.line.setAttribute("d", points.length ? `M${points.join("L")}` : "");
    this.area.setAttribute("d", points.length ? `M${x(seen[0])} 40L${points.join("L")}L${kSpan} 40Z` : "");

    let shown = newest;
    if (pointed !== undefined) {
      const distance = (sample) => Math.abs(ago(sample) - pointed);
      shown = seen.reduce((best, sample) => (distance(sample) < distance(best) ? sample : best), newest);
    }
    this.cursor.setAttribute("d", shown === newest ? "" : `M${x(shown)} 0V40`);
    this.when.textContent = shown !== newest ? `${Math.round(ago(shown))} s ago`
      : key === "rate" && newest.prompt > 0 ? `prompts ${round(newest.prompt)} tok/s` : "";
    const text = Number.isFinite(shown[key]) ? format(shown[key]) : "–";
    const [figure, ownUnit] = text.split(" ");
    this.value.replaceChildren(figure, el("small", {}, figure === "–" ? "" : ownUnit ?? unit));
    this.plot.setAttribute("aria-label", `${name}: ${figure} ${ownUnit ?? unit}, with its course over the last two minutes`);
  }
}

const tiles = kTiles.map((tile) => new Tile(tile));

function showLive() {
  for (const tile of tiles) tile.show();
  const values = samples.at(-1)?.values;
  const [running, waiting] = ["num_requests_running", "num_requests_waiting"].map((name) => values?.get(name));
  $("load").textContent = running === undefined ? "" : `${number(running)} running · ${number(waiting ?? 0)} waiting`;
}

function showLink(state, label) {
  $("link").className = `dot ${state}`;
  $("link").setAttribute("aria-label", label);
  $("link").title = label;
}

// Once a second while the page is seen. The first answer after a gap also brings the model, which may be another one now.
async function watch() {
  for (;;) {
    let pause = 1000;
    try {
      if (!document.hidden) {
        if (!model) await loadModel();
        const metrics = await call("metrics").catch((error) => {
          if (error.status > 401) return null;  // a server that keeps its figures to itself
          throw error;
        });
        if (metrics) takeSample(await metrics.text());
        showLink("up", "connected");
        showLive();
      }
    } catch (error) {
      const failure = error instanceof Failure ? error : new Failure("The connection to the server broke off.", 0);
      showLink("down", failure.message);
      model = null;
      pause = 2500;
      if (failure.status === 401) {
        // A user who dismisses the dialog is asked again when sending.
        const given = new Promise((resolve) => window.addEventListener("celer-key", resolve, { once: true }));
        if (!(await askKey(failure.message))) await given;
        pause = 0;
      }
    }
    await new Promise((resolve) => setTimeout(resolve, pause));
  }
}
