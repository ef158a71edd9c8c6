"use strict";
// What differs between the tracks: words, and the axes of their chart. ranking.js says which columns each has.
(() => {
  const { format } = window.ShardGym;

  const NEAR = { "near copies": "answers that are nearly those of others, without a rank" };
  const LEAGUES = {
    "zero-query": "asks the cost model nothing while it plans",
    guided: "looks at each table on each device once at most",
    search: "asks the cost model as often as it wants",
    ...NEAR,
  };
  const QUERIES = "Queries are evaluations of the cost model that scores.";

  const cost = {
    score: "Mean cost, ms",
    value: format.ms,
    chart: {
      title: "Cost against planning time",
      across: "planning time per task",
      at: (entry) => entry.planning_ms,
      tick: format.timeTick,
      log: true,
      up: "mean cost, ms",
      upTick: format.plain,
    },
  };

  const TRACKS = {
    simulated: {
      ...cost,
      tab: "Placement",
      about: "Each table goes to one device. A cost model gives the time of a training iteration.",
      groups: LEAGUES,
      notes: QUERIES,
    },
    sharding: {
      ...cost,
      tab: "Sharding",
      about: "Tables may be split over devices. A cost model gives the time of a training iteration.",
      groups: LEAGUES,
      notes: QUERIES,
    },
    measured: {
      ...cost,
      tab: "Measured",
      about: "Placements, or plans, raced on hardware. Two races, or measured and simulated costs, are never ranked together.",
      groups: NEAR,
      notes: "Queries are evaluations of a cost model.",
    },
    replanning: {
      tab: "Replanning",
      about: "Tables drift for 14 days. Each hour an agent keeps its plan, or pauses training to make a new one.",
      groups: {
        replayed: "agents of ShardGym, which play again whenever the entry is verified",
        ...NEAR,
        "not replayed": "sequences as they were submitted; nobody checks how their agent decides",
      },
      notes: "Times are means of an episode. The oracle knows the best sequence with hindsight.",
      score: "Over the oracle",
      value: format.excess,
      chart: {
        title: "Time over the oracle against plans",
        across: "plans in an episode",
        at: (entry) => entry.plans,
        tick: format.plain,
        log: false,
        up: "time over the oracle",
        upTick: format.excessTick,
        fromZero: true,
      },
    },
  };

  Object.assign(window.ShardGym, { TRACKS });
})();
