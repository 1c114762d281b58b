"use strict";
ready.then(() => {
  const { data, standing, calls, callCard, clashes, unread, element, card, known, url } = stacks;
  const table = document.getElementById("map-table");
  const pair = document.getElementById("pair");
  const failures = document.getElementById("map-failure"), all = document.getElementById("map-all");
  const uses = [...document.querySelectorAll("#uses input")];
  const ids = uses.map((box) => box.value);
  const NEARLY = 0.8;  // of the pairs shown that are known: what breaks in as many is one line above the map and colours nothing
  const newest = { rows: table.tBodies[0].rows.length, columns: table.tHead.rows[0].cells.length - 1 };
  const linked = Boolean(table.querySelector("th a"));
  let columns = [], built = null, kept = "", entered = null;

  const choice = (cell) => {
    const word = cell.parentElement.dataset.word;
    return { [word.startsWith("te=") ? "te" : "base"]: word, mcore: columns[cell.cellIndex - 1] };
  };
  const cells = () => [...table.querySelectorAll("td")];

  const build = () => {
    const whole = all.checked;
    columns = data.columns.toReversed().slice(0, whole ? undefined : newest.columns);
    table.tHead.rows[0].replaceChildren(element("th", "", "container"), ...columns.map((mcore) => element("th", "", element("span", "", stacks.name(mcore)))));
    for (const cell of table.tHead.rows[0].cells) cell.scope = "col";
    for (const body of [...table.tBodies]) body.remove();
    for (const [place, [group, listed]] of Object.entries(data.groups).entries()) {
      if (place && !whole) break;
      const body = element("tbody", "");
      for (const [word, name, about, marks] of listed.slice(0, whole ? undefined : newest.rows)) {
        const head = element("th", "", name);
        if (linked) {
          const link = element("a", "", name);
          link.href = `${word.startsWith("te=") ? "transformer-engine" : word.startsWith("torch=") ? "torch" : "container"}/${word.split("=")[1]}.html`;
          head.replaceChildren(link);
        }
        [head.scope, head.title] = ["row", about];
        const row = element("tr", "", head);
        row.dataset.word = word;
        for (const mark of marks.toReversed().slice(0, columns.length)) row.append(element("td", data.marks[mark]));
        body.append(row);
      }
      body.setAttribute("aria-label", group);
      table.append(body);
    }
    for (const cell of cells()) [cell.tabIndex, cell.dataset.marks] = [-1, cell.className];
    if (cells().length) cells()[0].tabIndex = 0;
  };

  // What a pair breaks with: of what is known there and not certain, by the options that the ticked uses turn on.
  const breaking = (stack) => [...standing(stack), ...calls(stack).groups].filter((one) => known(one) && !one.certain);
  const label = (one) => one.entry ? one.entry.id : `calls into ${one.into}`;
  const colour = () => {
    const ticked = new Set(uses.flatMap((box, place) => box.checked ? [place] : []));
    const alone = failures.value, shown = cells(), judged = new Set(shown.filter((cell) => !/^(unknown|clash)/.test(cell.dataset.marks))), counts = new Map(), found = new Map(), shares = {};
    if (!alone && ticked.size)
      for (const cell of shown) {
        const mine = new Set(breaking(choice(cell)).filter((one) => one.uses.every((place) => ticked.has(place))).map(label));
        found.set(cell, mine);
        if (judged.has(cell)) for (const id of mine) counts.set(id, (counts.get(id) || 0) + 1);
      }
    const everywhere = [...counts].filter(([, count]) => count >= NEARLY * judged.size).map(([id]) => id).sort();
    for (const cell of shown) {
      let kind = cell.dataset.marks;
      if (alone) {
        const one = standing(choice(cell))[alone];
        kind = one.certain ? "breaks" : data.colours[one.rank];
      }
      const own = [...found.get(cell) || []].filter((id) => !everywhere.includes(id)).length;
      if (own && /^(read|twin|run|unknown)/.test(kind)) kind = kind.replace(/^\w+/, "options");
      const main = kind.split(" ")[0];
      [cell.className, cell.textContent] = [kind, main === "options" && own ? own : data.signs[main]];
      shares[main] = (shares[main] || 0) + 1;
    }
    const links = everywhere.flatMap((id, place) => {
      const link = element(data.entries.some((entry) => entry.id === id) ? "a" : "span", "", id);
      if (link.tagName === "A") link.href = `failures/${id}.html`;
      return place ? [", ", link] : [link];
    });
    const asked = url.get("failure");
    document.getElementById("everywhere").replaceChildren(...(asked && !alone ? [`The link names ${asked}, which is no failure of the catalog.`] : alone ? ["The colours are those of one failure."] : !ticked.size
      ? ["Breaks that need an option colour nothing until you tick what your jobs use."]
      : links.length ? ["With what you use, in nearly every pair: ", ...links] : ["With what you use, nothing breaks in nearly every pair."]));
    document.getElementById("shares").textContent = `Of ${shown.length} pairs: ${Object.keys(data.signs).filter((kind) => shares[kind])
      .map((kind) => `${shares[kind]} ${document.querySelector(`.key .${kind}`)?.parentElement.lastChild.textContent.trim() || kind}`).join("; ")}.`;
    if (kept || entered) show(entered, true);
  };

  const show = (cell, again) => {
    if (!cell || (cell === entered && !again)) return;
    entered = cell;
    const stack = choice(cell), row = data.groups && Object.values(data.groups).flat().findIndex(([word]) => word === cell.parentElement.dataset.word);
    const place = `${row},${data.columns.indexOf(stack.mcore)}`;
    const head = cell.parentElement.cells[0];
    const found = standing(stack).filter((one) => one.rank <= data.breaks.at(-1) + 1 || one.entry.results[place]);
    const cards = [...found.map((one) => [one, card(one, one.entry.results[place])]), ...calls(stack).groups.map((one) => [one, callCard(one)])];
    const listed = (which) => cards.filter(([one]) => which(one)).sort(([one], [other]) => one.rank - other.rank).map(([, made]) => made);
    const certain = [...clashes(stack).map((text) => element("li", "", element("span", "swatch clash", data.signs.clash), " ", element("b", "", "can't be installed together"), element("p", "", text))),
      ...listed((one) => one.certain)], others = listed((one) => !one.certain);
    const link = element("a", "", "Ask about this stack");
    link.href = `${document.getElementById("answer") ? "" : "upgrade.html"}${url.with({ from: stacks.words(stack), to: null })}`;
    pair.replaceChildren(
      element("h3", "", `${head.textContent}, megatron-core ${stacks.name(stack.mcore)}`),
      element("p", "soft", head.title), element("p", "", link),
      certain.length ? element("ul", "failures", ...certain) : element("p", "", unread(stack).length ? "Nothing is known to break for certain; not all is known." : "No certain break is known."),
      ...unread(stack).map((text) => element("p", "soft", `unknown: ${text}`)), stacks.command(stack),
      others.length ? element("details", "row", element("summary", "", `${others.length} with certain options or versions`), element("ul", "failures", ...others)) : "");
    pair.classList.toggle("kept", stacks.words(stack) === kept);
  };
  const point = (cell) => {
    table.querySelector("td[tabindex='0']")?.setAttribute("tabindex", "-1");
    cell.tabIndex = 0;
  };
  const keep = (cell) => url.set({ cell: stacks.words(choice(cell)) === kept ? null : stacks.words(choice(cell)) });
  const cellOf = (event) => event.target.closest("td");

  table.addEventListener("mouseover", (event) => { if (cellOf(event) && !kept) show(cellOf(event)); });
  table.addEventListener("focusin", (event) => { if (cellOf(event) && !kept) show(cellOf(event)); });
  table.addEventListener("click", (event) => {
    if (!cellOf(event)) return;
    point(cellOf(event));
    keep(cellOf(event));
  });
  table.addEventListener("keydown", (event) => {
    const cell = cellOf(event);
    if (!cell) return;
    const rows = [...table.querySelectorAll("tbody tr")], row = rows.indexOf(cell.parentElement);
    const moves = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0], Home: [0, -99], End: [0, 99] };
    if (event.key === "Enter" || event.key === " ") keep(cell);
    else if (event.key === "Escape" && kept) url.set({ cell: null });
    else if (moves[event.key]) {
      const [down, right] = moves[event.key];
      const other = rows[Math.min(Math.max(row + down, 0), rows.length - 1)].cells[Math.min(Math.max(cell.cellIndex + right, 1), columns.length)];
      point(other);
      other.focus();
    } else return;
    event.preventDefault();
  });

  for (const [place, entry] of data.entries.entries()) failures.append(new Option(entry.id, place));
  failures.addEventListener("change", () => url.set({ failure: failures.value ? data.entries[failures.value].id : null }));
  all.addEventListener("change", () => url.set({ map: all.checked ? "all" : null }));
  for (const box of uses) box.addEventListener("change", () => url.set({ use: uses.filter((each) => each.checked).map((each) => each.value).join(",") || null }));

  // The cell, the filter, the rows and the uses of the URL.
  const linkedTo = () => {
    const asked = url.get("use").split(","), wanted = url.get("cell");
    for (const box of uses) box.checked = asked.includes(box.value);
    const alone = data.entries.findIndex((entry) => entry.id === url.get("failure"));
    failures.value = alone < 0 ? "" : alone;
    const place = () => cells().find((each) => stacks.words(choice(each)) === wanted);
    const rows = (whole) => {
      all.checked = built = whole;
      build();
    };
    if (built !== (url.get("map") === "all")) rows(url.get("map") === "all");
    if (wanted && !place() && !built) rows(true);
    const cell = place();
    kept = cell ? wanted : "";
    for (const each of cells()) each.toggleAttribute("data-kept", each === cell);
    if (cell) {
      show(cell, true);
    } else {
      entered = null;
      pair.classList.remove("kept");
    }
    colour();
  };
  addEventListener("hashchange", linkedTo);
  linkedTo();
});
