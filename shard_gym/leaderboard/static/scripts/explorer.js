"use strict";
// Two placements of one task side by side, on one scale.
(() => {
  const { el, svg, spoken, quoted, quiet, scroller, numberTable, factList, redrawn, format, mark } = window.ShardGym;
  const { PHASES, LETTERS, timeline } = window.ShardGym;

  /** The host of a device; of a plan with groups, a device of one group. */
  const hostOf = (task, sheet, device) => Math.floor(device / (sheet.devices_per_host ?? task.devices_per_host));

  /** That devices are those of one group, where a plan has several. */
  const groupsOf = (sheet) =>
    sheet.groups
      ? quiet(`${sheet.groups} groups of ${sheet.phases_ms.length} devices hold all tables each; this is one.`)
      : null;

  /** The device that most phases wait for; of equals the one busy for longest. */
  function busiest(placement) {
    const weight = placement.phases_ms.map((phases, device) => [
      placement.critical.filter((devices) => devices.length < placement.phases_ms.length && devices.includes(device))
        .length,
      phases.reduce((sum, ms) => sum + ms, 0),
    ]);
    return weight.reduce(
      (best, each, device) =>
        each[0] > weight[best][0] || (each[0] === weight[best][0] && each[1] > weight[best][1]) ? device : best,
      0,
    );
  }

  const versus = (cost, other) => (other ? ` (${format.percent(cost / other - 1)})` : "");

  function taskFacts(task) {
    const devices = task.caps_mib.length;
    const hosts = Math.ceil(devices / task.devices_per_host);
    const facts = [
      ["Tables", format.count(task.tables.length)],
      ["Devices", `${devices}${hosts > 1 ? ` in ${hosts} hosts` : ""}`],
      ["Memory cap of a device", format.memory(Math.min(...task.caps_mib))],
      ["Best known", `${format.ms(task.best_known_ms)} ms`],
      ["Lower bound", `${format.ms(task.lower_bound_ms)} ms`],
    ];
    return [factList(facts.filter(([, value]) => !value.startsWith(format.NONE))), legend()];
  }

  const ARROW = "M9 4l-4 3l4 3z";

  function legend() {
    const swatch = (...shapes) =>
      svg("svg", { class: "mark", width: 14, height: 14, viewBox: "0 0 14 14", "aria-hidden": true }, ...shapes);
    const square = (style) => svg("rect", { class: style, x: 1, y: 1, width: 12, height: 12 });
    const items = PHASES.map((words, phase) => [`work p${phase}`, `${LETTERS[phase]} ${words}`]);
    return el(
      "ul",
      { class: "legend" },
      [...items, ["waiting", "waiting"], ["memory", "memory used"]].map(([style, words]) =>
        el("li", {}, swatch(square(style)), words),
      ),
      el("li", {}, swatch(square("critical"), svg("path", { class: "dot", d: ARROW })), "slowest device of its phase"),
    );
  }

  /** Draw both panels. `sides`: two of { entry, look, sheet, score }; `suite` and `task` are shared. */
  function draw(place, suite, task, sides) {
    const most = Math.max(...sides.map((side) => side.sheet?.cost_ms ?? 0));
    const panels = sides.map((side, index) => panel(suite, task, side, most, index ? "Right" : "Left"));
    place.replaceChildren(...panels.map(({ node }) => node));
    for (const { finish } of panels) finish?.(); // parts that need their width
  }

  /** Scroll a list, and nothing around it, until the height `top` in it is in its middle. */
  const reveal = (list, top) => {
    list.scrollTop = top - list.clientHeight / 2;
  };

  /** What the placement costs and, where that is something else, what the entry scores on the task. */
  function costFacts(suite, task, { entry, sheet, score }) {
    const shown = el("strong", {}, `${format.ms(sheet.cost_ms)} ms`);
    const seeds = `mean over ${entry.seeds} seeds`;
    if (suite.track === "measured") return [shown, ` (estimate); ${format.ms(score)} ms measured`];
    return [
      shown,
      versus(sheet.cost_ms, task.best_known_ms),
      entry.seeds > 1 ? `; ${format.ms(score)} ms ${seeds}` : null,
    ];
  }

  function panel(suite, task, side, most, where) {
    const { entry, sheet } = side;
    const title = el("h3", {}, mark(side.look), spoken(`${where}: `), quoted(entry.name));
    if (!sheet) {
      const charged = `The first seed has no valid placement of this task. Mean over seeds: ${format.ms(side.score)} ms.`;
      return { node: el("div", { class: "panel" }, title, el("p", { class: "notice" }, charged)) };
    }
    const facts = costFacts(suite, task, side);
    const canvas = el("div");
    const label = `Phases of each device, ${entry.name}: ${summary(sheet)}. The table below holds the numbers.`;
    const tall = sheet.phases_ms.length > 24;
    const picture = tall ? scroller(`Devices of ${entry.name}; scrolls down`, "tall", canvas) : canvas;
    const listing = el("div");
    const first = busiest(sheet);
    const devices = deviceTable(task, entry, sheet, (device) => {
      listing.replaceChildren(...tablesOn(task, entry, sheet, device));
      if (tall) reveal(picture, timeline.topOf(device));
    });
    const finish = () => {
      redrawn(canvas, (width) => timeline.draw(width, { placement: sheet, caps: task.caps_mib, most, label }));
      devices.choose(first);
      if (tall) reveal(devices.node, devices.rowOf(first).offsetTop);
    };
    return {
      node: el(
        "div",
        { class: "panel" },
        title,
        entry.note ? quiet(quoted(`${entry.note[0].toUpperCase()}${entry.note.slice(1)}.`)) : null,
        el("p", { class: "cost" }, facts),
        groupsOf(sheet),
        picture,
        devices.node,
        listing,
      ),
      finish,
    };
  }

  const summary = (sheet) =>
    timeline
      .spansOf(sheet)
      .map((span, phase) => {
        const devices = sheet.critical[phase];
        const who = devices.length > 3 ? `${devices.length} devices` : `device ${devices.join(" and ")}`;
        return `${PHASES[phase]} ${format.short(span)} ms${devices.length ? `, slowest ${who}` : ""}`;
      })
      .join("; ");

  // Devices: one is chosen, and its tables are listed below.

  /** The table as a node, and how to choose a device in it; `chosen(device)` is called when one is. */
  function deviceTable(task, entry, sheet, chosen) {
    const buttons = sheet.phases_ms.map((_, device) => {
      const button = el(
        "button",
        { type: "button", class: "device", "aria-pressed": "false" },
        spoken("Tables of device "),
        String(device),
      );
      button.addEventListener("click", () => choose(device));
      return button;
    });
    function choose(device) {
      buttons.forEach((button, each) => button.setAttribute("aria-pressed", String(each === device)));
      chosen(device);
    }
    const hosts = hostOf(task, sheet, sheet.phases_ms.length - 1);
    const columns = [
      ["Device", (device) => [buttons[device], hosts ? el("small", {}, ` host ${hostOf(task, sheet, device)}`) : null]],
      ...PHASES.map((words, phase) => [
        words,
        (device) => timeCell(sheet.phases_ms[device][phase], sheet.critical[phase].includes(device)),
      ]),
      ["Memory", (device) => format.memory(sheet.memory_mib[device])],
      ["of cap", (device) => format.share(sheet.memory_mib[device] / task.caps_mib[device])],
      [sheet.shards ? "Shards" : "Tables", (device) => partsOn(task, sheet, device).length],
    ];
    const caption = "Phases in ms; \u25c0 marks the slowest device. A device\u2019s number lists what it holds.";
    const table = numberTable(columns, [...buttons.keys()], caption);
    table.className = "devices";
    const kind = buttons.length > 24 ? "wide tall" : "wide";
    return {
      node: scroller(`Phases and memory, ${entry.name}; scrolls`, kind, table),
      choose,
      rowOf: (device) => table.tBodies[0].rows[device],
    };
  }

  const timeCell = (ms, critical) =>
    critical
      ? el("strong", {}, format.ms(ms), el("span", { "aria-hidden": true }, " \u25c0"), spoken(" slowest"))
      : format.ms(ms);

  /** The tables of a placement, or the shards of a plan, on a device, costliest first. */
  function partsOn(task, sheet, device) {
    const parts = sheet.shards
      ? sheet.shards.map(([table, where, rows, dim, cost, memory]) => ({ table, where, rows, dim, cost, memory }))
      : task.tables.map((_, table) => ({
          table,
          where: sheet.placement[table],
          rows: task.rows[table],
          dim: task.dims[table],
          cost: task.costs_ms[table],
          memory: task.memory_mib[table],
        }));
    return parts
      .filter((part) => part.where === device)
      .sort((one, other) => other.cost - one.cost || one.table - other.table);
  }

  function tablesOn(task, entry, sheet, device) {
    const parts = partsOn(task, sheet, device);
    const title = `${sheet.shards ? "Shards" : "Tables"} on device ${device}, costliest first`;
    if (!parts.length) return [el("h4", {}, title), quiet("None.")];
    const columns = [
      ["Table", (part) => quoted(task.tables[part.table])],
      ...(sheet.shards ? [["Sharding type", (part) => sheet.types[part.table]]] : []),
      ["Cost alone, ms", (part) => format.ms(part.cost)],
      ["Memory", (part) => format.memory(part.memory)],
      ["Dim", (part) => part.dim],
      ["Rows", (part) => format.count(part.rows)],
      [`Lookups per sample${sheet.shards ? " of the table" : ""}`, (part) => format.short(task.pooling[part.table])],
    ];
    return [
      el("h4", {}, title),
      scroller(`${title}, ${entry.name}; scrolls`, "wide tall", numberTable(columns, parts)),
    ];
  }

  Object.assign(window.ShardGym, { explorer: { draw, taskFacts } });
})();
