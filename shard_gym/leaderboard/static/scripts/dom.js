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

  /** A part that scrolls sideways (or down) by itself; it takes the focus, so that arrow keys scroll it. */
  const scroller = (label, kind, ...children) =>
    el("div", { class: `scroller ${kind}`, tabindex: 0, role: "region", "aria-label": label }, ...children);

  /** Offer [value, words] in a select, and choose one of them. */
  function offer(select, options, chosen) {
    select.replaceChildren(...options.map(([value, words]) => el("option", { value }, words)));
    select.value = chosen;
    if (select.selectedIndex < 0) select.selectedIndex = 0;
  }

  const named = (id) => document.getElementById(id);

  window.ShardGym = { el, svg, spoken, quoted, scroller, offer, named };
})();
