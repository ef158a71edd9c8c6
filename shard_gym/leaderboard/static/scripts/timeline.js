"use strict";
// One placement as a picture: the phases of each device, and its memory.
(() => {
  const { svg, format } = window.ShardGym;

  const PHASES = ["forward", "forward all-to-all", "backward all-to-all", "backward"];
  const LETTERS = ["F", "f", "b", "B"];

  /** How long each phase lasts: as long as its slowest device takes. */
  const spansOf = (placement) =>
    PHASES.map((_, phase) => Math.max(0, ...placement.phases_ms.map((device) => device[phase])));

  const ROW = 20;
  const BAR = 12;
  const HEAD = 30;

  /** Distance of a device from the top of the picture, in pixels. */
  const topOf = (device) => HEAD + device * ROW;

  /** `most` is the cost at the right end of the time axis: the same for all pictures side by side. */
  function draw(width, { placement, caps, most, label }) {
    const devices = placement.phases_ms.length;
    const gutter = 8 + 7 * String(devices - 1).length;
    const memoryWidth = Math.max(56, Math.min(120, width * 0.18));
    const [left, right] = [gutter + 6, width - memoryWidth - 16];
    const x = (ms) => left + (ms / (most || 1)) * (right - left);
    const height = topOf(devices) + 24;
    const spans = spansOf(placement);
    const starts = spans.map((_, phase) => spans.slice(0, phase).reduce((sum, span) => sum + span, 0));
    const ends = spans.map((span, phase) => starts[phase] + span);
    const nodes = [...heads(spans, starts, x), ...axis(most, x, height)];
    nodes.push(svg("text", { class: "title", x: right + 16, y: 12 }, "memory"));
    placement.phases_ms.forEach((phases, device) => {
      const top = topOf(device);
      nodes.push(svg("text", { class: "tick", x: gutter, y: top + BAR - 2, "text-anchor": "end" }, device));
      phases.forEach((ms, phase) => {
        if (spans[phase] > 0)
          nodes.push(
            ...bar(phase, starts[phase], ms, spans[phase], placement.critical[phase].includes(device), x, top),
          );
      });
      nodes.push(...memory(placement.memory_mib[device] / caps[device], right + 16, memoryWidth, top));
    });
    nodes.push(svg("line", { class: "end", x1: x(ends[3]), x2: x(ends[3]), y1: 24, y2: height - 22 }));
    return svg(
      "svg",
      { class: "chart timeline", width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label },
      ...nodes,
    );
  }

  /** A letter over each phase that is wide enough for one. */
  function heads(spans, starts, x) {
    return spans.flatMap((span, phase) => {
      const [from, to] = [x(starts[phase]), x(starts[phase] + span)];
      const words = to - from > 7 * PHASES[phase].length ? PHASES[phase] : to - from > 9 ? LETTERS[phase] : "";
      return words ? [svg("text", { class: "title", x: (from + to) / 2, y: 12, "text-anchor": "middle" }, words)] : [];
    });
  }

  function axis(most, x, height) {
    return [0, 0.5, 1].flatMap((share) => [
      svg("line", { class: "rule", x1: x(share * most), x2: x(share * most), y1: 20, y2: height - 20 }),
      svg(
        "text",
        {
          class: "tick",
          x: x(share * most),
          y: height - 6,
          "text-anchor": share === 1 ? "end" : share ? "middle" : "start",
        },
        share === 1 ? `${format.short(most)} ms` : format.short(share * most),
      ),
    ]);
  }

  /** Waiting is pale, work is solid; the device that the others wait for has an outline and an arrow. */
  function bar(phase, start, ms, span, critical, x, top) {
    const [from, to, end] = [x(start), x(start + ms), x(start + span)];
    const gap = end - from > 4 ? 1 : 0;
    const nodes = [
      svg("rect", { class: "waiting", x: from, y: top, width: Math.max(0, end - from - gap), height: BAR }),
      svg("rect", { class: `work p${phase}`, x: from, y: top, width: Math.max(0, to - from - gap), height: BAR }),
    ];
    if (critical) {
      nodes.push(
        svg("rect", {
          class: "critical",
          x: from + 0.5,
          y: top - 0.5,
          width: Math.max(1, end - from - gap - 1),
          height: BAR + 1,
        }),
      );
      if (end - from > 9) nodes.push(svg("path", { class: "dot", d: `M${end - gap - 6} ${top + 3}l-4 3l4 3z` }));
    }
    return nodes;
  }

  function memory(share, left, width, top) {
    const wide = width - 34;
    return [
      svg("rect", { class: "waiting", x: left, y: top, width: wide, height: BAR }),
      svg("rect", { class: "memory", x: left, y: top, width: wide * Math.min(1, share), height: BAR }),
      svg("line", { class: "cap", x1: left + wide, x2: left + wide, y1: top - 2, y2: top + BAR + 2 }),
      svg("text", { class: "tick", x: left + width, y: top + BAR - 2, "text-anchor": "end" }, format.share(share)),
    ];
  }

  Object.assign(window.ShardGym, { PHASES, LETTERS, timeline: { draw, spansOf, topOf } });
})();
