"use strict";
// The two charts: the score against what it takes, and the performance profile.
(() => {
  const { el, svg, quoted, quiet, scroller, numberTable, format, shapeOf, mark, MARGIN, chart, redrawn, TRACKS } =
    window.ShardGym;

  // The score against what it takes

  const pen = document.createElement("canvas").getContext("2d");
  pen.font = `12px ${getComputedStyle(document.body).fontFamily}`;
  const cut = (name, most) => (name.length <= most ? name : `${name.slice(0, most - 1)}\u2026`);

  /** Names beside their points, where there is room: not on another name, and not on another point. */
  function placeLabels(points, { left, right, top, bottom }) {
    const boxes = points.map(({ px, py }) => ({ from: px - 6, to: px + 6, above: py - 6, below: py + 6 }));
    const hits = (one, other) =>
      one.from < other.to && other.from < one.to && one.above < other.below && other.above < one.below;
    const labels = [];
    for (const [place, { entry, px, py }] of points.entries()) {
      const words = cut(entry.name, 24);
      const width = pen.measureText(words).width;
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

  /** The range of an axis through `values`, with room around them. */
  function axis(values, { log, fromZero, format, title }) {
    const [low, high] = [fromZero ? 0 : Math.min(...values), Math.max(...values)];
    const spread = high - low || high * 0.1 || 1;
    const range = log
      ? { low: low / 1.3, high: high * 1.3 }
      : { low: fromZero ? 0 : low - 0.12 * spread, high: high + 0.08 * spread };
    return { ...range, log, format, title };
  }

  function drawScores(place, suite, entries, looks) {
    const { at, across: xTitle, tick, log, up: yTitle, upTick, fromZero } = TRACKS[suite.track].chart;
    // One that placed nothing at all was quick at that, and its penalties would flatten all others.
    const shown = entries.filter(
      (entry) => (!log || at(entry) > 0) && (entry.failures ?? 0) < entry.seeds * suite.tasks,
    );
    if (!shown.length) {
      place.replaceChildren(quiet("No entry of this suite has a planning time."));
      return;
    }
    const scores = shown.map((entry) => entry.score);
    const wide = !fromZero && Math.max(...scores) > 4 * Math.min(...scores);
    const named = (title, isLog) => `${title}${isLog ? ", log scale" : ""}`;
    const x = axis(shown.map(at), { log, fromZero, format: tick, title: `${named(xTitle, log)} \u2192` });
    const y = axis(scores, { log: wide, fromZero, format: upTick, title: `${named(yTitle, wide)} (lower is better)` });
    const label = `${yTitle} and ${xTitle} of ${shown.length} entries of ${suite.name}; the ranking holds the numbers.`;
    const paint = (across, up) => {
      const points = shown.map((entry) => ({ entry, px: across.at(at(entry)), py: up.at(entry.score) }));
      const room = { left: MARGIN.left, right: across.at(x.high), top: up.at(y.high), bottom: up.at(y.low) };
      return [
        ...placeLabels(points, room).flatMap((label) => [
          label.y === label.py
            ? null
            : svg("line", { class: "leader", x1: label.px, y1: label.py, x2: label.x, y2: label.y }),
          svg("text", { class: "label", x: label.x, y: label.y + 4, "text-anchor": label.anchor }, label.words),
        ]),
        ...points.map(({ entry, px, py }) =>
          shapeOf(looks(entry.id), { transform: `translate(${px} ${py})`, "data-entry": entry.id }),
        ),
      ];
    };
    const left = entries.length - shown.length;
    const missing = left ? ` ${left} of ${entries.length} entries have no planning time, or placed nothing.` : "";
    redrawn(place, (width) => chart(width, 300, { label, x, y, paint }), quiet(`Marks as in the ranking.${missing}`));
  }

  // Performance profile

  function drawProfile(place, profile, looks) {
    const { taus, lines } = profile;
    const high = taus[taus.length - 1];
    const x = {
      low: taus[0],
      high: high > taus[0] ? high : taus[0] * 1.1,
      log: true,
      format: (tau) => `${Number(tau.toPrecision(3))}\u00d7`,
      title: "cost / best known cost, log scale \u2192",
    };
    const y = { low: 0, high: 1, format: format.share, title: "share of placements (higher is better)" };
    const label = `Performance profile of ${lines.length} competitors; a table below has the numbers.`;
    const paint = (across, up) =>
      lines.flatMap((line, index) => {
        const look = looks(line.id);
        const at = (place_) => [across.at(taus[place_]), up.at(line.shares[place_])];
        const path = taus
          .map((_, place_) =>
            at(place_)
              .map((value) => value.toFixed(1))
              .join(" "),
          )
          .join("L");
        const every = Math.max(1, Math.floor(taus.length / 4));
        const marked = taus.map((_, place_) => place_).filter((place_) => place_ % every === (index * 2) % every);
        return [
          svg("path", { class: `line c${look.color}`, d: `M${path}`, "stroke-dasharray": look.dash }),
          ...marked.map((place_) => shapeOf(look, { transform: `translate(${at(place_).join(" ")})` })),
        ];
      });
    const legend = el(
      "ul",
      { class: "legend" },
      lines.map((line) => el("li", {}, mark(looks(line.id)), quoted(line.name))),
    );
    redrawn(
      place,
      (width) => chart(width, 300, { label, x, y, paint }),
      legend,
      quiet(quoted(profile.about)),
      numbers(taus, lines),
    );
  }

  function numbers(taus, lines) {
    // The multiples the profile has, next to those one would ask for.
    const nearest = (tau) =>
      taus.reduce((best, each, place) => (Math.abs(each - tau) < Math.abs(taus[best] - tau) ? place : best), 0);
    const picked = [...new Set([1, 1.02, 1.05, 1.1, 1.2, 1.5, 2, 3].map(nearest))];
    const iqm = (line) => [
      format.ms(line.iqm),
      line.iqm_interval.length ? ` (${line.iqm_interval.map(format.ms).join("\u2013")})` : "",
    ];
    const columns = [
      ["Share of placements within", (line) => quoted(line.name)],
      ["Interquartile mean, \u00d7", iqm],
      ...picked.map((place) => [`${format.plain(taus[place])}\u00d7`, (line) => format.share(line.shares[place])]),
      ["Tasks", (line) => line.tasks],
    ];
    return el(
      "details",
      {},
      el("summary", {}, "The profile in numbers"),
      scroller("Profile in numbers; scrolls sideways", "wide", numberTable(columns, lines)),
    );
  }

  Object.assign(window.ShardGym, { charts: { drawScores, drawProfile } });
})();
