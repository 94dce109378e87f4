// The loop as a picture: actors -> segments -> learners -> weights -> actors, with what flows now.
"use strict";

const Loop = (() => {
  const PICTURE = `
<svg viewBox="0 0 460 250" role="img" aria-label="the loop of the run">
  <defs><marker id="head" viewBox="0 0 10 10" refX="8" refY="5" markerWidth="7" markerHeight="7" orient="auto">
    <path d="M0 0 L10 5 L0 10 z"/></marker></defs>
  <rect class="box" x="4" y="70" width="150" height="110" rx="10"/>
  <text class="name" x="79" y="98">actors</text>
  <text x="79" y="122" id="loop-actors"></text>
  <text x="79" y="143" id="loop-steps"></text>
  <text class="faint" x="79" y="164" id="loop-blocked"></text>
  <rect class="box" x="306" y="70" width="150" height="110" rx="10"/>
  <text class="name" x="381" y="98">learners</text>
  <text x="381" y="122" id="loop-learners"></text>
  <text x="381" y="143" id="loop-train"></text>
  <text class="faint" x="381" y="164" id="loop-starved"></text>
  <path class="arrow" id="loop-out" d="M 79 66 C 110 20, 350 20, 378 63"/>
  <text x="230" y="22" id="loop-segments"></text>
  <rect class="trough" x="150" y="48" width="160" height="10" rx="5"/>
  <rect class="fill" id="loop-fill" x="150" y="48" width="0" height="10" rx="5"/>
  <text class="faint" x="230" y="76" id="loop-queue"></text>
  <text class="faint" x="230" y="96" id="loop-way"></text>
  <path class="arrow" id="loop-back" d="M 381 184 C 350 232, 110 232, 82 187"/>
  <text x="230" y="208" id="loop-versions"></text>
  <text class="faint" x="230" y="240" id="loop-lag"></text>
</svg>`;
  let place = null;

  function say(id, text) {
    const node = document.getElementById(id);
    if (node.textContent !== text) node.textContent = text;
  }

  function sum(flows, key) {
    return flows.reduce((total, flow) => total + flow[key], 0);
  }

  function show(view, number, percent) {
    if (!place) {
      place = document.getElementById("loop");
      place.innerHTML = PICTURE;
    }
    const flows = Object.values(view.flow), many = Math.max(1, flows.length);
    const count = (role) => view.workers.filter((worker) => worker.role === role).length;
    const fill = flows.reduce((most, flow) => Math.max(most, flow.queue_fill), 0);
    const lags = Object.values(view.policies).map((policy) => policy.lag).filter((lag) => lag !== null);
    const received = sum(flows, "segments_received_per_second"), versions = sum(flows, "versions_per_second");
    say("loop-actors", `${count("actor")} at work`);
    say("loop-steps", `${number(view.agent_steps_per_second)} steps/s`);
    say("loop-blocked", `wait for credit ${percent(flows.reduce((most, flow) => Math.max(most, flow.blocked), 0))}`);
    say("loop-learners", `${count("learner")} at work`);
    say("loop-train", `${number(sum(flows, "train_steps_per_second"))} updates/s`);
    say("loop-starved", `wait for data ${percent(sum(flows, "starvation") / many)}`);
    say("loop-segments", `${number(received)} segments/s`);
    say("loop-queue", `queue ${percent(fill)} full`);
    say("loop-way", `${number(sum(flows, "in_flight"))} on their way`);
    say("loop-versions", `${number(versions)} versions/s`);
    say("loop-lag", `lag ${lags.length ? number(Math.max(...lags)) : "–"}, ` +
      `${number(flows.reduce((most, flow) => Math.max(most, flow.adoption_lag), 0))} versions not adopted`);
    const bar = document.getElementById("loop-fill");
    bar.setAttribute("width", String(160 * Math.min(1, fill)));
    bar.classList.toggle("full", fill >= 0.99);
    document.getElementById("loop-out").classList.toggle("still", received === 0);
    document.getElementById("loop-back").classList.toggle("still", versions === 0);
  }

  return { show };
})();
