"use strict";
// Two sequences of decisions of one drifting task side by side: a row for each day, a cell for each decision.
(() => {
  const { el, svg, spoken, quoted, factList, redrawn, format, mark } = window.ShardGym;

  const DAY = 24;
  const GAP = 2;
  const [LEFT, TOP] = [46, 18];
  // Kinds of plans beyond the fourth leave room for growth: the same colours, with an outline.
  const COLORS = 4;
  const styleOf = (action) =>
    action ? `work p${(action - 1) % COLORS}${action > COLORS ? " roomy" : ""}` : "waiting";

  function taskFacts(task, suite) {
    const swatch = (action) =>
      svg(
        "svg",
        { class: "mark", width: 14, height: 14, viewBox: "0 0 14 14", "aria-hidden": true },
        svg("rect", { class: styleOf(action), x: 1, y: 1, width: 12, height: 12 }),
      );
    return [
      factList([
        ["Oracle, with hindsight", `${format.ratio(task.oracle_hours)} hours`],
        ["A plan pauses for", `${format.count(suite.pause_s)} s`],
      ]),
      el(
        "ul",
        { class: "legend" },
        ["keeps the plan", ...suite.plans.map((name) => `plan for ${name}`)].map((words, action) =>
          el("li", {}, swatch(action), words),
        ),
      ),
    ];
  }

  /** The decisions as a calendar. */
  function calendar(width, actions, label) {
    const days = actions.length / DAY;
    const step = Math.min(24, (width - LEFT) / DAY);
    const row = Math.max(12, Math.min(20, step));
    const [wide, height] = [LEFT + DAY * step, TOP + days * row];
    const nodes = [0, 6, 12, 18].map((hour) =>
      svg("text", { class: "tick", x: LEFT + hour * step, y: 11 }, `${String(hour).padStart(2, "0")}:00`),
    );
    for (let day = 0; day < days; day += 1)
      nodes.push(
        svg("text", { class: "tick", x: LEFT - 6, y: TOP + (day + 0.5) * row + 3, "text-anchor": "end" }, `day ${day}`),
      );
    actions.forEach((action, decision) =>
      nodes.push(
        svg("rect", {
          class: styleOf(action),
          x: LEFT + (decision % DAY) * step,
          y: TOP + Math.floor(decision / DAY) * row,
          width: step - GAP,
          height: row - GAP,
        }),
      ),
    );
    const box = { width: wide, height, viewBox: `0 0 ${wide} ${height}` };
    return svg("svg", { class: "chart calendar", ...box, role: "img", "aria-label": label }, ...nodes);
  }

  function panel(suite, { entry, look, sheet, score }, where) {
    const actions = [...sheet.actions].map(Number);
    const [running, pauses, migrations] = sheet.seconds;
    const canvas = el("div");
    const label = `Decisions of ${entry.name}: ${actions.filter(Boolean).length} of ${actions.length} make a plan.`;
    const over = `${format.excess(score)} over the oracle`;
    const node = el(
      "div",
      { class: "panel" },
      el("h3", {}, mark(look), spoken(`${where}: `), quoted(entry.name)),
      el(
        "p",
        { class: "cost" },
        el("strong", {}, `${format.ratio(sheet.hours)} hours`),
        entry.seeds > 1 ? `; ${over}, mean over ${entry.seeds} seeds` : ` (${over})`,
      ),
      canvas,
      factList([
        ["Iterations", `${format.ratio(running / 3600)} hours`],
        ["Pauses", `${format.count(pauses)} s`],
        ["Migrations", `${format.count(migrations)} s`],
        ["Plans", String(sheet.plans)],
        ["of which repairs", String(sheet.repairs)],
      ]),
    );
    return { node, finish: () => redrawn(canvas, (width) => calendar(width, actions, label)) };
  }

  /** Draw both panels. `sides`: two of { entry, look, sheet, score }. */
  function draw(place, suite, task, sides) {
    const panels = sides.map((side, index) => panel(suite, side, index ? "Right" : "Left"));
    place.replaceChildren(...panels.map(({ node }) => node));
    for (const { finish } of panels) finish(); // parts that need their width
  }

  Object.assign(window.ShardGym, { decisions: { draw, taskFacts } });
})();
