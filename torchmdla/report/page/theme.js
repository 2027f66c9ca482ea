// Light and dark: the system's choice, until the button is pressed. The browser remembers the button's.

function setTheme(name) {
  document.documentElement.dataset.theme = name;
  byId("theme").setAttribute("aria-pressed", String(name === "dark"));
}

function remembered(name) {
  try {
    if (name) localStorage.setItem("torchmdla-theme", name);
    return localStorage.getItem("torchmdla-theme");
  } catch {
    return null; // A browser may keep nothing for files.
  }
}

const isDark = matchMedia("(prefers-color-scheme: dark)");
setTheme(remembered() ?? (isDark.matches ? "dark" : "light"));
isDark.addEventListener("change", () => remembered() ?? setTheme(isDark.matches ? "dark" : "light"));
byId("theme").addEventListener("click", () => {
  const name = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  remembered(name);
  setTheme(name);
});
