// How a league stands: its members by rating, and how often each beats each of the best.
"use strict";

const League = (() => {
  const MOST = 24; // members of the matrix: more cannot be read
  let shown = "";

  function cell(kind, text, share) {
    const made = document.createElement(kind);
    made.textContent = text;
    if (kind === "th") made.scope = "row";
    if (share !== undefined && share !== null) {
      made.style.background = `color-mix(in srgb, var(--good) ${Math.round(70 * share)}%, var(--card))`;
    }
    return made;
  }

  function row(...cells) {
    const made = document.createElement("tr");
    made.append(...cells);
    return made;
  }

  function show(league, number, percent) {
    const members = league?.members ?? [], told = JSON.stringify(league);
    document.getElementById("league-section").hidden = members.length === 0;
    if (told === shown || !members.length) return;
    shown = told;
    const order = members.map((_, i) => i).sort((a, b) => members[b].elo - members[a].elo);
    document.getElementById("league").tBodies[0].replaceChildren(...order.map((i, place) =>
      row(cell("td", `${place + 1}. ${members[i].name}`), cell("td", number(Math.round(members[i].elo))),
        cell("td", number(members[i].games)), cell("td", percent(members[i].chance)))));
    const best = order.slice(0, MOST), wins = document.getElementById("wins");
    wins.tHead.replaceChildren(row(cell("td", ""), ...best.map((_, place) => cell("td", String(place + 1)))));
    wins.tBodies[0].replaceChildren(...best.map((i, place) =>
      row(cell("th", `${place + 1}. ${members[i].name}`), ...best.map((j) => {
        const rate = league.win_rates[i][j];
        return cell("td", rate === null ? "–" : percent(rate), rate);
      }))));
  }

  return { show };
})();
