"use strict";
// The two charts, as SVG drawn at the width there is, and redrawn when that changes.
(() => {
  const { el, svg, quoted, scroller, format } = window.ShardGym;

  // Marks of contestants: a colour and a shape, so that neither is needed alone.
  const COLORS = 7;
  const SHAPES = [
    "M-4.5 0a4.5 4.5 0 1 0 9 0a4.5 4.5 0 1 0 -9 0z", "M-4 -4h8v8h-8z", "M0 -5l5 9h-10z", "M0 -5.5l5 5.5l-5 5.5l-5 -5.5z",
    "M0 5l5 -9h-10z", "M-1.7 -5h3.4v3.3h3.3v3.4h-3.3v3.3h-3.4v-3.3h-3.3v-3.4h3.3z", "M-5 -2.5h10v5h-10z",
  ];
  const DASHES = [null, "7 3", "2 3"];

  /** The look of the contestant at that place among all: unlike any other of the first 49. */
  function lookAt(index) {
    const turn = Math.floor(index / COLORS);
    return { color: index % COLORS, shape: SHAPES[(index + turn) % SHAPES.length], dash: DASHES[turn % DASHES.length] };
  }

  const shapeOf = (look, attributes = {}) => svg("path", { d: look.shape, class: `shape c${look.color}`, ...attributes });
  const mark = (look) => svg("svg", { class: "mark", width: 14, height: 14, viewBox: "-7 -7 14 14", "aria-hidden": true }, shapeOf(look));

  // Axes

  function linearTicks(low, high, most) {
    const rough = (high - low) / most || 1;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= rough);
    const ticks = [];
    for (let tick = Math.ceil(low / step) * step; tick <= high + step * 1e-9; tick += step) ticks.push(Number(tick.toPrecision(12)));
    return ticks;
  }

  function logTicks(low, high, most) {
    const ticks = [];
    for (const steps of [[1, 2, 5], [1, 3], [1]]) {
      ticks.length = 0;
      for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power += 1)
        for (const step of steps) ticks.push(step * 10 ** power);
      if (ticks.filter((tick) => tick >= low && tick <= high).length <= most) break;
    }
    const within = ticks.filter((tick) => tick >= low * 0.999 && tick <= high * 1.001);
    const every = Math.ceil(within.length / most);
    return within.filter((_, index) => index % every === 0);
  }

  /** A scale from numbers to pixels. */
  function scale(low, high, from, to, log) {
    const form = log ? Math.log : (value) => value;
    const at = (value) => from + ((form(value) - form(low)) / (form(high) - form(low) || 1)) * (to - from);
    return { at, low, high, ticks: (most) => (log ? logTicks(low, high, most) : linearTicks(low, high, most)) };
  }

  const MARGIN = { left: 48, right: 14, top: 22, bottom: 40 };

  /** Grid, ticks and titles; `paint(x, y)` gives what stands on them. */
  function chart(width, height, { label, x, y, paint }) {
    const [right, bottom] = [width - MARGIN.right, height - MARGIN.bottom];
    const across = scale(x.low, x.high, MARGIN.left, right, x.log);
    const up = scale(y.low, y.high, bottom, MARGIN.top, y.log);
    const nodes = [];
    for (const tick of up.ticks(5)) {
      const at = up.at(tick);
      nodes.push(svg("line", { class: "rule", x1: MARGIN.left, x2: right, y1: at, y2: at }));
      nodes.push(svg("text", { class: "tick", x: MARGIN.left - 6, y: at + 4, "text-anchor": "end" }, y.format(tick)));
    }
    for (const tick of across.ticks(Math.max(2, Math.floor(width / 70)))) {
      const at = across.at(tick);
      nodes.push(svg("line", { class: "rule", x1: at, x2: at, y1: MARGIN.top, y2: bottom }));
      nodes.push(svg("text", { class: "tick", x: at, y: bottom + 16, "text-anchor": "middle" }, x.format(tick)));
    }
    nodes.push(svg("text", { class: "title", x: 0, y: 12 }, y.title));
    nodes.push(svg("text", { class: "title", x: right, y: height - 6, "text-anchor": "end" }, x.title));
    return svg("svg", { class: "chart", width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label },
      ...nodes, ...paint(across, up));
  }

  const watchers = new WeakMap();

  /** Draw `make(width)` into `place` now and whenever its width changes. */
  function redrawn(place, make, ...after) {
    watchers.get(place)?.disconnect();
    const canvas = el("div", { class: "canvas" });
    place.replaceChildren(canvas, ...after);
    let drawn = 0;
    const update = () => {
      const width = Math.floor(canvas.clientWidth);
      if (!width || width === drawn) return;
      drawn = width;
      canvas.replaceChildren(make(width));
    };
    const watcher = new ResizeObserver(update);
    watcher.observe(canvas);
    watchers.set(place, watcher);
    update();
  }

  // Cost against planning time

  const LETTER = 6.4;
  const cut = (name, most) => (name.length <= most ? name : `${name.slice(0, most - 1)}\u2026`);

  /** Names beside their points, where there is room: not on another name, and not on another point. */
  function placeLabels(points, { left, right, top, bottom }) {
    const boxes = points.map(({ px, py }) => ({ from: px - 6, to: px + 6, above: py - 6, below: py + 6 }));
    const hits = (one, other) => one.from < other.to && other.from < one.to && one.above < other.below && other.above < one.below;
    const labels = [];
    for (const [place, { entry, px, py }] of points.entries()) {
      const words = cut(entry.name, 24);
      const width = words.length * LETTER;
      const tries = [0, -14, 14, -28, 28, -42, 42].flatMap((shift) => [1, -1].map((side) => ({ shift, side })));
      for (const { shift, side } of tries) {
        const from = side > 0 ? px + 9 : px - 9 - width;
        const box = { from, to: from + width, above: py + shift - 6, below: py + shift + 6 };
        const inside = from >= left && box.to <= right && box.above >= top && box.below <= bottom;
        if (!inside || boxes.some((each, other) => other !== place && hits(each, box))) continue;
        boxes.push(box);
        labels.push({ words, px, py, x: px + 9 * side, y: py + shift, anchor: side > 0 ? "start" : "end" });
        break;
      }
    }
    return labels;
  }

  function drawTime(place, suite, entries, looks) {
    const shown = entries.filter((entry) => entry.planning_ms > 0);
    if (!shown.length) {
      place.replaceChildren(el("p", { class: "quiet" }, "No entry of this suite has a planning time."));
      return;
    }
    const times = shown.map((entry) => entry.planning_ms);
    const costs = shown.map((entry) => entry.mean_cost_ms);
    const spread = Math.max(...costs) - Math.min(...costs) || Math.max(...costs) * 0.1;
    const x = {
      low: Math.min(...times) / 2, high: Math.max(...times) * 2, log: true, format: format.timeTick,
      title: "planning time per task, log scale \u2192",
    };
    const y = {
      low: Math.min(...costs) - 0.12 * spread, high: Math.max(...costs) + 0.08 * spread, format: format.plain,
      title: "mean cost, ms (lower is better)",
    };
    const label = `Mean cost against planning time of ${shown.length} entries of ${suite.name}; the ranking holds the numbers.`;
    const height = 300;
    const paint = (across, up) => {
      const points = shown.map((entry) => ({ entry, px: across.at(entry.planning_ms), py: up.at(entry.mean_cost_ms) }));
      const room = { left: MARGIN.left, right: across.at(x.high), top: up.at(y.high), bottom: up.at(y.low) };
      return [
        ...placeLabels(points, room).flatMap((label) => [
          label.y === label.py ? null : svg("line", { class: "leader", x1: label.px, y1: label.py, x2: label.x, y2: label.y }),
          svg("text", { class: "label", x: label.x, y: label.y + 4, "text-anchor": label.anchor }, label.words),
        ]),
        ...points.map(({ entry, px, py }) => shapeOf(looks(entry.id), { transform: `translate(${px} ${py})`, "data-entry": entry.id })),
      ];
    };
    const left = entries.length - shown.length;
    const missing = left ? ` ${left} of ${entries.length} entries have no planning time.` : "";
    const note = el("p", { class: "quiet" }, `Marks as in the ranking.${missing}`);
    redrawn(place, (width) => chart(width, height, { label, x, y, paint }), note);
  }

  // Performance profile

  function drawProfile(place, profile, looks) {
    if (!profile || !profile.lines.length) {
      place.replaceChildren(el("p", { class: "quiet" }, "There is no profile for this track yet."));
      return;
    }
    const { taus, lines } = profile;
    const high = taus[taus.length - 1];
    const x = {
      low: taus[0], high: high > taus[0] ? high : taus[0] * 1.1, log: high / taus[0] > 3, format: (tau) => `${Number(tau.toPrecision(3))}\u00d7`,
      title: "cost at most so many times the best known \u2192",
    };
    const y = { low: 0, high: 1, format: format.share, title: "share of tasks (higher is better)" };
    const label = `Performance profile of ${lines.length} contestants; the numbers stand in a table below.`;
    const paint = (across, up) => lines.flatMap((line, index) => {
      const look = looks(line.id);
      const at = (place_) => [across.at(taus[place_]), up.at(line.shares[place_])];
      const path = taus.map((_, place_) => at(place_).map((value) => value.toFixed(1)).join(" ")).join("L");
      const every = Math.max(1, Math.floor(taus.length / 4));
      const marked = taus.map((_, place_) => place_).filter((place_) => place_ % every === (index * 2) % every);
      return [
        svg("path", { class: `line c${look.color}`, d: `M${path}`, "stroke-dasharray": look.dash }),
        ...marked.map((place_) => shapeOf(look, { transform: `translate(${at(place_).join(" ")})` })),
      ];
    });
    const legend = el("ul", { class: "legend" }, lines.map((line) => el("li", {}, mark(looks(line.id)), quoted(line.name))));
    redrawn(place, (width) => chart(width, 300, { label, x, y, paint }),
      legend, el("p", { class: "quiet" }, quoted(profile.about)), numbers(taus, lines));
  }

  function numbers(taus, lines) {
    const picked = [1, 1.01, 1.02, 1.05, 1.1, 1.2, 1.5, 2].filter((tau) => tau <= taus[taus.length - 1]);
    const upTo = (line, tau) => line.shares[taus.findLastIndex((each) => each <= tau * (1 + 1e-9))];
    return el("details", {}, el("summary", {}, "The profile in numbers"),
      scroller("Profile in numbers; scrolls sideways", "wide", el("table", {},
        el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "Share of tasks within"),
          picked.map((tau) => el("th", { scope: "col", class: "number" }, `${tau}\u00d7`)), el("th", { scope: "col", class: "number" }, "Tasks"))),
        el("tbody", {}, lines.map((line) => el("tr", {}, el("th", { scope: "row" }, quoted(line.name)),
          picked.map((tau) => el("td", { class: "number" }, format.share(upTo(line, tau)))),
          el("td", { class: "number" }, line.tasks)))))));
  }

  Object.assign(window.ShardGym, { lookAt, mark, redrawn, charts: { drawTime, drawProfile } });
})();
