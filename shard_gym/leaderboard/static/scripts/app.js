"use strict";
// The selection, kept in the address, and the connection of all parts.
(() => {
  const { el, quoted, offer, named, load, lookAt, ranking, charts, explorer, format, drawReplanning } = window.ShardGym;

  const TRACKS = {
    simulated: "Placements (cost model)",
    sharding: "Sharding plans (cost model)",
    measured: "Placements (measured)",
  };
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

  /** Rank and name, with the league that the rank is in. */
  const rankAndName = (entry) => `${entry.rank}. ${entry.name}${entry.league ? ` (${entry.league})` : ""}`;

  // Suites

  const machine = (suite) => (suite.race ? ` on ${suite.race.name}` : "");

  function offerSuites(track, chosen) {
    const suites = index.suites.filter((suite) => suite.track === track);
    offer(
      named("suite"),
      suites.map((suite) => [suite.key, `${suite.name}${machine(suite)}`]),
      chosen,
    );
  }

  function drawAbout(suite) {
    const facts = [
      ["Tasks", format.count(suite.tasks)],
      ["Tables", format.range(suite.tables, "table").replace(/ tables?$/, "")],
      ["Devices", format.range(suite.devices, "device").replace(/ devices?$/, "")],
      ["Hardware", suite.hardware],
      ["Race", suite.race?.about],
      ["Not raced yet", suite.not_raced.join(", ")],
      [suite.track === "measured" ? "Estimates by" : "Cost model", suite.cost_model],
      ["Entries", format.count(suite.entries)],
      ["How solved", suite.how_solved],
    ];
    named("about").replaceChildren(
      el("p", {}, quoted(suite.description)),
      el(
        "dl",
        { class: "facts" },
        facts
          .filter(([, value]) => value)
          .map(([term, value]) => el("div", {}, el("dt", {}, term), el("dd", {}, quoted(value)))),
      ),
    );
  }

  async function showSuite(wanted = {}) {
    const mine = (requested += 1);
    const suite = index.suites.find((each) => each.key === named("suite").value);
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
    charts.drawTime(named("time"), suite, entries, looks);
    const profile = index.profiles.find((each) => each.track === suite.track);
    charts.drawProfile(named("profile"), profile, looks);
    named("explorer").hidden = !entries.length;
    if (!entries.length) return writeAddress();
    offer(
      named("task"),
      Array.from({ length: suite.tasks }, (_, task) => [String(task), String(task)]),
      wanted.task ?? "0",
    );
    const names = ranking.ranked(entries).map((entry) => [entry.id, rankAndName(entry)]);
    if (suite.best_effort !== null) names.push([BEST, "Best known"]);
    const known = (id, place) =>
      names.some(([name]) => name === id) ? id : names[Math.min(place, names.length - 1)][0];
    offer(named("left"), names, known(wanted.left, 0));
    offer(named("right"), names, known(wanted.right, 1));
    await showPlacements();
  }

  // Placements

  async function showPlacements() {
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
      sheet: details[side].placements[task],
      cost: details[side].task_costs_ms[task],
    }));
    named("task-facts").replaceChildren(...explorer.taskFacts(tasks[task]));
    explorer.draw(named("panels"), suite, tasks[task], sides);
    named("previous").disabled = task === 0;
    named("next").disabled = task === tasks.length - 1;
    writeAddress();
  }

  /** The selection that stays when another suite is selected. */
  const compares = () => ({ left: named("left").value, right: named("right").value });

  /** Show an entry's placements on the left, what was there on the right. */
  function explore(entry) {
    if (named("left").value !== entry.id) named("right").value = named("left").value;
    named("left").value = entry.id;
    showPlacements().catch(complain);
    named("explorer").focus({ preventScroll: true });
    named("explorer").scrollIntoView();
  }

  function step(by) {
    named("task").selectedIndex += by;
    showPlacements().catch(complain);
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
    const suite = index.suites.find((each) => each.key === wanted.suite) ?? index.suites[0];
    named("track").value = suite.track;
    offerSuites(suite.track, suite.key);
    showSuite(wanted).catch(complain);
  }

  async function start() {
    wireTheme();
    for (const form of [named("choice"), named("comparison")])
      form.addEventListener("submit", (event) => event.preventDefault());
    index = await load("index");
    drawReplanning(index.replanning);
    const places = new Map(index.competitors.map((id, place) => [id, place]));
    looks = (id) => lookAt(places.get(id) ?? places.size);
    if (!index.suites.length) {
      named("about").replaceChildren(el("p", { class: "quiet" }, "There are no leaderboards yet."));
      for (const id of ["choice", "ranking", "explorer"]) named(id).hidden = true;
      document.querySelector(".pair").hidden = true;
      return;
    }
    const tracks = Object.keys(TRACKS).filter((track) => index.suites.some((suite) => suite.track === track));
    offer(
      named("track"),
      tracks.map((track) => [track, TRACKS[track]]),
      tracks[0],
    );
    fromAddress();
    named("track").addEventListener("change", () => {
      offerSuites(named("track").value);
      showSuite(compares()).catch(complain);
    });
    named("suite").addEventListener("change", () => showSuite(compares()).catch(complain));
    for (const id of ["task", "left", "right"])
      named(id).addEventListener("change", () => showPlacements().catch(complain));
    named("previous").addEventListener("click", () => step(-1));
    named("next").addEventListener("click", () => step(1));
    window.addEventListener("hashchange", () => {
      if (readAddress().suite) fromAddress();
    });
  }

  start().catch(complain);
})();
