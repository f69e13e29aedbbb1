"use strict";
// The parameters of each request, and the model.

let model = null;

// Only what is filled in is sent; for the rest the server's defaults hold.
function settings() {
  const given = {};
  for (const field of $("settings").elements) {
    if (field.value.trim() === "") continue;
    given[field.name] = field.type === "number" ? field.valueAsNumber : field.value;
  }
  return given;
}

function settingsAreValid() {
  const wrong = $("settings").querySelector(":invalid");
  if (!wrong) return true;
  if (getComputedStyle($("panel")).visibility === "hidden") openDrawer("panel");
  showSettings();
  wrong.focus();
  return false;
}

function showSettings() {
  const wrong = $("settings").querySelector(":invalid");
  $("invalid").textContent = wrong ? `${wrong.labels[0].firstChild.textContent}: ${wrong.validationMessage}` : "";
  $("reset").hidden = Object.keys(settings()).length === 0 && !wrong;
}

function loadSettings() {
  const kept = stored("celer.settings", {});
  for (const field of $("settings").elements) field.value = kept[field.name] ?? "";
  showSettings();
}

// 134515008 → "134.5 M"
function amount(value) {
  if (typeof value !== "number") return value;
  for (const [unit, size] of [["T", 1e12], ["B", 1e9], ["M", 1e6], ["k", 1e3]]) {
    if (value >= size) return `${number(value / size, value / size < 100 ? 2 : 1)} ${unit}`;
  }
  return number(value);
}

const contextOf = (card) => card?.max_model_len ?? card?.context_length ?? card?.context;

function showModel(list, server) {
  model = { ...server, ...(list.find(({ id }) => id === stored("celer.model", "")) ?? list[0]) };
  $("model").hidden = list.length < 2;
  $("model-name").hidden = list.length > 1;
  $("model-name").textContent = model.id;
  $("model").replaceChildren(...list.map(({ id }) => el("option", { value: id, selected: id === model.id }, id)));
  document.title = `${model.id} · celer`;
  const formats = Object.entries(model.bytes_by_format ?? {}).sort(([, a], [, b]) => b - a).map(([name]) => name);
  const weights = [model.weight_formats ?? formats].flat().join(", ");
  const context = contextOf(model);
  const rows = { Name: model.id, Architecture: model.architecture, Parameters: amount(model.parameters), Weights: weights,
    Context: context && `${number(context)} tokens`, Device: model.device, Server: server.version && `celer ${server.version}` };
  const known = Object.entries(rows).filter(([, value]) => value);
  $("card").replaceChildren(...known.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, String(value))]));
  const size = model.parameters && `${amount(model.parameters)} parameters`;
  $("greeting-model").textContent = [model.id, size, weights, model.device].filter(Boolean).join(" · ");
  for (const name of ["temperature", "top_p"]) {
    const value = server.default_sampling?.[name];
    $("settings").elements[name].placeholder = typeof value === "number" ? `default ${number(value, 3)}` : "default";
  }
  $("forget").hidden = !apiKey();
  showContext();
}

// What /v1/models does not say about the model, other routes may; the page does without those that are not there.
async function loadModel() {
  const { data } = await (await call("v1/models")).json();
  if (!data?.length) throw new Failure("The server serves no model.", 0);
  const ask = async (path) => (await call(path)).json();
  const more = await Promise.allSettled(["server_info", "model_info", "version"].map(ask));
  showModel(data, Object.assign({}, ...more.map(({ value }) => value)));
}

// How full the model's context is, by the figures of the last answer.
function showContext() {
  const size = contextOf(model), { figures } = turnsOf(current).findLast((turn) => turn.figures?.prompt) ?? {};
  const used = figures ? figures.prompt + figures.output : 0;
  $("context").textContent = size && used ? `${number(used)} of ${number(size)} tokens of context` : "";
}
