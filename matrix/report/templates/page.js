"use strict";
(() => {
  const rows = [...document.querySelectorAll("#cases tbody tr")];
  const texts = new Map();
  const field = (name) => document.getElementById("filter-" + name);
  const shown = document.getElementById("shown");
  const step = 100;  // rows shown at first, and added by a click: a night has hundreds
  let limit = step;
  const axes = [...document.querySelectorAll("#cases .filters select")].map((select) => select.id.replace("filter-", ""));

  const filter = () => {
    const terms = field("text").value.toLowerCase().split(/\s+/).filter(Boolean);
    const chosen = axes.map((axis) => [axis, field(axis).value]).filter(([, value]) => value);
    let count = 0;
    for (const row of rows) {
      if (terms.length && !texts.has(row)) texts.set(row, row.textContent.toLowerCase());
      const matches =
        chosen.every(([axis, value]) => row.dataset[axis] === value || (value === "red" && row.dataset.colour === "red")) &&
        terms.every((term) => texts.get(row).includes(term));
      if (matches) count += 1;
      row.hidden = !matches || count > limit;
    }
    shown.value = `${count} of ${rows.length} cases`;
    document.querySelector(".more").hidden = count <= limit;
  };
  const show = (rowsShown) => {
    limit = rowsShown;
    filter();
  };
  if (shown) {  // only the page of a night has filters
    for (const name of ["text", ...axes]) field(name).addEventListener("input", () => show(step));
    document.getElementById("more").addEventListener("click", () => show(limit + step));
    document.getElementById("all").addEventListener("click", () => show(rows.length));
    filter();
  }

  // A link to an element in a closed <details> opens the <details>; a link to a row that is not shown yet shows it.
  const open = () => {
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (target && rows.includes(target) && target.hidden) show(rows.length);
    for (let each = target; each; each = each.parentElement) if (each.tagName === "DETAILS") each.open = true;
    if (target) target.scrollIntoView();
  };
  addEventListener("hashchange", open);
  open();
})();
