"use strict";
// Parts of charts: marks of competitors, axes, and redrawing when the width changes. All is SVG.
(() => {
  const { el, svg } = window.ShardGym;

  // Marks of competitors: a colour and a shape, so that a reader needs only one of them.
  const COLORS = 7;
  const SHAPES = [
    "M-4.5 0a4.5 4.5 0 1 0 9 0a4.5 4.5 0 1 0 -9 0z",
    "M-4 -4h8v8h-8z",
    "M0 -5l5 9h-10z",
    "M0 -5.5l5 5.5l-5 5.5l-5 -5.5z",
    "M0 5l5 -9h-10z",
    "M-1.7 -5h3.4v3.3h3.3v3.4h-3.3v3.3h-3.4v-3.3h-3.3v-3.4h3.3z",
    "M-5 -2.5h10v5h-10z",
  ];
  const DASHES = [null, "7 3", "2 3"];

  /** The mark of the competitor with that index, unlike any other of the first 49. */
  function lookAt(index) {
    const cycle = Math.floor(index / COLORS);
    return { color: index % COLORS, shape: SHAPES[(index + cycle) % SHAPES.length], dash: DASHES[cycle % DASHES.length] };
  }

  const shapeOf = (look, attributes = {}) =>
    svg("path", { d: look.shape, class: `shape c${look.color}`, ...attributes });
  const mark = (look) =>
    svg("svg", { class: "mark", width: 14, height: 14, viewBox: "-7 -7 14 14", "aria-hidden": true }, shapeOf(look));

  // Axes

  function linearTicks(low, high, most) {
    const rough = (high - low) / most || 1;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= rough);
    const ticks = [];
    for (let tick = Math.ceil(low / step) * step; tick <= high + step * 1e-9; tick += step)
      ticks.push(Number(tick.toPrecision(12)));
    return ticks;
  }

  function logTicks(low, high, most) {
    if (high / low < 10) return linearTicks(low, high, most);
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

  /** Grid, ticks and titles; `paint(x, y)` returns the marks on them. */
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
    return svg(
      "svg",
      { class: "chart", width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label },
      ...nodes,
      ...paint(across, up),
    );
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

  Object.assign(window.ShardGym, { lookAt, shapeOf, mark, MARGIN, chart, redrawn });
})();
