"use strict";
// The table of a suite: sortable, one row for each entry.
(() => {
  const { el, svg, spoken, quoted, quiet, scroller, format, mark, TRACKS } = window.ShardGym;

  /** The address of a submitted link, if it is a web page. */
  function safeLink(address) {
    try {
      const url = new URL(address);
      return url.protocol === "https:" || url.protocol === "http:" ? url.href : null;
    } catch {
      return null;
    }
  }

  function nameCell(entry, { looks, grouped }) {
    const link = safeLink(entry.link);
    const name = quoted(entry.name);
    const group = !grouped && entry.group ? `${entry.group} \u00b7 ` : null;
    return el(
      "div",
      { class: "who" },
      mark(looks(entry.id)),
      el(
        "div",
        {},
        link ? el("a", { href: link, rel: "noopener noreferrer nofollow" }, name) : name,
        el("small", {}, group, quoted(entry.authors.join(", "))),
      ),
    );
  }

  /** The interval in numbers; and with the score on the scale of the entries without failures. */
  function intervalCell(entry, { track, scale: [low, high] }) {
    const WIDE = 56;
    const x = (value) => 4 + ((WIDE - 8) * (value - low)) / (high - low || 1);
    const [from, to] = entry.interval;
    const marks = [
      svg("line", { class: "whisker", x1: x(from), x2: x(to), y1: 7, y2: 7 }),
      svg("circle", { class: "mean", cx: x(entry.score), cy: 7, r: 3.5 }),
    ];
    return [
      `${track.value(from)}\u2013${track.value(to)} `,
      svg(
        "svg",
        { class: "interval", width: WIDE, height: 14, viewBox: `0 0 ${WIDE} 14`, "aria-hidden": true },
        svg("line", { class: "rule", x1: 0, x2: WIDE, y1: 7, y2: 7 }),
        ...(to <= high ? marks : []),
      ),
    ];
  }

  /** A ratio and its interval, if that has a width. */
  function ratioCell({ ratio, ratio_interval: [low, high] }) {
    return format.ratio(ratio) + (low < high ? ` (${format.ratio(low)}\u2013${format.ratio(high)})` : "");
  }

  /** The gap on fresh tasks, and a mark where it grew by more than chance. */
  function freshCell({ fresh, falls }) {
    return falls ? [`${format.percent(fresh)} `, el("strong", { class: "failed" }, "falls")] : format.percent(fresh);
  }

  function failuresCell(entry, { suite }) {
    if (!entry.failures) return "0";
    const of = entry.seeds * suite.tasks;
    return el("strong", { class: "failed" }, format.count(entry.failures), spoken(` of ${of}, charged with a penalty`));
  }

  function exploreButton(entry, { suite, explore }) {
    const button = el("button", { type: "button", class: "explore" }, suite.answers, spoken(` of ${entry.name}`));
    button.addEventListener("click", () => explore(entry));
    return button;
  }

  const declares = (entry) => entry.planning_ms !== undefined && !entry.planning_replayed;

  const planning = (entry, { starred }) => [
    format.time(entry.planning_ms),
    starred && declares(entry) ? el("abbr", { title: "declared by the entry, not replayed" }, "*") : null,
  ];

  // Of each column: `value` is the key to sort by (null is last), if any; `first` the direction of the first click;
  // `tracks` those that have it, if not all; `optional` whether it is left out where no entry has a value; `detail`
  // whether it is shown only with all columns.
  const COSTS = ["simulated", "sharding", "measured"];
  const number = (key, words, value, write, more) => ({
    key,
    words,
    value,
    cell: (entry) => write(value(entry)),
    number: true,
    ...more,
  });
  const text = (key, words, value, none = format.NONE) => ({
    key,
    words,
    value: (entry) => value(entry).toLowerCase(),
    cell: (entry) => quoted(value(entry) || none),
    detail: true,
  });
  const COLUMNS = [
    number("rank", "Rank", (e) => e.place, String, { cell: (e) => e.rank }),
    { key: "name", words: "Entry", value: (e) => e.name.toLowerCase(), cell: nameCell, head: true },
    number("score", (track) => track.score, (e) => e.score, String, { cell: (e, { track }) => track.value(e.score) }),
    number("gap", "Gap to best known", (e) => e.gap, format.percent, { tracks: ["simulated", "sharding"] }),
    number("fresh", "Gap on fresh tasks", (e) => e.fresh, format.percent, {
      tracks: ["simulated", "sharding"],
      cell: freshCell,
      optional: true,
    }),
    number("ratio", "Ratio to the cheapest", (e) => e.ratio, format.ratio, { tracks: ["measured"], cell: ratioCell }),
    number("hours", "Hours", (e) => e.hours, format.ratio, { tracks: ["replanning"] }),
    number("interval", "95% interval", (e) => e.interval[1] - e.interval[0], String, {
      cell: intervalCell,
      about: "by its width",
    }),
    number("pauses", "Pauses, s", (e) => e.pauses_s, format.count, { tracks: ["replanning"] }),
    number("migrations", "Migrations, s", (e) => e.migrations_s, format.count, { tracks: ["replanning"] }),
    number("plans", "Plans", (e) => e.plans, format.count, { tracks: ["replanning"] }),
    number("repairs", "Repairs", (e) => e.repairs, format.count, { tracks: ["replanning"] }),
    number("failures", "Failures", (e) => e.failures, String, { tracks: COSTS, cell: failuresCell }),
    number("planning", "Planning, per task", (e) => e.planning_ms, format.time, { tracks: COSTS, cell: planning }),
    number("queries", "Queries per task", (e) => e.planning_queries, format.count, { tracks: COSTS }),
    number("training", "Queries in training", (e) => e.training_queries, format.count, { tracks: COSTS }),
    { key: "action", words: "", cell: exploreButton },
    number("improvement", "Better than next", (e) => e.improvement_over_next, format.share, {
      first: "descending",
      tracks: COSTS,
      detail: true,
    }),
    text("agent", "Agent", (e) => e.agent),
    text("data", "Trained on", (e) => e.training_data, "not trained"),
    { ...text("hardware", "Planned on", (e) => e.hardware), tracks: COSTS },
    number("seeds", "Seeds", (e) => e.seeds, String, { detail: true }),
    text("licence", "Licence", (e) => e.licence),
    text("version", "ShardGym", (e) => e.shard_gym),
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

  /** The entries, group by group and the best first, with their ranks in the group; equal scores share one, and near copies
   *  have none. */
  function ranked(entries) {
    const same = (one, other) => Math.abs(one.score - other.score) <= 1e-8 * Math.abs(one.score);
    let rank = 1;
    let first = 0;
    return entries.map((entry, place) => {
      const before = entries[place - 1];
      if (place && before.group !== entry.group) {
        rank = 1;
        first = place;
      } else if (place && !same(entry, before)) rank = place - first + 1;
      return { ...entry, rank: entry.group === "near copies" ? "\u2013" : rank, place };
    });
  }

  function notes(track, entries) {
    const declared = entries.filter(declares).length;
    const times =
      declared && declared < entries.length ? "* Declared by the entry, not replayed." : "Planning times are declared.";
    return [track.notes, declared ? times : null].filter(Boolean).join(" ");
  }

  let showsAll = false;

  /** The switch between the columns that matter and all of them. */
  function allColumns(table) {
    const box = el("input", { type: "checkbox", id: "all-columns", checked: showsAll });
    box.addEventListener("change", () => {
      showsAll = box.checked;
      table.classList.toggle("all", showsAll);
    });
    return el("label", { class: "switch" }, box, " All columns");
  }

  /** Draw the table into `place`. `options`: suite, entries, looks(id), explore(entry), announce(words). */
  function draw(place, options) {
    const { suite } = options;
    const track = TRACKS[suite.track];
    const entries = ranked(options.entries);
    if (!entries.length) {
      place.replaceChildren(quiet("No entry of this suite is ranked yet."));
      return;
    }
    // Penalties would press all other intervals together.
    const solid = entries.filter((entry) => !entry.failures);
    const ends = (solid.length ? solid : entries).map((entry) => entry.interval);
    const scale = [Math.min(...ends.map(([low]) => low)), Math.max(...ends.map(([, high]) => high))];
    const columns = COLUMNS.filter(
      ({ tracks, optional, value }) =>
        (tracks?.includes(suite.track) ?? true) && !(optional && entries.every((entry) => value(entry) === null)),
    );
    const shown = { ...options, track, scale, starred: entries.some((entry) => entry.planning_replayed) };
    const wordsOf = ({ words }) => (typeof words === "string" ? words : words(track));
    const classOf = (column) =>
      [column.key, column.number && "number", column.detail && "detail"].filter(Boolean).join(" ");
    const body = el("tbody");
    const heads = columns.map(header);
    let current = { column: columns[0], direction: "ascending" };

    function header(column) {
      if (!column.value) return el("td", { class: classOf(column) });
      const button = el(
        "button",
        { type: "button" },
        wordsOf(column),
        el("span", { class: "arrow", "aria-hidden": true }),
      );
      button.addEventListener("click", () => {
        const first = column.first ?? "ascending";
        const other = first === "ascending" ? "descending" : "ascending";
        sort(column, current.column === column && current.direction === first ? other : first);
        const about = column.about ? ` ${column.about}` : "";
        options.announce(`Sorted by ${wordsOf(column)}${about}, ${current.direction}.`);
      });
      return el("th", { scope: "col", class: classOf(column), "data-key": column.key }, button);
    }

    function row(entry, grouped) {
      const cells = columns.map((column) =>
        el(
          column.head ? "th" : "td",
          { scope: column.head ? "row" : null, class: classOf(column) },
          column.cell(entry, { ...shown, grouped }),
        ),
      );
      return el("tr", { "data-entry": entry.id }, ...cells);
    }

    /** The line above the entries of a group. */
    const groupLine = (group) =>
      el(
        "tr",
        { class: "group" },
        el(
          "th",
          { scope: "rowgroup", colspan: columns.length },
          el("div", {}, el("strong", {}, group), " ", el("small", {}, track.groups[group])),
        ),
      );

    function sort(column, direction) {
      current = { column, direction };
      heads.forEach((head, index) => {
        if (columns[index] === column) head.setAttribute("aria-sort", direction);
        else head.removeAttribute("aria-sort");
      });
      const grouped = column === columns[0] && direction === "ascending";
      const lines = sorted(entries, column, direction).flatMap((entry, index, all) => {
        const begins = grouped && entry.group && entry.group !== all[index - 1]?.group;
        return [...(begins ? [groupLine(entry.group)] : []), row(entry, grouped)];
      });
      body.replaceChildren(...lines);
    }

    sort(current.column, current.direction);
    const table = el(
      "table",
      { class: showsAll ? "ranking all" : "ranking" },
      el("caption", { class: "hidden" }, `Entries of ${suite.name}; the buttons in the header sort them.`),
      el("thead", {}, el("tr", {}, ...heads)),
      body,
    );
    place.replaceChildren(
      scroller("Ranking; scrolls sideways", "wide", table),
      el("div", { class: "below" }, quiet(notes(track, entries)), allColumns(table)),
    );
  }

  Object.assign(window.ShardGym, { ranking: { draw, ranked } });
})();
