// Puts the remembered theme in place before anything is painted, and says that scripts run.
(function () {
  "use strict";
  var root = document.documentElement;
  root.classList.add("js");
  try {
    var theme = localStorage.getItem("forgeyard-theme");
    if ((theme === "light" || theme === "dark") && !root.hasAttribute("data-theme")) {
      root.setAttribute("data-theme", theme);
    }
  } catch (error) {
    // Storage can be forbidden; then the theme of the system holds.
  }
})();
