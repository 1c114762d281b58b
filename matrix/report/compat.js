"use strict";
(() => {
  const held = JSON.parse(document.getElementById("data").textContent);
  const axes = Object.keys(held.known);
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
  // The first rule that takes the stack, those that say "broken" first: as matrix/failure.py has it.
  const ruling = (failure, places) =>
    failure.rules.find((rule) => Object.entries(rule.takes).every(([axis, taken]) => taken.includes(places[axis])));

  const card = (failure, rule) => {
    const made = element("section", "", "card");
    const title = element("h3");
    const link = element("a", failure.failure);
    link.href = `failures/${failure.failure}.html`;
    title.append("BREAKS ", link, ": " + failure.title);
    made.append(title, element("p", rule.reason));
    const seen = element("p", failure.levels.length ? "Seen here at level " : "Never run on this machine.");
    for (const level of failure.levels) seen.append(element("span", level, "level"), " ");
    made.append(seen);
    if (failure.fix) made.append(element("p", "Fix: " + failure.fix));
    for (const way of failure.workarounds)
      made.append(element("p", `Way round: ${way.text} (${way.verified || "not verified here"})`));
    made.append(element("p", failure.references.join(", "), "soft"));
    return made;
  };

  const tell = () => {
    const named = axes.map((axis) => [axis, field(axis).value.trim()]).filter(([, value]) => value);
    line.textContent = `megatrix compat "${named.map(([axis, value]) => `${axis}=${value}`).join(" ") || "mcore=... torch=..."}"`;
    answer.replaceChildren();
    const strange = named.filter(([axis, value]) => !held.known[axis].includes(value));
    if (strange.length) {
      const said = strange.map(([axis, value]) => `${axis} ${value}`).join(", ");
      answer.append(element("p", `This page does not know ${said}. The line above answers for any version.`));
      return;
    }
    if (!named.length) {
      answer.append(element("p", "Pick a version."));
      return;
    }
    const places = Object.fromEntries(
      axes.map((axis) => [axis, held.known[axis].indexOf(field(axis).value.trim() || (none[axis] ?? "none"))]));
    const told = { broken: [], works: [], unknown: [] };
    for (const failure of held.failures) {
      const rule = ruling(failure, places);
      told[rule ? rule.expectation : "unknown"].push([failure, rule]);
    }
    const count = told.broken.length;
    answer.append(element("h2", count ? `${count} known to break` : "Nothing in the catalog is known to break here"));
    answer.append(...told.broken.map(([failure, rule]) => card(failure, rule)));
    for (const [kind, words] of [["works", "Known to work: "], ["unknown", "Nothing is known of: "]])
      if (told[kind].length) answer.append(element("p", words + told[kind].map(([failure]) => failure.failure).join(", ")));
  };

  for (const axis of axes) field(axis).addEventListener("input", tell);
  field("base").addEventListener("input", () => {
    for (const [axis, value] of Object.entries(held.brings[field("base").value.trim()] || {})) field(axis).value = value;
    tell();
  });
  for (const word of decodeURIComponent(location.hash.slice(1)).split(" ")) {
    const [axis, value] = word.split("=");
    if (axes.includes(axis) && value) {
      field(axis).value = value;
      if (axis === "base") field(axis).dispatchEvent(new Event("input"));
    }
  }
  tell();
})();
