"use strict";
// The entries of replanning: a table for each suite, in the order of the data, and the oracle as its last line.
(() => {
  const { el, quoted, scroller, named, safeLink, format } = window.ShardGym;

  const HEADERS = ["Entry", "Over the oracle", "Hours", "Plans", "Checked"];

  const line = (name, ...cells) =>
    el(
      "tr",
      {},
      el("th", { scope: "row" }, name),
      ...cells.map((cell, place) => el("td", { class: place < 3 ? "number" : null }, cell)),
    );

  function entryLine(entry) {
    const link = safeLink(entry.link);
    const name = quoted(entry.name);
    return line(
      el(
        "div",
        {},
        link ? el("a", { href: link, rel: "noopener noreferrer nofollow" }, name) : name,
        " ",
        el("small", {}, quoted(entry.authors.join(", "))),
      ),
      format.percent(entry.excess),
      format.ratio(entry.hours),
      format.count(entry.plans),
      entry.replayed ? "replayed" : el("strong", {}, "not replayed"),
    );
  }

  function suiteTable(suite) {
    const heads = HEADERS.map((words, place) =>
      el("th", { scope: "col", class: place > 0 && place < 4 ? "number" : null }, words),
    );
    const oracle = line("Oracle, which looks ahead", "", format.ratio(suite.oracle_hours), "", "no entry");
    return [
      el("h3", {}, suite.name),
      el("p", {}, quoted(suite.description)),
      scroller(
        `Replanning on ${suite.name}; scrolls sideways`,
        "wide",
        el(
          "table",
          {},
          el("caption", { class: "hidden" }, `Entries of ${suite.name}.`),
          el("thead", {}, el("tr", {}, ...heads)),
          el("tbody", {}, ...suite.entries.map(entryLine), oracle),
        ),
      ),
    ];
  }

  /** Show the section if there are entries. */
  function drawReplanning(suites) {
    named("replanning").hidden = !suites.length;
    named("replanning-suites").replaceChildren(...suites.flatMap(suiteTable));
  }

  Object.assign(window.ShardGym, { drawReplanning });
})();
