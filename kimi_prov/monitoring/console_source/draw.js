"use strict";
// Asks the Prometheus that serves this page and draws what it answers. Names of hosts and labels are
// data: they are set as text, and go into queries quoted.
(() => {
  const API = "../api/v1/";
  const RANGES = [[900, "15 minutes"], [3600, "1 hour"], [10800, "3 hours"], [43200, "12 hours"],
    [86400, "1 day"], [604800, "7 days"], [2592000, "30 days"]];
  const COLOURS = 8, DASHES = ["", "7 3", "2 3", "10 3 2 3", "14 4"];
  const REFRESH_MS = 30000, POINTS = 240, MOST_LINES = 24;
  const rows = JSON.parse(document.getElementById("rows").textContent);
  const chosen = new URLSearchParams(location.hash.slice(1));
  let host = chosen.get("host") || "", range = Number(chosen.get("range")) || 10800;
  let turn = 0;

  const make = (name, attributes = {}, ...children) => {
    const found = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) found.setAttribute(key, value);
    found.append(...children);
    return found;
  };
  const draw = (name, attributes = {}, text) => {
    const found = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) found.setAttribute(key, value);
    if (text !== undefined) found.textContent = text;
    return found;
  };
  const quoted = (text) => JSON.stringify(text);
  const regex = (text) => quoted(text.replace(/[\\^$.*+?()[\]{}|]/g, "\\$&"));

  const ask = async (path, parameters) => {
    const answer = await fetch(API + path + "?" + new URLSearchParams(parameters));
    const body = await answer.json();
    if (body.status !== "success") throw new Error(body.error || answer.statusText);
    return body.data;
  };
  const filled = (expression, by, sel, window) => expression.replaceAll("<by>", by)
    .replaceAll("<gpu>", host ? "host, gpu" : "host")
    .replaceAll("<sel>", sel).replaceAll("<w>", window + "s");
  const selected = () => host ? "host=~" + regex(host) : 'host=~".+"';

  // ---- numbers -------------------------------------------------------------------------------
  const digits = (value) => {
    const size = Math.abs(value);
    if (size === 0) return "0";
    if (size >= 100) return value.toFixed(0);
    if (size >= 10) return value.toFixed(1).replace(/\.0$/, "");
    if (size >= 1) return value.toFixed(2).replace(/\.?0+$/, "");
    return String(Number(value.toPrecision(2)));
  };
  const scaled = (value, steps, base) => {
    let at = 0;
    while (Math.abs(value) >= base && at < steps.length - 1) { value /= base; at += 1; }
    return digits(value) + " " + steps[at];
  };
  const BYTES = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  const FORMATS = {
    "requests": (v) => digits(v),
    "tokens/s": (v) => v >= 10000 ? digits(v / 1000) + "k tok/s" : digits(v) + " tok/s",
    "seconds": (v) => v > 0 && v < 1 ? digits(v * 1000) + " ms"
      : v >= 120 ? digits(v / 60) + " min" : digits(v) + " s",
    "ratio": (v) => digits(v * 100) + " %",
    "per second": (v) => digits(v) + "/s",
    "per minute": (v) => digits(v) + "/min",
    "watts": (v) => digits(v) + " W",
    "celsius": (v) => digits(v) + " °C",
    "bytes": (v) => scaled(v, BYTES, 1024),
    "bytes/s": (v) => scaled(v, BYTES, 1024) + "/s",
    "days": (v) => digits(v) + " d",
    "count": (v) => digits(v),
  };
  const BINARY = new Set(["bytes", "bytes/s"]);
  const WHOLE = new Set(["requests", "count"]);
  const ticks = (highest, unit, maximum) => {
    if (maximum) return [0, 0.25, 0.5, 0.75, 1].map((share) => share * maximum);
    if (!(highest > 0)) highest = 1;
    const factor = unit === "ratio" ? 0.01 : BINARY.has(unit)
      ? 1024 ** Math.max(0, Math.floor(Math.log(highest) / Math.log(1024))) : 1;
    const rough = highest / factor / 4, ten = 10 ** Math.floor(Math.log10(rough));
    let step = [1, 2, 2.5, 5, 10].find((n) => n * ten >= rough) * ten;
    if (WHOLE.has(unit)) step = Math.max(1, Math.ceil(step));
    const found = [];
    for (let at = 0; at <= 5; at += 1) {
      found.push(at * step * factor);
      if (at * step * factor >= highest) break;
    }
    return found;
  };
  const clock = (seconds, long) => {
    const at = new Date(seconds * 1000), two = (n) => String(n).padStart(2, "0");
    const hour = two(at.getHours()) + ":" + two(at.getMinutes());
    const day = two(at.getMonth() + 1) + "-" + two(at.getDate());
    return long ? day + (range > 86400 * 3 ? "" : " " + hour) : hour;
  };

  // ---- a picture -----------------------------------------------------------------------------
  const chart = (panel, lines, from, until, width) => {
    const height = 168, left = 66, right = 10, top = 8, bottom = 22;
    const format = FORMATS[panel.unit];
    const highest = Math.max(0, ...lines.flatMap((line) => line.values.map((pair) => pair[1])));
    const marks = ticks(highest, panel.unit, panel.maximum);
    const ceiling = Math.max(marks[marks.length - 1], panel.maximum ? highest : 0);
    const x = (time) => left + (time - from) / (until - from) * (width - left - right);
    const y = (value) => top + (1 - value / ceiling) * (height - top - bottom);
    const picture = draw("svg", {viewBox: `0 0 ${width} ${height}`, height, role: "img",
      "aria-label": panel.title});
    for (const mark of marks) {
      picture.append(draw("line", {class: "gridline", x1: left, x2: width - right, y1: y(mark), y2: y(mark)}));
      picture.append(draw("text", {x: left - 6, y: y(mark) + 4, "text-anchor": "end"}, format(mark)));
    }
    const long = range > 86400, count = Math.max(2, Math.floor((width - left) / (long ? 100 : 80)));
    for (let at = 0; at <= count; at += 1) {
      const time = from + (until - from) * at / count;
      const anchor = at === 0 ? "start" : at === count ? "end" : "middle";
      picture.append(draw("text", {x: x(time), y: height - 5, "text-anchor": anchor}, clock(time, long)));
    }
    const gap = 3 * (until - from) / POINTS;
    for (const line of lines) {
      let path = "", last = null;
      for (const [time, value] of line.values) {
        path += (last === null || time - last > gap ? "M" : "L") + x(time).toFixed(1) + " " + y(value).toFixed(1);
        last = time;
      }
      // A single reading is a point that can be seen.
      if (line.values.length === 1) path += "h2";
      picture.append(draw("path", {class: "curve", d: path, style: `stroke:var(--c${line.colour})`,
        "stroke-dasharray": line.pattern}));
    }
    const cursor = draw("line", {class: "cursor", y1: top, y2: height - bottom, visibility: "hidden"});
    picture.append(cursor);
    return {picture, cursor, x, left, right, width};
  };
  const near = (values, time, most) => {
    let best = null;
    for (const pair of values) if (!best || Math.abs(pair[0] - time) < Math.abs(best[0] - time)) best = pair;
    return best && Math.abs(best[0] - time) <= most ? best[1] : null;
  };
  const show = (box, panel, lines, from, until) => {
    const format = FORMATS[panel.unit];
    const old = box.querySelector(".body"), body = make("div", {class: "body"});
    box.dataset.series = String(lines.length);
    if (!lines.length) {
      body.append(make("p", {class: "empty"}, "no data"));
      old.replaceWith(body);
      return;
    }
    const shown = lines.slice(0, MOST_LINES);
    const width = Math.max(260, Math.round(box.clientWidth - 24));
    const {picture, cursor, x, left, right} = chart(panel, shown, from, until, width);
    const legend = make("ul", {class: "legend"}), cells = [];
    for (const line of shown) {
      const mark = draw("svg", {class: "mark", viewBox: "0 0 24 4", width: 24, height: 4});
      mark.append(draw("path", {class: "curve", d: "M0 2H24", style: `stroke:var(--c${line.colour})`, "stroke-dasharray": line.pattern}));
      const value = make("b");
      value.textContent = format(line.values[line.values.length - 1][1]);
      cells.push(value);
      legend.append(make("li", {}, mark, make("span", {}, line.name), value));
    }
    if (lines.length > shown.length) legend.append(make("li", {class: "note"}, `and ${lines.length - shown.length} more: choose a host`));
    picture.addEventListener("pointermove", (event) => {
      const place = picture.getBoundingClientRect();
      const at = Math.min(width - right, Math.max(left, (event.clientX - place.left) * width / place.width));
      const time = from + (at - left) / (width - left - right) * (until - from);
      cursor.setAttribute("x1", x(time));
      cursor.setAttribute("x2", x(time));
      cursor.setAttribute("visibility", "visible");
      shown.forEach((line, number) => {
        const value = near(line.values, time, (until - from) / POINTS * 3);
        cells[number].textContent = (value === null ? "–" : format(value)) + " at " + clock(time, range > 86400);
      });
    });
    picture.addEventListener("pointerleave", () => {
      cursor.setAttribute("visibility", "hidden");
      shown.forEach((line, number) => { cells[number].textContent = format(line.values[line.values.length - 1][1]); });
    });
    body.append(picture, legend);
    old.replaceWith(body);
  };

  const named = (metric, line, several) => {
    const words = [];
    if (!host && metric.host) words.push(metric.host);
    if (metric.engine !== undefined && several) words.push("instance " + metric.engine);
    if (line.name) words.push(line.name);
    for (const label of line.labels) if (metric[label] !== undefined) words.push(metric[label]);
    return words.join(" ") || metric.host || "";
  };
  // A colour for what a line is; where there are several hosts, a colour for the host and a dash for what it is.
  const fill = async (box, panel, from, until, step, mine) => {
    const by = host ? "host, engine" : "host";
    const window = Math.max(180, 2 * step);
    const wanted = panel.lines.filter((line) => host || !line.alone);
    const answers = await Promise.all(wanted.map((line) => ask("query_range", {
      query: filled(line.expr, by, selected(), window), start: from, end: until, step})));
    if (mine !== turn) return;
    const metrics = answers.flatMap((answer) => answer.result.map((series) => series.metric));
    const hosts = [...new Set(metrics.map((metric) => metric.host))];
    const several = new Set(metrics.map((metric) => metric.engine).filter((engine) => engine !== undefined)).size > 1;
    const lines = [], kinds = [];
    answers.forEach((answer, kind) => {
      const line = wanted[kind];
      for (const series of answer.result) {
        const values = series.values.map(([time, value]) => [time, Number(value)]).filter((pair) => Number.isFinite(pair[1]));
        if (!values.length) continue;
        const own = hosts.length > 1 ? hosts.indexOf(series.metric.host)
          : line.dash && wanted.length > 2 ? kind : lines.length;
        const key = JSON.stringify([kind, ...line.labels.map((label) => series.metric[label])]);
        if (!kinds.includes(key)) kinds.push(key);
        const dash = hosts.length > 1 ? kinds.indexOf(key) : line.dash ? kind : Math.floor(lines.length / COLOURS);
        lines.push({values, name: named(series.metric, line, several), colour: own % COLOURS,
          pattern: DASHES[dash % DASHES.length]});
      }
    });
    show(box, panel, lines, from, until);
  };

  // ---- hosts and alerts ----------------------------------------------------------------------
  const told = async () => {
    const {alerts} = await ask("alerts", {});
    const firing = alerts.filter((alert) => alert.state === "firing" && (!host || alert.labels.host === host));
    firing.sort((a, b) => (a.labels.severity > b.labels.severity ? 1 : -1));
    const boxes = firing.map((alert) => {
      const link = make("a", {href: "kimi-alerts.html#" + encodeURIComponent(alert.labels.alertname)}, "what to do");
      return make("div", {class: "told " + (alert.labels.severity === "critical" ? "critical" : "warning")},
        make("b", {}, alert.labels.severity || "alert"), " ",
        make("span", {}, alert.annotations.summary || alert.labels.alertname), " ", link);
    });
    document.getElementById("told").replaceChildren(...boxes);
    return firing;
  };
  const COLUMNS = [
    ["running", "requests", "requests", 0], ["waiting", "requests", "requests", 1],
    ["answers", "tokens", "tokens/s", 0], ["median first token", "first_token", "seconds", 0],
    ["cache", "cache", "ratio", 0], ["GPU power", "gpu_power", "watts", 0]];
  const table = async (firing) => {
    const place = document.getElementById("hosts");
    const panels = new Map(rows.flatMap((row) => row.panels.map((panel) => [panel.key, panel])));
    const instant = async (query) => {
      const found = new Map();
      for (const series of (await ask("query", {query})).result) {
        const value = Number(series.value[1]);
        if (Number.isFinite(value)) found.set(series.metric.host, (found.get(series.metric.host) || 0) + value);
      }
      return found;
    };
    const [up, active, starting, ...columns] = await Promise.all([
      instant('max by (host) (up{job=~"kimi-.*"})'),
      instant("sum by (host) (kimi_instance_active)"), instant("sum by (host) (kimi_instance_starting)"),
      ...COLUMNS.map(([, key, , line]) => instant(filled(panels.get(key).lines[line].expr, "host", selected(), 180)))]);
    const names = [...up.keys()].sort();
    choose("host", [["", "all hosts"], ...names.map((name) => [name, name])], host);
    if (host) { place.replaceChildren(); return; }
    const head = make("tr", {}, ...["host", "state", ...COLUMNS.map((row) => row[0]), "alerts"].map((text) => make("th", {}, text)));
    const lines = names.map((name) => {
      const link = make("a", {href: "#" + new URLSearchParams({host: name, range})}, name);
      const state = !up.get(name) ? ["unreachable", "critical"] : active.get(name) ? ["serves", "good"]
        : starting.get(name) ? ["starts", "warning"] : active.has(name) ? ["does not serve", "critical"] : ["unknown", ""];
      const mine = firing.filter((alert) => alert.labels.host === name).length;
      return make("tr", {}, make("td", {}, link), make("td", {class: state[1]}, state[0]),
        ...COLUMNS.map(([, , unit], at) => make("td", {}, columns[at].has(name) ? FORMATS[unit](columns[at].get(name)) : "–")),
        make("td", {class: mine ? "critical" : ""}, String(mine)));
    });
    place.replaceChildren(make("div", {class: "scroll"}, make("table", {}, make("thead", {}, head), make("tbody", {}, ...lines))));
  };
  const choose = (id, options, value) => {
    const list = document.getElementById(id);
    if (value && !options.some(([key]) => String(key) === String(value))) options = [...options, [value, value]];
    list.replaceChildren(...options.map(([key, text]) => make("option", {value: key}, text)));
    list.value = String(value);
  };

  // ---- the page ------------------------------------------------------------------------------
  const boxes = new Map();
  const build = () => {
    const place = document.getElementById("panels");
    for (const row of rows) {
      const grid = make("div", {class: "grid"});
      for (const panel of row.panels) {
        const box = make("section", {"data-panel": panel.key}, make("h3", {}, panel.title),
          make("p", {class: "note"}, panel.note), make("div", {class: "body"}));
        boxes.set(panel, box);
        grid.append(box);
      }
      place.append(make("h2", {}, row.title), grid);
    }
  };
  const refresh = async () => {
    const mine = ++turn, state = document.getElementById("state");
    document.title = host ? "Kimi: " + host : "Kimi: all hosts";
    document.querySelector("h1").textContent = document.title;
    const until = Math.floor(Date.now() / 1000), from = until - range;
    const step = Math.max(15, Math.ceil(range / POINTS));
    try {
      const firing = await told();
      await table(firing);
      await Promise.all([...boxes].map(([panel, box]) => fill(box, panel, from, until, step, mine)));
      if (mine === turn) {
        state.className = "note";
        state.textContent = "as of " + clock(until, false);
        document.body.dataset.drawn = String(mine);
      }
    } catch (problem) {
      state.className = "note critical";
      state.textContent = "Prometheus did not answer: " + problem.message;
    }
  };
  const go = () => { location.hash = new URLSearchParams(host ? {host, range} : {range}); };
  choose("range", RANGES, range);
  choose("host", [["", "all hosts"]], host);
  document.getElementById("host").addEventListener("change", (event) => { host = event.target.value; go(); });
  document.getElementById("range").addEventListener("change", (event) => { range = Number(event.target.value); go(); });
  window.addEventListener("hashchange", () => {
    const now = new URLSearchParams(location.hash.slice(1));
    host = now.get("host") || "";
    range = Number(now.get("range")) || 10800;
    choose("range", RANGES, range);
    refresh();
  });
  let resized;
  window.addEventListener("resize", () => { clearTimeout(resized); resized = setTimeout(refresh, 200); });
  build();
  refresh();
  setInterval(refresh, REFRESH_MS);
})();
