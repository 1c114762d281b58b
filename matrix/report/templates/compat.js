"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const axes = Object.keys(data.known);
  const field = (axis) => document.getElementById("pick-" + axis);
  const answer = document.getElementById("answer");
  const line = document.querySelector(".paste code");
  const none = { base: "" };

  const element = (tag, text, kind) => {
    const made = document.createElement(tag);
    if (text) made.textContent = text;
    if (kind) made.className = kind;
    return made;
  };
  // The first rule that matches the stack; `broken` rules come first, as in matrix/catalog/failure.py.
  const ruling = (failure, places) =>
    failure.rules.find((rule) => Object.entries(rule.takes).every(([axis, taken]) => taken.includes(places[axis])));

  const card = (failure, rule) => {
    const made = element("section", "", "card");
    const title = element("h3");
    const link = element("a", failure.failure);
    link.href = `failures/${failure.failure}.html`;
    title.append("BREAKS ", link, ": " + failure.title);
    const reason = element("p", `${rule.reason}; ${failure.levels.length ? "run on this machine at level " : "never run on this machine"}`);
    failure.levels.forEach((level, place) => reason.append(place ? ", " : "", element("span", level, "level")));
    made.append(title, reason);
    if (failure.reached_by.length) made.append(element("p", "reached by: " + failure.reached_by.join("; or ")));
    made.append(element("p", "fix: " + failure.fix));
    for (const workaround of failure.workarounds)
      made.append(element("p", `workaround: ${workaround.text}${workaround.verified ? ` [${workaround.verified}]` : ""}`));
    made.append(element("p", failure.references.join(", "), "soft"));
    return made;
  };

  const update = () => {
    const named = axes.map((axis) => [axis, field(axis).value.trim()]).filter(([, value]) => value);
    line.textContent = `megatrix check "${named.map(([axis, value]) => `${axis}=${value}`).join(" ") || "mcore=... torch=..."}"`;
    answer.replaceChildren();
    const unknown = named.filter(([axis, value]) => !data.known[axis].includes(value));
    if (unknown.length) {
      const listed = unknown.map(([axis, value]) => `${axis} ${value}`).join(", ");
      answer.append(element("p", `Not in the catalog: ${listed}. The command above accepts any version.`));
      return;
    }
    if (!named.length) {
      answer.append(element("p", "Pick a version."));
      return;
    }
    const places = Object.fromEntries(
      axes.map((axis) => [axis, data.known[axis].indexOf(field(axis).value.trim() || (none[axis] ?? "none"))]));
    const found = { broken: [], works: [], unknown: [] };
    for (const failure of data.failures) {
      const rule = ruling(failure, places);
      found[rule ? rule.expectation : "unknown"].push([failure, rule]);
    }
    const count = found.broken.length;
    answer.append(element("h2", count ? `${count} known failure${count > 1 ? "s" : ""}` : "no failure of the catalog is known to occur in this stack"));
    answer.append(...found.broken.map(([failure, rule]) => card(failure, rule)));
    for (const [kind, title] of [["works", "known to work: "], ["unknown", "not known: "]]) {
      if (found[kind].length) answer.append(element("p", title + found[kind].map(([failure]) => failure.failure).join(", ")));
      // Where the rule depends on hardware, "works" alone would mislead: show the reason.
      for (const [failure, rule] of found[kind])
        if (rule && ("driver" in rule.takes || "sm" in rule.takes)) answer.append(element("p", `${failure.failure}: ${rule.reason}`));
    }
  };

  for (const axis of axes) field(axis).addEventListener("input", update);
  field("base").addEventListener("input", () => {
    for (const [axis, value] of Object.entries(data.brings[field("base").value.trim()] || {})) field(axis).value = value;
    update();
  });
  for (const word of decodeURIComponent(location.hash.slice(1)).split(" ")) {
    const [axis, value] = word.split("=");
    if (axes.includes(axis) && value) {
      field(axis).value = value;
      if (axis === "base") field(axis).dispatchEvent(new Event("input"));
    }
  }
  update();
})();
