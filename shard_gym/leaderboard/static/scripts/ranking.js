"use strict";
// The table of a suite: sortable, one row for each entry.
(() => {
  const { el, svg, spoken, quoted, scroller, format } = window.ShardGym;

  /** The address of a submitted link, if it is a web page. */
  function safeLink(address) {
    try {
      const url = new URL(address);
      return url.protocol === "https:" || url.protocol === "http:" ? url.href : null;
    } catch {
      return null;
    }
  }

  function nameCell(entry, look) {
    const link = safeLink(entry.link);
    const name = quoted(entry.name);
    return el(
      "div",
      { class: "who" },
      window.ShardGym.mark(look),
      el(
        "div",
        {},
        link ? el("a", { href: link, rel: "noopener noreferrer nofollow" }, name) : name,
        el("small", {}, quoted(entry.authors.join(", "))),
      ),
    );
  }

  /** Mean and interval on the scale of all entries; the numbers are beside it. */
  function intervalCell(entry, [low, high]) {
    const x = (value) => 2 + (116 * (value - low)) / (high - low || 1);
    const [from, to] = entry.interval_ms;
    return svg(
      "svg",
      { class: "interval", width: 120, height: 14, viewBox: "0 0 120 14", "aria-hidden": true },
      svg("line", { class: "rule", x1: 0, x2: 120, y1: 7, y2: 7 }),
      svg("line", { class: "whisker", x1: x(from), x2: x(to), y1: 7, y2: 7 }),
      svg("circle", { class: "mean", cx: x(entry.mean_cost_ms), cy: 7, r: 3.5 }),
    );
  }

  /** A ratio and its interval, if that has a width. */
  function ratioCell(ratio, [low, high]) {
    return format.ratio(ratio) + (low < high ? ` (${format.ratio(low)}\u2013${format.ratio(high)})` : "");
  }

  function failuresCell(entry, tasks) {
    if (!entry.failures) return "0";
    const of = entry.seeds * tasks;
    return el("strong", { class: "failed" }, format.count(entry.failures), spoken(` of ${of}, charged with a penalty`));
  }

  function exploreButton(entry, options) {
    const button = el("button", { type: "button", class: "explore" }, "Placements", spoken(` of ${entry.name}`));
    button.addEventListener("click", () => options.explore(entry));
    return button;
  }

  const declares = (entry) => entry.planning_ms !== null && !entry.planning_replayed;

  const planning = (entry, { starred }) => [
    format.time(entry.planning_ms),
    starred && declares(entry) ? el("abbr", { title: "declared by the entry, not replayed" }, "*") : null,
  ];

  // `value` is the key to sort by (null is last), if any; `first` the direction of the first click; `track` the only
  // track that has the column, if it is not in both.
  const COLUMNS = [
    { key: "rank", words: "Rank", value: (e) => e.place, cell: (e) => e.rank, number: true },
    { key: "league", words: "League", track: "simulated", value: (e) => e.leaguePlace, cell: (e) => e.league },
    {
      key: "name",
      words: "Entry",
      value: (e) => e.name.toLowerCase(),
      cell: (e, o) => nameCell(e, o.looks(e.id)),
      head: true,
    },
    {
      key: "cost",
      words: "Mean cost, ms",
      value: (e) => e.mean_cost_ms,
      cell: (e) => format.ms(e.mean_cost_ms),
      number: true,
    },
    { key: "action", words: "", cell: (e, o) => exploreButton(e, o) },
    {
      key: "interval",
      words: "95% interval, ms",
      value: (e) => e.interval_ms[1] - e.interval_ms[0],
      number: true,
      cell: (e, o) => [`${format.ms(e.interval_ms[0])}\u2013${format.ms(e.interval_ms[1])} `, intervalCell(e, o.scale)],
      about: "by its width",
    },
    {
      key: "failures",
      words: "Failures",
      value: (e) => e.failures,
      cell: (e, o) => failuresCell(e, o.suite.tasks),
      number: true,
    },
    {
      key: "gap",
      words: "Gap to best known",
      track: "simulated",
      value: (e) => e.gap,
      cell: (e) => format.percent(e.gap),
      number: true,
    },
    {
      key: "ratio",
      words: "Ratio to the cheapest",
      track: "measured",
      value: (e) => e.ratio,
      cell: (e) => ratioCell(e.ratio, e.ratio_interval),
      number: true,
    },
    {
      key: "improvement",
      words: "Better than next",
      value: (e) => e.improvement_over_next,
      first: "descending",
      cell: (e) => format.share(e.improvement_over_next),
      number: true,
    },
    { key: "planning", words: "Planning, per task", value: (e) => e.planning_ms, cell: planning, number: true },
    {
      key: "queries",
      words: "Queries per task",
      value: (e) => e.planning_queries,
      cell: (e) => format.count(e.planning_queries),
      number: true,
    },
    {
      key: "training",
      words: "Queries in training",
      value: (e) => e.training_queries,
      cell: (e) => format.count(e.training_queries),
      number: true,
    },
    { key: "agent", words: "Agent", value: (e) => e.agent.toLowerCase(), cell: (e) => quoted(e.agent || format.NONE) },
    {
      key: "data",
      words: "Trained on",
      value: (e) => e.training_data.toLowerCase(),
      cell: (e) => quoted(e.training_data || "not trained"),
    },
    {
      key: "hardware",
      words: "Planned on",
      value: (e) => e.hardware.toLowerCase(),
      cell: (e) => quoted(e.hardware || format.NONE),
    },
    { key: "seeds", words: "Seeds", value: (e) => e.seeds, cell: (e) => e.seeds, number: true },
    {
      key: "licence",
      words: "Licence",
      value: (e) => e.licence.toLowerCase(),
      cell: (e) => quoted(e.licence || format.NONE),
    },
    { key: "version", words: "ShardGym", value: (e) => e.shard_gym, cell: (e) => quoted(e.shard_gym) },
  ];

  function sorted(entries, column, direction) {
    const sign = direction === "ascending" ? 1 : -1;
    return [...entries].sort((one, other) => {
      const [a, b] = [column.value(one), column.value(other)];
      if (a === b) return one.place - other.place;
      if (a === null || b === null) return a === null ? 1 : -1;
      return a < b ? -sign : sign;
    });
  }

  /** The entries, league by league and the best first, with their ranks in the league; equal costs share one. */
  function ranked(entries) {
    const same = (one, other) => Math.abs(one.mean_cost_ms - other.mean_cost_ms) <= 1e-8 * one.mean_cost_ms;
    let rank = 1;
    let first = 0;
    let leaguePlace = 0;
    return entries.map((entry, place) => {
      const before = entries[place - 1];
      if (place && before.league !== entry.league) {
        rank = 1;
        first = place;
        leaguePlace += 1;
      } else if (place && !same(entry, before)) rank = place - first + 1;
      return { ...entry, rank, place, leaguePlace };
    });
  }

  /** Draw the table into `place`. `options`: suite, entries, looks(id), explore(entry), announce(words). */
  function draw(place, options) {
    const entries = ranked(options.entries);
    if (!entries.length) {
      place.replaceChildren(el("p", { class: "quiet" }, "No entry of this suite is ranked yet."));
      return;
    }
    const scale = [
      Math.min(...entries.map((e) => e.interval_ms[0])),
      Math.max(...entries.map((e) => e.interval_ms[1])),
    ];
    const columns = COLUMNS.filter((column) => !column.track || column.track === options.suite.track);
    const starred = entries.some((entry) => entry.planning_replayed);
    const body = el("tbody");
    const heads = columns.map((column) => header(column));
    let current = { column: columns[0], direction: "ascending" };

    function header(column) {
      if (!column.value) return el("td", { class: column.key });
      const button = el(
        "button",
        { type: "button" },
        column.words,
        el("span", { class: "arrow", "aria-hidden": true }),
      );
      const cell = el("th", { scope: "col", class: column.number ? "number" : null, "data-key": column.key }, button);
      button.addEventListener("click", () => {
        const first = column.first ?? "ascending";
        const other = first === "ascending" ? "descending" : "ascending";
        sort(column, current.column === column && current.direction === first ? other : first);
        const about = column.about ? ` ${column.about}` : "";
        options.announce(`Sorted by ${column.words}${about}, ${current.direction}.`);
      });
      return cell;
    }

    function row(entry) {
      const cells = columns.map((column) =>
        el(
          column.head ? "th" : "td",
          { scope: column.head ? "row" : null, class: `${column.key}${column.number ? " number" : ""}` },
          column.cell(entry, { ...options, scale, starred }),
        ),
      );
      return el("tr", { "data-entry": entry.id }, ...cells);
    }

    function sort(column, direction) {
      current = { column, direction };
      heads.forEach((head, index) => {
        if (columns[index] === column) head.setAttribute("aria-sort", direction);
        else head.removeAttribute("aria-sort");
      });
      body.replaceChildren(...sorted(entries, column, direction).map(row));
    }

    sort(current.column, current.direction);
    const table = el(
      "table",
      { class: "ranking" },
      el("caption", { class: "hidden" }, `Entries of ${options.suite.name}; the buttons in the header sort them.`),
      el("thead", {}, el("tr", {}, ...heads)),
      body,
    );
    const declared = !entries.some(declares)
      ? ""
      : starred
        ? " * Declared by the entry, not replayed."
        : " Planning times are declared by the entries.";
    const scores = options.suite.track === "measured" ? "a cost model" : "the cost model that scores";
    const leagues =
      options.suite.track === "measured"
        ? ""
        : " Ranks are within a league: zero-query asks the cost model nothing while it places, guided at most one look at" +
          " each table on each device, search anything.";
    const notes = `Queries are evaluations of ${scores}.${leagues}${declared}`;
    place.replaceChildren(scroller("Ranking; scrolls sideways", "wide", table), el("p", { class: "quiet" }, notes));
  }

  Object.assign(window.ShardGym, { ranking: { draw, ranked }, safeLink });
})();
