// Curves of one measure, a line for each policy, drawn by Plotly. All points are kept, as many drawn as can be seen.
"use strict";

const Curves = (() => {
  const BUDGET = 2500; // points drawn, of all lines together
  const TOLD_APART = 12; // lines with a name of their own in the legend; more share a few traces, which cost the time
  const COLORS = ["#2f7ed8", "#e4572e", "#2ca05a", "#b05ad0", "#c79a00", "#17a2b8", "#d6336c", "#7a7f87"];
  let measure = "", lines = {}, newest = -1;

  function thin(curve, most) {
    const stride = Math.max(1, Math.ceil(curve.steps.length / most));
    if (stride === 1) return [curve.steps, curve.values];
    const steps = [], values = [];
    for (let i = 0; i < curve.steps.length; i += stride) {
      const end = Math.min(i + stride, curve.steps.length);
      let x = 0, y = 0;
      for (let k = i; k < end; k++) { x += curve.steps[k]; y += curve.values[k]; }
      steps.push(x / (end - i));
      values.push(y / (end - i));
    }
    return [steps, values];
  }

  function draw() {
    const place = document.getElementById("curves");
    if (!window.Plotly) {
      document.getElementById("no-curves").hidden = false;
      return;
    }
    const style = getComputedStyle(document.documentElement), color = (name) => style.getPropertyValue(name).trim();
    const names = Object.keys(lines).sort(), most = Math.max(20, Math.floor(BUDGET / Math.max(1, names.length)));
    const apart = names.length <= TOLD_APART, traces = [];
    names.forEach((name, i) => {
      const [x, y] = thin(lines[name], most), place = apart ? i : i % COLORS.length;
      const trace = (traces[place] ??= { x: [], y: [], text: [], name: name || "run", mode: "lines", type: "scatter",
        hoverinfo: "x+y+text", line: { width: apart ? 2 : 1, color: COLORS[i % COLORS.length] } });
      for (let k = 0; k < x.length; k++) {
        trace.x.push(x[k]);
        trace.y.push(y[k]);
        trace.text.push(name);
      }
      trace.x.push(null); // a gap before the next line
      trace.y.push(null);
      trace.text.push("");
    });
    const axis = { gridcolor: color("--line"), zerolinecolor: color("--line"), automargin: true };
    Plotly.react(place, traces, {
      margin: { l: 40, r: 10, t: 10, b: 30 }, height: 300, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { color: color("--ink"), size: 12 }, xaxis: { ...axis, title: { text: "steps" } }, yaxis: axis,
      showlegend: names.length > 1 && apart, legend: { orientation: "h", y: 1.15 }, uirevision: measure,
    }, { responsive: true, displaylogo: false, displayModeBar: false });
  }

  async function choose(name) {
    if (measure !== name) [measure, lines, newest] = [name, {}, -1];
    const answer = await fetch(`api/curves?measure=${encodeURIComponent(name)}`).catch(() => null);
    const told = answer?.ok ? await answer.json() : null;
    if (!told || measure !== name) return;
    const last = Math.max(-1, ...Object.values(told).map((line) => line.steps.at(-1) ?? -1));
    for (const [policy, line] of Object.entries(lines)) { // points that came while the answer was on its way
      const mine = (told[policy] ??= { steps: [], values: [] });
      line.steps.forEach((step, i) => {
        if (step > last) { mine.steps.push(step); mine.values.push(line.values[i]); }
      });
    }
    lines = told;
    newest = Math.max(newest, last);
    draw();
  }

  function add(point) {
    if (!measure || point.step <= newest) return;
    newest = point.step;
    for (const [name, value] of Object.entries(point.values)) {
      const cut = name.indexOf("/"), mine = cut < 0 ? name : name.slice(cut + 1);
      if (mine !== measure || value === null) continue;
      const line = (lines[cut < 0 ? "" : name.slice(0, cut)] ??= { steps: [], values: [] });
      line.steps.push(point.step);
      line.values.push(value);
    }
    draw();
  }

  return { add, choose, draw, points: () => Object.values(lines).reduce((n, line) => n + line.steps.length, 0) };
})();
