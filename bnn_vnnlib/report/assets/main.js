// Start: light or dark, the filter, and what listens to it.
const root = document.documentElement;
const system = matchMedia("(prefers-color-scheme: dark)");
let onScreen = null;

function setTheme(name) {
  root.dataset.theme = name;
  redraw();
}

const systemTheme = () => (system.matches ? "dark" : "light");
document
  .getElementById("theme")
  .addEventListener("click", () => setTheme(root.dataset.theme === "dark" ? "light" : "dark"));
system.addEventListener("change", () => setTheme(systemTheme()));
addEventListener("beforeprint", () => {
  onScreen = root.dataset.theme;
  setTheme("light");
  drawEverything();
});
addEventListener("afterprint", () => setTheme(onScreen ?? systemTheme()));
window.drawEverything = drawEverything;
root.dataset.theme = systemTheme();
fillFilter();
startPlots();
changed();
root.dataset.ready = "";
