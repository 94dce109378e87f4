// The page: takes every new view of the run as a server-sent event and puts its numbers in their places.
"use strict";

const at = (id) => document.getElementById(id);
const Page = { views: 0, slowest: 0 };

// As `shown` of protocol/control/wording.py does.
function number(value, digits = 4) {
  if (value === null || value === undefined) return "–";
  if (Number.isInteger(value) || Math.abs(value) >= 10 ** (digits - 1)) return Math.round(value).toLocaleString("en-US");
  return String(Number(value.toPrecision(digits)));
}

const percent = (share) => `${number(100 * share, 2)} %`;

function duration(seconds) {
  if (!Number.isFinite(seconds)) return "–";
  const whole = Math.max(0, Math.round(seconds)), hours = Math.floor(whole / 3600);
  const clock = [Math.floor(whole / 60) % 60, whole % 60].map((part) => String(part).padStart(2, "0")).join(":");
  return hours ? `${hours}:${clock}` : clock;
}

function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

// Rows are made once and changed in place: what has the focus or is selected stays.
function fill(table, rows, last) {
  const body = at(table).tBodies[0], known = new Map([...body.rows].map((row) => [row.dataset.key, row]));
  for (const [key, cells] of rows) {
    let row = known.get(key);
    known.delete(key);
    if (!row) {
      row = body.insertRow();
      row.dataset.key = key;
      row.told = cells.map(() => row.insertCell());
      if (last) row.insertCell().append(last(key));
    }
    cells.forEach((text, i) => say(row.told[i], text));
  }
  for (const row of known.values()) row.remove();
}

function showPolicies(view) {
  const rows = [...Object.entries(view.policies), ...Object.entries(view.auxiliaries)].map(([name, policy]) => {
    const flow = view.flow[name], evaluated = Object.values(view.evaluations[name] ?? {}), plays = "return" in policy;
    return [name, [name, plays ? number(policy.return) : "",
      plays ? number(evaluated.length ? evaluated.reduce((a, b) => a + b) / evaluated.length : null) : "",
      plays ? number(policy.episode_length) : "", policy.version === null ? "fixed" : number(policy.lag),
      flow ? percent(flow.queue_fill) : "–", flow ? percent(flow.starvation) : "–",
      flow ? percent(flow.blocked) : "–"]];
  });
  fill("policies", rows);
}

function showWorkers(view) {
  const rows = view.workers.map((worker) => [worker.name, [worker.name, worker.state,
    number(worker.per_second, 3), worker.cores === undefined ? "–" : percent(worker.cores), number(worker.mebibytes, 3),
    worker.host, String(worker.pid), `${number(worker.silent, 2)} s ago`, String(view.restarts[worker.name] ?? 0)]]);
  fill("workers", rows, (name) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = "show";
    button.setAttribute("aria-label", `log of ${name}`);
    button.addEventListener("click", () => showLog(name));
    return button;
  });
}

// What holds for several policies is said once.
function showHealth(view) {
  const groups = new Map();
  for (const one of view.health) {
    const key = [one.level, one.layer, one.says, one.remedy].join("\n");
    groups.set(key, [...(groups.get(key) ?? []), one]);
  }
  const found = [...groups.values()].map((all) => [all[0].level, `${all[0].level} in the ${all[0].layer} of ` +
    `${all.map((one) => one.policy).join(", ")}: ${all[0].says}`, `; ${all[0].remedy}`]);
  if (view.stalled) found.unshift(["fault", view.stalled, ""]);
  const lines = found.length ? found : [["", "", "nothing found"]], list = at("health");
  if (JSON.stringify(lines) === list.dataset.shown) return;
  list.dataset.shown = JSON.stringify(lines);
  list.replaceChildren(...lines.map(([level, said, rest]) => {
    const item = document.createElement("li"), first = document.createElement("strong");
    item.className = level;
    first.textContent = said;
    item.append(first, rest);
    return item;
  }));
}

// What the fourth panel may show, those of a kind together: a kind is what names begin with.
function showMeasures(view) {
  const list = at("measures");
  if (list.options.length === view.measures.length) return;
  list.replaceChildren(...view.measures.map((name) => new Option(name.split(/[_/]/)[0], name)));
  if (!Page.searched) choose(["episode_length", "grad_norm"].find((name) => view.measures.includes(name)));
}

// The field is emptied: a list of suggestions offers only what has in it what is there already.
function choose(measure) {
  if (![...at("measures").options].some((option) => option.value === measure)) return;
  at("measure").value = "";
  at("measure").placeholder = measure;
  Curves.choose(measure);
}

// The runs that lie beside this one, to be ticked; those that are ticked stay so.
async function showRuns() {
  if (!at("others").open) return;
  const answer = await fetch("api/runs").catch(() => null), place = at("runs");
  const ticked = new Set([...place.querySelectorAll(":checked")].map((box) => box.value));
  const names = answer?.ok ? await answer.json() : [];
  place.replaceChildren(...names.map((name) => {
    const label = document.createElement("label"), box = document.createElement("input");
    [box.type, box.value, box.checked] = ["checkbox", name, ticked.has(name)];
    label.append(box, name);
    return label;
  }));
  if (!names.length) place.textContent = "none with measurements";
}

function waitsFor(view) {
  if (view.made || view.wanted === undefined) {
    const along = view.two_threads.length ? `; a second thread learns along: ${view.two_threads.join(", ")}` : "";
    return view.advice + along;
  }
  const there = view.workers.filter((worker) => ["actor", "learner"].includes(worker.role)).length;
  return `starting: ${there} of ${view.wanted} workers have joined`;
}

function show(view) {
  const started = performance.now();
  Page.stage = view.stage;
  say(at("run"), view.run);
  say(at("stage"), view.paused ? "paused" : view.stage);
  say(at("pause"), view.paused ? "Resume" : "Pause");
  if (view.steps !== undefined) {
    const rate = view.seconds > 1 ? view.made / view.seconds : NaN;
    at("progress").value = view.made / view.steps;
    say(at("unit"), view.unit);
    say(at("made"), `${number(view.made)} of ${number(view.steps)}`);
    say(at("rate"), number(view.made_per_second));
    say(at("left"), duration(Math.max(0, view.steps - view.made) / rate));
    say(at("verdict"), waitsFor(view));
    Loop.show(view, number, percent);
    League.show(view.league, number, percent);
    showPolicies(view);
    showWorkers(view);
    showHealth(view);
    showRoster(view.roster);
    const waits = Object.entries(view.waits).filter((pair) => pair[1] >= 0.05).sort((a, b) => b[1] - a[1]);
    fill("waits", waits.map(([name, seconds]) => [name, [name, number(seconds, 2)]]));
    showMeasures(view);
    Curves.add(view.point);
  }
  Page.views += 1;
  Page.last = performance.now() - started;
  Page.slowest = Math.max(Page.slowest, Page.last);
}

// What the coordinator answers, or a sentence if it answers no more.
async function asked(path) {
  try {
    return await (await fetch(path)).text();
  } catch {
    return "the coordinator answers no more; logs and config.yaml are in the run's folder";
  }
}

async function showLog(name) {
  const place = at("log");
  at("log-title").textContent = `log of ${name}`;
  place.textContent = await asked(`api/log?worker=${encodeURIComponent(name)}`);
  at("log-title").hidden = place.hidden = false;
  place.scrollTop = place.scrollHeight;
  place.focus();
}

// Resolves once the token was taken; rejects if nobody gives one.
function askForToken() {
  const dialog = at("ask");
  at("refused").textContent = "";
  dialog.showModal();
  return new Promise((resolve, reject) => {
    at("leave").onclick = () => dialog.close();
    dialog.onclose = () => reject(new Error("no token"));
    dialog.querySelector("form").onsubmit = async (event) => {
      event.preventDefault();
      if (await useToken(at("token").value)) {
        dialog.onclose = null;
        dialog.close();
        resolve();
      } else {
        at("refused").textContent = "This is not the token of this run.";
      }
    };
  });
}

async function useToken(token) {
  return (await fetch("api/session", { method: "POST", body: token })).ok;
}

// The answer, once it is done; where it is not, null, and why.
async function act(what, body) {
  const answer = await fetch(`api/${what}`, { method: "POST", body }).catch(() => null);
  if (answer === null) {
    connected("no answer from the coordinator", true);
  } else if (answer.status === 401) {
    return askForToken().then(() => act(what, body), () => null);
  } else if (!answer.ok) {
    connected(await answer.text(), true);
  }
  return answer?.ok ? answer : null;
}

async function command() {
  const order = { words: at("words").value.trim().split(/\s+/), by: "page" };
  const file = ["add", "member", "replace"].includes(order.words[0]) ? at("weights").files[0] : undefined;
  at("send").disabled = true;
  try {
    if (file && !(order.weights = await sendWeights(await file.arrayBuffer()))) return;
    if (!await act("roster", JSON.stringify(order))) return;
    at("words").value = at("weights").value = "";
    connected("live", false);
  } catch (fault) {
    connected(`the file cannot be read (${fault.message}): choose it again`, true);
  } finally {
    at("send").disabled = false;
  }
}

// The SHA-256 of a file, which the run has got then, part by part; empty where it has not.
async function sendWeights(bytes) {
  if (!crypto.subtle) {
    connected("browsers hash files over https or from this machine only: use a tunnel, or rookery roster --from", true);
    return "";
  }
  const hash = new Uint8Array(await crypto.subtle.digest("SHA-256", bytes));
  const sha256 = Array.from(hash, (one) => one.toString(16).padStart(2, "0")).join("");
  for (let sent = 0; sent < bytes.byteLength;) {
    const answer = await act(`weights?sha256=${sha256}&offset=${sent}`, bytes.slice(sent, sent + 60000));
    if (!answer) return "";
    sent = (await answer.json()).size;
  }
  return sha256;
}

function showRoster(roster) {
  at("roster").closest("section").hidden = roster === undefined;
  const told = Object.entries(roster || {}).map(([kind, what]) => {
    const each = Array.isArray(what) ? what : Object.entries(what).map(([name, value]) => `${name} ${value.agent || (typeof value === "object" ? JSON.stringify(value) : value)}`);
    return each.length ? `${kind}: ${each.join(", ")}` : "";
  });
  say(at("told"), told.filter(Boolean).join("; ") || "as configured");
}

function connected(text, lost) {
  say(at("connection"), text);
  at("connection").classList.toggle("lost", lost);
}

function listen() {
  const events = new EventSource("api/events");
  events.addEventListener("open", () => {
    connected("live", false);
    Curves.load();
  });
  events.addEventListener("view", (event) => {
    const view = JSON.parse(event.data);
    show(view);
    if (!view.over) return;
    events.close();
    over(view.over);
  });
  events.addEventListener("error", () => {
    if (Page.stage === "running" || !Page.stage) return connected("no answer from the coordinator; trying again", true);
    events.close();
    say(at("stage"), "ended");
    over("the run is over; this is its last state");
  });
}

// Nobody works any more.
function over(said) {
  connected(said, false);
  for (const id of ["checkpoint", "pause", "stop"]) at(id).disabled = true;
  for (const id of ["rate", "left"]) say(at(id), "–");
  for (const id of ["loop", "workers", "roster"]) at(id).closest("section").hidden = true; // of those who work
  at("progress").closest("section").classList.add("wide");
  at("waits").closest("section").hidden = at("waits").tBodies[0].rows.length === 0;
}

async function begin() {
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  if (given && await useToken(given)) history.replaceState(null, "", location.pathname);
  if ((await fetch("api/config")).status === 401) await askForToken().catch(() => undefined);
  at("checkpoint").addEventListener("click", () => act("checkpoint"));
  at("pause").addEventListener("click", () => act(at("pause").textContent === "Resume" ? "resume" : "pause"));
  at("stop").addEventListener("click", () => at("sure").showModal());
  at("roster").addEventListener("submit", (event) => {
    event.preventDefault();
    command();
  });
  at("keep").addEventListener("click", () => at("sure").close());
  at("end").addEventListener("click", () => act("stop"));
  at("measure").addEventListener("change", (event) => {
    Page.searched = true;
    choose(event.target.value);
  });
  Curves.begin();
  at("others").addEventListener("toggle", showRuns);
  at("runs").addEventListener("change", () => {
    Curves.compare([...at("runs").querySelectorAll(":checked")].map((box) => box.value));
  });
  at("config-fold").addEventListener("toggle", async () => {
    at("config").textContent = await asked("api/config");
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => Curves.draw());
  listen();
}

begin();
