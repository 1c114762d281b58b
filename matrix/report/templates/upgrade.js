"use strict";
(() => {
  const { data, axes, standing, calls, callCard, clashes, unread, upgrade, words, name, whole, element, card, known } = stacks;
  const field = (side, axis) => document.getElementById(`${side}-${axis}`);
  const answer = document.getElementById("answer");
  const ORDER = ["newly broken", "still broken", "no longer known", "fixed"];

  const chosen = (side) => {
    const choice = {};
    for (const axis of axes) if (field(side, axis).value) choice[axis] = field(side, axis).value;
    return choice;
  };
  const choose = (side, choice) => {
    for (const axis of axes) field(side, axis).value = choice[axis] || "";
  };
  const read = (text) => {
    const choice = {};
    for (const word of text.split(" ")) {
      const axis = axes.find((each) => data.values[each].includes(word));
      if (axis && word) choice[axis] = word;
    }
    return choice;
  };

  // What `megatrix check --upgrade` answers, for each axis of a stack; a button takes the newest version that nothing blocks.
  const linkedIds = (parts) => parts.flatMap((part, place) => {
    const link = element(data.entries.some((entry) => entry.id === part) ? "a" : "span", "", part);
    if (link.tagName === "A") link.href = `failures/${part}.html`;
    return place ? [", ", link] : [link];
  });
  const upgradeCard = (choice, axis) => {
    const found = upgrade(choice, axis), title = found.component === "base" ? "container" : data.titles[axis === "base" ? "torch" : axis];
    const made = element("section", "card upgrade");
    made.dataset.axis = axis;
    made.dataset.answer = found.may_take_newest;
    const newest = found.versions.at(-1);
    if (!newest) {
      const reason = found.current ? `no newer version than ${found.current} is known` : whole(choice)[axis] ? "absent" : "not named";
      made.append(element("p", "", element("b", "", title), `: ${reason}`));
      return made;
    }
    const line = (label, parts) => parts.length ? element("p", "", `${label}: `, ...linkedIds(parts)) : "";
    made.append(element("p", "", element("b", "", `${title} ${found.current}`), `: may I take ${newest.version}, the newest? `, element("b", found.may_take_newest, found.may_take_newest)),
      line("It breaks", [...newest.clashes, ...newest.new]), line("It fixes", newest.fixed), line("Still broken", newest.unchanged), line("Not known there", newest.unknown));
    if (found.best) {
      const button = element("button", "", "take it");
      button.addEventListener("click", () => {
        const other = { ...whole(choice), [axis]: `${found.component === "base" ? "base" : axis === "base" ? "torch" : axis}=${found.best}` };
        if (found.component === "base") delete other.te;
        choose("to", other);
        update();
      });
      made.append(element("p", "", `The newest version that nothing blocks: ${found.best} `, button));
    } else made.append(element("p", "", `No version after ${found.current} is known to be free of new breaks.`));
    if (found.apart.length) made.append(element("p", "soft", "It does not affect: ", ...linkedIds(found.apart)));
    const heads = ["version", "fixes", "breaks", "unchanged", "not known"];
    const cells = (one) => [[one.version], one.fixed, [...one.clashes, ...one.new], one.unchanged, one.unknown];
    const row = (one) => element("tr", "", ...cells(one).map((parts, place) => {
      const cell = element(place ? "td" : "th", "", ...(place ? linkedIds(parts) : parts));
      if (place && parts.length) cell.dataset.head = heads[place];
      return cell;
    }));
    made.append(element("details", "row", element("summary", "", `${found.versions.length} newer version${found.versions.length > 1 ? "s" : ""}`),
      element("div", "scroll", element("table", "cases", element("thead", "", element("tr", "", ...heads.map((head) => element("th", "", head)))),
        element("tbody", "", ...found.versions.map(row).reverse())))));
    return made;
  };
  const upgradeCards = (choice) => words(choice)
    ? [element("h2", "", `May I upgrade ${words(choice)}?`), ...["base", "te", "mcore"].map((axis) => upgradeCard(choice, axis))] : [];

  const group = (title, items) => items.length
    ? [element("h2", "", `${title}: ${items.length}`), element("section", "card", element("ul", "failures", ...items))] : [];
  const update = () => {
    const [from, to] = ["from", "to"].map(chosen);
    for (const side of ["from", "to"]) {
      const implied = data.brought[chosen(side).base] || {};
      for (const axis of axes)
        field(side, axis).options[0].text = implied[axis] ? `${name(implied[axis])} (in the container)` : "not named";
    }
    history.replaceState(null, "", `#${new URLSearchParams({ from: words(from), to: words(to) })}`);
    if (!words(to)) {
      answer.replaceChildren(...upgradeCards(from), element("p", "soft", "Choose the stack to upgrade to; with From, also what changes."));
      return;
    }
    const before = standing(from);
    const after = standing(to);
    const moved = Object.fromEntries([...ORDER, "known"].map((each) => [each, []]));
    const quiet = { "known to work": [], unknown: [], "not reached": [] };
    const worstFirst = [...after.entries()].sort(([, one], [, other]) => one.rank - other.rank);
    for (const [place, one] of worstFirst) {
      const kind = words(from) ? data.moves[before[place].rank][one.rank] : "known";
      const was = words(from) && before[place].rank !== one.rank ? `${data.standings[before[place].rank]} \u2192 ${data.standings[one.rank]}` : "";
      if (moved[kind] && (words(from) || one.rank <= data.breaks.at(-1) + 1)) moved[kind].push(card(one, "", was));
      else quiet[data.standings[one.rank]]?.push(one.entry.id);
    }
    // Of calls that a job reaches alike, some may break in one stack alone.
    const [old, broken] = [from, to].map(calls);
    const judged = (choice, { problems }, { place, into }) =>
      !problems.has(`calls into ${into}`) && data.pairs[place].every((axis) => whole(choice)[axis]) ? "not found" : "unknown";
    const has = ({ groups }, [error]) => groups.some((each) => each.findings.some((one) => one[0] === error));
    const sort = (kind, group, other, both, label) => {
      const findings = group.findings.filter((one) => has(other, one) === both);
      if (findings.length) moved[words(from) ? kind : "known"].push(callCard({ ...group, findings }, words(from) && label));
    };
    for (const each of broken.groups) {
      sort("newly broken", each, old, false, `${judged(from, old, each)} \u2192 ${data.standings[each.rank]}`);
      sort("still broken", each, old, true);
    }
    for (const each of old.groups) {
      const left = judged(to, broken, each);
      sort(left === "unknown" ? "no longer known" : "fixed", each, broken, false, `${data.standings[each.rank]} \u2192 ${left}`);
    }
    const [excluded, undecided] = [clashes(to), unread(to)];
    const certain = [...after, ...broken.groups].filter((one) => one.certain).length + excluded.length;
    const also = [...after, ...broken.groups].filter((one) => known(one) && !one.certain).length;
    answer.replaceChildren(
      element("p", "verdict card", element("b", "", certain ? `${certain} known break${certain > 1 ? "s" : ""} in the stack To` : undecided.length ? `UNKNOWN: ${undecided.length} part${undecided.length > 1 ? "s" : ""} of the stack To not known` : "Nothing is certain to break in the stack To"),
        `; ${also} more with certain options`, words(from) ? `; ${moved[ORDER[0]].length} newly broken, ${moved.fixed.length} fixed` : ""),
      ...group("Can't be installed together", excluded.map((text) => element("li", "", text))),
      ...group("Unknown", undecided.map((text) => element("li", "", text))),
      ...(words(from) ? ORDER : ["known"]).flatMap((kind) => group(kind === "known" ? "Known breaks" : kind, moved[kind])),
      element("h2", "", "Others"), element("section", "card", ...Object.entries(quiet).filter(([, ids]) => ids.length).map(([kind, ids]) =>
        element("p", "", `${kind}: ${ids.join(", ")}`))),
      ...upgradeCards(to),
      element("h2", "", "The same in a terminal"), ...(words(from) ? [from, to] : [to]).map(stacks.command));
  };

  // Lock files: what they pin, and whether they name every package. Read here; nothing leaves the browser.
  const packages = (text) => {
    const pins = new Map();
    const loose = [];
    const canonical = (each) => each.toLowerCase().replace(/[-_.]+/g, "-");
    const table = /^[ \t]*\[\[packages?\]\][ \t]*\r?$/m;
    const complete = table.test(text);
    if (complete) {
      for (const block of text.split(table).slice(1)) {
        const own = block.split(/^[ \t]*\[/m)[0];
        const [id, version] = ["name", "version"].map((key) => new RegExp(`^${key}[ \\t]*=[ \\t]*["']([^"'\\n]*)["']`, "m").exec(own)?.[1]);
        if (id && version) pins.set(canonical(id), version);
      }
    } else {
      for (const line of text.replace(/\\\r?\n/g, " ").split(/\r?\n/)) {
        const found = /^\s*([A-Za-z0-9][\w.-]*)\s*(?:\[[^\]]*\])?\s*(.*)$/.exec(line.replace(/(^|\s)#.*/, ""));
        const pin = found && /^={2,3}\s*([^\s;,*]+)\s*(?:;.*|--hash.*)?$/.exec(found[2]);
        if (pin) pins.set(canonical(found[1]), pin[1]);
        else if (found) loose.push([canonical(found[1]), found[2]]);
      }
    }
    return { pins, loose, complete };
  };
  const plain = (version) => version.replace(/\+.*/, "").replace(/(\.0)+$/, "");
  const take = (side, text) => {
    const { pins, loose, complete } = packages(text);
    const notes = [];
    const choice = {};
    const axisOf = (id) => data.aliases[id] || id;
    for (const [id, version] of pins) {
      const axis = axisOf(id);
      if (!["torch", "te", "mcore"].includes(axis)) continue;
      const values = data.values[axis === "torch" ? "base" : axis].filter((word) => word.startsWith(`${axis}=`));
      const image = axis === "torch" && /\.nv(\d\d)\.0?(\d+)/.exec(version);
      const container = image ? `base=ngc-${image[1]}.${image[2].padStart(2, "0")}` : "";
      const word = container && data.values.base.includes(container) ? container : values.includes(`${axis}=${version}`) ? `${axis}=${version}`
        : values.find((each) => !each.includes("+") && plain(each.split("=")[1]) === plain(version));
      if (word) choice[axis === "torch" ? "base" : axis] = word;
      notes.push(!word ? `${id} ${version} is not listed here; the command accepts any version: megatrix check "${axis}=${version}"`
        : `${id} ${version}${word.endsWith(`=${version}`) ? "" : ` is compared as ${name(word)}`}`);
    }
    for (const [id, rest] of loose)
      if (["torch", "te", "mcore"].includes(axisOf(id))) notes.push(`${id} ${rest}: no exact version, so it is not named here`);
    if (complete && !choice.te && !pins.has("transformer-engine")) choice.te = "te=none";
    if (!notes.length) notes.push("no version of torch, megatron-core or Transformer Engine found");
    choose(side, choice);
    document.getElementById(`${side}-notes`).replaceChildren(...notes.map((note) => element("p", "soft", note)));
    update();
  };

  for (const side of ["from", "to"]) {
    const box = document.getElementById(side);
    const load = async (file) => take(side, file.size > 2e7 ? "" : await file.text());
    for (const axis of axes) {
      field(side, axis).append(new Option("not named", ""), ...data.values[axis].filter(Boolean).map((word) => new Option(name(word), word)));
      field(side, axis).addEventListener("change", update);
    }
    field(side, "file").addEventListener("change", (event) => event.target.files[0] && load(event.target.files[0]));
    box.addEventListener("dragover", (event) => { event.preventDefault(); box.classList.add("over"); });
    box.addEventListener("dragleave", () => box.classList.remove("over"));
    box.addEventListener("drop", (event) => {
      event.preventDefault();
      box.classList.remove("over");
      if (event.dataTransfer.files[0]) load(event.dataTransfer.files[0]);
    });
  }
  const linked = () => {
    const asked = new URLSearchParams(location.hash.slice(1));
    for (const side of ["from", "to"]) choose(side, read(asked.get(side) || ""));
    update();
  };
  addEventListener("hashchange", linked);
  linked();
})();
