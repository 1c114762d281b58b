"use strict";
(() => {
  const rows = [...document.querySelectorAll("#cases tbody tr")];
  const texts = new Map();
  const field = (name) => document.getElementById("filter-" + name);
  const shown = document.getElementById("shown");
  const axes = [...document.querySelectorAll(".filters select")].map((select) => select.id.replace("filter-", ""));

  const filter = () => {
    const terms = field("text").value.toLowerCase().split(/\s+/).filter(Boolean);
    const chosen = axes.map((axis) => [axis, field(axis).value]).filter(([, value]) => value);
    let count = 0;
    for (const row of rows) {
      if (terms.length && !texts.has(row)) texts.set(row, row.textContent.toLowerCase());
      row.hidden =
        !chosen.every(([axis, value]) => row.dataset[axis] === value || (value === "red" && row.dataset.colour === "red")) ||
        !terms.every((term) => texts.get(row).includes(term));
      if (!row.hidden) count += 1;
    }
    shown.value = `${count} of ${rows.length} cases`;
  };
  if (shown) {  // only the page of a night has filters
    for (const name of ["text", ...axes]) field(name).addEventListener("input", filter);
    filter();
  }

  // A link to an element in a closed <details> opens the <details>.
  const open = () => {
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    for (let each = target; each; each = each.parentElement) if (each.tagName === "DETAILS") each.open = true;
    if (target) target.scrollIntoView();
  };
  addEventListener("hashchange", open);
  open();
})();
