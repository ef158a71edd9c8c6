"use strict";
// Numbers as people read them.
(() => {
  const NONE = "\u2013";

  /** So many significant digits without an exponent: 0.01234, 12.34, 1,234. */
  function digits(value, count) {
    if (value === 0) return "0";
    const after = Math.max(0, count - 1 - Math.floor(Math.log10(Math.abs(value))));
    return value.toLocaleString("en", {
      minimumFractionDigits: Math.min(after, 8),
      maximumFractionDigits: Math.min(after, 8),
    });
  }

  /** A round number, such as a tick: 7, 7.5, 1,200. */
  const plain = (value) => value.toLocaleString("en", { maximumSignificantDigits: 6 });

  const none =
    (write) =>
    (value, ...rest) =>
      value === null || value === undefined ? NONE : write(value, ...rest);

  const ms = none((value) => digits(value, 4));
  const short = none((value) => digits(value, 3));
  const percent = none((value) => `${value > 0 ? "+" : ""}${(100 * value).toFixed(Math.abs(value) < 0.1 ? 2 : 1)}%`);
  const excess = none((value) => `${(100 * value).toFixed(2).replace("-0.00", "0.00")}%`);
  const excessTick = (value) => `${plain(Number((100 * value).toPrecision(6)))}%`;
  const share = none((value) => `${(100 * value).toFixed(0)}%`);
  const ratio = none((value) => value.toFixed(3));
  const count = none((value) => value.toLocaleString("en", { maximumFractionDigits: value < 10 ? 1 : 0 }));

  /** Ms as a time in the unit that suits it, the number written by `write`: 0.41 ms, 12 ms, 3.1 s. */
  const timed = (value, write) => (value < 999.5 ? `${write(value)} ms` : `${write(value / 1e3)} s`);
  const time = none((value) => timed(value, (each) => digits(each, 2)));
  const timeTick = (value) => timed(value, (each) => plain(Number(each.toPrecision(3))));

  const memory = none((mib) =>
    mib >= 1024
      ? `${digits(mib / 1024, 3)} GiB`
      : mib >= 0.1 || !mib
        ? `${digits(mib, 3)} MiB`
        : `${digits(mib * 1024, 3)} KiB`,
  );

  const range = ([low, high]) => (low === high ? count(low) : `${count(low)}\u2013${count(high)}`);

  Object.assign(window.ShardGym, {
    format: { NONE, plain, ms, short, percent, excess, excessTick, share, ratio, count, time, timeTick, memory, range },
  });
})();
