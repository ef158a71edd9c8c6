"use strict";
// The data files are scripts that store a value under a key, because a page opened from a disk cannot fetch.
(() => {
  const PATH = /^data\/[a-z0-9][a-z0-9._-]*(\/[a-z0-9][a-z0-9._-]*)*\.js$/;
  const loading = new Map();

  // Only here a string becomes the address of a script; the page's policy allows no other place.
  const check = (address) => {
    if (PATH.test(address)) return address;
    throw new TypeError(`${address} is no data file.`);
  };
  const policy = window.trustedTypes
    ? window.trustedTypes.createPolicy("shard-gym-data", { createScriptURL: check })
    : { createScriptURL: check };

  /** A promise of the value under `key`, such as "simulated/dlrm-20x4/ranking". */
  function load(key) {
    if (!loading.has(key)) loading.set(key, new Promise((resolve, reject) => start(key, resolve, reject)));
    return loading.get(key);
  }

  function start(key, resolve, reject) {
    const address = `data/${key}.js`;
    const script = document.createElement("script");
    script.src = policy.createScriptURL(address);
    script.onload = () => {
      script.remove();
      if (window.ShardGymData && Object.hasOwn(window.ShardGymData, key)) resolve(window.ShardGymData[key]);
      else reject(new Error(`${address} does not hold what it should. Reload the page.`));
    };
    script.onerror = () => {
      loading.delete(key);
      script.remove();
      reject(new Error(`${address} could not be loaded. Reload the page, or copy its whole folder again.`));
    };
    document.head.append(script);
  }

  Object.assign(window.ShardGym, { load });
})();
