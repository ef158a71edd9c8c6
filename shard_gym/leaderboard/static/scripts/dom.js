"use strict";
// Making elements. Text enters the page only as text nodes, so no name of an entry is ever read as HTML.
(() => {
  const SVG = "http://www.w3.org/2000/svg";

  function fill(node, attributes, children) {
    for (const [name, value] of Object.entries(attributes)) {
      if (value === false || value === null || value === undefined) continue;
      node.setAttribute(name, value === true ? "" : String(value));
    }
    for (const child of children.flat()) {
      if (child === null || child === undefined) continue;
      node.append(child instanceof Node ? child : document.createTextNode(String(child)));
    }
    return node;
  }

  const el = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);
  const svg = (tag, attributes = {}, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

  /** Words for those who hear the page only. */
  const spoken = (words) => el("span", { class: "hidden" }, words);

  /** Submitted text, isolated so that it cannot change the direction of the text around it. */
  const quoted = (words) => el("bdi", {}, words);

  /** A small remark. */
  const quiet = (...words) => el("p", { class: "quiet" }, ...words);

  /** A part that scrolls sideways (or down) by itself; it takes the focus, so that arrow keys scroll it. */
  const scroller = (label, kind, ...children) =>
    el("div", { class: `scroller ${kind}`, tabindex: 0, role: "region", "aria-label": label }, ...children);

  /** A table of numbers. `columns`: [words, cell(row)] each; the first one names the row. */
  const numberTable = (columns, rows, ...caption) =>
    el(
      "table",
      {},
      caption.length ? el("caption", {}, ...caption) : null,
      el(
        "thead",
        {},
        el(
          "tr",
          {},
          columns.map(([words], place) => el("th", { scope: "col", class: place ? "number" : null }, words)),
        ),
      ),
      el(
        "tbody",
        {},
        rows.map((row) =>
          el(
            "tr",
            {},
            columns.map(([, cell], place) =>
              place ? el("td", { class: "number" }, cell(row)) : el("th", { scope: "row" }, cell(row)),
            ),
          ),
        ),
      ),
    );

  /** Terms and their values, [term, value] each; those without a value are left out. */
  const factList = (facts) =>
    el(
      "dl",
      { class: "facts" },
      facts
        .filter(([, value]) => value)
        .map(([term, value]) => el("div", {}, el("dt", {}, term), el("dd", {}, quoted(value)))),
    );

  /** Offer [value, words] in a select, or [group, [[value, words], ...]], and choose one of them. */
  function offer(select, options, chosen) {
    const make = ([value, words]) =>
      Array.isArray(words) ? el("optgroup", { label: value }, words.map(make)) : el("option", { value }, words);
    select.replaceChildren(...options.map(make));
    select.value = chosen;
    if (select.selectedIndex < 0) select.selectedIndex = 0;
  }

  const named = (id) => document.getElementById(id);

  window.ShardGym = { el, svg, spoken, quoted, quiet, scroller, numberTable, factList, offer, named };
})();
