"use strict";
(() => {
  const body = document.querySelector("#cases tbody");
  const rows = body ? [...body.rows] : [];
  const texts = new Map();
  const field = (name) => document.getElementById("filter-" + name);
  const shown = document.getElementById("shown");
  const step = 100;  // rows shown at first, and added by a click: a night has hundreds
  let limit = step;
  const axes = [...document.querySelectorAll("#cases .filters select")].map((select) => select.id.replace("filter-", ""));

  // The rows past the first are text until they are needed.
  const whole = () => {
    const later = document.getElementById("later");
    if (!later) return;
    body.insertAdjacentHTML("beforeend", later.textContent);
    later.remove();
    rows.splice(0, rows.length, ...body.rows);
  };

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
    whole();
    limit = rowsShown;
    filter();
  };
  if (shown) {  // only the page of a night has filters
    for (const name of ["text", ...axes]) field(name).addEventListener("input", () => show(step));
    document.getElementById("more").addEventListener("click", () => show(limit + step));
    document.getElementById("all").addEventListener("click", () => show(Number(shown.dataset.total)));
    shown.value = `${shown.dataset.total} of ${shown.dataset.total} cases`;
    document.querySelector(".more").hidden = rows.length === Number(shown.dataset.total);
  }

  // A link to an element in a closed <details> opens the <details>; a link to a row that is not shown yet shows it.
  const open = () => {
    const id = decodeURIComponent(location.hash.slice(1));
    if (body && id && !document.getElementById(id)) whole();
    const target = document.getElementById(id);
    if (target && rows.includes(target) && target.hidden) show(rows.length);
    for (let each = target; each; each = each.parentElement) if (each.tagName === "DETAILS") each.open = true;
    if (target) target.scrollIntoView();
  };
  addEventListener("hashchange", open);
  open();
})();
