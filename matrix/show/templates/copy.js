"use strict";
// The button beside a command copies the command.
(() => {
  document.documentElement.classList.add("scripted");

  const copy = async (text) => {
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      const area = document.createElement("textarea");
      area.value = text;
      document.body.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
    }
  };
  document.addEventListener("click", async (event) => {
    const button = event.target.closest("button[data-copy]");
    if (!button) return;
    await copy(button.dataset.copy || button.parentElement.querySelector("code").textContent);
    button.textContent = "copied";
    setTimeout(() => { button.textContent = "copy"; }, 1500);
  });
})();
