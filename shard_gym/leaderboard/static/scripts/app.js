"use strict";
// The selection, kept in the address, and the connection of all parts.
(() => {
  const { el, quoted, quiet, factList, offer, named, load, lookAt, format, TRACKS } = window.ShardGym;
  const { ranking, charts, explorer, decisions } = window.ShardGym;

  // The best known placements are selected like an entry; no entry's id has a blank in it.
  const BEST = "best known";
  let index = null;
  let looks = null;
  // The suite that is shown, and counters that tell an outdated load from a current one.
  let shown = null;
  let requested = 0;
  let compared = 0;

  const complain = (error) => {
    named("problem").textContent = error.message;
    named("problem").hidden = false;
  };

  // The address holds the selection: #suite=simulated/dlrm-20x4&task=3&left=random&right=cost-greedy

  const readAddress = () => Object.fromEntries(new URLSearchParams(location.hash.slice(1)));

  function writeAddress() {
    const chosen = new URLSearchParams({ suite: named("suite").value });
    if (shown?.entries.length) {
      for (const name of ["task", "left", "right"]) chosen.set(name, named(name).value);
    }
    const address = `#${chosen.toString().replaceAll("%2F", "/")}`;
    if (address !== location.hash) history.replaceState(null, "", address);
  }

  /** Rank and name, with the group that the rank is in. */
  const rankAndName = (entry) => `${entry.rank}. ${entry.name}${entry.group ? ` (${entry.group})` : ""}`;

  // Tracks and suites

  const suitesOf = (track) => index.suites.filter((suite) => suite.track === track);

  /** The suite that the page, or a track, opens on: the first open one, or undecided one, or of all. */
  const firstOf = (suites) => {
    const of = (status) => suites.find((suite) => suite.status === status);
    return of("open") ?? of("undecided") ?? suites[0];
  };

  function drawTabs() {
    const tracks = Object.keys(TRACKS).filter((track) => suitesOf(track).length);
    named("tracks").replaceChildren(
      ...tracks.map((track) =>
        el("a", { href: `#suite=${firstOf(suitesOf(track)).key}`, "data-track": track }, TRACKS[track].tab),
      ),
    );
  }

  function markTab(track) {
    for (const tab of named("tracks").children)
      if (tab.dataset.track === track) tab.setAttribute("aria-current", "page");
      else tab.removeAttribute("aria-current");
  }

  function offerSuites(track, chosen) {
    const option = (suite) => [suite.key, `${suite.name}${suite.race ? ` on ${suite.race.name}` : ""}`];
    const suites = suitesOf(track);
    const groups = ["open", "undecided", "solved"].map((status) => [
      `${status[0].toUpperCase()}${status.slice(1)} suites`,
      suites.filter((suite) => suite.status === status).map(option),
    ]);
    const others = suites.filter((suite) => !suite.status).map(option);
    offer(named("suite"), [...groups.filter(([, members]) => members.length), ...others], chosen);
  }

  function drawAbout(suite) {
    const { status } = suite;
    named("about").replaceChildren(
      el(
        "p",
        { class: "lead" },
        status ? el("span", { class: `badge ${status}` }, status) : null,
        status ? " " : null,
        quoted(suite.description),
      ),
      suite.how_solved ? quiet(quoted(suite.how_solved)) : "",
      factList([
        ["Tasks", format.count(suite.tasks)],
        ["Tables", format.range(suite.tables)],
        ["Devices", format.range(suite.devices)],
        ["Hardware", suite.hardware],
        [suite.track === "measured" ? "Estimates by" : "Cost model", suite.cost_model],
        ["A plan pauses for", suite.pause_s && `${format.count(suite.pause_s)} s`],
        ["Oracle, with hindsight", suite.oracle_hours && `${format.ratio(suite.oracle_hours)} hours`],
        ["Entries", format.count(suite.entries)],
        ["Race", suite.race?.about],
        ["Not raced yet", suite.not_raced?.join(", ")],
      ]),
    );
  }

  async function showSuite(wanted = {}) {
    const mine = (requested += 1);
    const suite = index.suites.find((each) => each.key === named("suite").value);
    markTab(suite.track);
    named("track-about").textContent = TRACKS[suite.track].about;
    drawAbout(suite);
    const entries = await load(`${suite.key}/ranking`);
    if (mine !== requested) return;
    shown = { suite, entries };
    ranking.draw(named("table"), {
      suite,
      entries,
      looks,
      explore,
      announce: (words) => {
        named("announcement").textContent = words;
      },
    });
    named("scores-title").textContent = TRACKS[suite.track].chart.title;
    charts.drawScores(named("scores"), suite, entries, looks);
    const profiled = index.profile?.track === suite.track;
    named("profiles").hidden = !profiled;
    if (profiled) charts.drawProfile(named("profile"), index.profile, looks);
    named("explorer").hidden = !entries.length;
    if (!entries.length) return writeAddress();
    offer(
      named("task"),
      Array.from({ length: suite.tasks }, (_, task) => [String(task), String(task)]),
      wanted.task ?? "0",
    );
    const names = ranking.ranked(entries).map((entry) => [entry.id, rankAndName(entry)]);
    if ((suite.best_effort ?? null) !== null) names.push([BEST, "Best known"]);
    const known = (id, place) =>
      names.some(([name]) => name === id) ? id : names[Math.min(place, names.length - 1)][0];
    offer(named("left"), names, known(wanted.left, 0));
    offer(named("right"), names, known(wanted.right, 1));
    await showAnswers();
  }

  // Placements, plans or decisions, side by side

  async function showAnswers() {
    const mine = (compared += 1);
    const { suite, entries } = shown;
    const ids = [named("left").value, named("right").value];
    const [tasks, ...details] = await Promise.all([
      load(`${suite.key}/tasks`),
      ...ids.map((id) => load(`${suite.key}/${id === BEST ? "best" : `entries/${id}`}`)),
    ]);
    if (mine !== compared || suite !== shown.suite) return;
    named("task").replaceChildren(
      ...tasks.map((task, place) => {
        const option = el("option", { value: String(place) }, task.name.split("/").pop());
        option.selected = String(place) === named("task").value;
        return option;
      }),
    );
    const task = Number(named("task").value);
    const sides = ids.map((id, side) => ({
      entry:
        id === BEST
          ? { id, name: "Best known", seeds: 1, note: suite.best_effort }
          : entries.find((entry) => entry.id === id),
      look: looks(id),
      sheet: details[side].sheets[task],
      score: details[side].scores[task],
    }));
    const { taskFacts, draw } = suite.track === "replanning" ? decisions : explorer;
    named("task-facts").replaceChildren(...taskFacts(tasks[task], suite));
    draw(named("panels"), suite, tasks[task], sides);
    named("previous").disabled = task === 0;
    named("next").disabled = task === tasks.length - 1;
    writeAddress();
  }

  /** The selection that stays when another suite is selected. */
  const compares = () => ({ left: named("left").value, right: named("right").value });

  /** Show an entry's answers on the left, what was there on the right. */
  function explore(entry) {
    if (named("left").value !== entry.id) named("right").value = named("left").value;
    named("left").value = entry.id;
    showAnswers().catch(complain);
    named("explorer").focus({ preventScroll: true });
    named("explorer").scrollIntoView();
  }

  function step(by) {
    named("task").selectedIndex += by;
    showAnswers().catch(complain);
  }

  // Dark and light

  const remembered = () => {
    try {
      return localStorage.getItem("shard-gym-theme");
    } catch {
      return null;
    }
  };

  function wireTheme() {
    const system = matchMedia("(prefers-color-scheme: dark)");
    let chosen = remembered();
    const apply = () => {
      const dark = chosen ? chosen === "dark" : system.matches;
      document.documentElement.dataset.theme = dark ? "dark" : "light";
      named("theme").setAttribute("aria-pressed", String(dark));
    };
    named("theme").addEventListener("click", () => {
      chosen = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
      try {
        localStorage.setItem("shard-gym-theme", chosen);
      } catch {
        /* the theme lasts until the page is closed */
      }
      apply();
    });
    system.addEventListener("change", apply);
    apply();
  }

  function fromAddress() {
    const wanted = readAddress();
    const suite = index.suites.find((each) => each.key === wanted.suite) ?? firstOf(index.suites);
    offerSuites(suite.track, suite.key);
    showSuite({ ...compares(), ...wanted }).catch(complain);
  }

  async function start() {
    wireTheme();
    for (const form of [named("choice"), named("comparison")])
      form.addEventListener("submit", (event) => event.preventDefault());
    index = await load("index");
    for (const link of document.querySelectorAll("[data-page]")) link.href = `${index.docs}${link.dataset.page}`;
    named("docs").hidden = !index.docs;
    const places = new Map(index.competitors.map((id, place) => [id, place]));
    looks = (id) => lookAt(places.get(id) ?? places.size);
    if (!index.suites.length) {
      named("about").replaceChildren(quiet("There are no leaderboards yet."));
      for (const id of ["choice", "ranking", "charts", "explorer"]) named(id).hidden = true;
      return;
    }
    drawTabs();
    fromAddress();
    named("suite").addEventListener("change", () => showSuite(compares()).catch(complain));
    for (const id of ["task", "left", "right"])
      named(id).addEventListener("change", () => showAnswers().catch(complain));
    named("previous").addEventListener("click", () => step(-1));
    named("next").addEventListener("click", () => step(1));
    window.addEventListener("hashchange", () => {
      if (readAddress().suite) fromAddress();
    });
  }

  start().catch(complain);
})();
