// The page of one seat: shows its moments, and says what the person does, by buttons, keys and other controls.
"use strict";

const at = (id) => document.getElementById(id);
const Play = { about: null, moment: {}, acted: null, queued: null, held: [], over: false };
const ARROWS = { 2: ["ArrowLeft", "ArrowRight"], 3: ["ArrowLeft", "ArrowDown", "ArrowRight"],
  4: ["ArrowUp", "ArrowDown", "ArrowLeft", "ArrowRight"] };
const inputs = new Map(); // part -> its controls, one for each element
let keys = new Map(); // key -> what it means: a choice, or [element, which end of a slider]

const make = (name, parent, fields = {}) => parent.appendChild(Object.assign(document.createElement(name), fields));
const each = (value, i) => (Array.isArray(value) ? value[i] : value);
const single = () => Play.about.parts.length === 1 && Play.about.parts[0].kind === "discrete";

async function act(action) {
  const turn = Play.moment.turn;
  if (Play.over) return;
  if (turn === null || turn === undefined || turn === Play.acted) {
    if (!Play.about.waits) Play.queued = action; // for the next turn, which is on its way
    return;
  }
  Play.acted = turn;
  const answer = await fetch("act", { method: "POST", body: JSON.stringify({ turn, action }) });
  if (!answer.ok && answer.status !== 409) at("state").textContent = await answer.text();
}

function legal(part, start, count) {
  const mask = (Play.moment.mask ?? {})[part.name];
  return Array.from({ length: count }, (_, i) => !mask || mask[start + i]);
}

function choose(choice) {
  const part = Play.about.parts[0];
  if (legal(part, 0, part.n)[choice - part.start]) act({ [part.name]: choice });
}

function chosen() {
  return Object.fromEntries(Play.about.parts.map((part) => {
    const values = inputs.get(part.name).map((one) => (one.type === "checkbox" ? Number(one.checked) : Number(one.value)));
    return [part.name, part.shape.length ? values : values[0]]; // in C order
  }));
}

function buildChoices(form, part) {
  const arrows = ARROWS[part.n] ?? [];
  keys = new Map(arrows.map((key, i) => [key, i + part.start]));
  for (let i = 0; i < Math.min(part.n, 10); i++) keys.set(String(i + part.start), i + part.start);
  for (const [key, choice] of Object.entries(Play.about.keys)) keys.set(key, choice);
  for (let i = 0; i < part.n; i++) {
    const choice = i + part.start, named = [...keys].filter(([key, one]) => one === choice && key !== String(choice));
    const button = make("button", form, { type: "button", id: `choice-${choice}`,
      textContent: [String(choice), ...named.map(([key]) => key.replace("Arrow", ""))].join(" · ") });
    button.addEventListener("click", () => choose(choice));
  }
}

function buildPart(form, part) {
  const size = part.shape.reduce((a, b) => a * b, 1), made = [];
  for (let i = 0; i < size; i++) {
    const label = make("label", form, { textContent: size > 1 ? `${part.name} ${i} ` : `${part.name} ` });
    if (part.kind === "multi_binary") made.push(make("input", label, { type: "checkbox" }));
    else if (part.kind === "box") {
      const low = each(part.low, i), high = each(part.high, i), whole = !part.dtype.startsWith("float");
      const bounded = low !== null && high !== null && high - low < 1e6;
      const input = make("input", label, { type: bounded ? "range" : "number", step: whole ? 1 : "any" });
      if (low !== null) input.min = low;
      if (high !== null) input.max = high;
      input.value = Math.min(Math.max(0, low ?? 0), high ?? 0 + Math.max(0, low ?? 0));
      made.push(input);
    } else {
      const count = part.kind === "discrete" ? part.n : part.nvec[i], start = each(part.start, i);
      const select = make("select", label);
      for (let k = 0; k < count; k++) make("option", select, { value: k + start, textContent: k + start });
      made.push(select);
    }
    made.at(-1).id = `${part.name}-${i}`;
  }
  inputs.set(part.name, made);
}

function buildControls() {
  const form = at("controls");
  if (single() && Play.about.parts[0].n <= 64) {
    buildChoices(form, Play.about.parts[0]);
    at("hint").textContent = "Click, or press the keys that the buttons name; a key that is held acts in each turn.";
    return;
  }
  for (const part of Play.about.parts) buildPart(form, part);
  make("button", form, { type: "submit", id: "act", textContent: "Act" });
  const again = make("input", make("label", form, { textContent: "in each turn " }), { type: "checkbox", id: "again" });
  again.addEventListener("change", () => { if (again.checked) act(chosen()); });
  form.addEventListener("submit", (event) => { event.preventDefault(); act(chosen()); });
  const ranges = [...inputs.values()].flat().filter((one) => one.type === "range");
  if (ranges.length <= 2) {
    ranges.forEach((one, i) => [["ArrowLeft", "ArrowRight"], ["ArrowDown", "ArrowUp"]][i]
      .forEach((key, end) => keys.set(key, [one, end])));
    at("hint").textContent = ranges.length ? "Arrow keys that are held push the sliders to their ends." : "";
  }
}

function press(key) {
  const meant = keys.get(key);
  if (!Array.isArray(meant)) return choose(meant);
  const [slider, end] = meant, before = slider.value;
  slider.value = end ? slider.max : slider.min;
  act(chosen());
  slider.value = before;
}

function keyed(event) {
  if (!keys.has(event.key) || event.ctrlKey || event.altKey || event.metaKey) return;
  if (["INPUT", "SELECT"].includes(document.activeElement.tagName) && document.activeElement.type !== "checkbox") return;
  event.preventDefault();
  if (event.type === "keydown" && !event.repeat) {
    Play.held.push(event.key);
    press(event.key);
  } else if (event.type === "keyup") Play.held = Play.held.filter((key) => key !== event.key);
}

function paint(figure, part) {
  const bytes = Uint8Array.from(atob(part.levels), (one) => one.charCodeAt(0)), shape = part.shape;
  const colours = shape.length === 3 && shape[2] === 3 && shape[0] >= 3;
  const [planes, height, width] = shape.length === 2 ? [1, ...shape] : colours ? [1, shape[0], shape[1]] : shape;
  while (figure.querySelectorAll("canvas").length < planes) make("canvas", figure, { width, height });
  figure.querySelectorAll("canvas").forEach((canvas, k) => {
    canvas.style.width = `${width * Math.max(1, Math.floor((planes > 1 ? 120 : 320) / width))}px`;
    const image = new ImageData(width, height), start = k * height * width;
    for (let i = 0; i < height * width; i++) {
      for (let c = 0; c < 3; c++) image.data[4 * i + c] = colours ? bytes[3 * i + c] : bytes[start + i];
      image.data[4 * i + 3] = 255;
    }
    canvas.getContext("2d").putImageData(image, 0, 0);
  });
}

function showPart(part) {
  const id = `part-${part.name}`;
  let figure = at(id);
  if (!figure) {
    figure = make("figure", at("seen"), { id });
    make("figcaption", figure, { textContent: part.name });
    if (!part.levels) make("pre", figure);
  }
  if (part.levels) paint(figure, part);
  else figure.querySelector("pre").textContent = part.text ?? part.numbers.join("  ");
}

function show(moment) {
  Play.moment = moment;
  (moment.seen ?? []).forEach(showPart);
  at("picture").hidden = !moment.picture;
  if (moment.picture) at("picture").src = moment.picture;
  at("text").hidden = !moment.text;
  at("text").textContent = moment.text ?? "";
  at("earned").textContent = Number((moment.earned ?? 0).toPrecision(6));
  at("returns").textContent = (moment.returns ?? []).map((one) => Number(one.toPrecision(4))).join(", ") || "–";
  at("turns").textContent = moment.counts?.turns ?? 0;
  at("fallbacks").textContent = (moment.counts?.late ?? 0) + (moment.counts?.away ?? 0);
  const mine = moment.turn !== null && moment.turn !== undefined;
  at("state").textContent = mine ? "your turn" : "…";
  if (!mine) return;
  if (single() && !inputs.size) {
    legal(Play.about.parts[0], 0, Play.about.parts[0].n)
      .forEach((may, i) => { at(`choice-${i + Play.about.parts[0].start}`).disabled = !may; });
  } else for (const part of Play.about.parts) {
    let start = 0;
    for (const one of inputs.get(part.name)) {
      if (one.tagName !== "SELECT") continue;
      legal(part, start, one.options.length).forEach((may, k) => { one.options[k].disabled = !may; });
      start += one.options.length;
      if (one.selectedOptions[0]?.disabled) one.value = [...one.options].find((option) => !option.disabled).value;
    }
  }
  const queued = Play.queued;
  Play.queued = null;
  if (Play.held.length) press(Play.held.at(-1));
  else if (queued) act(queued);
  else if (at("again")?.checked) act(chosen());
}

function ended(text) {
  Play.over = true;
  Play.stream.close();
  at("state").textContent = text;
  document.querySelectorAll("#controls *").forEach((one) => { one.disabled = true; });
}

async function begin() {
  const token = new URLSearchParams(location.hash.slice(1)).get("token") ?? "";
  const answer = await fetch("seat", { method: "POST", body: token });
  if (!answer.ok) {
    at("state").textContent = await answer.text();
    return;
  }
  history.replaceState(null, "", location.pathname);
  Play.about = await (await fetch("about")).json();
  at("agent").textContent = `${Play.about.agent} of ${Play.about.world}`;
  at("sight").textContent = Play.about.whole
    ? `The whole world is drawn, which may be more than ${Play.about.agent} observes.`
    : `This is what ${Play.about.agent} observes, and no more.`;
  buildControls();
  document.addEventListener("keydown", keyed);
  document.addEventListener("keyup", keyed);
  window.addEventListener("blur", () => { Play.held = []; });
  Play.stream = new EventSource("moments");
  Play.stream.addEventListener("moment", (event) => show(JSON.parse(event.data)));
  Play.stream.addEventListener("elsewhere", () => ended("you play in another tab"));
  Play.stream.addEventListener("over", (event) => {
    const returns = JSON.parse(event.data).returns.map((one) => Number(one.toPrecision(4)));
    ended(`over; earned ${returns.join(", ") || "nothing that counts"}`);
  });
  Play.stream.addEventListener("error", () => { if (!Play.over) at("state").textContent = "the connection is lost"; });
}

begin();
