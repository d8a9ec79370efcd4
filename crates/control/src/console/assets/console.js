// The console's script: theme switch, menu, copy buttons, questions before danger, live parts, log.
//
// Everything works without it; it only makes pages move. No text from the server is ever written as markup except
// whole fragments that the server itself rendered and escaped. Log lines are written as text nodes.
(function () {
  "use strict";

  var root = document.documentElement;

  // ---------------------------------------------------------------- theme

  var THEMES = ["system", "light", "dark"];

  function remembered() {
    try {
      return localStorage.getItem("forgeyard-theme") || "system";
    } catch (error) {
      return "system";
    }
  }

  function applyTheme(theme, button) {
    if (theme === "system") {
      root.removeAttribute("data-theme");
    } else {
      root.setAttribute("data-theme", theme);
    }
    try {
      if (theme === "system") localStorage.removeItem("forgeyard-theme");
      else localStorage.setItem("forgeyard-theme", theme);
    } catch (error) {
      // Not remembered, still applied.
    }
    button.querySelector(".theme-name").textContent = theme + " theme";
    button.setAttribute("aria-label", "Theme: " + theme + ". Switch.");
  }

  function themeSwitch() {
    var button = document.querySelector("button.theme");
    if (!button) return;
    button.hidden = false;
    var theme = root.getAttribute("data-theme") || remembered();
    button.querySelector(".theme-name").textContent = theme + " theme";
    button.setAttribute("aria-label", "Theme: " + theme + ". Switch.");
    button.addEventListener("click", function () {
      theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
      applyTheme(theme, button);
    });
  }

  // ---------------------------------------------------------------- menu, copy, confirm

  function menu() {
    var button = document.querySelector("button.menu");
    var top = document.querySelector("header.top");
    if (!button || !top) return;
    button.addEventListener("click", function () {
      var open = top.classList.toggle("open");
      button.setAttribute("aria-expanded", String(open));
    });
    document.addEventListener("keydown", function (event) {
      if (event.key === "Escape" && top.classList.contains("open")) {
        top.classList.remove("open");
        button.setAttribute("aria-expanded", "false");
        button.focus();
      }
    });
  }

  function selectText(element) {
    var range = document.createRange();
    range.selectNodeContents(element);
    var selection = window.getSelection();
    selection.removeAllRanges();
    selection.addRange(range);
  }

  document.addEventListener("click", function (event) {
    var button = event.target.closest("button.copy");
    if (!button) return;
    var say = function (text) {
      button.textContent = text;
      setTimeout(function () { button.textContent = "copy"; }, 1500);
    };
    if (navigator.clipboard) {
      navigator.clipboard.writeText(button.dataset.copy).then(
        function () { say("copied"); },
        function () { say("failed"); }
      );
    } else {
      // Without TLS there is no clipboard: select the text, the person presses the keys.
      var code = button.parentElement.querySelector("code");
      if (code) selectText(code);
      say("selected");
    }
  });

  document.addEventListener("submit", function (event) {
    var form = event.target;
    var button = form.querySelector("button[type=submit]");
    if (form.dataset.confirm && !window.confirm(button.textContent + "?")) {
      event.preventDefault();
      return;
    }
    if (form.method === "post" && button) {
      // A second press would only be refused; show that the first one counts.
      setTimeout(function () { button.disabled = true; }, 0);
    }
  });

  // ---------------------------------------------------------------- times

  function two(number) { return (number < 10 ? "0" : "") + number; }

  function duration(ms) {
    ms = Math.max(0, ms);
    var s = Math.floor(ms / 1000);
    if (s < 10) return s + "." + Math.floor(ms % 1000 / 100) + " s";
    if (s < 60) return s + " s";
    if (s < 3600) return Math.floor(s / 60) + " min " + two(s % 60) + " s";
    if (s < 86400) return Math.floor(s / 3600) + " h " + two(Math.floor(s / 60) % 60) + " min";
    return Math.floor(s / 86400) + " d " + Math.floor(s / 3600) % 24 + " h";
  }

  function ago(ms) {
    var s = Math.floor(Math.max(0, ms) / 1000);
    if (s < 5) return "just now";
    if (s < 60) return s + " s ago";
    if (s < 3600) return Math.floor(s / 60) + " min ago";
    if (s < 86400) return Math.floor(s / 3600) + " h ago";
    return Math.floor(s / 86400) + " d ago";
  }

  // The page was rendered at the server's time; counting goes on from there, whatever the local clock says.
  var serverNow = Number(root.dataset.now) || Date.now();
  var loadedAt = performance.now();
  function now() { return serverNow + performance.now() - loadedAt; }

  function tick() {
    if (document.hidden) return;
    document.querySelectorAll("[data-since]").forEach(function (element) {
      var ms = now() - Number(element.dataset.since);
      var text = duration(ms >= 10000 ? ms : Math.floor(ms / 1000) * 1000);
      if (element.textContent !== text) element.textContent = text;
    });
    document.querySelectorAll("[data-ago]").forEach(function (element) {
      var text = ago(now() - Number(element.dataset.ago));
      if (element.textContent !== text) element.textContent = text;
    });
  }

  // ---------------------------------------------------------------- live parts

  function swap(part, html) {
    var parsed = new DOMParser().parseFromString(html, "text/html");
    var focused = part.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
    var scrolls = Array.prototype.map.call(part.querySelectorAll(".chain-scroll, .table-scroll"), function (e) {
      return e.scrollLeft;
    });
    // A reason that is being typed must not be lost to a swap.
    if (part.querySelector("details[open] form input[type=text]")) return false;
    part.replaceChildren.apply(part, Array.prototype.slice.call(parsed.body.childNodes));
    Array.prototype.forEach.call(part.querySelectorAll(".chain-scroll, .table-scroll"), function (e, i) {
      e.scrollLeft = scrolls[i] || 0;
    });
    if (focused) {
      Array.prototype.some.call(part.querySelectorAll("a[href]"), function (link) {
        if (link.getAttribute("href") !== focused) return false;
        link.focus({ preventScroll: true });
        return true;
      });
    }
    return true;
  }

  function live(part) {
    var busy = false;
    var again = false;
    function refresh() {
      if (busy) { again = true; return; }
      busy = true;
      fetch(part.dataset.fragment, { headers: { Accept: "text/html" }, credentials: "same-origin" })
        .then(function (answer) {
          if (answer.redirected || answer.status === 401) { location.reload(); return null; }
          return answer.ok ? answer.text() : null;
        })
        .then(function (html) { if (html !== null) swap(part, html); })
        .catch(function () { /* The stream reconnects by itself and the next event tries again. */ })
        .then(function () {
          // At most one swap in 400 ms, however many events come.
          setTimeout(function () {
            busy = false;
            if (again) { again = false; refresh(); }
          }, 400);
        });
    }
    var stream = new EventSource(part.dataset.live);
    stream.onmessage = refresh;
    ["change", "pipeline", "job"].forEach(function (name) { stream.addEventListener(name, refresh); });
    stream.addEventListener("end", function () {
      stream.close();
      part.classList.remove("stale");
      refresh();
    });
    stream.onerror = function () { part.classList.add("stale"); };
    stream.onopen = function () {
      // What happened while the line was down was missed; ask once.
      if (part.classList.contains("stale")) { part.classList.remove("stale"); refresh(); }
    };
  }

  // ---------------------------------------------------------------- log

  var MOST_LINES = 5000;
  var EARLIER_BYTES = 65536;
  var ESCAPES = /\x1b(?:\[[^@-~]*(?:[@-~]|$)|[\]PX^_][^\x07\x1b\x9c]*(?:\x07|\x9c|\x1b\\?|$)|[ -\/]*[^ -\/]?)|\x9b[^@-~]*(?:[@-~]|$)/g;
  var HIDDEN = /[\u202a-\u202e\u2066-\u2069\u200e\u200f\u061c]/g;

  function visible(text) {
    text = text.replace(ESCAPES, "").replace(/[\r\n]+$/, "");
    text = text.slice(text.lastIndexOf("\r") + 1);
    return text
      .replace(HIDDEN, function (c) { return "<U+" + c.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0") + ">"; })
      .replace(/[\x00-\x08\x0b-\x1f\x7f-\x9f]/g, "\ufffd");
  }

  function lineElement(number, text, decisive) {
    var row = document.createElement("div");
    row.className = decisive ? "ll decisive" : "ll";
    row.id = "L" + number;
    var link = document.createElement("a");
    link.className = "ln";
    link.href = "#L" + number;
    link.dataset.n = number;
    link.setAttribute("aria-label", "line " + number);
    var body = document.createElement("span");
    body.className = "lt";
    body.textContent = visible(text);
    row.append(link, body);
    return row;
  }

  function log(box) {
    var source = box.dataset.source;
    var start = Number(box.dataset.start);
    var first = Number(box.dataset.first);
    var next = Number(box.dataset.next);
    var last = first + box.querySelectorAll(".ll").length - 1;
    var decisive = Number(box.dataset.decisive) || 0;
    var complete = box.hasAttribute("data-complete");
    var follow = box.hasAttribute("data-running") && !location.hash;
    var pause = 1000;
    // Lines that somebody asked for beyond those that are kept.
    var later = 0;
    // The end of the last piece that is not yet a whole line.
    var rest = "";
    var state = document.querySelector("[data-follow-state]");
    var earlier = box.querySelector("[data-earlier]");

    function get(query) {
      return fetch(source + query, { headers: { Accept: "application/json" }, credentials: "same-origin" })
        .then(function (answer) {
          if (!answer.ok) throw new Error("log answered " + answer.status);
          return answer.json();
        });
    }

    function show() {
      if (state) state.textContent = complete ? "complete" : follow ? "following" : "paused, scroll to the end to follow";
    }

    function drop(fromTop) {
      var rows = box.getElementsByClassName("ll");
      var removed = 0;
      while (rows.length > MOST_LINES) {
        rows[fromTop ? 0 : rows.length - 1].remove();
        removed += 1;
      }
      if (removed && fromTop) {
        first += removed;
        // Bytes of dropped lines are not counted here: going back starts from the whole log.
        start = -1;
        if (earlier) earlier.remove();
        earlier = null;
        if (!box.querySelector(".log-note")) {
          var note = document.createElement("p");
          note.className = "log-note";
          note.textContent = "Earlier lines are not kept here; download the log for all of them.";
          box.prepend(note);
        }
      }
    }

    function append(piece) {
      var lines = (rest + piece.text).split("\n");
      rest = lines.pop();
      next = piece.next;
      if (piece.complete) {
        complete = true;
        if (rest !== "") lines.push(rest);
        rest = "";
      }
      if (!lines.length) return;
      var empty = box.querySelector(".log-empty");
      if (empty) empty.remove();
      var rows = document.createDocumentFragment();
      lines.forEach(function (text) { last += 1; rows.append(lineElement(last, text, last === decisive)); });
      box.append(rows);
      drop(true);
      if (follow) box.scrollTop = box.scrollHeight;
    }

    // Reading on would push the lines that are being read out at the top: wait until somebody wants the end.
    function full() { return !follow && box.getElementsByClassName("ll").length >= MOST_LINES; }

    function offerLater() {
      var button = document.createElement("button");
      button.type = "button";
      button.className = "earlier";
      button.textContent = "Show later lines";
      button.addEventListener("click", function () { button.remove(); later = MOST_LINES; more(); });
      box.append(button);
    }

    function more() {
      if (complete) { show(); return; }
      if (full() && later <= 0) {
        if (box.hasAttribute("data-running")) setTimeout(more, 1000);
        else offerLater();
        return;
      }
      if (document.hidden) { setTimeout(more, 1000); return; }
      get("?offset=" + next)
        .then(function (piece) {
          pause = piece.text === "" ? Math.min(pause * 1.5, 5000) : piece.complete ? 0 : 250;
          var before = last;
          append(piece);
          later -= last - before;
        })
        .catch(function () { pause = Math.min(pause * 2, 15000); })
        .then(function () { show(); setTimeout(more, pause); });
    }

    // All text from one byte to another, in as many pieces as the server likes.
    function range(from, end, text) {
      return get("?offset=" + from + "&end=" + end).then(function (piece) {
        text += piece.text;
        return piece.next < end && piece.next > from ? range(piece.next, end, text) : text;
      });
    }

    function showEarlier(bytes) {
      var from = Math.max(0, start - bytes);
      return range(from, start, "").then(function (text) {
        var lines = text.replace(/\n$/, "").split("\n");
        if (from > 0) {
          // The first line is cut in the middle. When it is the only one, more is needed.
          if (lines.length === 1 && bytes < 64 * EARLIER_BYTES) return showEarlier(bytes * 4);
          lines.shift();
        }
        var number = first - lines.length;
        var height = box.scrollHeight;
        var rows = document.createDocumentFragment();
        lines.forEach(function (line, i) { rows.append(lineElement(number + i, line, number + i === decisive)); });
        earlier.after(rows);
        first = number;
        start = from === 0 ? 0 : start - new TextEncoder().encode(lines.join("\n") + "\n").length;
        box.scrollTop += box.scrollHeight - height;
        if (start === 0 || box.getElementsByClassName("ll").length >= MOST_LINES) earlier.remove();
        return null;
      });
    }

    if (earlier) {
      earlier.hidden = false;
      earlier.addEventListener("click", function () {
        earlier.disabled = true;
        showEarlier(EARLIER_BYTES)
          .catch(function () { /* The button stays; the person may press it again. */ })
          .then(function () { earlier.disabled = false; });
      });
    }

    box.addEventListener("scroll", function () {
      if (complete) return;
      var atEnd = box.scrollTop + box.clientHeight >= box.scrollHeight - 24;
      if (atEnd !== follow) { follow = atEnd; show(); }
    });

    document.querySelectorAll("[data-needs-script]").forEach(function (e) { e.hidden = false; });
    var wrap = document.querySelector("[data-wrap]");
    if (wrap) wrap.addEventListener("change", function () { box.classList.toggle("nowrap", !wrap.checked); });

    var target = location.hash ? document.getElementById(location.hash.slice(1)) : null;
    if ((!target || !box.contains(target)) && decisive) target = document.getElementById("L" + decisive);
    if (target && box.contains(target)) {
      // Inside the box only (which lines are placed by): the page itself stays at its top, where the reason is.
      box.scrollTop = target.offsetTop - box.clientHeight / 3;
    } else if (follow) {
      box.scrollTop = box.scrollHeight;
    }
    show();
    if (!complete) more();
  }

  // ---------------------------------------------------------------- start

  themeSwitch();
  menu();
  document.querySelectorAll("[data-live]").forEach(live);
  document.querySelectorAll("div.log").forEach(log);
  setInterval(tick, 1000);
})();
