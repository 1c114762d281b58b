"use strict";
// The table of answers that Python computed (matrix/check/table.py): every answer is looked up, none is computed here.
const stacks = (() => {
  const data = JSON.parse(document.getElementById("stacks").textContent);
  const axes = Object.keys(data.values);
  for (const table of [...data.failures, ...data.clashes, ...data.calls, ...data.undecided]) {
    table.sizes = Object.entries(table.classes).map(([axis, classes]) => [axis, classes, Math.max(...classes) + 1]);
  }
  const look = (table, places) => {
    let found = 0;
    for (const [axis, classes, size] of table.sizes) found = found * size + classes[places[axis]];
    return table.answers[table.cells[found]];
  };

  // A choice is axis -> word, such as {base: "base=ngc-24.07", mcore: "mcore=0.8.0"}; a container implies words.
  const whole = (choice) => {
    const implied = { ...(data.brought[choice.base] || {}) };
    for (const [axis, word] of Object.entries(choice)) if (word) implied[axis] = word;
    return implied;
  };
  const places = (choice) => {
    const words = whole(choice);
    return Object.fromEntries(axes.map((axis) => [axis, data.values[axis].indexOf(words[axis] || "")]));
  };
  const standing = (choice) => {
    const where = places(choice);
    return data.failures.map((table, place) => {
      const [rank, certain, reason, needs, hidden, flags] = look(table, where);
      return {
        entry: data.entries[place], rank, certain: certain === 1, reason: data.texts[reason], needs: data.texts[needs],
        hidden: data.texts[hidden], flags: flags.map((flag) => data.texts[flag]),
      };
    });
  };
  // The calls that break and that the catalog lacks, by what reaches them, and why they could not be judged.
  const calls = (choice) => {
    const where = places(choice), answers = data.calls.map((table) => look(table, where));
    const group = (place, [rank, certain, into, needs, flags, found]) => ({
      place, rank, certain: certain === 1, into: data.texts[into], needs: data.texts[needs], flags: flags.map((flag) => data.texts[flag]),
      findings: found.map((each) => data.findings[each].map((text) => data.texts[text])) });
    const groups = answers.flatMap(([, listed], place) => listed.map((each) => group(place, each)));
    groups.sort((one, other) => one.rank - other.rank || other.certain - one.certain);
    const problems = answers.map(([problem]) => data.texts[problem]);
    return { problem: problems.filter(Boolean).join("; "), problems, groups };
  };
  const clashes = (choice) => {
    const where = places(choice);
    return data.clashes.map((table) => data.texts[look(table, where)]).filter(Boolean);
  };
  // What is not known of a stack; why calls could not be judged counts where all else is known.
  const unread = (choice) => {
    const where = places(choice), texts = data.undecided.map((table) => data.texts[look(table, where)]).filter(Boolean);
    return texts.length ? texts : calls(choice).problems.filter(Boolean);
  };
  const words = (choice) => axes.map((axis) => choice[axis]).filter(Boolean).join(" ");
  const name = (word) => word.replace(/^(base|te|mcore)=/, "").replace("=", " ");

  const element = (tag, kind, ...parts) => {
    const made = document.createElement(tag);
    if (kind) made.className = kind;
    made.append(...parts.filter((part) => part !== ""));
    return made;
  };
  const signs = { will: "!", options: "o", silent: "~", versions: "?" };
  const known = (one) => data.breaks.includes(one.rank);
  const command = (choice) => {
    const line = element("div", "paste", element("code", "", `megatrix check "${words(choice)}"`), element("button", "", "copy"));
    line.lastChild.dataset.copy = "";
    line.firstChild.tabIndex = 0;
    return line;
  };
  // What to know about one failure in a stack; `result` is that of the night.
  const card = (one, result, label) => {
    const { entry } = one;
    const link = element("a", "", entry.id);
    link.href = `failures/${entry.id}.html`;
    const made = element("li", "", element("span", `swatch ${data.colours[one.rank]}`, signs[data.colours[one.rank]] || "\u00b7"), " ",
      element("b", "", label || data.standings[one.rank]), ": ", link, " ", entry.title);
    if (one.needs) made.append(element("p", "", one.needs));
    const ways = [...one.flags, ...entry.workarounds];
    if (known(one)) made.append(element("p", "", ways.length ? `workaround: ${ways[0]}` : `fix: ${entry.fix}`));
    if (one.hidden) made.append(element("p", "soft", `comes first: ${one.hidden}`));
    const facts = [result ? `this night: ${result}` : "", entry.seen.length ? `seen since ${entry.seen[0]}${entry.seen[1] === entry.seen[0] ? "" : `, last in ${entry.seen[1]}`}` : ""];
    if (known(one) && facts.some(Boolean)) made.append(element("p", "soft", facts.filter(Boolean).join("; ")));
    return made;
  };
  const callCard = ({ rank, into, needs, flags, findings }, label) => {
    const made = element("li", "calls", element("span", `swatch ${data.colours[rank]}`, signs[data.colours[rank]]), " ",
      element("b", "", label || data.standings[rank]), `: ${findings.length > 1 ? `${findings.length} calls` : "a call"} into ${into}`,
      element("p", "", needs));
    if (flags.length) made.append(element("p", "", `workaround: ${flags[0]}`));
    for (const [error, site] of findings) made.append(element("p", "soft", element("code", "", error), ` at ${site}`));
    return made;
  };
  return { data, axes, standing, calls, callCard, clashes, unread, words, name, whole, element, card, known, command, signs };
})();
