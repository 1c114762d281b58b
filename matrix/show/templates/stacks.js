"use strict";
// The table of answers that Python computed (matrix/ask/check/table.py): every answer is looked up, none is computed here.
// `stacks` is set when `ready` is fulfilled: the table is in the page compressed, and a browser unpacks in the background.
let stacks;
const answers = (data) => {
  const axes = Object.keys(data.values);
  for (const table of [...data.failures, ...data.clashes, ...data.calls, ...data.undecided, ...Object.values(data.resuming)]) {
    table.sizes = Object.entries(table.classes).map(([axis, classes]) => [axis, classes, Math.max(...classes) + 1]);
  }
  const look = (table, places) => {
    let found = 0;
    for (const [axis, classes, size] of table.sizes) found = found * size + classes[places[axis]];
    return table.answers[table.cells[found]];
  };

  const others = [data.uses.length];  // of a break that none of the listed uses reaches

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
        entry: data.entries[place], rank, certain: certain === 1, reason: data.texts[reason], needs: data.texts[needs], uses: data.used[needs] || others,
        hidden: data.texts[hidden], flags: flags.map((flag) => data.texts[flag]),
      };
    });
  };
  // The calls that break and that the catalog lacks, by what reaches them, and why they could not be judged.
  const calls = (choice) => {
    const where = places(choice), answers = data.calls.map((table) => look(table, where));
    const group = (place, [rank, certain, into, needs, flags, found]) => ({
      place, rank, certain: certain === 1, into: data.texts[into], needs: data.texts[needs], uses: data.used[needs] || others, flags: flags.map((flag) => data.texts[flag]),
      findings: found.map((each) => data.findings[each].map((text) => data.texts[text])) });
    const groups = answers.flatMap(([, listed], place) => listed.map((each) => group(place, each)));
    groups.sort((one, other) => one.rank - other.rank || other.certain - one.certain);
    const why = new Map();  // by package that is called, from every pair
    for (const [problem, , parts] of answers)
      for (const part of parts.map((each) => data.texts[each])) why.set(part, new Set([...why.get(part) || [], data.texts[problem]]));
    const problems = new Map([...why].map(([part, texts]) => [part, [...texts].join("; ")]));
    return { problem: [...problems.values()].join("; "), problems, unknown: [...problems.keys()], groups };
  };
  const clashes = (choice) => {
    const where = places(choice);
    return data.clashes.map((table) => data.texts[look(table, where)]).filter(Boolean);
  };
  // What is not known of a stack; why calls could not be judged counts where all else is known.
  const unread = (choice) => {
    const where = places(choice), texts = data.undecided.map((table) => data.texts[look(table, where)]).filter(Boolean);
    return texts.length ? texts : [...calls(choice).problems.values()];
  };
  // What is known of reading the checkpoints of one stack in another: ids that may break, that work, that are not known.
  const resuming = (before, after) => {
    const where = { ...places(after), ...Object.fromEntries(Object.entries(places(before)).map(([axis, place]) => [`from ${axis}`, place])) };
    const ids = [[], [], []];
    for (const [id, table] of Object.entries(data.resuming)) ids[look(table, where)].push(id);
    return { broken: ids[0], works: ids[1], unknown: ids[2] };
  };
  // What each newer version of an axis changes, as `megatrix check --upgrade AXIS --json` reports it.
  const breaks = (choice) => {
    const { groups, unknown } = calls(choice), failures = standing(choice);
    const certain = [...failures.filter((one) => one.certain).map((one) => one.entry.id),
      ...groups.filter((one) => one.certain).map((one) => `calls into ${one.into}: ${one.needs}`)];
    const open = failures.filter((one) => data.standings[one.rank] === "unknown").map((one) => one.entry.id);
    if (data.texts[look(data.undecided[1], places(choice))]) open.push(data.upgrade.driver);
    return { certain: new Set(certain), unknown: new Set([...open, ...unknown]), clashes: clashes(choice) };
  };
  const step = (version, before, after, apart) => {
    const state = ({ certain, unknown }, part) =>
      certain.has(part) ? "certain" : unknown.has(part) || unknown.has(part.split(": ")[0]) ? "unknown" : "";
    const found = { version, fixed: [], new: [], unchanged: [], unknown: [], clashes: after.clashes.filter((text) => !before.clashes.includes(text)) };
    for (const part of [...new Set([...before.certain, ...after.certain, ...after.unknown])].sort()) {
      const change = apart.includes(part) ? "" : data.upgrade.changes[state(before, part)]?.[state(after, part)];
      if (change) found[change].push(part);
    }
    return found;
  };
  const upgrade = (choice, axis) => {
    const stack = whole(choice), kind = axis === "base" && !stack.base?.startsWith("base=") ? "torch" : axis;
    const current = stack[axis]?.slice(kind.length + 1) || "none";
    if (current === "none") return { component: data.upgrade.components[kind], current: "", may_take_newest: "", best: "", apart: [], versions: [] };
    const order = data.values[axis], before = breaks(stack);
    const apart = data.upgrade.apart[kind].map((place) => data.entries[place].id).filter((id) => before.certain.has(id)).sort();
    const newer = data.upgrade.newer[kind].filter((word) => order.indexOf(word) > order.indexOf(stack[axis]) &&
      (kind !== "base" || word.split("-")[0] === stack[axis].split("-")[0]));
    const versions = newer.map((word) => {
      const version = word.slice(kind.length + 1), other = { ...stack, [axis]: word };
      if (kind === "base") delete other.te;
      return kind === "base" && !data.upgrade.known.includes(word)
        ? { version, fixed: [], new: [], unchanged: [], unknown: [data.upgrade.contents], clashes: [] } : step(version, before, breaks(other), apart);
    });
    const [newest, free] = [versions.at(-1), versions.filter((one) => !one.clashes.length && !one.new.length)];
    const best = free.filter((one) => !one.unknown.includes(data.upgrade.contents)).at(-1);
    const verdict = !newest ? "" : !free.includes(newest) ? "no" : newest.unknown.length ? "unknown" : "yes";
    return { component: data.upgrade.components[kind], current, may_take_newest: verdict, best: best?.version || "", apart, versions };
  };
  const words = (choice) => axes.map((axis) => choice[axis]).filter(Boolean).join(" ");
  const name = (word) => word.replace(/^(base|te|mcore)=/, "").replace("=", " ");
  // The word of a version as people write it: 0.17.1, v0.17, torch 2.9, 25.09, an image with its tag; undefined: not listed.
  const plain = (version) => version.replace(/^v/, "").replace(/\+.*/, "").replace(/(\.0)+$/, "");
  const wordOf = (axis, text) => {
    const asked = text.trim().toLowerCase(), listed = data.values[axis].filter(Boolean);
    if (!asked) return "";
    const tag = Object.keys(data.tags).find((each) => asked === each || each.endsWith(`/${asked}`));
    const spelled = new Set([asked, `${axis}=${asked}`, ...(axis === "base" ? [`base=ngc-${asked}`, data.tags[tag]] : [])]);
    return listed.find((word) => spelled.has(word) || spelled.has(name(word)))
      ?? listed.find((word) => !/^base=|\+/.test(word) && plain(word.split("=")[1]) === plain(asked.replace(/^\S* /, "")));
  };
  // A stack as a link has it, "base=ngc-25.09 mcore=0.17.1": its choice, and the words that are not listed.
  const read = (text) => {
    const choice = {}, unlisted = [];
    for (const part of text.split(" ").filter(Boolean)) {
      const [key, version] = [part.split("=")[0], part.slice(part.indexOf("=") + 1)], axis = data.aliases[key] || key;
      const word = axis === "torch" ? wordOf("base", `torch ${version}`) : data.values[axis] && wordOf(axis, version);
      if (word) choice[axis === "torch" ? "base" : axis] = word;
      else unlisted.push(part);
    }
    return { choice, unlisted };
  };

  // Everything that is chosen on the page is in its URL.
  const url = {
    get: (key) => new URLSearchParams(location.hash.slice(1)).get(key) ?? "",
    has: (key) => new URLSearchParams(location.hash.slice(1)).has(key),
    with: (changes) => {
      const asked = new URLSearchParams(location.hash.includes("=") ? location.hash.slice(1) : "");
      for (const [key, value] of Object.entries(changes)) {
        if (value === null) asked.delete(key);
        else asked.set(key, value);
      }
      return `#${asked}`;
    },
    set: (changes) => { location.hash = url.with(changes); },
  };

  const element = (tag, kind, ...parts) => {
    const made = document.createElement(tag);
    if (kind) made.className = kind;
    made.append(...parts.filter((part) => part !== ""));
    return made;
  };
  const known = (one) => data.breaks.includes(one.rank);
  const command = (choice, more = "") => {
    const line = element("div", "paste", element("code", "", `megatrix check "${words(choice)}"${more}`), element("button", "", "copy"));
    line.lastChild.dataset.copy = "";
    line.firstChild.tabIndex = 0;
    return line;
  };
  // What to know about one failure in a stack; `result` is that of the night.
  const card = (one, result, label) => {
    const { entry } = one;
    const link = element("a", "", entry.id);
    link.href = `failures/${entry.id}.html`;
    const colour = one.certain ? "breaks" : data.colours[one.rank];
    const made = element("li", "", element("span", `swatch ${colour}`, data.signs[colour]), " ",
      element("b", "", label || data.standings[one.rank]), ": ", link, " ", entry.title);
    if (one.needs) made.append(element("p", "", one.needs));
    const ways = [...one.flags, ...entry.workarounds];
    if (known(one)) made.append(element("p", "", ways.length ? `workaround: ${ways[0]}` : `fix: ${entry.fix}`));
    if (one.hidden) made.append(element("p", "soft", `comes first: ${one.hidden}`));
    const facts = [result ? `this night: ${result}` : "", entry.seen.length ? `seen since ${entry.seen[0]}${entry.seen[1] === entry.seen[0] ? "" : `, last in ${entry.seen[1]}`}` : ""];
    if (known(one) && facts.some(Boolean)) made.append(element("p", "soft", facts.filter(Boolean).join("; ")));
    return made;
  };
  const callCard = ({ rank, certain, into, needs, flags, findings }, label) => {
    const colour = certain ? "breaks" : data.colours[rank];
    const made = element("li", "calls", element("span", `swatch ${colour}`, data.signs[colour]), " ",
      element("b", "", label || data.standings[rank]), `: ${findings.length > 1 ? `${findings.length} calls` : "a call"} into ${into}`,
      element("p", "", needs));
    if (flags.length) made.append(element("p", "", `workaround: ${flags[0]}`));
    for (const [error, site] of findings) made.append(element("p", "soft", element("code", "", error), ` at ${site}`));
    return made;
  };
  return { data, axes, standing, calls, callCard, clashes, unread, upgrade, breaks, step, resuming, words, name, wordOf, read, url, whole, element, card, known, command };
};
const ready = (async () => {
  const packed = Uint8Array.from(atob(document.getElementById("stacks").textContent), (each) => each.charCodeAt(0));
  const text = await new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"))).text();
  stacks = answers(JSON.parse(text));
  document.documentElement.dataset.ready = "";
})();
