"use strict";
ready.then(() => {
  const { data, axes, standing, calls, callCard, clashes, unread, upgrade, breaks, step, resuming, words, name, wordOf, read, url, whole, element, card, known } = stacks;
  const field = (id) => document.getElementById(id);
  const [answer, notes, want, to, rest] = ["answer", "notes", "want", "to", "rest"].map(field);
  const ORDER = ["newly breaks", "breaks, not known before", "stays broken", "no longer known", "fixed"];
  const title = (axis) => data.titles[axis];
  const spoken = (choice) => axes.map((axis) => choice[axis]).filter(Boolean)
    .map((word) => word.startsWith("base=") || word.startsWith("torch=") ? name(word) : `${title(word.split("=")[0])} ${name(word).replace(/^\S* /, "")}`).join(", ");

  // What the URL asks: the stack From, the part to upgrade, the stack To where one is chosen, and words that are not listed.
  const asked = () => {
    const [from, target] = [read(url.has("from") ? url.get("from") : data.asked), read(url.get("to"))];
    const axis = ["mcore", "te", "base", "stack", "none"].includes(url.get("want")) ? url.get("want") : "mcore";
    return { from: from.choice, to: target.choice, axis, unread: from.unlisted, unlisted: [...from.unlisted, ...target.unlisted] };
  };
  const kindOf = (from, axis) => axis === "base" && !from.base?.startsWith("base=") ? "torch" : axis;
  // The stack From with another version of one part; another container brings its own Transformer Engine.
  const changed = (from, axis, word) => {
    const other = { ...from, [axis]: word };
    if (word.startsWith("base=")) delete other.te;
    return other;
  };
  const link = (text, changes, kind) => {
    const made = element("a", kind || "", text);
    made.href = url.with(changes);
    return made;
  };
  const linkedIds = (parts) => parts.flatMap((part, place) => {
    const made = element(data.entries.some((entry) => entry.id === part) ? "a" : "span", "", part);
    if (made.tagName === "A") made.href = `failures/${part}.html`;
    return place ? [", ", made] : [made];
  });
  const count = (number, noun) => `${number} ${noun}${number === 1 ? "" : "s"}`;
  const banner = (kind, verdict, ...parts) => {
    const made = element("p", `verdict card ${kind}`, element("b", "", verdict), " ", ...parts);
    made.dataset.answer = kind;
    return made;
  };

  // The uses that are ticked, by place; a break needs no option, or options of these uses alone.
  const ticked = () => {
    const asked = url.get("use").split(",");
    return new Set([...document.querySelectorAll("#uses input")].flatMap((box, place) => asked.includes(box.value) ? [place] : []));
  };
  const isMine = (one, uses = ticked()) => uses.size > 0 && one.uses.every((place) => uses.has(place));

  // The answer in one line: what changes from one stack to the other, or what breaks in one.
  const changeLine = (found, target, read, moved) => {
    const optional = moved["newly breaks"].filter(([one]) => !one.certain), mine = optional.filter(([one]) => isMine(one));
    const rest = [optional.length ? `; ${optional.length} newly break${optional.length === 1 ? "s" : ""} with certain options` : "", read.broken.length ? "; old checkpoints may not load" : read.works.length && !read.unknown.length ? "; old checkpoints load" : "", found.fixed.length ? `; it fixes ${found.fixed.length}` : "", found.unchanged.length ? `; ${count(found.unchanged.length, "break")} of today stay${found.unchanged.length === 1 ? "s" : ""}` : ""];
    const broken = [...found.clashes, ...found.new];
    if (broken.length) return banner("no", "NO.", `${target} newly breaks `, ...linkedIds(broken), ...rest);
    if (mine.length) return banner("no", "NO.", `With what your jobs use, ${target} breaks `, ...linkedIds(mine.map(([one]) => one.entry ? one.entry.id : `calls into ${one.into}`)), ...rest);
    if (found.unknown.length) return banner("unknown", "UNKNOWN.", `Nothing is known to break newly in ${target}; not judged there: `, ...linkedIds(found.unknown.slice(0, 3)), found.unknown.length > 3 ? ` and ${found.unknown.length - 3} more` : "", ...rest);
    return banner("yes", "YES.", `Nothing is known to break newly in ${target}`, ...rest);
  };
  const stackLine = (stack) => {
    const { certain } = breaks(stack), excluded = clashes(stack), open = unread(stack);
    if (certain.size + excluded.length) return banner("no", "IT BREAKS.", `${count(certain.size + excluded.length, "certain break")}: `, ...linkedIds([...excluded, ...certain]));
    if (open.length) return banner("unknown", "UNKNOWN.", open.join("; "));
    return banner("yes", "YES.", "Nothing is known to break for certain.");
  };

  // Every newer version as a link, the newest first.
  const chips = (from, axis, found, target) => {
    const kind = kindOf(from, axis), made = element("ul", "chips");
    for (const one of found.versions.toReversed()) {
      const state = one.clashes.length || one.new.length ? "no" : one.unknown.length ? "unknown" : "yes";
      const other = changed(from, axis, `${kind}=${one.version}`);
      const chip = link(`${{ no: "\u00d7", unknown: "?", yes: "\u2713" }[state]} ${one.version}`, { from: words(from), want: axis, to: words(other) }, `chip ${state}`);
      chip.title = { no: `breaks ${[...one.clashes, ...one.new].join(", ")}`, unknown: `not known: ${one.unknown.join(", ")}`, yes: "nothing is known to break newly" }[state];
      if (one.version === found.best && state === "yes") chip.append(element("b", "", " best"));
      if (words(other) === words(target)) chip.setAttribute("aria-current", "true");
      made.append(element("li", "", chip));
    }
    return made;
  };

  // Certain breaks are shown, and what newly breaks with certain options: of the ticked uses, or of any where none is
  // ticked. The rest, and what is not known, is a line each kind, to open.
  const group = (moved) => {
    const capital = (text) => `${text[0].toUpperCase()}${text.slice(1)}`;
    const list = (items) => element("ul", "failures", ...items.map(([, made]) => made));
    const made = [], folded = [], uses = ticked();
    for (const [heading, items] of Object.entries(moved)) {
      const section = (shown, ...parts) => {
        const box = element(shown ? "section" : "details", shown ? "card" : "row", ...parts);
        box.dataset.group = heading;
        return box;
      };
      const opened = (one) => ["newly breaks", "known breaks"].includes(heading) && (uses.size ? isMine(one, uses) : heading === "newly breaks");
      const [certain, open, others] = [items.filter(([one]) => one.certain), items.filter(([one]) => !one.certain && opened(one)), items.filter(([one]) => !one.certain && !opened(one))];
      if (certain.length) made.push(element("h2", "", `${capital(heading)}: ${certain.length}`), section(true, list(certain)));
      if (open.length) made.push(element("h2", "", `${capital(heading)} with ${uses.size ? "what your jobs use" : "certain options"}: ${open.length}`), section(true, list(open)));
      if (others.length) folded.push(section(false, element("summary", "", `${capital(heading)}: ${others.length}`), list(others)));
    }
    return folded.length ? [...made, element("h2", "", uses.size ? "With other options or versions" : "With certain options or versions"), element("section", "card", ...folded)] : made;
  };
  // The failures and calls of a stack, with From by what the change does to each.
  const changes = (from, target) => {
    const before = from && standing(from), after = standing(target), moved = Object.fromEntries([...ORDER, "known breaks"].map((each) => [each, []]));
    for (const [place, one] of [...after.entries()].sort(([, one], [, other]) => one.rank - other.rank)) {
      const kind = from ? data.moves[before[place].rank][one.rank] : "known breaks";
      const was = from && before[place].rank !== one.rank ? `${data.standings[before[place].rank]} \u2192 ${data.standings[one.rank]}` : "";
      if (moved[kind] && (from || one.rank <= data.breaks.at(-1) + 1)) moved[kind].push([kind === "fixed" ? before[place] : one, card(one, "", was)]);
    }
    // Of calls that a job reaches alike, some may break in one stack alone.
    const [old, broken] = [from ? calls(from) : { groups: [], problems: new Map() }, calls(target)];
    const judged = (choice, { problems }, { place, into }) =>
      !problems.has(`calls into ${into}`) && data.pairs[place].every((axis) => whole(choice)[axis]) ? "no break found" : "unknown";
    const has = (other, [error]) => other.groups.some((each) => each.findings.some((one) => one[0] === error));
    const sort = (kind, one, other, both, label) => {
      const findings = one.findings.filter((each) => has(other, each) === both);
      if (findings.length) moved[from ? kind : "known breaks"].push([one, callCard({ ...one, findings }, from && label)]);
    };
    for (const one of broken.groups) {
      const was = from && judged(from, old, one);
      sort(was === "unknown" ? "breaks, not known before" : "newly breaks", one, old, false, from && `${was} \u2192 ${data.standings[one.rank]}`);
      if (from) sort("stays broken", one, old, true);
    }
    for (const one of old.groups) {
      const left = judged(target, broken, one);
      sort(left === "unknown" ? "no longer known" : "fixed", one, broken, false, `${data.standings[one.rank]} \u2192 ${left}`);
    }
    return moved;
  };

  const render = () => {
    const { from, to: chosen, axis, unlisted } = asked(), kind = kindOf(from, axis);
    for (const each of axes) {
      const box = field(`from-${each}`), implied = (data.brought[from.base] || {})[each];
      const foreign = unlisted.find((part) => part.startsWith(`${each}=`));
      box.value = from[each] ? name(from[each]).replace(/^(driver|sm) /, "") : foreign ? foreign.slice(each.length + 1) : "";
      box.parentElement.classList.toggle("set", box.value !== "");
      box.placeholder = implied ? `${name(implied)} (image)` : each === "te" ? "not named" : "any";
    }
    want.value = axis;
    rest.querySelector("summary").textContent = `What my jobs use (${ticked().size || "any"}), driver, files, search`;
    field("to-label").hidden = axis === "none";
    const heads = unlisted.map((part) => element("p", "unlisted", element("b", "", "Not listed: "), `${part}. A link or a field names it, and this page has no such version. `,
      element("code", "", `megatrix check "${part}"`), " accepts any version."));
    const stated = words(chosen) ? chosen : null, found = ["none", "stack"].includes(axis) ? null : upgrade(from, axis), newest = found?.versions.at(-1);
    const target = stated || (newest && changed(from, axis, `${kind}=${newest.version}`));
    to.placeholder = axis === "stack" ? "base=ngc-26.02 mcore=0.18.2" : "the newest";
    to.size = axis === "stack" ? 30 : 9;
    to.value = axis === "stack" ? words(chosen) : stated?.[axis] ? name(stated[axis]).replace(/^torch /, kind === "torch" ? "" : "torch ") : "";
    field("list-to").replaceChildren(...(axis === "stack" ? [] : options(axis === "none" ? "mcore" : axis, (word) => axis !== "base" || word.split("-")[0] === (from.base || "base=").split("-")[0] || !from.base)));
    const made = [];
    if (unlisted.length) made.push(banner("unknown", "NOT KNOWN:", `${unlisted.join(", ")} is not listed here.`));
    else if (!words(from)) made.push(element("p", "soft", "Name a container or a torch, and a megatron-core."));
    else if (axis === "none") made.push(stackLine(from), ...group(changes(null, from)));
    else if (!target && !found) made.push(element("p", "soft", "Name the other stack, as megatrix check takes it: base=ngc-26.02 mcore=0.18.2"));
    else if (!target) made.push(banner("unknown", found.current ? `${title(kind)} ${found.current} is the newest that is known.` : `Your ${title(kind)} is not named.`), stackLine(from), ...group(changes(null, from)));
    else {
      const moved = changes(from, target), apart = found?.apart || [], same = found && axes.filter((each) => each !== axis && !(each === "te" && target.base !== from.base)).every((each) => (from[each] || "") === (target[each] || ""));
      const own = same && found.versions.find((one) => words(changed(from, axis, `${kind}=${one.version}`)) === words(target));
      made.push(changeLine(own || step("", breaks(from), breaks(target), same ? apart : []), same ? `${title(kind)} ${name(target[axis] || "").replace(/^torch /, "")}` : spoken(target), resuming(from, target), moved));
      if (found?.versions.length) made.push(chips(from, axis, found, target), element("p", "soft", found.best ? `The newest without a known new break: ${found.best}.` : `No version after ${found.current} is known to be free of new breaks.`));
      if (apart.length && same) made.push(element("p", "soft", `${title(kind)} does not affect: `, ...linkedIds(apart)));
      const loaded = resuming(from, target), kinds = Object.entries({ "may not load": loaded.broken, "known to load": loaded.works, "not known": loaded.unknown }).filter(([, ids]) => ids.length);
      if (loaded.broken.length + loaded.works.length) made.push(element("p", "soft", "Checkpoints of today's stack: ", ...kinds.flatMap(([kind, ids], place) => [place ? `; ${kind}: ` : `${kind}: `, ...linkedIds(ids)])));
      const now = unread(target);
      if (now.length) made.push(element("p", "soft", `Not known of it: ${now.join("; ")}`));
      made.push(...group(moved), element("p", "", link("This is my stack now", { from: words(target), to: null, want: null })));
    }
    made.push(element("h2", "", "The same in a terminal"), stacks.command(from, axis === "stack" && stated ? ` --to "${words(stated)}"` : !found?.current ? "" : ` --upgrade ${axis}`), ...(stated && found ? [stacks.command(stated, "")] : []));
    notes.replaceChildren(...heads, ...taken.map((note) => element("p", "soft", note)));
    taken = [];
    answer.replaceChildren(...made);
  };
  let taken = [];  // what a dropped file has, for the next rendering

  // The lists of the fields: the newest first, with what an image contains.
  const options = (axis, fits = () => true) => {
    const about = Object.fromEntries(Object.entries(data.groups).flatMap(([group, rows]) => rows.map(([word, , text]) => [word, text ? `${group}: ${text}` : group])));
    const kinds = [(word) => /^base=ngc/.test(word), (word) => /^base=/.test(word) && !/^base=ngc/.test(word), (word) => !/^base=/.test(word)];
    const listed = data.values[axis].filter((word) => word && fits(word)).reverse();
    return kinds.flatMap((kind) => listed.filter(kind)).map((word) => new Option(about[word] || "", name(word).replace(/^(driver|sm) /, "")));
  };
  for (const axis of axes) field(`list-${axis}`).append(...options(axis));

  // A field that is entered lists every version: a browser offers those that contain the text.
  for (const box of document.querySelectorAll("#ask input[list]")) {
    const change = () => {
      const { from, to: chosen, axis, unread } = asked(), own = box.id.replace("from-", "");
      if (own === "to" && axis === "stack") return url.set({ from: words(from), to: words(read(box.value).choice) || null });
      const word = box.value && (wordOf(own === "to" ? axis : own, own === "to" && kindOf(from, axis) === "torch" ? `torch ${box.value.replace(/^torch /, "")}` : box.value) || `${own === "to" ? axis : own}=${box.value.trim().replace(/\s+/g, "-")}`);
      const others = unread.filter((part) => part.split("=")[0] !== own);
      if (own !== "to") url.set({ from: [words({ ...from, [own]: word }), ...others].join(" "), to: words(chosen) ? words(chosen) : null });
      else url.set({ from: words(from), to: word ? words(changed(from, axis, word)) : null });
    };
    let before = "";
    box.addEventListener("change", change);
    box.addEventListener("focus", () => { [before, box.placeholder, box.value] = [box.value, box.value || box.placeholder, ""]; });
    box.addEventListener("blur", () => { if (!box.value) render(); });
    box.addEventListener("keydown", (event) => {
      if (event.key === "Escape") box.blur();
      if ((event.key === "Backspace" || event.key === "Delete") && !box.value && before) {
        before = "";
        change();
      }
    });
  }
  const wide = matchMedia("(min-width: 721px)"), fold = () => { rest.open = wide.matches; };
  wide.addEventListener("change", fold);
  fold();
  want.addEventListener("change", () => url.set({ from: words(asked().from), want: want.value, to: null }));
  field("ask").addEventListener("submit", (event) => event.preventDefault());

  // A search: by the number of an issue, by words, or by a pasted line that has the fixed text of a message.
  const search = () => {
    const text = field("search").value.trim().toLowerCase(), issue = /^(?:\S*#|.*\/(?:issues|pull)\/)?(\d{2,})$/.exec(text)?.[1];
    const parts = text.split(/\s+/), printed = ({ texts }) => Math.max(0, ...texts.filter((one) => one.length > 7 && text.includes(one.toLowerCase())).map((one) => one.length));
    const named = ({ id, title, threads, errors, texts }) => {
      const words = [id, title, ...threads, ...errors, ...texts].join(" ").toLowerCase();
      return parts.every((part) => words.includes(part));
    };
    const hits = text.length < 2 ? [] : data.entries.filter((one) => issue ? one.threads.some((thread) => thread.endsWith(`#${issue}`)) : printed(one) || named(one));
    hits.sort((one, other) => printed(other) - printed(one));
    field("found").replaceChildren(...hits.slice(0, 12).map(({ id, title, threads }) => {
      const made = element("a", "", id);
      made.href = `failures/${id}.html`;
      return element("li", "", made, ` ${title}`, threads.length ? element("p", "soft", threads.join(", ")) : "");
    }), ...(hits.length > 12 ? [element("li", "soft", `and ${hits.length - 12} more`)] : text.length > 1 && !hits.length ? [element("li", "soft", "No failure of the catalog has it. megatrix match LOG reads whole logs.")] : []));
  };
  field("search").addEventListener("input", search);

  // A file: what it pins, and the image that it starts from. Read here; nothing leaves the browser.
  const pinned = (text) => {
    const pins = new Map(), loose = [];
    const canonical = (each) => each.toLowerCase().replace(/[-_.]+/g, "-");
    const table = /^[ \t]*\[\[packages?\]\][ \t]*\r?$/m;
    if (table.test(text)) {
      for (const block of text.split(table).slice(1)) {
        const own = block.split(/^[ \t]*\[/m)[0];
        const [id, version] = ["name", "version"].map((key) => new RegExp(`^${key}[ \\t]*=[ \\t]*["']([^"'\\n]*)["']`, "m").exec(own)?.[1]);
        if (id && version) pins.set(canonical(id), version);
      }
      return { pins, loose, complete: true };
    }
    const plain = text.replace(/\\\r?\n/g, " ").replace(/(^|\s)#.*$/gm, "$1");
    for (const [, id, , sign, version] of plain.matchAll(/(?<![\w.-])([A-Za-z][\w.-]*)(\[[^\]\n]*\])?\s*(===?|[<>~!]=?)\s*([^\s;,"'*]+)/g)) {
      if (sign === "==" || sign === "===") pins.set(canonical(id), version);
      else loose.push([canonical(id), `${sign}${version}`]);
    }
    return { pins, loose, complete: false };
  };
  const take = (text) => {
    const { pins, loose, complete } = pinned(text), found = [], choice = {};
    const image = /[\w.\/-]*nvidia\/(?:pytorch|nemo):[\w.-]+/.exec(text)?.[0];
    if (image) {
      const tag = Object.keys(data.tags).find((each) => each === image || each.endsWith(`/${image}`) || image.endsWith(each.replace(/^[^/]*\//, "")));
      if (tag) choice.base = data.tags[tag];
      found.push(tag ? `${image} is ${name(data.tags[tag])}` : `${image} is not listed here; megatrix check "base=${image}" reports what is known`);
    }
    for (const [id, version] of pins) {
      const axis = data.aliases[id] || id;
      if (!["torch", "te", "mcore"].includes(axis)) continue;
      const built = axis === "torch" && /\.nv(\d\d)\.0?(\d+)/.exec(version);
      const word = (built && wordOf("base", `ngc-${built[1]}.${built[2].padStart(2, "0")}`)) || (axis === "torch" ? wordOf("base", `torch ${version}`) : wordOf(axis, version));
      if (word && !(axis === "torch" && image)) choice[axis === "torch" ? "base" : axis] = word;
      found.push(!word ? `${id} ${version} is not listed here; the command accepts any version: megatrix check "${axis}=${version}"`
        : `${id} ${version}${word.endsWith(`=${version}`) ? "" : ` is compared as ${name(word)}`}`);
    }
    for (const [id, rest] of loose)
      if (["torch", "te", "mcore"].includes(data.aliases[id] || id)) found.push(`${id} ${rest}: no exact version, so it is not named here`);
    if (complete && !choice.te && !pins.has("transformer-engine")) choice.te = "te=none";
    if (!found.length) found.push("no image and no version of torch, megatron-core or Transformer Engine found");
    taken = [...found, "This page reads images and exact versions; megatrix check reads the whole file."];
    if (words(choice) === words(asked().from) && url.has("from")) render();
    else url.set({ from: words(choice), to: null });
  };
  const load = async (file) => take(file.size > 2e7 ? "" : await file.text());
  field("file").addEventListener("change", (event) => event.target.files[0] && load(event.target.files[0]));
  addEventListener("dragover", (event) => { event.preventDefault(); field("ask").classList.add("over"); });
  addEventListener("dragleave", () => field("ask").classList.remove("over"));
  addEventListener("drop", (event) => {
    event.preventDefault();
    field("ask").classList.remove("over");
    if (event.dataTransfer.files[0]) load(event.dataTransfer.files[0]);
  });
  addEventListener("hashchange", render);
  render();
});
