"use strict";
// What the page does when it is looked at; without it the page has the same numbers and pictures.
(() => {
  const all = (where, what) => [...where.querySelectorAll(what)];
  const make = (name, settings = {}, ...inside) => {
    const element = Object.assign(document.createElement(name), settings);
    element.append(...inside);
    return element;
  };
  const drawn = (name, attributes) => {
    const element = document.createElementNS(document.querySelector("svg").namespaceURI, name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    return element;
  };

  // Tables: a click on a head sorts, words in the field above filter.
  const words = cell => (cell.childNodes[0] ? cell.childNodes[0].textContent.trim() : "");
  const number = text => {
    const time = text.match(/^(?:(\d+) h )?(?:(\d+) min)?(?: ?([\d.]+) s)?$/);
    if (text && time) return 3600 * (time[1] || 0) + 60 * (time[2] || 0) + Number(time[3] || 0);
    const found = text.replace(/\u2212/g, "-").replace(/,/g, "").match(/^[-+]?[0-9.]+(e[-+]?[0-9]+)?/i);
    return found ? parseFloat(found[0]) : null;
  };
  const order = (a, b) => {
    const [x, y] = [number(a), number(b)];
    if (x !== null && y !== null) return x - y;
    if (x !== null || y !== null) return x !== null ? 1 : -1;
    return a.localeCompare(b, undefined, { numeric: true });
  };
  const sort = (table, head, place) => {
    const down = head.getAttribute("aria-sort") === "none" ? place > 0 : head.getAttribute("aria-sort") === "ascending";
    all(table, "thead th").forEach(other => other.setAttribute("aria-sort", "none"));
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const rows = all(table.tBodies[0], "tr").map(row => [words(row.cells[place]), row]);
    const empty = text => text === "-" || text === "";
    rows.sort(([a], [b]) => (empty(a) || empty(b) ? empty(a) - empty(b) : down ? order(b, a) : order(a, b)));
    table.tBodies[0].append(...rows.map(([, row]) => row));
  };
  const filter = (table, text) => {
    const wanted = text.toLowerCase().split(/\s+/).filter(Boolean);
    for (const row of all(table.tBodies[0], "tr")) {
      const said = row.textContent.toLowerCase();
      row.hidden = !wanted.every(word => said.includes(word));
    }
  };
  for (const table of all(document, "table.numbers, table.ranking")) {
    if (table.tBodies[0].rows.length < 2) continue;
    all(table, "thead tr:last-child th").forEach((head, place) => {
      head.setAttribute("aria-sort", "none");
      head.tabIndex = 0;
      head.addEventListener("click", () => sort(table, head, place));
      head.addEventListener("keydown", event => event.key === "Enter" && sort(table, head, place));
    });
    if (table.tBodies[0].rows.length < 4) continue;
    const field = make("input", { type: "search", placeholder: "words in a row", ariaLabel: "Show rows with these words" });
    field.addEventListener("input", () => filter(table, field.value));
    table.closest(".scroll").before(make("div", { className: "tools" }, make("label", {}, "Filter ", field)));
  }

  // Legends: a click leaves one of them alone.
  for (const legend of all(document, ".legend")) {
    const section = legend.closest("section");
    const entries = all(legend, "li[data-of]");
    if (entries.length < 2 || !all(section, "svg.chart [data-of]").length) continue;
    const press = entry => {
      const chosen = entry.getAttribute("aria-pressed") === "true" ? null : entry;
      entries.forEach(other => other.setAttribute("aria-pressed", other === chosen));
      for (const shape of all(section, "svg.chart [data-of]"))
        shape.classList.toggle("faded", chosen !== null && shape.dataset.of !== chosen.dataset.of);
    };
    for (const entry of entries) {
      Object.assign(entry, { tabIndex: 0, role: "button", ariaPressed: "false" });
      entry.addEventListener("click", () => press(entry));
      entry.addEventListener("keydown", event => ["Enter", " "].includes(event.key) && (event.preventDefault(), press(entry)));
    }
  }

  // Line charts: values under the pointer, a logarithmic axis, smoothing.
  class Chart {
    constructor(svg) {
      this.svg = svg;
      const [x0, x1, left, right, y0, y1, bottom, top] = svg.dataset.axes.split(" ").map(Number);
      Object.assign(this, { x0, x1, left, right, y0, y1, bottom, top, log: false, smooth: 0 });
      this.lines = all(svg, "[data-values]").map(path => ({
        path,
        drawn: path.getAttribute("d"),
        group: path.parentNode,
        name: path.parentNode.dataset.of,
        points: path.dataset.values.split(" ").map(pair => pair.split(",").map(Number)),
      }));
      this.linear = all(svg, ".grid, .grid + .tick");
      this.extra = drawn("g", {});
      svg.insertBefore(this.extra, svg.querySelector(".grid"));
      this.cross = drawn("line", { class: "cross", y1: top, y2: bottom, visibility: "hidden" });
      svg.append(this.cross);
      this.box = make("div", { className: "values", hidden: true });
      svg.closest("figure").append(this.box);
      svg.addEventListener("pointermove", event => this.point(event));
      svg.addEventListener("pointerleave", () => this.leave());
      this.values();
    }
    x(value) { return this.left + ((value - this.x0) / (this.x1 - this.x0)) * (this.right - this.left); }
    y(value) {
      const [low, high, at] = this.log ? [Math.log(this.least), Math.log(this.most), Math.log(value)] : [this.y0, this.y1, value];
      return this.bottom + ((at - low) / (high - low)) * (this.top - this.bottom);
    }
    get positive() { return this.lines.every(line => line.points.every(([, y]) => y > 0)); }
    values() {
      for (const line of this.lines) {
        let mean = null;
        line.now = line.points.map(([x, y]) => {
          mean = mean === null ? y : this.smooth * mean + (1 - this.smooth) * y;
          return [x, mean];
        });
      }
      const found = this.lines.flatMap(line => line.points.map(([, y]) => y));
      const [low, high] = [Math.min(...found), Math.max(...found)];
      this.least = low < high ? low : low / 2;
      this.most = low < high ? high : high * 2;
    }
    draw() {
      this.values();
      for (const line of this.lines) {
        const places = line.now.map(([x, y]) => `${this.x(x).toFixed(1)} ${this.y(y).toFixed(1)}`);
        line.path.setAttribute("d", this.log || this.smooth ? `M${places.join("L")}` : line.drawn);
        for (const dot of all(line.group, ".dot")) dot.style.display = this.log || this.smooth ? "none" : "";
      }
      for (const band of all(this.svg, ".band")) band.style.display = this.log || this.smooth ? "none" : "";
      for (const mark of this.linear) mark.style.display = this.log ? "none" : "";
      this.extra.replaceChildren();
      if (!this.log) return;
      const marks = [];
      for (let power = Math.floor(Math.log10(this.least)); power <= Math.ceil(Math.log10(this.most)); power += 1)
        for (const step of [1, 2, 5]) marks.push(step * 10 ** power);
      for (const value of marks.filter(one => one >= this.least && one <= this.most)) {
        const y = this.y(value).toFixed(1);
        const text = drawn("text", { class: "tick", x: this.left - 6, y, dy: 3.5, "text-anchor": "end" });
        text.textContent = String(Number(value.toPrecision(3)));
        this.extra.append(drawn("line", { class: "grid", x1: this.left, x2: this.right, y1: y, y2: y }), text);
      }
    }
    point(event) {
      const box = this.svg.getBoundingClientRect();
      const at = this.x0 + (((event.clientX - box.left) / box.width) * this.svg.viewBox.baseVal.width - this.left) / (this.right - this.left) * (this.x1 - this.x0);
      const shown = this.lines.filter(line => !line.group.classList.contains("faded"));
      const places = shown.flatMap(line => line.now.map(([x]) => x));
      if (!places.length) return;
      const x = places.reduce((best, one) => (Math.abs(one - at) < Math.abs(best - at) ? one : best));
      const rows = shown.flatMap(line => line.now.filter(([place]) => place === x).map(([, y]) => [line, y]));
      this.cross.setAttribute("x1", this.x(x));
      this.cross.setAttribute("x2", this.x(x));
      this.cross.setAttribute("visibility", "visible");
      this.box.replaceChildren(make("b", {}, String(Number(x.toPrecision(6)))));
      for (const [line, y] of rows.sort((a, b) => b[1] - a[1])) {
        const swatch = make("i", { className: line.group.getAttribute("class") });
        this.box.append(make("div", {}, swatch, `${line.name}: ${Number(y.toPrecision(4))}`));
      }
      this.box.hidden = false;
      const figure = this.svg.closest("figure").getBoundingClientRect();
      const left = event.clientX - figure.left;
      this.box.style.top = `${event.clientY - figure.top + 14}px`;
      this.box.style.left = left < figure.width / 2 ? `${left + 12}px` : "";
      this.box.style.right = left < figure.width / 2 ? "" : `${figure.width - left + 12}px`;
    }
    leave() {
      this.box.hidden = true;
      this.cross.setAttribute("visibility", "hidden");
    }
  }

  // A picture as a file of its own: what the page's style says of it goes along.
  const STYLES = ["fill", "stroke", "stroke-width", "stroke-dasharray", "stroke-linejoin", "stroke-linecap", "opacity", "font-family", "font-size", "display", "visibility"];
  const download = svg => {
    const copy = svg.cloneNode(true);
    const theirs = [svg, ...all(svg, "*")];
    [copy, ...all(copy, "*")].forEach((element, place) => {
      const style = getComputedStyle(theirs[place]);
      for (const name of STYLES) element.style.setProperty(name, style.getPropertyValue(name));
    });
    const title = (svg.querySelector("title") || svg).textContent.trim().replace(/[^\w.-]+/g, "-");
    const file = new Blob([new XMLSerializer().serializeToString(copy)], { type: "image/svg+xml" });
    const link = make("a", { href: URL.createObjectURL(file), download: `${title}.svg` });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  };

  const charts = new Map(all(document, "svg.chart[data-axes]").map(svg => [svg, new Chart(svg)]));
  for (const svg of all(document, "figure > svg.chart")) {
    const tools = make("div", { className: "tools" });
    const chart = charts.get(svg);
    if (chart && chart.positive) {
      const button = make("button", { type: "button", ariaPressed: "false" }, "Log");
      button.addEventListener("click", () => {
        chart.log = !chart.log;
        button.textContent = chart.log ? "Linear" : "Log";
        button.ariaPressed = String(chart.log);
        chart.draw();
      });
      tools.append(button);
    }
    const save = make("button", { type: "button" }, "SVG");
    save.addEventListener("click", () => download(svg));
    tools.append(save);
    svg.after(tools);
  }
  const training = document.getElementById("training");
  if (training && all(training, "svg.chart[data-axes]").length) {
    const field = make("input", { type: "range", min: 0, max: 0.95, step: 0.05, value: 0 });
    field.addEventListener("input", () => {
      for (const svg of all(training, "svg.chart[data-axes]")) {
        charts.get(svg).smooth = Number(field.value);
        charts.get(svg).draw();
      }
    });
    training.querySelector(".figures").before(make("div", { className: "tools" }, make("label", {}, "Smoothing ", field)));
  }
})();
