// Panels of curves, a line for each policy and measure, drawn by Plotly. All points are kept, as many drawn as can be seen.
"use strict";

const Curves = (() => {
  const BUDGET = 2500; // points drawn, of all lines of a panel together
  const TOLD_APART = 12; // lines with a name of their own in the legend; more share a few traces, which cost the time
  const COLORS = ["#2f7ed8", "#e4572e", "#2ca05a", "#b05ad0", "#c79a00", "#17a2b8", "#d6336c", "#7a7f87"];
  // the last is that of the whole run, too
  // Measures of an axis: the first with whole lines, what is beside it with dashes, on the right where `right` says so.
  const PANELS = [
    { title: "return", measures: ["return", "evaluation/return"] },
    { title: "loss", measures: ["loss", "entropy"], right: true },
    { title: "steps per second", measures: ["agent_steps_per_second", "lag"], right: true },
    { title: "rows trained per second", measures: ["rows_per_second"] },
    { title: "", measures: [] }, // of the measure that is searched for
  ];
  const lines = new Map(); // measure -> name -> {steps, values}
  const others = new Map(); // another run -> the same
  const Shown = { panels: PANELS, slowest: 0 };
  let newest = -1, smooth = 0, log = false, drawing = false, again = false;

  // [n] -> [n]: means over a window, which is cut at the ends.
  function smoothed(values) {
    const half = Math.floor(values.length * smooth / 2);
    if (half < 1) return values;
    const sums = [0];
    for (const value of values) sums.push(sums.at(-1) + value);
    return values.map((_, i) => {
      const low = Math.max(i - half, 0), high = Math.min(i + half + 1, values.length);
      return (sums[high] - sums[low]) / (high - low);
    });
  }

  function thin(steps, all, most) {
    const stride = Math.max(1, Math.ceil(steps.length / most)), values = smoothed(all);
    if (stride === 1) return [steps, values];
    const x = [], y = [];
    for (let i = 0; i < steps.length; i += stride) {
      const end = Math.min(i + stride, steps.length);
      let a = 0, b = 0;
      for (let k = i; k < end; k++) { a += steps[k]; b += values[k]; }
      x.push(a / (end - i));
      y.push(b / (end - i));
    }
    return [x, y];
  }

  // [measure, name, line], in an order in which a policy has the same place in each panel.
  function linesOf(panel) {
    return panel.measures.flatMap((measure) => [lines, ...others.values()].flatMap((of) => Object.entries(of.get(measure) ?? {}))
      .filter(([, line]) => line.steps.length).sort(([a], [b]) => a.localeCompare(b, "en", { numeric: true }))
      .map(([name, line]) => [measure, name, line]));
  }

  function tracesOf(panel) {
    const found = linesOf(panel), most = Math.max(20, Math.floor(BUDGET / Math.max(1, found.length)));
    const names = [...new Set(found.map(([, name]) => name).filter(Boolean))], apart = found.length <= TOLD_APART, traces = new Map();
    for (const [measure, name, line] of found) {
      const i = name ? names.indexOf(name) % COLORS.length : COLORS.length - 1, beside = measure !== panel.measures[0];
      const [x, y] = thin(line.steps, line.values, most), key = apart ? `${measure}\n${name}` : `${beside} ${i}`;
      const label = [name, beside || !name ? measure : ""].filter(Boolean).join(" · ");
      if (!traces.has(key)) {
        traces.set(key, { x: [], y: [], text: [], name: label, mode: "lines", type: "scatter", hoverinfo: "x+y+text",
          yaxis: beside && panel.right ? "y2" : "y",
          line: { width: apart ? 2 : 1, color: COLORS[i], dash: beside ? "dash" : "solid" } });
      }
      const trace = traces.get(key);
      if (x.length === 1) trace.mode = "markers";
      trace.x.push(...x, null); // a gap before the next line
      trace.y.push(...y, null);
      trace.text.push(...x.map(() => label), "");
    }
    return [[...traces.values()], apart];
  }

  function drawPanel(panel) {
    const [traces, apart] = tracesOf(panel), beside = panel.right && traces.some((trace) => trace.yaxis === "y2");
    panel.place.closest("figure").hidden = traces.length === 0;
    if (traces.length === 0) return;
    panel.caption.textContent = panel.title;
    const style = getComputedStyle(document.documentElement), color = (name) => style.getPropertyValue(name).trim();
    const axis = { gridcolor: color("--line"), zerolinecolor: color("--line"), automargin: true,
      ticks: "outside", ticklen: 4, tickcolor: "rgba(0,0,0,0)" }; // numbers of two axes stand apart in their corner
    Plotly.react(panel.place, traces, {
      margin: { l: 40, r: 10, t: 10, b: 30 }, height: 260, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { color: color("--ink"), size: 12 }, xaxis: { ...axis, rangemode: "tozero", title: { text: "steps" } },
      yaxis: { ...axis, type: log ? "log" : "linear" },
      yaxis2: { ...axis, overlaying: "y", side: "right", showgrid: false, visible: beside, zeroline: false, tickmode: "auto",
        title: { text: beside ? panel.measures[1] : "" } },
      showlegend: traces.length > 1 && apart, legend: { orientation: "h", y: 1.02, yanchor: "bottom" },
      hovermode: apart ? "x" : "closest", uirevision: panel.measures[0],
    }, { responsive: true, displaylogo: false, displayModeBar: false });
  }

  // Each panel in a turn of its own: what is typed and clicked meanwhile does not wait for all of them.
  function draw() {
    again = drawing;
    if (drawing) return;
    drawing = true;
    const left = [...PANELS];
    const next = () => {
      const panel = left.shift();
      if (!panel) {
        drawing = false;
        if (again) draw();
        return;
      }
      const started = performance.now();
      if (panel.place && window.Plotly) drawPanel(panel);
      Shown.last = performance.now() - started;
      Shown.slowest = Math.max(Shown.slowest, Shown.last);
      setTimeout(next);
    };
    setTimeout(next);
  }

  // All measures that are shown, of this run or another one; null where they cannot be had.
  async function ask(run) {
    const wanted = PANELS.flatMap((panel) => panel.measures).map((measure) => ["measure", measure]);
    const query = new URLSearchParams(run === undefined ? wanted : [["run", run], ...wanted]);
    const answer = await fetch(`api/curves?${query}`).catch(() => null);
    return answer?.ok ? await answer.json() : null;
  }

  // Shows these runs beside this one, as far as they have come.
  async function compare(runs) {
    for (const run of others.keys()) if (!runs.includes(run)) others.delete(run);
    for (const run of runs) if (!others.has(run)) others.set(run, new Map());
    await loadOthers();
    draw();
  }

  async function loadOthers() {
    await Promise.all([...others.keys()].map(async (run) => {
      const told = await ask(run);
      if (told && others.has(run)) others.set(run, new Map(Object.entries(told)));
    }));
  }

  // Asks for what there is of all measures that are shown.
  async function load() {
    const [told] = await Promise.all([ask(), loadOthers()]);
    if (!told) return;
    for (const [measure, curves] of Object.entries(told)) {
      const last = Math.max(-1, ...Object.values(curves).map((line) => line.steps.at(-1) ?? -1));
      for (const [name, line] of Object.entries(lines.get(measure) ?? {})) { // what came while the answer was on its way
        const mine = (curves[name] ??= { steps: [], values: [] });
        line.steps.forEach((step, i) => {
          if (step > last) { mine.steps.push(step); mine.values.push(line.values[i]); }
        });
      }
      lines.set(measure, curves);
      newest = Math.max(newest, last);
    }
    draw();
  }

  function choose(measure) {
    const panel = PANELS.at(-1);
    if (panel.measures[0] === measure) return;
    if (!PANELS.slice(0, -1).some((one) => one.measures.includes(panel.measures[0]))) lines.delete(panel.measures[0]);
    [panel.title, panel.measures] = [measure, [measure]];
    load();
  }

  function add(point) {
    if (point.step <= newest) return;
    newest = point.step;
    for (const [name, value] of Object.entries(point.values)) {
      const cut = name.indexOf("/"), mine = cut < 0 ? name : name.slice(cut + 1), known = lines.get(mine);
      if (!known || value === null) continue;
      const line = (known[cut < 0 ? "" : name.slice(0, cut)] ??= { steps: [], values: [] });
      line.steps.push(point.step);
      line.values.push(value);
    }
    draw();
  }

  function button(text, click) {
    const made = document.createElement("button");
    made.type = "button";
    made.textContent = text;
    made.addEventListener("click", click);
    return made;
  }

  function file(panel, ending) {
    return `${document.getElementById("run").textContent}-${panel.measures[0].replaceAll("/", "-")}.${ending}`;
  }

  function table(panel) {
    const rows = linesOf(panel).flatMap(([measure, name, line]) => line.steps.map((step, i) =>
      [measure, `"${name.replaceAll('"', '""')}"`, step, line.values[i]].join(",")));
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([["measure,policy,steps,value", ...rows, ""].join("\n")], { type: "text/csv" }));
    link.download = file(panel, "csv");
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  }

  // Puts the panels into the page.
  function begin() {
    document.getElementById("no-curves").hidden = Boolean(window.Plotly);
    for (const panel of PANELS) {
      const figure = document.getElementById("curves").appendChild(document.createElement("figure"));
      figure.hidden = true; // until there is something to draw
      const caption = figure.appendChild(document.createElement("figcaption"));
      panel.caption = caption.appendChild(document.createElement("span"));
      caption.append(button("PNG", () => Plotly.downloadImage(panel.place,
        { format: "png", scale: 2, filename: file(panel, "png").slice(0, -4) })));
      caption.append(button("CSV", () => table(panel)));
      panel.place = figure.appendChild(document.createElement("div"));
    }
    document.getElementById("smooth").addEventListener("input", (event) => {
      smooth = Number(event.target.value);
      draw();
    });
    document.getElementById("log-scale").addEventListener("change", (event) => {
      log = event.target.checked;
      draw();
    });
  }

  const points = () => linesOf(PANELS[0]).reduce((n, [, , line]) => n + line.steps.length, 0);
  return Object.assign(Shown, { add, begin, choose, compare, draw, load, points });
})();
