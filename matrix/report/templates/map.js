"use strict";
(() => {
  const { data, standing, calls, callCard, clashes, unread, element, card } = stacks;
  const table = document.getElementById("map-table");
  const pair = document.getElementById("pair");
  const rows = [...table.querySelectorAll("tbody tr")];
  const failures = document.getElementById("map-failure");
  let kept = null;
  let entered = null;

  const choice = (cell) => {
    const word = cell.parentElement.dataset.word;
    return { [word.startsWith("te=") ? "te" : "base"]: word, mcore: data.columns[cell.cellIndex - 1] };
  };
  const show = (cell) => {
    if (cell === entered) return;
    entered = cell;
    const stack = choice(cell);
    const place = `${rows.indexOf(cell.parentElement)},${cell.cellIndex - 1}`;
    const head = cell.parentElement.cells[0];
    const found = standing(stack).filter((one) => one.rank <= data.breaks.at(-1) + 1 || one.entry.results[place]);
    const list = element("ul", "failures", ...clashes(stack).map((text) =>
      element("li", "", element("span", "swatch clash"), " ", element("b", "", "can't be installed together"), element("p", "", text))));
    const { groups } = calls(stack);
    const cards = [...found.map((one) => [one.rank, card(one, one.entry.results[place])]), ...groups.map((one) => [one.rank, callCard(one)])];
    list.append(...cards.sort(([one], [other]) => one - other).map(([, made]) => made));
    const link = element("a", "", "Compare with another stack");
    link.href = `${document.getElementById("answer") ? "" : "upgrade.html"}#to=${encodeURIComponent(stacks.words(stack))}`;
    pair.replaceChildren(
      element("h3", "", `${head.firstChild.textContent}, megatron-core ${stacks.name(stack.mcore)}`),
      element("p", "soft", head.title),
      list.children.length ? list : element("p", "", "No failure of the catalog is known in this pair."),
      ...unread(stack).map((text) => element("p", "soft", `unknown: ${text}`)),
      stacks.command(stack), element("p", "", link));
    pair.classList.toggle("kept", cell === kept);
  };
  const point = (cell) => {
    table.querySelector("td[tabindex='0']")?.setAttribute("tabindex", "-1");
    cell.tabIndex = 0;
  };
  const keep = (cell) => {
    kept?.classList.remove("kept");
    kept = cell === kept ? null : cell;
    kept?.classList.add("kept");
    entered = null;
    show(cell);
  };
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
    const visible = rows.filter((row) => row.offsetParent);
    const row = visible.indexOf(cell.parentElement);
    const moves = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0], Home: [0, -99], End: [0, 99] };
    if (event.key === "Enter" || event.key === " ") keep(cell);
    else if (event.key === "Escape" && kept) keep(kept);
    else if (moves[event.key]) {
      const [down, right] = moves[event.key];
      const other = visible[Math.min(Math.max(row + down, 0), visible.length - 1)]
        .cells[Math.min(Math.max(cell.cellIndex + right, 1), data.columns.length)];
      point(other);
      other.focus();
    } else return;
    event.preventDefault();
  });

  // One failure alone: its standing in every pair. The colours of all are those of the page.
  const original = new Map();
  for (const [place, entry] of data.entries.entries()) failures.append(new Option(entry.id, place));
  failures.addEventListener("change", () => {
    for (const cell of table.querySelectorAll("td")) {
      if (!original.has(cell)) original.set(cell, [cell.className, cell.textContent]);
      const [kind, sign] = original.get(cell);
      if (!failures.value) [cell.className, cell.textContent] = [kind, sign];
      else {
        const one = standing(choice(cell))[failures.value];
        cell.className = data.colours[one.rank];
        cell.textContent = stacks.signs[cell.className] || "\u00b7";
      }
    }
  });
  const groups = [...table.tBodies].slice(1);
  for (const [place, box] of [...document.querySelectorAll("input[data-group]")].entries())
    box.addEventListener("change", () => groups[place].classList.toggle("shown", box.checked));
  const cells = table.querySelectorAll("td");
  for (const cell of cells) cell.tabIndex = -1;
  if (cells.length) cells[0].tabIndex = 0;
})();
